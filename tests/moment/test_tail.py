"""Sources that are hardly ever active, and neurons made from them: laws that can be written down."""

from __future__ import annotations

import math

import oracles
import pytest
import torch
from moment.truth import run
from torch import Tensor

from bnndp.network import BayesianNetwork, Linear
from bnndp.regions import Box

F64 = torch.float64


def linear(mean: object, std: object, bias: object, bias_std: object) -> Linear:
    return Linear(*(torch.tensor(value, dtype=F64) for value in (mean, std, bias, bias_std)))


def rare_source(u: float, weight: float, bias: float, bias_std: float) -> tuple[BayesianNetwork, float]:
    """``X_2 = weight z_1 + bias + bias_std xi``, z_1 = ReLU(N(u, 1)); and E z_1."""
    first = linear([[0.0]], [[0.0]], [u], [1.0])
    second = linear([[weight]], [[0.0]], [bias], [bias_std])
    last = linear([[1.0]], [[0.0]], [0.0], [0.0])
    return BayesianNetwork.from_linears([first, second, last]), float(oracles.expected_relu(u, 1.0))


@pytest.mark.parametrize("u", [-3.0, -4.6, -6.5, -8.0])
@pytest.mark.parametrize("weight", [1.0, -1.0, 1e6])
def test_levels_of_a_rare_source(u: float, weight: float) -> None:
    """A source that is left out is zero nearly always: then m is the bias, which must lie below the level."""
    network, source = rare_source(u, weight, 0.0, 1e-3 * abs(weight))
    hidden = run(network, Box([0.0], [0.0])).hidden[0]
    mean = weight * source  # of m
    for level in hidden.before.tail.levels:
        high = mean + level.above.item()
        limit = high / weight  # m > high where z_1 > limit for a positive weight, z_1 < limit for a negative one
        active = float(oracles.cdf(u - max(limit, 0.0)))  # P(z_1 > max(limit, 0))
        above = active if weight > 0 else (1 - active if limit > 0 else 0.0)
        assert above <= level.probability.item()


@pytest.mark.parametrize("u", [-3.0, -4.6, -6.5])
@pytest.mark.parametrize("share", [0.1, 0.9])
def test_activity_of_a_neuron_that_a_rare_source_holds_down(u: float, share: float) -> None:
    """Its mean is below zero because of an event that hardly ever happens; it is active all the same."""
    weight = -1e6
    source = float(oracles.expected_relu(u, 1.0))
    shift = share * -weight * source
    network, _ = rare_source(u, weight, shift, shift / 20)
    latent = run(network, Box([0.0], [0.0])).hidden[0].latent
    usual = 1 - float(oracles.cdf(u))  # then Phi(m / sqrt(s)) = Phi(20)
    assert latent.activity.item() ** 2 >= usual * (1 - 1e-12)
    assert latent.second.upper.item() >= usual * shift**2


@pytest.mark.parametrize("u", [-3.0, -4.6, -6.0])
@pytest.mark.parametrize("weight", [0.5, 1e3])
def test_moments_of_a_neuron_that_a_rare_source_wakes(u: float, weight: float) -> None:
    """``z_2 = ReLU(weight z_1 - 1)`` without other noise: its moments are those of a shifted rectified Gaussian."""
    network, _ = rare_source(u, weight, -1.0, 0.0)
    found = run(network, Box([0.0], [0.0])).hidden[0]
    truth = oracles.rectified(weight * u - 1, weight)
    assert oracles.above(found.latent.mean.upper.item(), truth.mean)
    assert oracles.above(found.latent.second.upper.item(), truth.second)
    assert oracles.above(found.latent.fourth.item(), truth.fourth)
    assert oracles.above(found.latent.variance.item(), truth.variance)


def test_a_neuron_far_below_zero_is_known_to_be_quiet() -> None:
    """Without the levels the second moment would have the floor of a Taylor step."""
    first = Linear(torch.ones(50, 1), torch.full((50, 1), 0.1), torch.zeros(50), torch.full((50,), 0.1))
    second = Linear(torch.full((1, 50), 0.02), torch.full((1, 50), 0.02), torch.tensor([-4.0]), torch.full((1,), 0.1))
    last = linear([[1.0]], [[0.0]], [0.0], [0.0])
    found = run(BayesianNetwork.from_linears([first, second, last]), Box([1.0], [1.0])).hidden[0]
    assert found.latent.second.upper.item() < 1e-7
    assert found.latent.activity.item() < 1e-5


def test_many_rare_sources_add_up() -> None:
    """Five hundred sources, each left out for being active three times in a million: one of them is, in one of 700."""
    n, u = 500, -4.55
    zero = torch.zeros(n, 1, dtype=F64)
    first = Linear(zero, zero, torch.full((n,), u, dtype=F64), torch.ones(n, dtype=F64))
    second = Linear(torch.ones(1, n, dtype=F64), torch.zeros(1, n), torch.zeros(1), torch.ones(1))
    last = linear([[1.0]], [[0.0]], [0.0], [0.0])
    found = run(BayesianNetwork.from_linears([first, second, last]), Box([0.0], [0.0])).hidden[0]
    mean = n * float(oracles.expected_relu(u, 1.0))
    for level in found.before.tail.levels:
        one = float(oracles.cdf(u - mean - level.above.item()))  # P(one source alone is above the level)
        assert -math.expm1(n * math.log1p(-one)) <= level.probability.item()


def test_levels_of_squares() -> None:
    """``s = sigma^2 z^2`` of one active source: P(s > level) from the normal law."""
    for mean, sigma in ((0.0, 1.0), (3.0, 0.5), (-1.0, 2.0)):
        first = linear([[0.0]], [[0.0]], [mean], [1.0])
        second = linear([[0.0]], [[sigma]], [0.0], [0.0])
        last = linear([[1.0]], [[0.0]], [0.0], [0.0])
        tail = run(BayesianNetwork.from_linears([first, second, last]), Box([0.0], [0.0])).hidden[0].before.tail
        for level in tail.levels:
            z = math.sqrt(level.spread.item()) / sigma
            assert float(oracles.tail(z - mean)) <= level.probability.item()
        eighth = float(_moment(mean, 8)) * sigma**8
        assert eighth <= tail.spread8.item() ** 8


def _moment(mean: float, k: int) -> Tensor:
    """``E ReLU(N(mean, 1))^k`` by the recursion in k."""
    values = [oracles.cdf(mean), oracles.expected_relu(mean, 1.0)]
    for j in range(2, k + 1):
        values.append(mean * values[-1] + (j - 1) * values[-2])
    return torch.tensor(float(values[k]), dtype=F64)
