"""Sources that are hardly ever active, and neurons made from them: laws that can be written down."""

from __future__ import annotations

import math

import pytest
import torch
from flint import arb
from support import oracles
from support.dice import Dice
from support.proofs import proved
from tests.engine.dense.truth import run
from tests.marks import slow_but
from tests.paper.truth import linear
from torch import Tensor

from bnndp.engine.dense import rare_neurons as subject
from bnndp.engine.dense.rare_neurons import rarity, slope_square, stability
from bnndp.engine.dense.records import Level, Tail
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork

F64 = torch.float64


ORIGIN = Box([0.0], [0.0])
SUM = linear([[1.0]], [[0.0]], [0.0], [0.0])


def rare_source(u: float, weight: float, bias: float, bias_std: float) -> tuple[BayesianNetwork, float]:
    """``X_2 = weight z_1 + bias + bias_std xi``, z_1 = ReLU(N(u, 1)); and E z_1."""
    first = linear([[0.0]], [[0.0]], [u], [1.0])
    second = linear([[weight]], [[0.0]], [bias], [bias_std])
    return BayesianNetwork.from_linears([first, second, SUM]), float(oracles.expected_relu(u, 1.0))


@pytest.mark.parametrize("u", [-3.0, -4.6, -6.5, -8.0])
@pytest.mark.parametrize("weight", [1.0, -1.0, 1e6])
def test_levels_of_a_rare_source(u: float, weight: float) -> None:
    """A source that is left out is zero nearly always: then m is the bias, which must lie between the levels."""
    network, source = rare_source(u, weight, 0.0, 1e-3 * abs(weight))
    hidden = run(network, ORIGIN).hidden[0]
    mean = weight * source  # of m
    for level in hidden.before.tail.levels:
        high = mean + level.above.item()
        limit = high / weight  # m > high where z_1 > limit for a positive weight, z_1 < limit for a negative one
        active = float(oracles.cdf(u - max(limit, 0.0)))  # P(z_1 > max(limit, 0))
        above = active if weight > 0 else (1 - active if limit > 0 else 0.0)
        limit = (mean - level.below.item()) / weight  # and m below its lower end: the other way round
        under = float(oracles.cdf(u - max(limit, 0.0)))
        below = (1 - under if limit > 0 else 0.0) if weight > 0 else under
        assert above + below <= level.probability.item()


@pytest.mark.parametrize("u", [-3.0, -4.6, -6.5])
@pytest.mark.parametrize("share", [0.1, 0.9])
def test_activity_of_a_neuron_that_a_rare_source_holds_down(u: float, share: float) -> None:
    """Its mean is below zero because of an event that hardly ever happens; it is active all the same."""
    weight = -1e6
    source = float(oracles.expected_relu(u, 1.0))
    shift = share * -weight * source
    network, _ = rare_source(u, weight, shift, shift / 20)
    latent = run(network, ORIGIN).hidden[0].latent
    usual = 1 - float(oracles.cdf(u))  # then Phi(m / sqrt(s)) = Phi(20)
    assert latent.activity.item() ** 2 >= usual * (1 - 1e-12)
    assert latent.second.upper.item() >= usual * shift**2


@pytest.mark.parametrize("u", [-3.0, -4.6, -6.0])
@pytest.mark.parametrize("weight", [0.5, 1e3])
def test_moments_of_a_neuron_that_a_rare_source_wakes(u: float, weight: float) -> None:
    """``z_2 = ReLU(weight z_1 - 1)`` without other noise: its moments are those of a shifted rectified Gaussian."""
    network, _ = rare_source(u, weight, -1.0, 0.0)
    found = run(network, ORIGIN).hidden[0]
    truth = oracles.rectified(weight * u - 1, weight)
    assert oracles.above(found.latent.mean.upper.item(), truth.mean)
    assert oracles.above(found.latent.second.upper.item(), truth.second)
    assert oracles.above(found.latent.fourth.item(), truth.fourth)
    assert oracles.above(found.latent.variance.item(), truth.variance)


def test_sources_left_out_shift_the_mean() -> None:
    """A rare source with a negative weight: without it m is larger, and the neuron more often active."""
    network, _ = rare_source(-4.6, -1.0, -1e-8, 1e-7)
    latent = run(network, ORIGIN).hidden[0].latent
    at_least = math.sqrt(float(oracles.cdf(4.6)) * float(oracles.cdf(-0.1)) ** 4)  # the source is off
    assert latent.activity.item() >= at_least


