"""The variance of Gaussian outputs: at least that at every point of the box, whatever the features below."""

from __future__ import annotations

import itertools
from typing import Any, cast

import pytest
import torch
from support.dice import Dice
from support.ensembles import certain_member
from support.records import correlated, linear, matrix_normal
from torch import Tensor

from bnndp.activations import Gelu, HardTanh, LeakyRelu, Relu, Tanh
from bnndp.activations.activation import Activation
from bnndp.engine.moment_pass import MomentPass
from bnndp.engine.propagation import reach
from bnndp.engine.propagation.outputs import row_variance
from bnndp.engine.propagation.reach import reached_variance
from bnndp.geometry.box import Box
from bnndp.layers import CorrelatedLinear, Linear, MatrixNormalLinear
from bnndp.network import BayesianNetwork

HEADS = {
    "whole": lambda seed: correlated(4, 6, seed, shared=True, rank=5),
    "rows": lambda seed: correlated(4, 6, seed, shared=False, rank=3),
    "matrix normal": lambda seed: matrix_normal(4, 6, seed),
}


def network(head: Any, activation: Any, seed: int, scale: float = 1.0) -> BayesianNetwork:
    below = certain_member((3, 7, 6), seed, activation=activation)
    first = cast("Linear", below.layers[0])
    scaled = Linear.fixed(scale * first.weight_mean, scale * first.bias_mean)
    return BayesianNetwork((scaled, *below.layers[1:], activation, head))


def exact(net: BayesianNetwork, rows: Tensor, x: Tensor) -> Tensor:
    """The variance of the rows (rows, outputs) at points (points, n), by the whole covariance of the outputs."""
    z = x
    for layer in net.layers[:-1]:
        z = z @ layer.weight_mean.mT + layer.bias_mean if isinstance(layer, Linear) else cast("Activation", layer)(z)
    z = torch.cat([z, torch.ones_like(z[:, :1])], -1)
    head = net.layers[-1]
    if isinstance(head, MatrixNormalLinear):
        across = head.row_factor @ head.row_factor.T
        return torch.einsum("ri,ik,rk->r", rows, across, rows) * (z @ head.column_factor).square().sum(-1)[:, None]
    assert isinstance(head, CorrelatedLinear)
    loads = torch.einsum("pj,ijq->piq", z, head.factor)
    if head.shared:
        found = torch.einsum("ri,piq->prq", rows, loads).square().sum(-1)
    else:
        found = torch.einsum("ri,piq->pr", rows.square(), loads.square())
    plain = torch.cat([head.weight_std, head.bias_std[:, None]], -1).square()
    return found + z.square() @ plain.T @ rows.square().T


@pytest.mark.parametrize("activation", [Relu(), LeakyRelu(0.1), Tanh(), HardTanh(), Gelu()], ids=lambda a: a.kind)
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("seed", range(3))
def test_it_is_above_the_variance_at_every_point(head: str, activation: Any, seed: int) -> None:
    dice = Dice(seed)
    net = network(HEADS[head](seed), activation, seed)
    rows = torch.cat([torch.eye(4, dtype=torch.float64)[:1] - torch.eye(4, dtype=torch.float64)[1:], dice.normal(2, 4)])
    for radius in (0.0, 1e-3, 0.1, 1.0):
        box = Box.ball(dice.normal(2, 3), radius)
        hidden = MomentPass.of(net, box).hidden
        found = reached_variance(hidden.output, hidden.last, rows.expand(2, -1, -1))
        assert found is not None
        share = dice.uniform(shape=(300, 1, 3))
        share[:64] = share[:64].round()
        points = box.lower + share * (box.upper - box.lower)
        truth = exact(net, rows, points.reshape(-1, 3)).reshape(300, 2, -1)
        assert bool((truth.amax(0) <= found).all())
        assert bool((row_variance(hidden, rows.expand(2, -1, -1)) <= found).all())
        if radius == 0:
            assert torch.allclose(found, truth[0], rtol=1e-5)


