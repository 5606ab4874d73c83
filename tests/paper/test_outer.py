"""What is claimed of value functions on the whole orthant: their rise, their fall and the plane above, in balls."""

from __future__ import annotations

import pytest
import torch
from flint import arb
from support import oracles
from tests.paper.truth import random_linear
from torch import Tensor

from bnndp.layers import Linear
from bnndp.network import BayesianNetwork
from bnndp.paper.layers import Layer
from bnndp.paper.outer import Outer

F64 = torch.float64


def start(last: Linear) -> Outer:
    """The signed rows (V, -V) of the last layer, as functions of the hidden layer before it."""
    return Outer.of(torch.cat([last.weight_mean, -last.weight_mean]), torch.cat([last.bias_mean, -last.bias_mean]))


def signed(values: list[arb]) -> list[arb]:
    return [*values, *(-value for value in values)]


def points(n: int, seed: int) -> Tensor:
    """Points of the orthant from the corner to far away, some coordinates zero: (count, n)."""
    generator = torch.Generator().manual_seed(seed)
    size = 10 ** torch.linspace(-2, 4, 13, dtype=F64)
    share = torch.rand(13, n, generator=generator, dtype=F64)
    return size[:, None] * share * (torch.rand(13, n, generator=generator, dtype=F64) < 0.7)


def on_the_wane(mean: float, std: float) -> tuple[Linear, Linear]:
    """A neuron that is on, at z_1 = 1, and falls in z_0; and its value, with the weight 1."""
    hidden = Linear(*(torch.tensor(x, dtype=F64) for x in ([[mean, 100.0]], [[std, 0.0]], [0.0], [0.0])))
    return hidden, Linear(*(torch.tensor(x, dtype=F64) for x in ([[1.0]], [[0.0]], [0.0], [0.0])))


@pytest.mark.parametrize("std", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("seed", range(3))
def test_every_claim_behind_one_layer(seed: int, std: float) -> None:
    n = 3
    hidden, last = random_linear(4, n, seed, std=std), random_linear(2, 4, 10 + seed)
    found = start(last).behind(Layer.of(hidden), torch.full((1, n), 0.7, dtype=F64))
    network = BayesianNetwork.from_linears([hidden, last])
    nearest = []
    for z in points(n, seed).tolist():
        here = signed(oracles.exact_mean(network, z))
        for row, value in enumerate(here):
            plane = sum((arb(a) * arb(x) for a, x in zip(found.matrix[0, row].tolist(), z, strict=True)), arb(0))
            assert plane + arb(found.offset[0, row].item()) >= value
        for i in range(n):
            step = 1.0 + z[i]
            there = signed(oracles.exact_mean(network, [*z[:i], z[i] + step, *z[i + 1 :]]))
            for row, (before, after) in enumerate(zip(here, there, strict=True)):
                assert arb(found.rise[row, i].item()) * step >= after - before
                assert arb(found.fall[row, i].item()) * step >= before - after
                nearest.append(float((after - before) / step) / found.rise[row, i].item())
    assert max(nearest) >= 0.5  # or the comparison could not fail


@pytest.mark.parametrize("std", [0.0, 0.2])
def test_a_neuron_that_falls(std: float) -> None:
    """V = E ReLU(w z_0 + 100 z_1), w about -1: it falls by 1 a unit of z_0, and -V rises as much."""
    hidden, last = on_the_wane(-1.0, std)
    found = start(last).behind(Layer.of(hidden), torch.ones(1, 2, dtype=F64))
    for fall in (found.fall[0, 0].item(), found.rise[1, 0].item()):
        assert 1.0 <= fall <= 1.0 + 1e-6
    for small in (found.rise[0, 0].item(), found.fall[1, 0].item()):  # E max(w, 0): nothing, or nearly
        assert 0.0 <= small <= 1e-6


@pytest.mark.parametrize("seed", range(4))
def test_every_claim_behind_two_layers_without_noise(seed: int) -> None:
    """Without deviations the values are those of a network of numbers."""
    first, second, last = (random_linear(k, n, 5 * seed + k, std=0.0) for k, n in ((4, 3), (5, 4), (2, 5)))
    at = torch.full((1, 3), 0.7, dtype=F64)
    middle = (at @ first.weight_mean.T + first.bias_mean).clamp_min(0)
    found = start(last).behind(Layer.of(second), middle).behind(Layer.of(first), at)

    def values(z: Tensor) -> Tensor:
        for layer in (first, second):
            z = (z @ layer.weight_mean.T + layer.bias_mean).clamp_min(0)
        result = z @ last.weight_mean.T + last.bias_mean
        return torch.cat([result, -result], -1)

    z = torch.cat([points(3, 100 * seed + k) for k in range(20)])
    here = values(z)
    slack = 1e-11 * (1 + z.sum(-1, keepdim=True))  # rounding of sums of a few dozen terms of this size
    assert (z @ found.matrix[0].T + found.offset[0] >= here - slack).all()
    for i in range(3):
        step = 1.0 + z[:, i : i + 1]
        gain = values(z + step * torch.eye(3, dtype=F64)[i]) - here
        assert (gain <= step * found.rise[:, i] + slack).all()
        assert (-gain <= step * found.fall[:, i] + slack).all()
