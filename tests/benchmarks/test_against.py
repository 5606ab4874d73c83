"""The comparisons of ``make bench``: what they compare with is what it says it is."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from benchmarks import against_crown, against_others, bench, exponents
from benchmarks.baselines import intervals
from benchmarks.timing import by_turns, sample_local
from rich.console import Console

from bnndp import Box, certify
from bnndp.network import BayesianNetwork

NetworkFactory = Callable[..., BayesianNetwork]


def _box(n: int, eps: float, batch: int = 4) -> Box:
    return Box.ball(torch.randn(batch, n, generator=torch.Generator().manual_seed(1), dtype=torch.float64), eps)


@pytest.mark.parametrize("sizes", [(3, 6, 2), (2, 8, 8, 2), (3, 6, 6, 6, 1)], ids=str)
@pytest.mark.parametrize("std", [0.0, 0.3])
def test_intervals_of_moments_hold(random_network: NetworkFactory, sizes: tuple[int, ...], std: float) -> None:
    network, box = random_network(sizes, 3, std=std), _box(sizes[0], 0.1)
    found = intervals.outputs(network, box)
    torch.manual_seed(0)
    for i in range(box.batch):
        for x in (box.lower[i], box.centre[i], box.upper[i]):
            drawn = sample_local(network, x, 20_000, dtype=torch.float64)
            error = 5 * drawn.std(0) / math.sqrt(20_000) + 1e-9  # five standard errors, of a few hundred comparisons
            mean = drawn.mean(0)
            assert ((mean >= found.mean.lower[i] - error) & (mean <= found.mean.upper[i] + error)).all()
            assert (drawn.var(0) <= found.variance[i] * 1.1 + 1e-12).all()  # 1 % is its standard error, tails heavier


def test_intervals_of_moments_are_wider_than_ours(random_network: NetworkFactory) -> None:
    network, box = random_network((3, 12, 12, 3), 3, std=0.1, task="classification"), _box(3, 0.02)
    wide, ours = intervals.probabilities(network, box), certify(network, box)
    assert (wide.upper - wide.lower > ours.width).all()
    assert (wide.lower <= ours.upper).all()
    assert (wide.upper >= ours.lower).all()


def test_one_hidden_layer_by_intervals_is_exact_at_a_point(random_network: NetworkFactory) -> None:
    network, box = random_network((3, 12, 2), 3, std=0.3), _box(3, 0.0)
    found, ours = intervals.outputs(network, box).mean, certify(network, box)
    assert torch.allclose(found.lower, ours.lower, atol=1e-10)
    assert torch.allclose(found.upper, ours.upper, atol=1e-10)


def test_so_many_draws_make_the_interval_as_narrow() -> None:
    std, width = torch.tensor([1.0, 2.0, 1e-9]), torch.tensor([0.1, 0.1, 0.1])
    found = against_others.draws_needed(std, width)
    half = 3.890592 * std / found.sqrt()  # P(|N(0, 1)| <= 3.890592) = 0.9999
    assert (2 * half <= width * (1 + 1e-6)).all()
    assert (2 * 3.890592 * std[:2] / (found[:2] - 2).sqrt() > width[:2]).all()
    assert found[2] == 30


def test_the_table_of_ways_has_every_way(random_network: NetworkFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    case = against_others.Case("own", lambda: random_network((2, 8, 8, 1), 1, std=0.1), "sine2d", 1e-2)
    monkeypatch.setattr(against_others, "CASES", (case,))
    ours, wide, *crown, sampled = against_others.measure(boxes=4)
    assert (ours.way, wide.way, sampled.way) == ("bnndp", "intervals of moments", "sampling, one point")
    assert len(crown) == against_crown.available()
    assert ours.width < wide.width
    assert all(row.wall > 0 and row.cpu > 0 for row in (ours, wide, *crown, sampled))


def test_turns_alternate() -> None:
    calls: list[int] = []
    by_turns([lambda: calls.append(0), lambda: calls.append(1)], repeats=4)
    assert calls == [0, 1] * 5


@pytest.mark.parametrize("power", [0.0, 1.0, 2.5])
def test_exponent_of_a_power_law(power: float) -> None:
    sizes = (3, 8, 20, 100)
    assert exponents.exponent(sizes, [7e-3 * size**power for size in sizes]) == pytest.approx(power)


def test_exponents_are_measured_along_one_axis(monkeypatch: pytest.MonkeyPatch) -> None:
    def seconds(axis: exponents.Axis, size: int) -> float:
        return float(size**2)

    monkeypatch.setattr(exponents, "_seconds", seconds)
    for found, axis in zip(exponents.measure(), exponents.AXES, strict=True):
        assert found.exponent == pytest.approx(2)
        assert found.of_larger == pytest.approx(2)
        assert axis.name not in found.fixed


def test_quick_exponents_run_and_are_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    small = exponents.Axis("width", (4, 8, 16), inputs=2, depth=1, batch=2)
    monkeypatch.setattr(exponents, "AXES", (small,))
    bench.main(["--quick", "--only", "exponents", "--out", str(tmp_path)])
    (row,) = json.loads((tmp_path / "results-exponents.json").read_text())["exponents"]
    assert row["sizes"] == [4, 8, 16]
    assert all(second > 0 for second in row["seconds"])


def test_parts_in_one_file_stay(tmp_path: Path) -> None:
    for part in ("speed", "cost"):
        bench._write(tmp_path, part, {"of": part}, quick=False)
    found = json.loads((tmp_path / "results.json").read_text())
    assert (found["speed"], found["cost"]) == ({"of": "speed"}, {"of": "cost"})


def test_without_auto_lirpa_the_rows_are_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> None:
        raise ImportError("No module named 'auto_LiRPA'")

    monkeypatch.setattr(against_crown, "_library", missing)
    assert bench._crown(Console(width=150), True) == []
    assert "auto_LiRPA is not installed" in capsys.readouterr().out


@pytest.mark.parametrize("sizes", [(4, 9, 3), (3, 8, 8, 2), (4, 10, 10, 10, 2)], ids=str)
@pytest.mark.parametrize("shifted", [False, True])
def test_crown_of_auto_lirpa_bounds_the_network(
    random_network: NetworkFactory, sizes: tuple[int, ...], shifted: bool
) -> None:
    if not against_crown.available():
        pytest.skip("auto_LiRPA is not installed; make bench-crown installs it")
    network = random_network(sizes, 5, std=0.0)
    if shifted:
        network = BayesianNetwork.from_linears(network.linears, shift=torch.linspace(-1, 1, sizes[0]).double())
    box = _box(sizes[0], 0.1)
    theirs, ours = against_crown.crown(network)(box), certify(network, box)
    slack = 1e-9 * (theirs.upper - theirs.lower) + 1e-12
    assert ((ours.lower >= theirs.lower - slack) & (ours.upper <= theirs.upper + slack)).double().mean() >= 0.95
    assert (ours.lower <= theirs.upper + slack).all()
    assert (ours.upper >= theirs.lower - slack).all()
    point = against_crown.crown(network)(Box(box.centre, box.centre))
    assert torch.allclose(point.lower, certify(network, Box(box.centre, box.centre)).lower, atol=1e-9)


def test_the_mean_network_has_no_variance(random_network: NetworkFactory) -> None:
    network = random_network((3, 6, 2), 1, std=0.3, task="classification")
    found = against_crown.mean_network(network)
    assert not found.random
    assert found.task == "regression"
    assert all(torch.equal(a.weight_mean, b.weight_mean) for a, b in zip(found.linears, network.linears, strict=True))
