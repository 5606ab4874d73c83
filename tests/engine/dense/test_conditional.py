"""Rests of the deeper layers on laws of few atoms, whose expectations are sums; only two norms of them are told."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch
from flint import arb
from support import oracles
from support.dice import Dice
from support.proofs import hermite_peak, proved, search_line
from tests.engine.dense.truth import normal, relu_mean
from tests.marks import slow_but
from torch import Tensor

from bnndp.engine.dense import conditional as subject
from bnndp.engine.dense.conditional import _deep_parts, _near, _noise, _noise_of_the_dead
from bnndp.engine.dense.records import Latent, PreActivation
from bnndp.engine.dense.slope import slope
from bnndp.geometry.bounds import Interval
from bnndp.layers import Linear

F64 = torch.float64
UP = 1 + 1e-11


@dataclass(frozen=True)
class Law:
    """T = m - E m on atoms, E m in a range, and s0; ``mean`` are the values of E m that are tried."""

    values: Tensor  # (atoms,)
    weight: Tensor  # (atoms,)
    mean: Tensor  # (points,)
    s0: float

    def moment(self, power: int) -> float:
        return (self.weight @ self.values**power).item()

    @property
    def range(self) -> Interval:
        return Interval(self.mean.min()[None, None], self.mean.max()[None, None])

    @property
    def before(self) -> PreActivation:
        """A record with the exact norms of T, and s = s0 without any spread of its own."""
        one = torch.ones(1, 1, dtype=F64)
        zero = 0 * one
        variance = self.moment(2) * one
        return PreActivation(
            layer=Linear(one, zero, zero[0], one[0]), jensen=zero, spread=Interval(self.s0 * one, self.s0 * one),
            spread_variance=zero, spread_fourth=zero, noise=Interval(zero, zero), noise_variance=zero, central=variance,
            fourth=self.moment(4) * one, norm8=self.moment(8) ** 0.125 * one, replacement=Interval(zero, zero),
            tail=None, energy=None,
        )  # fmt: skip


def law(seed: int) -> Law:
    """Often one atom far away that is as rare as the eighth moment allows, and the mean anywhere."""
    dice, count = Dice(seed), 2 + seed % 4

    def rand(*shape: int) -> Tensor:
        return dice.uniform(shape=shape)

    weight = 10 ** (-12 * rand(count) * (seed % 3 > 0))
    weight[0] = 1.0
    weight = weight / weight.sum()
    values = (2 * rand(count) - 1) * 10 ** (3 * rand(count) - 2)
    values = values - weight @ values
    width = rand(1) * 0.5 * (seed % 2)
    mean = 6 * rand(1) - 3 + width * torch.tensor([-1.0, 0.2, 1.0], dtype=F64)
    return Law(values, weight, mean, float(10 ** (4 * rand(1) - 3)))


def centred(law: Law, values: Tensor) -> Tensor:
    """Deviations of values (points, atoms)."""
    return (((values - (values @ law.weight)[:, None]) ** 2) @ law.weight).sqrt()


def rest(law: Law, p: Tensor) -> Tensor:
    """Deviation of ``g(m, sqrt(s0)) - p m`` at each mean: (points,)."""
    m = law.mean[:, None] + law.values
    return centred(law, relu_mean(m, torch.tensor(law.s0).sqrt()) - p.item() * m)


BLOCKS, EACH = slow_but(range(12), 0, 1), 50


@pytest.mark.parametrize("block", BLOCKS)
def test_slope_rest_of_atoms(block: int) -> None:
    """Whatever is found without a bound to start from, and the best of all with it."""
    for seed in range(EACH * block, EACH * (block + 1)):
        found = law(seed)
        unknown = torch.full((1, 1), torch.inf, dtype=F64)
        p, bound = _near(found.before, found.range, torch.full((1, 1), 0.5, dtype=F64), unknown)
        size = found.mean.abs().max() + found.values.abs().max()
        assert 0 <= p.item() <= 1
        assert (rest(found, p) <= UP * bound + 1e-14 * size).all()
        p, _, _, _, bound = _deep_parts(found.before, found.range, slope(found.before, found.range))
        assert (rest(found, p) <= UP * bound + 1e-14 * size).all()


@pytest.mark.parametrize("block", BLOCKS)
def test_noise_of_atoms(block: int) -> None:
    """``E v(m, s0)`` for means below zero: a rare jump above zero has all the noise of an active neuron."""
    for seed in range(EACH * block, EACH * (block + 1)):
        found = law(seed)
        found = Law(found.values, found.weight, found.mean - found.mean.max().clamp_min(0) - 0.1, found.s0)
        m, root = found.mean[:, None] + found.values, math.sqrt(found.s0)
        cdf, pdf = normal((m / root).clamp(-1e3, 1e3))
        first, second = m * cdf + root * pdf, (m * m + found.s0) * cdf + m * root * pdf
        noise = (second - first**2) @ found.weight
        rounding = 1e-14 * (m.abs().max() + root) ** 2
        bound = _noise_of_the_dead(found.before, found.range, torch.full((1, 1), found.s0, dtype=F64))
        assert (noise <= UP * bound + rounding).all()
        latent = Latent(
            found.range, Interval(*[torch.full((1, 1), torch.inf)] * 2), *[torch.full((1, 1), torch.inf)] * 3
        )
        assert (noise <= UP * _noise(found.before, found.range, latent).upper + rounding).all()


def jump(height: float, probability: float, mean: float, s0: float) -> Law:
    """T is ``height`` with this probability, and a little below zero otherwise."""
    values = torch.tensor([height, -height * probability / (1 - probability)], dtype=F64)
    weight = torch.tensor([probability, 1 - probability], dtype=F64)
    return Law(values, weight, torch.tensor([mean], dtype=F64), s0)


@pytest.mark.parametrize("probability", [1e-3, 1e-6, 1e-9])
@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_a_jump_over_zero_is_paid_for(probability: float, side: float) -> None:
    """Neurons far from zero that cross it at times: nothing but the rare part counts, and it is not lost."""
    found = jump(-side * 40, probability, side * 10, 1e-4)
    p, _, _, _, bound = _deep_parts(found.before, found.range, slope(found.before, found.range))
    truth = rest(found, p).item()
    assert truth > 9 * math.sqrt(probability)  # from +-10 to -+30: the slope is wrong for 30 of 40
    assert truth <= bound.item() <= 40 * math.sqrt(found.moment(2))
    if side < 0:
        noise = _noise_of_the_dead(found.before, found.range, torch.full((1, 1), 1e-4, dtype=F64)).item()
        assert probability * 1e-4 <= noise * UP


def test_a_neuron_far_from_zero_has_hardly_any_rest() -> None:
    """Gaussian T of deviation 0.05 at a distance of one: p is 0 or 1 and the rest a small share of the deviation."""
    node = torch.linspace(-6, 6, 2001, dtype=F64)
    weight = torch.exp(-0.5 * node**2)
    for mean in (-1.0, 1.0):
        found = Law(0.05 * node, weight / weight.sum(), torch.tensor([mean], dtype=F64), 1e-3)
        p, _, _, _, bound = _deep_parts(found.before, found.range, slope(found.before, found.range))
        assert p.item() == pytest.approx(max(mean, 0), abs=1e-3)
        assert rest(found, p).item() <= bound.item() <= 0.02 * math.sqrt(found.moment(2))
    noise = _noise_of_the_dead(found.before, Interval(-found.mean[None], -found.mean[None]), torch.full((1, 1), 1e-3))
    assert noise.item() <= 1e-6


@pytest.mark.parametrize("norm8", [math.inf, math.nan])
def test_without_a_norm_nothing_changes(norm8: float) -> None:
    found = law(3)
    given = torch.full((1, 1), 0.3, dtype=F64)
    before = replace(found.before, norm8=norm8 * torch.ones(1, 1, dtype=F64))
    p, bound = _near(before, found.range, given, 2 * given)
    assert (p.item(), bound.item()) == (0.3, 0.6)
    s0 = torch.full((1, 1), found.s0, dtype=F64)
    assert torch.equal(_noise_of_the_dead(before, Interval(-given, -given), s0), s0)


# The constants: the variance v(u) of a rectified Gaussian for s = 1, and the slope in s

FAR = 8.0


def standard_mean(u: float) -> arb:
    return oracles.expected_relu(u, 1.0)


def test_variance_slope() -> None:
    """``v'(u) = 2 g(u, 1) (1 - Phi(u))``; g rises and 1 - Phi falls. For u >= 8 it is at most 2 (u + 1) phi(u)/u."""
    limit = subject._VARIANCE_SLOPE
    for ends in ((-FAR, 0.0), (0.0, FAR)):
        search_line(lambda a, b: 2 * standard_mean(b) * oracles.tail(a), limit, ends)
    assert proved(2 * (FAR + 1) * oracles.pdf(FAR) / FAR, limit)
    assert proved(2 * standard_mean(-FAR), limit)


