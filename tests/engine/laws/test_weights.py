"""Layers with random weights on boxes of inputs, against their explicit covariances at points of the box."""

from __future__ import annotations

import math

import pytest
import torch
from support import records
from support.passes import ends
from tests.marks import slow_but
from torch import Tensor

from bnndp.activations import Relu
from bnndp.engine.laws.weights import weights_of
from bnndp.engine.moment_pass import MomentPass
from bnndp.engine.moments.signal import POWERS, of_box
from bnndp.engine.nodes.node import Input
from bnndp.engine.nodes.weighted import Weighted
from bnndp.engine.rows import DenseRows
from bnndp.geometry.box import Box
from bnndp.layers import Conv2d, CorrelatedLinear, Dropout, Flatten, Linear, MatrixNormalLinear
from bnndp.network import BayesianNetwork

KINDS = {name: pair for name, pair in records.RANDOM.items() if not isinstance(pair[0], Dropout)}
F64 = torch.float64


def points(box: Box, count: int, seed: int) -> Tensor:
    """Corners and inner points: (count, n)."""
    share = records.uniform(count, box.n, seed=seed)
    share[: count // 2] = share[: count // 2].round()
    return box.lower[0] + share * (box.upper - box.lower)[0]


@pytest.mark.parametrize("radius", [0.0, 0.2, 2.0])
@pytest.mark.parametrize("seed", slow_but(range(3), 0))
@pytest.mark.parametrize("name", KINDS)
def test_no_point_of_the_box_has_a_larger_deviation(name: str, seed: int, radius: float) -> None:
    layer, shape = KINDS[name]
    weights = weights_of(layer, shape)
    n = math.prod(shape)
    box = Box.ball(2 * records.normal(1, n, seed=seed), radius)
    rows = records.normal(1, 5, weights.n_out, seed=seed + 1)
    found, _ = weights.row_parts(DenseRows(rows), of_box(box), torch.zeros(1, n, len(POWERS), dtype=F64))
    deepest = torch.zeros(5, dtype=F64)
    for z in points(box, 40, seed):
        covariance = records.law(layer, z.reshape(shape))[1]
        deviation = torch.einsum("ri,ik,rk->r", rows[0], covariance, rows[0]).clamp_min(0).sqrt()
        assert (found[0] >= deviation * (1 - 1e-9)).all()
        deepest = torch.maximum(deepest, deviation)
    if radius == 0:
        assert torch.allclose(found[0], deepest, rtol=1e-6)


@pytest.mark.parametrize("name", KINDS)
def test_planes_in_means_and_spreads_hold_on_boxes(name: str) -> None:
    """Coefficients of either sign for the means and for the spreads, carried to z: the bound holds wherever z is."""
    layer, shape = KINDS[name]
    n = math.prod(shape)
    centre = records.normal(1, n, seed=6)
    radius = records.uniform(1, n, seed=7)
    box = Box(centre - radius, centre + radius)
    below = Input(of_box(box))
    weights = weights_of(layer, shape)
    weighted = Weighted(weights, below, weights.power(below.signal.mean.magnitude, 1) + weights.bias.abs())
    rows, beta = records.normal(1, 6, weights.n_out, seed=8), records.normal(1, 6, weights.n_out, seed=9)
    beta[:, 0], beta[:, 1], rows[:, 1] = beta[:, 0].abs(), -beta[:, 1].abs(), 0.0
    found = weighted.lower(DenseRows(rows), DenseRows(beta), torch.zeros(1, 6, dtype=torch.float64))
    matrix, constant = found.rows.dense().values[0], found.constant
    for z in points(box, 40, 0):
        mean, covariance = records.law(layer, z.reshape(shape))
        truth = rows[0] @ mean + beta[0] @ covariance.diagonal()
        gap = truth - matrix @ z - constant[0]
        assert bool((gap >= -1e-12).all()), gap.min()
    # At the middle a positive coefficient takes the tangent, which touches there.
    mean, covariance = records.law(layer, centre.reshape(shape))
    gap = rows[0] @ mean + beta[0] @ covariance.diagonal() - matrix @ centre[0] - constant[0]
    assert gap[0].abs() < 1e-10


@pytest.mark.parametrize("kind", ["linear", "correlated", "matrix", "conv"])
def test_deviations_whose_squares_underflow(kind: str) -> None:
    """1e-170 squared is 0, so that a kink there would count as certain: E max(X, 0) is 0.4 deviations, not 0."""
    one = torch.ones(1, 1, dtype=torch.float64)
    zero, tiny = 0 * one, 1e-170 * one
    layers = {
        "linear": Linear(zero, tiny, zero[0], zero[0]),
        "correlated": CorrelatedLinear(zero, zero, zero[0], zero[0], torch.cat([tiny, zero])[None], True),
        "matrix": MatrixNormalLinear(zero, zero[0], tiny, torch.cat([one, zero])),
        "conv": Conv2d(zero[..., None, None], tiny[..., None, None], zero[0], zero[0]),
    }
    shape = (1, 1, 1) if kind == "conv" else (1,)
    network = BayesianNetwork((layers[kind], Relu(), Flatten(), Linear.fixed(1e30 * one)), input_shape=shape)
    found = ends(MomentPass.of(network, Box(one, one)), 1)
    assert found.lower.item() <= 0.3989422804e-140 <= found.upper.item() < 10
