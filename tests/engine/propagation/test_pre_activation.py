"""What goes into an activation after dropout and weights of every kind: all masks give the exact law of (m, s)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import records
from torch import Tensor

from bnndp.activations import Tanh
from bnndp.engine.moment_pass import MomentPass
from bnndp.engine.moments.pre_activation import PreActivation
from bnndp.engine.moments.signal import POWERS
from bnndp.engine.nodes.activation import Activated
from bnndp.geometry.box import Box
from bnndp.layers import Dropout, Flatten, Linear
from bnndp.network import BayesianNetwork

KINDS = sorted(name for name in records.RANDOM if "dropout" not in name)


def last_pre(network: BayesianNetwork, box: Box) -> PreActivation:
    node = MomentPass.of(network, box).hidden.last
    assert isinstance(node, Activated)
    return node.pre


def _law(kind: str, rate: float, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Chances (masks,), means and variances (masks, n) of X for all masks of the input."""
    layer, shape = records.RANDOM[kind]
    chances, means, variances = [], [], []
    n = shape[0]  # units of a vector, channels of an image
    for bits in itertools.product((0.0, 1.0), repeat=n):
        chances.append(math.prod(1 - rate if bit else rate for bit in bits))
        mask = torch.tensor(bits, dtype=torch.float64) / (1 - rate)
        z = x.reshape(shape) * mask.reshape(-1, *[1] * (len(shape) - 1))
        mean, covariance = records.law(layer, z)
        means.append(mean)
        variances.append(covariance.diagonal())
    return torch.tensor(chances, dtype=torch.float64), torch.stack(means), torch.stack(variances)


@pytest.mark.parametrize("rate", [0.1, 0.6, 0.95])
@pytest.mark.parametrize("kind", KINDS)
def test_moments_of_what_goes_into_an_activation(kind: str, rate: float) -> None:
    layer, shape = records.RANDOM[kind]
    drop = Dropout(rate, channels=len(shape) == 3)
    n = math.prod(layer.out_shape(shape))
    network = BayesianNetwork((drop, layer, Tanh(), Flatten(), Linear.fixed(torch.ones(1, n))), input_shape=shape)
    centre = records.normal(1, math.prod(shape), seed=31)
    for width in (0.0, 0.2):
        box = Box(centre - width, centre + width)
        x = last_pre(network, box)
        for share in (0.0, 0.5, 1.0):
            chance, m, s = _law(kind, rate, (box.lower + share * (box.upper - box.lower))[0])
            mean, spread, root = chance @ m, chance @ s, s.sqrt()

            def norm(values: Tensor, q: int, chance: Tensor = chance) -> Tensor:
                return (chance @ values.abs() ** q) ** (1 / q)

            _at_most(x.mean.lower, mean, "mean from below")
            _at_most(mean, x.mean.upper, "mean")
            _at_most(x.spread.lower, spread, "spread from below")
            _at_most(spread, x.spread.upper, "spread")
            _at_most(norm(s - spread, 2), x.spread_deviation, "deviation of the spread")
            _at_most(norm(m - mean, 2).square(), x.mean_variance, "variance of the mean")
            _at_most(x.noise.lower, norm(m - mean, 2).square(), "noise from below")
            for i, q in enumerate(POWERS):
                _at_most(norm(m - mean, q), x.norms[..., i], f"norm {q}")
                _at_most(norm(root, q), x.spread_norms[..., i], f"norm {q} of the root")
                for end in (spread, x.spread.lower[0], x.spread.upper[0]):
                    _at_most(norm(root - end.sqrt(), q), x.spread_away[..., i], f"norm {q} of the root less its mean")
            assert x.source == (len(shape) == 1)
            if x.source:
                _at_most(norm(m - mean, 2).square(), x.noise.upper, "noise of a source")
                _at_most((chance @ (m - mean) ** 3).abs(), x.third, "third moment")
                square = norm(m - mean, 2).square()
                _at_most(chance @ (m - mean) ** 4 - 3 * square.square(), x.quartic, "fourth cumulant")


def _at_most(truth: Tensor, claim: Tensor, what: str) -> None:
    worst = truth - claim - 1e-9 * claim.abs() - 1e-12
    assert not bool((worst > 0).any()), f"{what}: off by {worst.max().item():.3e}"


@pytest.mark.parametrize("kind", ["mean-field", "rows", "shared", "matrix normal"])
def test_spreads_of_coordinates_that_share_a_factor(kind: str) -> None:
    """One factor drops a whole channel: its values move together, and so do their squares."""
    make: dict[str, Callable[[int, int, int], Any]] = {
        "mean-field": records.linear,
        "rows": lambda o, i, seed: records.correlated(o, i, seed, shared=False),
        "shared": lambda o, i, seed: records.correlated(o, i, seed, shared=True),
        "matrix normal": records.matrix_normal,
    }
    layer = make[kind](3, 18, 4)
    layers = (Dropout(0.4, channels=True), Flatten(), layer, Tanh(), Linear.fixed(torch.ones(1, 3)))
    x = 1 + records.uniform(1, 18, seed=5)
    pre = last_pre(BayesianNetwork(layers, input_shape=(2, 3, 3)), Box(x, x))
    assert not pre.source
    chances, means, spreads = [], [], []
    for bits in itertools.product((0.0, 1.0), repeat=2):
        chances.append(math.prod(0.6 if bit else 0.4 for bit in bits))
        z = x[0] * torch.tensor(bits, dtype=torch.float64).repeat_interleave(9) / 0.6
        mean, covariance = records.law(layer, z)
        means.append(mean)
        spreads.append(covariance.diagonal())
    chance, m, s = torch.tensor(chances, dtype=torch.float64), torch.stack(means), torch.stack(spreads)
    mean, spread = chance @ m, chance @ s
    _at_most(pre.spread.lower, spread, "spread from below")
    _at_most(spread, pre.spread.upper, "spread")
    _at_most((chance @ (s - spread).square()).sqrt(), pre.spread_deviation, "deviation of the spread")
    _at_most(chance @ (m - mean).square(), pre.mean_variance, "variance of the mean")


@pytest.mark.parametrize("flat", [True, False])
def test_the_deviation_of_a_spread_under_gaussian_factors(flat: bool) -> None:
    """s is a sum over channels of B^2 times what the channel holds, and B^2 has the variance 4 a + 2 a^2."""
    layer = records.linear(3, 18, 4) if flat else records.conv(3, 2, 4)
    drop = Dropout(0.01, "gaussian", channels=True)
    inner = (Flatten(), layer, Tanh()) if flat else (layer, Tanh(), Flatten())
    network = BayesianNetwork((drop, *inner, Linear.fixed(torch.ones(1, 3))), input_shape=(2, 3, 3))
    x = 1 + records.uniform(1, 18, seed=5)
    held = layer.weight_std.reshape(3, 2, 9).square() * x.reshape(2, 9).square()
    alpha = 0.01 / 0.99
    truth = (4 * alpha + 2 * alpha**2) ** 0.5 * torch.linalg.vector_norm(held.sum(-1), dim=-1)
    _at_most(truth, last_pre(network, Box(x, x)).spread_deviation, "deviation of the spread")
