"""A small campaign in every run of the tests: all families of networks, all methods, no bound may be broken."""

from __future__ import annotations

import pytest
import torch
from benchmarks.fuzz.regression import METHODS, examine, main
from benchmarks.fuzz.regression_cases import FAMILIES, make_case
from tests.marks import slow_but

from bnndp.attack.sampling import is_exact

SEED = 20


@pytest.mark.parametrize(
    "index", slow_but(range(len(FAMILIES) + 5), *range(len(FAMILIES)))
)  # 18 networks with five boxes each: 90 pairs
def test_no_bound_is_broken(index: int) -> None:
    methods = METHODS if index % 4 == 0 else METHODS[:3]
    case = make_case(SEED, index)
    reports = examine(case, methods, seed=SEED, samples=1024)
    assert [report.method for report in reports] == list(methods)
    assert not [(report.method, report.failure) for report in reports if report.failure]
    assert not [finding for report in reports for finding in report.violations]
    assert all(report.margin > -1e-9 for report in reports)


def test_the_cases_are_as_wild_as_promised() -> None:
    cases = [make_case(0, index) for index in range(10 * len(FAMILIES))]
    networks = [case.network for case in cases]
    assert {network.depth for network in networks} == {1, 2, 3, 4}
    widths = [width for network in networks for width in network.sizes[1:-1]]
    assert min(widths) == 1
    assert max(widths) > 48
    assert {network.n_in for network in networks} >= {1, 2, 16}
    boxes = [case.box for case in cases]
    half = torch.cat([(box.upper - box.lower).flatten() / 2 for box in boxes])
    assert (half == 0).any()
    assert half.max() > 0.9
    assert any((box.upper < 0).all(-1).any() for box in boxes)
    assert any(box.within is not None for box in boxes)
    scale = torch.cat([layer.weight_std.flatten() for network in networks for layer in network.linears])
    assert (scale == 0).any()
    assert scale[scale > 0].min() < 1e-5
    assert scale.max() > 3
    assert any(is_exact(network) and network.depth > 1 for network in networks)


def test_a_case_is_determined_by_seed_and_index() -> None:
    a, b, c = make_case(3, 11), make_case(3, 11), make_case(4, 11)
    assert a.network.digest() == b.network.digest() != c.network.digest()
    assert torch.equal(a.box.lower, b.box.lower)


def test_the_command_reports_and_ends_with_success(capsys: pytest.CaptureFixture[str], tmp_path: object) -> None:
    out = f"{tmp_path}/log.jsonl"
    assert main(["--only", "1", "--samples", "256", "--methods", "moment,best", "--out", out]) == 0
    text = capsys.readouterr().out
    assert "moment" in text
    assert "5 network x box pairs on 1 networks" in text
    with open(out, encoding="utf-8") as lines:
        assert len(lines.readlines()) == 2