def test_a_neuron_far_below_zero_is_known_to_be_quiet() -> None:
    """Without the levels the second moment would have the floor of a Taylor step."""
    first = Linear(torch.ones(50, 1), torch.full((50, 1), 0.1), torch.zeros(50), torch.full((50,), 0.1))
    second = Linear(torch.full((1, 50), 0.02), torch.full((1, 50), 0.02), torch.tensor([-4.0]), torch.full((1,), 0.1))
    found = run(BayesianNetwork.from_linears([first, second, SUM]), Box([1.0], [1.0])).hidden[0]
    assert found.latent.second.upper.item() < 1e-7
    assert found.latent.activity.item() < 1e-5


def test_many_rare_sources_add_up() -> None:
    """Five hundred sources, each left out for being active three times in a million: one of them is, in one of 700."""
    n, u = 500, -4.55
    zero = torch.zeros(n, 1, dtype=F64)
    first = Linear(zero, zero, torch.full((n,), u, dtype=F64), torch.ones(n, dtype=F64))
    second = Linear(torch.ones(1, n, dtype=F64), torch.zeros(1, n), torch.zeros(1), torch.ones(1))
    found = run(BayesianNetwork.from_linears([first, second, SUM]), ORIGIN).hidden[0]
    mean = n * float(oracles.expected_relu(u, 1.0))
    for level in found.before.tail.levels:
        one = float(oracles.cdf(u - mean - level.above.item()))  # P(one source alone is above the level)
        assert -math.expm1(n * math.log1p(-one)) <= level.probability.item()


def test_levels_of_squares() -> None:
    """``s = sigma^2 z^2`` of one active source: P(s > level) from the normal law."""
    for mean, sigma in ((0.0, 1.0), (3.0, 0.5), (-1.0, 2.0)):
        first = linear([[0.0]], [[0.0]], [mean], [1.0])
        second = linear([[0.0]], [[sigma]], [0.0], [0.0])
        tail = run(BayesianNetwork.from_linears([first, second, SUM]), ORIGIN).hidden[0].before.tail
        for level in tail.levels:
            z = math.sqrt(level.spread.item()) / sigma
            assert float(oracles.tail(z - mean)) <= level.probability.item()
        eighth = float(_moment(mean, 8)) * sigma**8
        assert eighth <= tail.spread8.item() ** 8
        sixteenth = float(_moment(mean, 16)) * sigma**16
        assert sixteenth <= tail.spread16.item() ** 16


# Laws on few atoms that keep to a level and no more: what is bounded can be added up


