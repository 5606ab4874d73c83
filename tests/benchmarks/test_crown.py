"""The comparison with auto_LiRPA: its CROWN bounds the same network, and is left out where it is not installed."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
import torch
from benchmarks import __main__ as bench
from benchmarks import crown
from support.networks import make_network

from bnndp import Box, certify
from bnndp.network import BayesianNetwork


def _box(n: int, eps: float, batch: int = 4) -> Box:
    return Box.ball(torch.randn(batch, n, generator=torch.Generator().manual_seed(1), dtype=torch.float64), eps)


def test_without_auto_lirpa_the_rows_are_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(crown, "_library", Mock(side_effect=ImportError("No module named 'auto_LiRPA'")))
    bench.main(["--only", "crown"])
    assert "auto_LiRPA is not installed" in capsys.readouterr().out


@pytest.mark.parametrize("sizes", [(4, 9, 3), (3, 8, 8, 2), (4, 10, 10, 10, 2)], ids=str)
@pytest.mark.parametrize("shifted", [False, True])
def test_crown_of_auto_lirpa_bounds_the_network(sizes: tuple[int, ...], shifted: bool) -> None:
    if not crown.available():
        pytest.skip("auto_LiRPA is not installed; make bench-crown installs it")
    network = make_network(sizes, 5, std=0.0)
    if shifted:
        network = BayesianNetwork.from_linears(network.linears, shift=torch.linspace(-1, 1, sizes[0]).double())
    box = _box(sizes[0], 0.1)
    theirs, ours = crown.crown(network)(box), certify(network, box)
    slack = 1e-9 * (theirs.upper - theirs.lower) + 1e-12
    assert ((ours.lower >= theirs.lower - slack) & (ours.upper <= theirs.upper + slack)).double().mean() >= 0.95
    assert (ours.lower <= theirs.upper + slack).all()
    assert (ours.upper >= theirs.lower - slack).all()
    point = crown.crown(network)(Box(box.centre, box.centre))
    assert torch.allclose(point.lower, certify(network, Box(box.centre, box.centre)).lower, atol=1e-9)


def test_the_mean_network_has_no_variance() -> None:
    network = make_network((3, 6, 2), 1, std=0.3, task="classification")
    found = crown.mean_network(network)
    assert not found.random
    assert found.task == "regression"
    assert all(torch.equal(a.weight_mean, b.weight_mean) for a, b in zip(found.linears, network.linears, strict=True))