def test_variance_curvature() -> None:
    """``v''(u)/2 = Phi(u)(1 - Phi(u)) - g(u, 1) phi(u)``, from above and below."""
    limit = subject._VARIANCE_CURVATURE

    def density_range(a: float, b: float) -> tuple[arb, arb]:
        """Smallest and largest density on [a, b], which has 0 inside only as an end."""
        near, far = sorted((a, b), key=abs)
        return oracles.pdf(far), oracles.pdf(near)

    def above(a: float, b: float) -> arb:
        return oracles.cdf(b) * oracles.tail(a) - standard_mean(a) * density_range(a, b)[0]

    def below(a: float, b: float) -> arb:
        return standard_mean(b) * density_range(a, b)[1] - oracles.cdf(a) * oracles.tail(b)

    for ends in ((-FAR, 0.0), (0.0, FAR)):
        search_line(above, limit, ends)
        search_line(below, limit, ends)
    assert proved(oracles.tail(FAR), limit)
    assert proved((FAR + 1) * oracles.pdf(FAR), limit)  # g(u, 1) phi(u) <= (u + 1) phi(u), which falls for u >= 8


def test_slope_in_s() -> None:
    """``|Phi(m / sqrt s) - Phi(m / sqrt s0)|`` is at most 1/2 and at most ``phi(1)/2 |log t|``, t = s / s0.

    For t >= 1 the logarithm is at most t - 1; for 1/2 <= t <= 1 it is at most (1 - t) / t in size.
    """
    limit, half, peak = subject._SLOPE_IN_S, arb(1) / 2, oracles.pdf(1.0)
    assert proved(peak, limit)  # covers both
    search_line(
        lambda a, b: half.min(half * peak * -arb(a).log()) / (1 - arb(b)) if a else half / (1 - arb(b)),
        limit,
        (0.0, 0.5),
    )
    assert oracles.cdf(10.0) - oracles.cdf(1e-3) > arb("0.49")  # and not by far: small s turn any m > 0 into a slope


def test_other_constants() -> None:
    assert proved(hermite_peak(1) / 6, subject._THIRD)
    assert proved(arb(16 * 48), subject._LIPSCHITZ_8)  # int_0^inf 8 t^7 2 exp(-t^2/2) dt
