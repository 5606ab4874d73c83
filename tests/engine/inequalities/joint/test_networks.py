"""Whole networks whose first layer has a shared noise, at points of boxes: means and variances of their outputs."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support import records
from support.layer_networks import ACTS, activation
from support.passes import ends, holds
from tests.engine.gaussian_truths import F64, KINKS, ball, matrix_normal, outcomes, shared, spreads, value_of
from tests.engine.laws.test_weights import points
from tests.marks import slow_but
from torch import Tensor

from bnndp.engine.moment_pass import MomentPass
from bnndp.layers import Conv2d, CorrelatedLinear, Flatten
from bnndp.network import BayesianNetwork

DRAWS = 50_000


def _conv(std: float) -> Conv2d:
    """One channel, two noises."""
    layer = records.conv(1, 1, 5, size=1, std=std)
    return Conv2d(
        records.normal(1, 1, 1, 2, seed=6), std * torch.ones(1, 1, 1, 2, dtype=F64), layer.bias_mean, 0 * layer.bias_std
    )


FIRST: dict[str, tuple[Any, tuple[int, ...]]] = {
    "shared": (shared(5, 3, 70, 0.2), (3,)),
    "matrix normal": (matrix_normal(5, 3, 80, 0.2), (3,)),
    "wide": (shared(5, 3, 71, 0.9), (3,)),
    "conv": (_conv(0.3), (1, 1, 6)),
}
SECOND = {
    "linear": lambda: records.linear(4, 5, 90, 0.2),
    "rows": lambda: records.correlated(4, 5, 91, shared=False, std=0.15),
}
KEPT = [("shared", "linear"), ("matrix normal", "rows"), ("conv", "linear"), ("wide", "rows")]


def layers_of(one: str, act: str, *more: Any) -> BayesianNetwork:
    first, shape = FIRST[one]
    flat = (Flatten(),) if len(shape) == 3 else ()
    layers: list[Any] = [first, activation(act), *flat]
    for layer in more:
        layers += [layer, activation(act)]
    return BayesianNetwork(tuple(layers[:-1]), input_shape=shape)


def values_at(one: str, act: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """Of the first layer: (nodes, n), weights."""
    first, shape = FIRST[one]
    nodes, weight = outcomes(*records.law(first, x.reshape(shape)), 201 if act in KINKS else 51)
    return value_of(act, nodes), weight


@pytest.mark.parametrize("radius", slow_but([0.0, 0.04, 0.5], 0.0, 0.04))
@pytest.mark.parametrize("act", slow_but(["relu", "tanh", "gelu", "hard_tanh"], "relu", "tanh"))
@pytest.mark.parametrize(("one", "two"), slow_but([(a, b) for a in FIRST for b in SECOND], *KEPT))
def test_two_layers_hold(one: str, two: str, act: str, radius: float) -> None:
    second, last = SECOND[two](), records.linear(2, 4, 95, 0.3)
    network = layers_of(one, act, second, last)
    phi, x = activation(act), records.normal(math.prod(network.shapes[0]), seed=2)
    bounds = MomentPass.of(network, ball(x, radius))
    means, variances = ends(bounds, 2), bounds.output_variance()
    rows = torch.tensor([[1.0, -1.0]], dtype=F64)
    difference = bounds.variance(rows)
    for at in points(ball(x, radius), 3 if radius else 1, 4):
        z, weight = values_at(one, act, at)
        m, s = spreads(second, z)
        given, noise = phi.mean(m, s.sqrt()), phi.central(m, s.sqrt()).variance.upper
        mean = weight @ given
        tolerance = 2e-4 if one == "wide" else 2e-5
        assert holds(means, last.weight_mean @ mean + last.bias_mean, tolerance)
        centred = given - mean
        covariance = centred.mT @ (weight[:, None] * centred) + (weight @ noise).diag()
        mu, square = last.weight_mean, last.weight_std.square()
        own = square @ (covariance.diagonal() + mean.square()) + last.bias_std.square()
        truth = ((mu @ covariance) * mu).sum(-1) + own
        assert holds(variances, truth, tolerance * 3)
        apart = mu[0] - mu[1]
        assert float(apart @ covariance @ apart + own.sum()) <= float(difference[0, 0]) + 3 * tolerance


@pytest.mark.parametrize("radius", [0.0, 0.05])
@pytest.mark.parametrize("act", slow_but([a for a in ACTS if a != "piecewise_affine"], "relu", "tanh"))
@pytest.mark.parametrize("one", slow_but(FIRST, "shared", "conv"))
def test_three_layers_hold(one: str, act: str, radius: float) -> None:
    """The second and the third layer by draws."""
    second, third, last = SECOND["rows"](), records.linear(3, 4, 92, 0.2), records.linear(2, 3, 95, 0.3)
    network = layers_of(one, act, second, third, last)
    phi, x = activation(act), records.normal(math.prod(network.shapes[0]), seed=2)
    bounds = MomentPass.of(network, ball(x, radius))
    means, variances = ends(bounds, 2), bounds.output_variance()
    generator = torch.Generator().manual_seed(5)
    for at in points(ball(x, radius), 2 if radius else 1, 4):
        z, weight = values_at(one, act, at)
        z = z[torch.multinomial(weight, DRAWS, replacement=True, generator=generator)]
        m, s = spreads(second, z)
        y = value_of(act, m + s.sqrt() * torch.randn(m.shape, generator=generator, dtype=F64))
        m, s = spreads(third, y)
        given = phi.mean(m, s.sqrt())
        out = given @ last.weight_mean.mT + last.bias_mean
        slack = 6 * out.std(0) / math.sqrt(DRAWS)
        assert holds(means, out.mean(0), slack + 1e-5)
        some = slice(5000)
        noise = phi.central(m[some], s[some].sqrt()).variance.upper.mean(0)
        own = (given.square().mean(0) + noise) @ last.weight_std.square().mT + last.bias_std.square()
        truth = out.var(0) + noise @ last.weight_mean.square().mT + own
        assert holds(variances, truth, 0.03 * truth)


@pytest.mark.parametrize("kind", ["matrix normal", "low rank", "conv"])
def test_unlike_layers_hold_against_whole_draws(kind: str) -> None:
    """Every weight is drawn, also of second layers with a shared noise."""
    layers: tuple[Any, ...]
    if kind == "conv":
        layers = (records.conv(2, 1, 5, size=2), activation("relu"), records.conv(2, 2, 6, size=2), activation("relu"))
        network = BayesianNetwork((*layers, Flatten(), records.linear(2, 2, 7)), input_shape=(1, 3, 3))
    else:
        make = records.matrix_normal if kind == "matrix normal" else lambda *a: records.correlated(*a, shared=True)
        layers = (make(4, 2, 1), activation("relu"), make(3, 4, 2), activation("relu"), make(2, 3, 3))
        network = BayesianNetwork(layers)
    x = records.normal(math.prod(network.shapes[0]), seed=4)
    bounds = MomentPass.of(network, ball(x, 0.0))
    draws = records.outputs(network, x.reshape(1, *network.shapes[0]), 4000, seed=6).reshape(4000, -1)
    slack = 6 * draws.std(0) / math.sqrt(len(draws))
    assert holds(ends(bounds, 2), draws.mean(0), slack)
    assert holds(bounds.output_variance(), draws.var(0), 0.4 * draws.var(0))


@pytest.mark.parametrize("size", [1e-9, 1e9])
def test_values_far_from_one_hold(size: float) -> None:
    """Nothing underflows, and what is too large is no bound."""
    first = shared(4, 2, 7, 0.3)
    mean, bias, factor = (size * part for part in (first.weight_mean, first.bias_mean, first.factor))
    scaled = CorrelatedLinear(mean, first.weight_std, bias, first.bias_std, factor, shared=True)
    network = BayesianNetwork(
        (scaled, activation("relu"), records.linear(3, 4, 2), activation("relu"), records.linear(1, 3, 3))
    )
    x = records.normal(2, seed=1)
    bounds = MomentPass.of(network, ball(x, 0.0))
    z, weight = outcomes(*records.law(scaled, x), 361)
    m, s = spreads(network.layers[2], z.clamp_min(0))
    last: Any = network.layers[4]
    truth = last.weight_mean @ (weight @ activation("relu").mean(m, s.sqrt())) + last.bias_mean
    assert holds(ends(bounds, 1), truth, 3e-5 * (1 + size))
