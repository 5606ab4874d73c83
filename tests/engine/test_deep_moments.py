"""Networks 1-1-2-3-1 by nested quadrature: all that the pass knows of the third layer, whose history is random.

Given the value y of the first neuron the two of the second layer are independent, so every mean is a sum over a grid
of three Gaussian variables.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from support import records
from support.layer_networks import ACTS, activation
from tests.marks import slow_but
from torch import Tensor

import bnndp.engine.laws  # noqa: F401 - registers the weights of layers
from bnndp.engine.laws.weights import weights_of
from bnndp.engine.moments.signal import POWERS
from bnndp.engine.nodes.activation import Activated
from bnndp.engine.propagation.activation_step import Region
from bnndp.engine.propagation.forward import hidden_layers
from bnndp.engine.propagation.outputs import mean_rows, row_variance
from bnndp.geometry.box import Box
from bnndp.layers import Linear

NODES, REACH = 41, 6.0
BLUR = 1e-2  # of the quadrature at kinks


@dataclass(frozen=True, slots=True)
class Truth:
    """Values on the grid (outcomes, n) and their chances (outcomes,)."""

    chance: Tensor
    z: Tensor  # of the second layer
    m: Tensor  # of the third
    s: Tensor

    def mean(self, values: Tensor) -> Tensor:
        return self.chance @ values

    def norm(self, values: Tensor, q: float) -> Tensor:
        return self.mean((values - self.mean(values)).abs() ** q) ** (1 / q)


def truth_of(phi: Any, layers: list[Any], x: Tensor) -> Truth:
    xi = torch.linspace(-REACH, REACH, NODES, dtype=torch.float64)
    weight = torch.exp(-0.5 * xi.square())
    weight = weight / weight.sum()

    def pre(layer: Any, z: Tensor) -> tuple[Tensor, Tensor]:
        weights = weights_of(layer, (z.shape[-1],))
        return weights.apply(z) + weights.bias, weights.spread(z)

    m, s = pre(layers[0], x)
    y = phi(m + s.sqrt() * xi[:, None])  # (nodes, 1)
    m, s = pre(layers[1], y)  # (nodes, 2)
    given = phi(m[..., None] + s.sqrt()[..., None] * xi)  # (nodes, 2, nodes)
    first, second = given[:, 0, :, None], given[:, 1, None, :]
    shape = (NODES,) * 3
    z = torch.stack([first.expand(shape), second.expand(shape)], -1).reshape(-1, 2)
    chance = (weight[:, None, None] * weight[:, None] * weight).reshape(-1)
    return Truth(chance, z, *pre(layers[2], z))


def network(generator: torch.Generator, number: int, kind: str) -> list[Any]:
    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    scale, spread = (0.3, 1.0, 3.0)[number % 3], (0.03, 0.3, 1.0)[number // 3 % 3]
    found: list[Any] = []
    for n_in, n_out in ((1, 1), (1, 2), (2, 3), (3, 1)):
        mean, std = scale * draw(n_out, n_in), spread * scale * draw(n_out, n_in).abs()
        if number % 4 == 3:
            mean[0] = 0.0  # only the variance of the first neuron varies
        bias = draw(n_out)
        if number % 4 == 1 and n_in == 1:  # values of mean zero: squares vary with the curvature only
            mean, bias = (0 if not found else 1) * mean, 0 * bias
        found.append(Linear(mean, std, bias, spread * (0.05 + draw(n_out).abs())))
    if kind != "independent":
        layer = records.correlated(3, 2, number, shared=kind == "shared")
        found[2] = replace(layer, weight_mean=scale * layer.weight_mean, factor=spread * scale * layer.factor)
    return found


@pytest.mark.parametrize("act", slow_but([a for a in ACTS if a != "piecewise_affine"], "relu", "tanh", "silu"))
@pytest.mark.parametrize(
    ("radius", "kind"), [(0.0, "independent"), (0.05, "independent"), (0.02, "rows"), (0.0, "shared")]
)
def test_moments_of_the_third_layer(act: str, radius: float, kind: str) -> None:
    phi, generator = activation(act), torch.Generator().manual_seed(11)
    for number in range(5 if kind == "independent" else 2):
        linear = network(generator, number, kind)
        x = torch.randn(1, 1, generator=generator, dtype=torch.float64)
        layers = [layer for each in linear[:3] for layer in (each, phi)] + [linear[3]]
        passed = hidden_layers(layers, [(1,), (1,), (1,), (2,), (2,), (3,), (3,)], Region(Box(x - radius, x + radius)))
        second, third = (node for node in passed.nodes[2:] if isinstance(node, Activated))
        for at in {-radius, radius}:
            _check(phi, truth_of(phi, linear, x + at), second, third)
            _check_output(phi, truth_of(phi, linear, x + at), linear[3], passed, x + at)


def _at_most(truth: Tensor, claim: Tensor, what: str) -> None:
    assert bool((truth - BLUR * truth.abs() - 1e-6 <= claim).all()), (what, truth, claim)


def _check(phi: Any, truth: Truth, second: Activated, third: Activated) -> None:
    signal, pre = second.signal, third.pre
    mean = truth.mean(truth.z)
    _at_most(signal.mean.lower[0] - 1e-3, mean + BLUR * mean.abs(), "mean from below")
    _at_most(mean - BLUR * mean.abs() - 1e-3, signal.mean.upper[0], "mean")
    _at_most(truth.norm(truth.z, 2) ** 2, signal.variance[0], "variance")
    _at_most(signal.variance_low[0] * (1 - BLUR), truth.norm(truth.z, 2) ** 2, "variance from below")
    spread = truth.mean(truth.s)
    _at_most(pre.spread.lower[0] * (1 - BLUR), spread, "spread from below")
    _at_most(spread, pre.spread.upper[0], "spread")
    _at_most(truth.norm(truth.s, 2), pre.spread_deviation[0], "deviation of the spread")
    for i, q in enumerate(POWERS):
        _at_most(truth.norm(truth.z, q), signal.norms[0, :, i], f"norm {q}")
        _at_most(truth.norm(truth.m, q), pre.norms[0, :, i], f"norm {q} of the mean")
        _at_most(truth.mean(truth.s ** (q / 2)) ** (1 / q), pre.spread_norms[0, :, i], f"norm {q} of a root of s")
        away = truth.mean((truth.s.sqrt() - spread.sqrt()).abs() ** q) ** (1 / q)
        _at_most(away, pre.spread_away[0, :, i], f"norm {q} of how far a root of s is")
        if i < 2:
            _at_most(truth.norm(truth.s, q), pre.spread_deltas[0, :, i], f"norm {q} of s")
    value = truth.mean(phi.mean(truth.m, truth.s.sqrt()))
    found = third.signal
    blur = 1e-3 * (1 + value.abs())
    assert bool(((found.mean.lower[0] - blur <= value) & (value <= found.mean.upper[0] + blur)).all())


def _check_output(phi: Any, truth: Truth, last: Linear, passed: Any, x: Tensor) -> None:
    value = truth.mean(phi.mean(truth.m, truth.s.sqrt())) @ last.weight_mean.T + last.bias_mean
    rows = torch.tensor([[[1.0], [-1.0]]], dtype=torch.float64)
    found = mean_rows(passed, rows)
    low, high = (found.matrix[0] @ x[0] + found.offset[0]).tolist()
    blur = 1e-3 * (1 + abs(float(value)))
    assert low - blur <= float(value) <= -high + blur
    assert math.isfinite(low)
    assert bool((row_variance(passed, rows[:, :1]) > 0).all())