@pytest.mark.parametrize("activation", [Relu(), Tanh()], ids=lambda a: a.kind)
@pytest.mark.parametrize("head", [*HEADS, "dense"])
@pytest.mark.parametrize("seed", range(3))
def test_covariances_hold_at_every_point(head: str, activation: Any, seed: int) -> None:
    """A quarter of the difference of two variances; also of rows that are the same, and of opposite ones."""
    dice = Dice(seed)
    plain = linear(4, 6, seed)
    moments = (plain.weight_mean, plain.weight_std, plain.bias_mean, plain.bias_std)
    twin = CorrelatedLinear(*moments, torch.zeros(4, 7, 1, dtype=torch.float64), shared=False)
    net = network(twin if head == "dense" else HEADS[head](seed), activation, seed)
    asked = network(plain, activation, seed) if head == "dense" else net
    one = torch.eye(4, dtype=torch.float64)
    left, right = one - 0.5 * one[0] - 0.5 * one[1], (one[0] - one[1]).expand(4, -1)
    left, right = torch.cat([left, left, dice.normal(2, 4)]), torch.cat([right, -left[:2], left[2:], dice.normal(2, 4)])
    for radius in (0.0, 1e-3, 0.1, 1.0):
        box = Box.ball(dice.normal(2, 3), radius)
        found = MomentPass.of(asked, box).covariance(left, right)
        share = dice.uniform(shape=(300, 1, 3))
        share[:64] = share[:64].round()
        points = (box.lower + share * (box.upper - box.lower)).reshape(-1, 3)
        truth = 0.25 * (exact(net, left + right, points) - exact(net, left - right, points)).reshape(300, 2, -1)
        assert bool((truth.amax(0) <= found * (1 + 1e-9) + 1e-12).all())
        if radius == 0 and head == "matrix normal":  # a form of one sign
            assert torch.allclose(found, truth[0].clamp_min(0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-25, 1e-8, 1e8, 1e25])
def test_it_holds_at_any_magnitude(scale: float) -> None:
    net, box = network(HEADS["whole"](1), Relu(), 1, scale), Box.ball([[0.3, -0.2, 0.5]], 0.3)
    rows = torch.eye(4, dtype=torch.float64)[:2]
    hidden = MomentPass.of(net, box).hidden
    found = reached_variance(hidden.output, hidden.last, rows[None])
    points = box.lower + Dice(1).uniform(shape=(200, 3)) * (box.upper - box.lower)
    assert found is not None
    assert bool((exact(net, rows, points).amax(0) <= found[0]).all())


def test_it_is_much_smaller_where_features_move_together() -> None:
    """Features that are all the same number, and weights whose noise adds up to zero: no variance at all."""
    noise = torch.eye(4, dtype=torch.float64) - 0.25
    factor = torch.cat([noise, torch.zeros(1, 4, dtype=torch.float64)])[None]
    head = CorrelatedLinear(torch.ones(1, 4), torch.zeros(1, 4), torch.zeros(1), torch.zeros(1), factor, True)
    below = Linear.fixed(torch.ones(4, 1, dtype=torch.float64), torch.ones(4, dtype=torch.float64))
    net = BayesianNetwork((below, Relu(), head))
    hidden = MomentPass.of(net, Box([[-0.5]], [[0.5]])).hidden
    assert row_variance(hidden, torch.ones(1, 1, 1, dtype=torch.float64)).item() < 1e-6


def test_what_is_no_number_or_not_known_bounds_nothing() -> None:
    head = correlated(4, 6, 1, shared=True)
    net = network(head, Relu(), 1)
    hidden = MomentPass.of(net, Box.ball([[0.1, 0.2, 0.3]], 0.1)).hidden
    rows = torch.full((1, 1, 4), torch.nan, dtype=torch.float64)
    found = reached_variance(hidden.output, hidden.last, rows)
    assert found is None or not bool(found.isfinite().any())
    other = MomentPass.of(network(linear(4, 6, 2), Relu(), 1), Box.ball([[0.1, 0.2, 0.3]], 0.1)).hidden
    assert reached_variance(other.output, other.last, torch.ones(1, 1, 4, dtype=torch.float64)) is None


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (1, 6), (6, 6)])
def test_norms_are_bounded(shape: tuple[int, int]) -> None:
    dice = Dice(7)
    for scale in (1e-100, 1.0, 1e100):
        matrix = scale * dice.normal(4, *shape)
        matrix[0] = 0.0
        truth = torch.linalg.matrix_norm(matrix, 2)
        found = reach._spectral_norm(matrix)
        assert bool((truth <= found).all() & (found <= 1.2 * truth + 1e-140).all())
    matrix, radius = dice.normal(2, 3, *shape), dice.uniform(shape=(2, shape[1]))
    signs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=shape[1])), dtype=torch.float64)
    ends = torch.einsum("brqn,bn,vn->vbrq", matrix, radius, signs)
    assert bool((torch.linalg.vector_norm(ends, dim=-1).amax(0) <= reach._reach(matrix, radius)).all())
