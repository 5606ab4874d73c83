"""``assert_robust`` passes exactly where the certificates do, and says which inputs fail."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

import bnndp
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork


def _line(*weights: float, task: str) -> BayesianNetwork:
    mean = torch.tensor(weights, dtype=torch.float64)[:, None]
    zero = torch.zeros(len(weights), dtype=torch.float64)
    return BayesianNetwork.from_linears([Linear(mean, torch.zeros_like(mean), zero, zero)], task)


CLASSIFIER = _line(1.0, -1.0, task="classification")  # decides 0 where x > 0
POINTS = torch.tensor([[0.3], [0.05], [0.6]], dtype=torch.float64)


def test_a_classifier_passes_where_all_decisions_hold() -> None:
    bnndp.assert_robust(CLASSIFIER, POINTS[[0, 2]], eps=0.2)
    bnndp.assert_robust(CLASSIFIER, POINTS, torch.zeros(3, dtype=torch.long), eps=0.04)


def test_it_names_the_inputs_that_fail() -> None:
    with pytest.raises(
        AssertionError, match=r"2 of 3 inputs certified, a share of 1 asked for.*Input 1: falsified"
    ) as found:
        bnndp.assert_robust(CLASSIFIER, POINTS, eps=0.2)
    assert isinstance(found.value, bnndp.questions.assertions.NotRobust)
    assert [each.value for each in found.value.verdict] == ["certified", "falsified", "certified"]


def test_a_share_may_fail() -> None:
    bnndp.assert_robust(CLASSIFIER, POINTS, eps=0.2, share=0.66)
    with pytest.raises(bnndp.questions.assertions.NotRobust, match="asked for"):
        bnndp.assert_robust(CLASSIFIER, POINTS, eps=0.2, share=0.67)


def test_a_share_is_that_of_the_inputs_and_no_rounding_more() -> None:
    """0.55 * 100 is above 55 in floating point."""
    x = torch.cat([POINTS[:1].expand(55, 1), POINTS[1:2].expand(45, 1)])
    bnndp.assert_robust(CLASSIFIER, x, eps=0.2, share=0.55)
    with pytest.raises(bnndp.questions.assertions.NotRobust, match="55 of 100"):
        bnndp.assert_robust(CLASSIFIER, x, eps=0.2, share=0.551)


def test_a_wrong_label_is_not_robust() -> None:
    with pytest.raises(bnndp.questions.assertions.NotRobust, match="0 of 3"):
        bnndp.assert_robust(CLASSIFIER, POINTS, torch.ones(3, dtype=torch.long), eps=0.01)


def test_a_regression_network_is_asked_for_its_change() -> None:
    network = _line(2.0, task="regression")
    bnndp.assert_robust(network, POINTS, eps=0.1, gamma=0.2001)
    with pytest.raises(bnndp.questions.assertions.NotRobust, match=r"Input 0: falsified, changes by up to 0\.2"):
        bnndp.assert_robust(network, POINTS, eps=0.1, gamma=0.1999)


@pytest.mark.parametrize(
    ("network", "more"),
    [
        (CLASSIFIER, {"gamma": 1.0}),
        (CLASSIFIER, {"share": 0.0}),
        (CLASSIFIER, {"share": float("nan")}),
        (_line(1.0, task="regression"), {}),
        (_line(1.0, task="regression"), {"gamma": 1.0, "label": 0}),
    ],
)
def test_questions_that_make_no_sense_are_refused(network: BayesianNetwork, more: dict[str, object]) -> None:
    with pytest.raises(bnndp.CertError):
        bnndp.assert_robust(network, POINTS, eps=0.1, **more)  # type: ignore[arg-type]


def test_tables_for_notebooks_show_the_numbers() -> None:
    box = bnndp.Box.ball(POINTS, 0.1)
    bounds = bnndp.certify(_line(2.0, task="regression"), box)._repr_html_()
    assert "Bounds of 3 boxes" in bounds
    assert "0.4<" in bounds
    decision = bnndp.robust_decision(CLASSIFIER, POINTS, box)._repr_html_()
    assert decision.count("certified") == 2
    assert "falsified" in decision


def test_radii_and_curves_have_tables_too() -> None:
    found = bnndp.evaluate(CLASSIFIER, POINTS, torch.zeros(3, dtype=torch.long))
    assert "Radii of 3 inputs" in found._repr_html_()
    curve = found.curve([0.0, 0.2])._repr_html_()
    assert "100.0% at the input" in curve
    assert "0.66667" in curve
    radii = bnndp.certified_radius(CLASSIFIER, POINTS, search=bnndp.Search(attack=False))._repr_html_()
    assert radii.count("<tr>") == 4
    assert "–" in radii  # no attack was asked for


def test_long_results_are_cut() -> None:
    box = bnndp.Box.ball(torch.zeros(40, 1, dtype=torch.float64), 0.1)
    assert "and 28 more" in bnndp.certify(_line(2.0, task="regression"), box)._repr_html_()


def test_progress_sees_every_batch_and_changes_nothing() -> None:
    x = torch.linspace(0.1, 1, 150, dtype=torch.float64)[:, None]
    seen: list[slice] = []

    def progress(parts: Sequence[slice]) -> Iterator[slice]:
        for part in parts:
            seen.append(part)
            yield part

    watched, plain = bnndp.evaluate(CLASSIFIER, x, progress=progress), bnndp.evaluate(CLASSIFIER, x)
    assert [part.start for part in seen] == [0, 64, 128]
    torch.testing.assert_close(watched.radius, plain.radius, rtol=0.02, atol=0)
    assert torch.equal(watched.label, plain.label)


def test_the_example_runs_without_pytest() -> None:
    example = Path(__file__).resolve().parent.parent / "examples" / "assert_robust.py"
    program = f"import runpy, sys; sys.modules['pytest'] = None; runpy.run_path({str(example)!r}, run_name='__main__')"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert "inputs certified" in result.stdout  # what is refused, said