class Atoms:
    """A law of (m, s) within a level but for its probability, where it does its worst; E m lies in a range."""

    def __init__(self, seed: int) -> None:
        dice, count = Dice(seed), 12

        def rand(*shape: int) -> Tensor:
            return dice.uniform(shape=shape)

        self.probability = 10.0 ** (-4 - 20 * rand(1)[0])
        above, below, spread = 10 ** (2 * rand(3) - 1)
        centre = 8 * rand(1)[0] - 4
        width = 0.3 * rand(1)[0] * (seed % 2)
        # Ends of the level and points between; s at its level, far below it, and zero.
        share = torch.cat([torch.tensor([0.0, 1.0, 0.0, 1.0]), rand(count - 4)])
        mean = centre + width * (2 * rand(count).round() - 1)  # the mean of m at some x of the box
        self.m = mean - below + share * (above + below)
        self.s = spread * torch.cat([torch.tensor([1.0, 1.0, 0.0, 0.0]), rand(count - 4) ** 4])
        weight = rand(count) ** 4
        self.weight = (1 - self.probability) * weight / weight.sum()
        side = -1.0 if centre > 0 else 1.0  # outside: the wrong side of zero, or the largest density
        self.m = torch.cat([self.m, (side * torch.tensor([1e3, 0.0]))])
        self.s = torch.cat([self.s, spread * torch.tensor([1e-3, 10 ** float(2 * rand(1))])])
        split = rand(1)
        self.weight = torch.cat([self.weight, self.probability * split, self.probability * (1 - split)])
        self.mean = Interval((centre - width)[None, None], (centre + width)[None, None])
        level = Level(*(value[None, None] for value in (above, below, spread, self.probability)))
        self.level, self.s0 = level, spread[None, None] * 10 ** (rand(1, 1) - 0.5)
        self.tail = Tail((level,), torch.ones(1, 1), self.norm(4) ** 0.5, self.norm(8) ** 0.5)

    def expectation(self, values: Tensor) -> float:
        return (self.weight @ values).item()

    def norm(self, power: int) -> Tensor:
        """Norm of s."""
        return torch.tensor([[self.expectation(self.s**power) ** (1 / power)]], dtype=F64)

    def normal(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """Phi and phi at m / sqrt(s), their limits where s is zero."""
        u = (self.m / s.sqrt().clamp_min(1e-300)).clamp(-1e3, 1e3)
        return 0.5 * torch.special.erfc(-u / math.sqrt(2)), torch.exp(-0.5 * u * u) / math.sqrt(2 * math.pi)


UP = 1 + 1e-12


@pytest.mark.parametrize("block", slow_but(range(10), 0, 1))
def test_atoms_within_a_level(block: int) -> None:
    for seed in range(60 * block, 60 * (block + 1)):
        atoms = Atoms(seed)
        found = stability(atoms.tail, atoms.mean)
        slope, density = atoms.normal(atoms.s)
        p = found.centre.item()
        assert 0 <= p <= 1
        assert atoms.expectation((slope - p).abs() ** 8) ** 0.125 <= UP * found.delta.item()
        assert atoms.expectation(density**8) ** 0.125 <= UP * found.density.item()
        assert atoms.expectation(atoms.s**4 * slope) ** 0.25 <= UP * found.active_spread.item()
        p, square = (value.item() for value in slope_square(atoms.tail, atoms.mean, atoms.s0))
        assert 0 <= p <= 1
        assert atoms.expectation((atoms.normal(atoms.s0[0])[0] - p) ** 2) <= UP * square


@pytest.mark.parametrize("probability", [1e-3, 1e-6, 1e-12])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_a_neuron_that_is_active_outside_its_level_only(probability: float, size: float) -> None:
    """Two atoms: off, but for a probability in which z is ``size``; Cauchy and Schwarz hold with equality."""
    off, root = -0.05 * size, 1e-4 * size
    mean = (1 - probability) * off + probability * size
    eighth = (1 - probability) * (off - mean) ** 8 + probability * (size - mean) ** 8
    one = torch.ones(1, 1, dtype=F64)
    level = Level(0 * one, -mean * one, root**2 * one, probability * one)  # off <= mean < 0
    tail = Tail((level,), eighth**0.125 * one, root * one, root * one)
    fourth = probability * size**4
    found = rarity(tail, Interval(mean * one, mean * one), fourth * one)
    alone = rarity(tail, Interval(mean * one, mean * one), 1e9 * fourth * one)
    for bound, truth in (
        (found.second, probability * size**2),
        (found.fourth, fourth),
        (alone.fourth, fourth),
        (found.activity, probability**0.5),
    ):
        assert truth <= UP * bound.item()
        assert bound.item() <= 1.5 * truth


def test_a_neuron_that_keeps_its_side_has_a_constant_slope() -> None:
    """Far from zero all is known but for the probability of the level; near zero nothing is."""
    one = torch.ones(1, 1, dtype=F64)
    tail = Tail((Level(one, one, one, 1e-24 * one),), one, one, one)
    for side, slope in ((-1, 0.0), (1, 1.0)):
        mean = Interval(side * 10 * one, side * 10 * one)
        found = stability(tail, mean)
        assert found.centre.item() == pytest.approx(slope, abs=1e-12)
        assert 0.99e-3 <= found.delta.item() <= 1.1e-3  # P^(1/8)
        assert 0.39e-3 <= found.density.item() <= 0.41e-3
        assert found.active_spread.item() == pytest.approx(1.0 if side > 0 else 1e-3, rel=0.2)
        assert slope_square(tail, mean, one)[1].item() <= 1.1e-24 + 1e-26
    near = stability(tail, Interval(0 * one, 0 * one))
    assert (near.centre.item(), near.delta.item()) == pytest.approx((0.5, 0.5))


def test_the_best_level_is_taken_for_each_norm() -> None:
    one = torch.ones(1, 1, dtype=F64)
    narrow, wide = Level(one, one, one, 1e-8 * one), Level(7 * one, 7 * one, 4 * one, 1e-24 * one)
    mean = Interval(10 * one, 10 * one)
    both = stability(Tail((narrow, wide), one, 2 * one, 3 * one), mean)
    for level in (narrow, wide):
        alone = stability(Tail((level,), one, 2 * one, 3 * one), mean)
        for name in ("delta", "density", "active_spread"):
            assert getattr(both, name).item() <= getattr(alone, name).item()


def test_norms_of_gaussians() -> None:
    """E xi^8 = 7!!, E xi^16 = 15!!, int_0^inf 8 t^7 2 exp(-t^2/2) dt = 16 * 48 (tails of a 1-Lipschitz function)."""
    room = 1 + arb(2) ** -47
    assert proved(arb(7 * 5 * 3), arb(subject._XI_8) ** 8)
    assert proved(arb(math.prod(range(1, 16, 2))), arb(subject._XI_16) ** 16 * room)
    assert proved(arb(16 * 48), arb(subject._LIPSCHITZ_8) ** 8)


def _moment(mean: float, k: int) -> Tensor:
    """``E ReLU(N(mean, 1))^k`` by the recursion in k."""
    values = [oracles.cdf(mean), oracles.expected_relu(mean, 1.0)]
    for j in range(2, k + 1):
        values.append(mean * values[-1] + (j - 1) * values[-2])
    return torch.tensor(float(values[k]), dtype=F64)
