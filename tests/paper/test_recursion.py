"""Soundness of the whole recursion: exact means for one hidden layer, nested quadrature and sampling for more."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from flint import arb
from support import oracles
from support.ensembles import outputs
from support.passes import holds
from tests.marks import slow_but
from tests.paper.truth import linear, narrow_mean, network_of, points_of, sampled_mean
from torch import Tensor

from bnndp.errors import InputError
from bnndp.files.posterior import load
from bnndp.geometry.bounds import AffineBounds
from bnndp.geometry.box import Box
from bnndp.network import BayesianNetwork
from bnndp.paper.recursion import bound


def affine(matrix: Tensor, offset: Tensor, x: list[float]) -> arb:
    return sum((arb(a) * arb(b) for a, b in zip(matrix.tolist(), x, strict=True)), arb(offset.item()))


def encloses_exactly(found: AffineBounds, network: BayesianNetwork, x: list[float]) -> bool:
    """In ball arithmetic, without any tolerance."""
    return all(
        affine(found.lower.matrix[0, i], found.lower.offset[0, i], x) <= truth
        and affine(found.upper.matrix[0, i], found.upper.offset[0, i], x) >= truth
        for i, truth in enumerate(oracles.exact_mean(network, x))
    )


@pytest.mark.parametrize("std", [0.0, 1e-200, 1e-6, 0.3, 50.0])
@pytest.mark.parametrize("width", [0.0, 1e-3, 1.0])
@pytest.mark.parametrize("n_in", [1, 2, 5])
def test_one_hidden_layer_encloses_the_exact_mean(n_in: int, width: float, std: float) -> None:
    for seed in range(2):
        network = network_of((n_in, 7, 3), seed, std)
        centre = 2 * torch.rand(n_in, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 1
        box = Box(centre - width, centre + width)
        found = bound(network, box)
        assert all(encloses_exactly(found, network, x) for x in points_of(box, seed).tolist())


def test_no_hidden_layer_is_exact() -> None:
    network = network_of((3, 2), 0, 1.0)
    box = Box([-1.0, 0.0, 2.0], [1.0, 0.0, 3.0])
    found = bound(network, box)
    assert torch.equal(found.lower.matrix, found.upper.matrix)
    assert all(encloses_exactly(found, network, x) for x in points_of(box, 0).tolist())


@pytest.mark.parametrize(
    ("mass", "cells"), slow_but([(1e-3, 2), (1e-3, 4), (0.5, 3), (0.99, 2), (0.99, 6)], (1e-3, 4), (0.99, 2))
)
@pytest.mark.parametrize("std", slow_but([0.0, 1e-4, 0.1, 1.0, 20.0], 1e-4, 1.0))
def test_deep_narrow_networks_enclose_the_integrated_mean(std: float, mass: float, cells: int) -> None:
    """Here the bounds come within 1e-12 of the truth (small deviations), so a lost term would show."""
    for seed, (sizes, width) in enumerate(
        [((1, 1, 3, 1), 0.1), ((2, 1, 4, 2), 0.0), ((3, 1, 1, 1), 1.0), ((2, 1, 1, 3, 1), 1e-3)]
    ):
        network = network_of(sizes, seed, std)
        centre = 2 * torch.rand(sizes[0], generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 1
        box = Box(centre - width, centre + width)
        found = bound(network, box, mass=mass, cells=cells)
        for x in points_of(box, seed, count=1)[-3:].tolist():
            truth = torch.from_numpy(narrow_mean(network, x))
            point = torch.tensor([x], dtype=torch.float64)
            error = 1e-11 * (1 + truth.abs())  # of the quadrature, smooth in t
            error = error if std > 0 else 1e-9 * (1 + truth.abs())
            assert (found.lower(point)[0] <= truth + error).all()
            assert (found.upper(point)[0] >= truth - error).all()


@pytest.mark.parametrize(
    ("sizes", "std"), [((2, 12, 9, 2), 0.05), ((3, 8, 8, 1), 1.0), ((2, 6, 6, 6, 1), 0.3), ((4, 5, 1, 5, 2), 0.1)]
)
def test_wide_networks_enclose_the_sampled_mean(sizes: tuple[int, ...], std: float) -> None:
    network = network_of(sizes, 9, std)
    box = Box.ball(torch.linspace(-0.5, 0.5, sizes[0], dtype=torch.float64), 0.05)
    x = points_of(box, 5)
    mean, error = sampled_mean(network, x, 4000, seed=0)
    for mass, cells in ((1e-3, 2), (0.9, 2), (0.9, 5)):
        found = bound(network, box, mass=mass, cells=cells)
        assert (found.lower(x[:, None])[..., 0, :].reshape(mean.shape) <= mean + 5 * error).all()
        assert (found.upper(x[:, None])[..., 0, :].reshape(mean.shape) >= mean - 5 * error).all()


@pytest.mark.parametrize("sizes", [(2, 5, 4, 3), (2, 5, 4, 4, 1)])
def test_a_batch_is_the_boxes_one_by_one(sizes: tuple[int, ...]) -> None:
    network = network_of(sizes, 3, 0.3)
    boxes = Box(
        torch.tensor([[-1.0, 0.0], [0.2, 0.2], [1.0, -3.0]]), torch.tensor([[-0.5, 0.0], [0.3, 0.9], [2.0, -2.0]])
    )
    together = bound(network, boxes, mass=0.5, cells=4).interval()
    for i in range(3):
        alone = bound(network, boxes[i : i + 1], mass=0.5, cells=4).interval()
        assert torch.allclose(together.lower[i], alone.lower[0], rtol=1e-12, atol=1e-12)
        assert torch.allclose(together.upper[i], alone.upper[0], rtol=1e-12, atol=1e-12)


def test_more_cells_are_not_wider_with_two_hidden_layers_and_here_tighter() -> None:
    """The recursion falls back on the main bound row by row, so cells cannot hurt in the last step."""
    network = network_of((2, 8, 8, 1), 4, 0.3)
    box = Box.ball([0.3, -0.2], 0.05)
    widths = [(i := bound(network, box, mass=0.5, cells=cells).interval()).upper - i.lower for cells in (2, 3, 9)]
    assert widths[1] <= widths[0] * (1 + 1e-12)
    assert widths[2] < 0.95 * widths[0]


def test_ordinary_network_at_a_point_is_evaluated() -> None:
    network = network_of((3, 6, 5, 4, 2), 5, 0.0)
    x = torch.tensor([[0.1, -2.0, 0.7]], dtype=torch.float64)
    found = bound(network, Box(x, x), cells=3).interval()
    assert holds(found, outputs(network, x)[0], 0.0)
    assert (found.upper - found.lower).max() < 1e-10


def test_dead_and_single_neurons() -> None:
    dead = linear([[1.0], [1.0]], [[0.0], [0.1]], [-50.0, -50.0], [0.0, 0.1])
    second = linear([[1.0, 2.0]], [[0.5, 0.5]], [-1.0], [0.3])
    last = linear([[3.0]], [[9.0]], [0.5], [9.0])
    network = BayesianNetwork.from_linears([dead, second, last])
    truth = 3 * float(oracles.expected_relu(-1.0, 0.3)) + 0.5
    for cells in (2, 4):
        found = bound(network, Box([-1.0], [1.0]), cells=cells).interval()
        assert found.lower.item() <= truth <= found.upper.item()
        assert (found.upper - found.lower).item() < 1e-10


@pytest.mark.parametrize("std", [1e10, 1e60])
def test_huge_deviations_give_finite_bounds(std: float) -> None:
    network = network_of((2, 3, 3, 1), 6, std)
    box = Box([-1.0, 0.5], [1.0, 0.5])
    for cells in (2, 4):
        found = bound(network, box, cells=cells).interval()
        assert torch.isfinite(found.lower).all()
        assert torch.isfinite(found.upper).all()
        x = points_of(box, 1)
        mean, error = sampled_mean(network, x, 2000, seed=1)
        assert holds(found, mean, 5 * error)


def test_overflow_is_never_hidden() -> None:
    """Variances beyond float64: whatever comes out must not look like a bound."""
    for sizes in ((2, 3, 1), (2, 3, 3, 1)):
        found = bound(network_of(sizes, 7, 1e200), Box([-1.0, 0.5], [1.0, 0.5]), cells=3).interval()
        assert not torch.isfinite(found.upper - found.lower).any()


def test_sine_network_of_the_paper(posteriors: Path) -> None:
    network = load(posteriors / "sine1d_1x256.safetensors")
    found = bound(network, Box.ball([0.7], 0.075))
    interval = found.interval()
    assert (interval.upper - interval.lower).item() < 0.39
    assert interval.lower.item() <= -0.8914
    assert interval.upper.item() >= -0.5793
    point = bound(network, Box.ball([0.7], 0.0)).interval()
    assert (point.upper - point.lower).item() < 1e-9


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mass": 0.0}, "mass must lie"),
        ({"mass": 1.0}, "mass must lie"),
        ({"mass": float("nan")}, "mass must lie"),
        ({"cells": 1}, "cells must be"),
        ({"cells": 2.5}, "cells must be"),
    ],
)
def test_refusals(change: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        bound(network_of((2, 3, 1), 0, 0.1), Box([0.0, 0.0], [1.0, 1.0]), **change)
    with pytest.raises(InputError, match="takes 2 inputs, the box has 1"):
        bound(network_of((2, 3, 1), 0, 0.1), Box([0.0], [1.0]))
