"""Sums of branches: a block and its input move together, and the law of a sum is that of one wide layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import records
from support.layer_draws import draw_layers
from support.passes import ends, holds

from bnndp.activations import Gelu, Relu, Tanh
from bnndp.engine.laws.summed import Summed, Unchanged
from bnndp.engine.laws.weights import row_variance, weights_of
from bnndp.engine.moment_pass import MomentPass
from bnndp.engine.moments.signal import of_box
from bnndp.engine.nodes.concatenation import Concatenation
from bnndp.engine.nodes.node import Input
from bnndp.engine.propagation.branches import Branch, summed
from bnndp.engine.rows import DenseRows
from bnndp.geometry.box import Box
from bnndp.layers import Dropout, Flatten, Linear, Residual
from bnndp.network import BayesianNetwork

PHIS = (Relu(), Tanh(), Gelu())


def block_network(seed: int, std: float, phi: Any, *, image: bool) -> BayesianNetwork:
    def dense(o: int, i: int, more: int) -> Linear:
        return records.linear(o, i, 20 * seed + more, std)

    def kernel(o: int, i: int, more: int) -> Any:
        return records.conv(o, i, 20 * seed + more, std=std, padding=1)

    if image:
        block = Residual((kernel(2, 2, 0), phi, kernel(2, 2, 5)))
        layers = (kernel(2, 1, 10), phi, block, phi, Flatten(), dense(2, 32, 15))
        return BayesianNetwork(layers, input_shape=(1, 4, 4))
    block = Residual((dense(7, 5, 0), phi, dense(5, 7, 5)))
    return BayesianNetwork((dense(5, 3, 10), phi, block, phi, Residual((phi,)), dense(2, 5, 15)))


@pytest.mark.parametrize("image", [False, True])
@pytest.mark.parametrize("phi", PHIS, ids=lambda phi: phi.kind)
def test_without_variance_the_bounds_are_the_network(phi: Any, image: bool) -> None:
    network = block_network(0, 0.0, phi, image=image)
    x = records.uniform(3, network.n_in, seed=1)
    value = draw_layers(network, x, 1, torch.Generator())[-1][0]
    found = ends(MomentPass.of(network, Box(x, x)), 2)
    assert holds(found, value, 1e-12)
    assert float((found.upper - found.lower).max()) < 1e-7


@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 9))])
@pytest.mark.parametrize("image", [False, True])
def test_bounds_hold_for_samples(seed: int, image: bool) -> None:
    network = block_network(seed, (0.02, 0.4)[seed % 2], PHIS[seed % 3], image=image)
    box = Box.ball(records.uniform(1, network.n_in, seed=seed), (0.0, 0.02, 0.3)[seed % 3])
    points = torch.cat([box.lower, box.upper, box.centre])
    outputs = draw_layers(network, points, 3000, torch.Generator().manual_seed(seed))[-1]
    bounds = MomentPass.of(network, box)
    assert holds(ends(bounds, 2), outputs.mean(0), 6 * outputs.std(0) / 3000**0.5 + 1e-9)
    assert (outputs.var(0) <= 1.25 * bounds.variance(torch.eye(2, dtype=torch.float64))[0] + 1e-9).all()


@pytest.mark.parametrize("kind", ["same", "opposite", "any"])
@pytest.mark.parametrize("seed", range(4))
def test_the_variance_through_a_linear_block(seed: int, kind: str) -> None:
    """z + W z for z of known covariance: with W = 1 the deviation doubles, with W = -1 nothing is left."""
    n, eye = 3, torch.eye(3, dtype=torch.float64)
    weight = {"same": eye, "opposite": -eye, "any": records.normal(n, n, seed=seed)}[kind]
    first, last = records.linear(n, 2, seed), Linear.fixed(records.normal(2, n, seed=seed + 9))
    network = BayesianNetwork((first, Residual((Linear.fixed(weight),)), last))
    x = records.normal(1, 2, seed=seed + 3)
    rows = records.normal(1, 4, 2, seed=seed + 5)
    found = MomentPass.of(network, Box(x, x)).variance(rows)[0]
    total = rows[0] @ last.weight_mean @ (eye + weight)
    truth = torch.einsum("ri,ik,rk->r", total, records.law(first, x[0])[1], total)
    assert (found >= truth * (1 - 1e-9)).all()
    if kind == "same":
        assert torch.allclose(found, truth, rtol=1e-6)


def signal_of(n: int) -> Any:
    """Independent values with moments that differ from one to the other."""
    layers = (records.linear(n, 2, 3), Tanh(), Linear.fixed(torch.ones(1, n)))
    x = records.normal(2, 2, seed=4)
    return MomentPass.of(BayesianNetwork(layers), Box(x - 0.1, x + 0.1)).hidden.last.signal


def test_the_sum_of_dense_branches_is_one_wide_layer() -> None:
    a, b, eye = records.linear(3, 4, 1), records.linear(3, 2, 5), torch.eye(3, dtype=torch.float64)
    bias = (a.bias_mean + b.bias_mean, torch.hypot(a.bias_std, b.bias_std))
    means = torch.cat([a.weight_mean, b.weight_mean, eye], 1)
    wide = weights_of(Linear(means, torch.cat([a.weight_std, b.weight_std, 0 * eye], 1), *bias), (9,))
    parts = (weights_of(a, (4,)), weights_of(b, (2,)), Unchanged((3,), eye.device))
    found, z, rows = Summed(parts, (3,)), signal_of(9), DenseRows(records.normal(2, 5, 3, seed=8))
    at, away = records.normal(2, 9, seed=9), records.uniform(2, 9, 2, seed=10)
    assert (found.n_in, found.n_out, found.groups, found.random, found.coupled) == (9, 3, 3, True, False)

    def same(name: str, *args: Any) -> None:
        one, other = (getattr(weights, name)(*args) for weights in (found, wide))
        for left, right in zip(*(values_of(each) for each in (one, other)), strict=True):
            assert torch.allclose(left, right, rtol=1e-9, atol=1e-12), name

    assert torch.allclose(found.bias, wide.bias)
    for name, args in {
        "apply": (at,), "spread": (at,), "spread_size": (at,), "spread_excess": (at.abs(),), "mean_spread": (z,),
        "pull": (rows,), "variance_pull": (rows,), "spread_pull": (rows, at), "row_parts": (rows, z, away),
    }.items():  # fmt: skip
        same(name, *args)
    for exponent in (1, 2, 3):
        same("power", at.abs(), exponent)
        same("power_pull", rows, exponent)
    assert bool((found.spread_deviation(z) >= wide.spread_deviation(z) * (1 - 1e-9)).all())
    assert torch.allclose(found.spread_deviation(z), wide.spread_deviation(z), rtol=1e-6)
    for name in ("own_rows", "square_rows"):
        own = torch.cat([each.dense().values for _, each in getattr(found, name)(20)], 1)
        assert torch.allclose(own, torch.cat([each.dense().values for _, each in getattr(wide, name)(20)], 1))
    index = torch.tensor([[2, 0], [1, 1]])
    assert torch.allclose(found.rows_at(index).dense().values, wide.rows_at(index).dense().values)


def values_of(found: Any) -> list[Any]:
    if isinstance(found, torch.Tensor):
        return [found]
    if isinstance(found, tuple):
        return list(found)
    return [found.dense().values] if hasattr(found, "dense") else [found.lower, found.upper]


@pytest.mark.parametrize(
    "kinds", [("conv", "unchanged"), ("conv", "strided"), ("rows", "linear"), ("low rank", "rows")]
)
def test_the_noise_of_a_sum_at_a_point(kinds: tuple[str, str]) -> None:
    """Means and covariances of both branches add up, whatever their laws."""
    layers: dict[str, tuple[Any, tuple[int, ...]]] = {
        "conv": (records.conv(2, 2, 1, padding=1), (2, 4, 4)),
        "strided": (records.conv(2, 2, 5, size=1, stride=1), (2, 4, 4)),
        "rows": (records.correlated(3, 4, 1, shared=False), (4,)),
        "linear": (records.linear(3, 5, 2), (5,)),
        "low rank": (records.correlated(3, 5, 3, shared=True), (5,)),
    }
    ends, truth = [], []
    for k, kind in enumerate(kinds):
        layer, shape = layers.get(kind, (None, (2, 4, 4)))
        x = records.normal(1, torch.Size(shape).numel(), seed=k)
        weights = Unchanged(shape, x.device) if layer is None else weights_of(layer, shape)
        ends.append(Branch(weights, Input(of_box(Box(x, x))), True))
        flat = (x[0], torch.zeros(x.shape[1], x.shape[1])) if layer is None else records.law(layer, x[0].reshape(shape))
        truth.append(flat)
    weights, below = summed(ends, (2, 4, 4) if "conv" in kinds else (3,))
    assert isinstance(below, Concatenation)
    mean, covariance = truth[0][0] + truth[1][0], truth[0][1] + truth[1][1]
    assert torch.allclose(weights.apply(below.mean.lower) + weights.bias, mean)
    assert torch.allclose(weights.spread(below.mean.lower), covariance.diagonal())
    u = records.normal(1, 4, len(mean), seed=6)
    exact = torch.einsum("ri,ik,rk->r", u[0], covariance, u[0])
    assert torch.allclose(row_variance(weights, DenseRows(u), below.signal)[0], exact, rtol=1e-7)
    assert weights.groups == {("conv", "unchanged"): 2, ("conv", "strided"): 2, ("rows", "linear"): 3}.get(kinds, 1)
    joint = weights.joint(below.mean)
    if "conv" in kinds:
        assert joint is not None
        blocks = torch.stack([covariance[:16, :16], covariance[16:, 16:]])
        assert bool(((joint.value[0] - blocks).abs() <= joint.off[0] + 1e-12).all())


def test_branches_of_one_node_are_one_layer() -> None:
    """The sum of layers on the same values keeps what is known of them: here that they are independent."""
    a, b = records.linear(3, 3, 1), records.linear(3, 3, 5)
    first, last = records.linear(3, 2, 7), records.linear(2, 3, 9)
    x = records.normal(1, 2, seed=2)
    for block, weight, std in (
        (Residual((a,), (b,)), a.weight_mean + b.weight_mean, torch.hypot(a.weight_std, b.weight_std)),
        (Residual((a,)), a.weight_mean + torch.eye(3, dtype=torch.float64), a.weight_std),
    ):
        other = b if block.shortcut else Linear.fixed(torch.zeros(3, 3))
        bias = a.bias_mean + other.bias_mean, torch.hypot(a.bias_std, other.bias_std)
        one = BayesianNetwork((first, Relu(), block, Relu(), last))
        same = BayesianNetwork((first, Relu(), Linear(weight, std, *bias), Relu(), last))
        found, wanted = (ends(MomentPass.of(each, Box(x - 0.1, x + 0.1)), 2) for each in (one, same))
        assert torch.allclose(found.lower, wanted.lower, rtol=1e-12)
        assert torch.allclose(found.upper, wanted.upper, rtol=1e-12)


def test_branches_of_an_input_that_is_not_random_are_independent() -> None:
    """Side by side they are a source, unless a branch has no weights: then its noise is that of the values before."""
    x = records.normal(1, 3, seed=2)
    first = (records.linear(4, 3, 1), Relu())
    apart = BayesianNetwork(
        (Residual((*first, records.linear(2, 4, 3)), (records.linear(2, 3, 4), Tanh())), last_of(2)), input_shape=(3,)
    )
    assert MomentPass.of(apart, Box(x, x)).hidden.nodes[-2].signal.source
    shared = BayesianNetwork((*first, Residual((Dropout(0.5), records.linear(4, 4, 3))), last_of(4)))
    inputs = MomentPass.of(shared, Box(x, x)).hidden.nodes[-2]
    assert isinstance(inputs, Concatenation)
    assert inputs.apart == (False, False)
    assert not inputs.signal.source
    assert not bool(inputs.signal.noise.upper.any())


def last_of(n: int) -> Linear:
    return records.linear(2, n, 9)
