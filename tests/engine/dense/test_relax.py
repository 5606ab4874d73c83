"""Bounds of E ReLU(X) from moments: laws on few atoms, and each part of the covariance in their first step.

An atom is a value of the layer y before: it fixes the mean c of m, the variance V of m given y, and s. Given the atom X
is Gaussian, so that every mean is a finite sum.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from fractions import Fraction

import pytest
import torch
from support.dice import Dice
from support.proofs import hermite_peak, proved
from support.quadrature import density, rectified_law
from tests.engine.dense.truth import behind, sources
from tests.marks import slow_but
from torch import Tensor

from bnndp.engine.dense import relax as subject
from bnndp.engine.dense.records import Cross, PreActivation
from bnndp.engine.dense.relax import relax
from bnndp.geometry.bounds import Interval
from bnndp.layers import Linear
from bnndp.maths.rectified import expected_relu
from bnndp.maths.rounding import UNIT
from bnndp.maths.tails import MEAN_MIXED

F64 = torch.float64
NEURONS = 400


def tensor(*values: float) -> Tensor:
    return torch.tensor([values], dtype=F64)


def exactly(value: float) -> Interval:
    return Interval(tensor(value), tensor(value))


def rectified(m: Tensor, r: Tensor, power: int) -> Tensor:
    """E max(m + r xi, 0)^power for powers 1, 2 and 4, as the textbooks write it."""
    t = m / r
    p, d = 0.5 * torch.erfc(-t / math.sqrt(2)), torch.exp(-0.5 * t * t) / math.sqrt(2 * math.pi)
    if power == 1:
        return m * p + r * d
    if power == 2:
        return (m**2 + r**2) * p + m * r * d
    return (m**4 + 6 * m**2 * r**2 + 3 * r**4) * p + (m**3 * r + 5 * m * r**3) * d


@dataclass(frozen=True)
class Law:
    """One law for each neuron: (neurons, atoms) each."""

    weight: Tensor
    c: Tensor  # E[m | y]
    v: Tensor  # Var(m | y)
    s: Tensor

    def mean(self, values: Tensor) -> Tensor:
        return (self.weight * values).sum(-1)

    def variance(self, values: Tensor) -> Tensor:
        return self.mean((values - self.mean(values)[:, None]) ** 2)

    def truth(self, power: int) -> Tensor:
        """E z^power: (neurons,)."""
        return self.mean(rectified(self.c, (self.v + self.s).sqrt(), power))

    def before(self, wide: float) -> PreActivation:
        """The record of these moments, the ranges of the means of s and V made wider by this share."""

        def around(value: Tensor) -> Interval:
            return Interval(value[None] * (1 - wide), value[None] * (1 + wide))

        away = self.c - self.mean(self.c)[:, None]
        fourth = self.mean(away**4 + 6 * away**2 * self.v + 3 * self.v**2)[None]
        zero = torch.zeros_like(fourth)
        return PreActivation(
            layer=Linear.fixed(torch.zeros(NEURONS, 1, dtype=F64)), jensen=zero, spread=around(self.mean(self.s)),
            spread_variance=self.variance(self.s)[None], spread_fourth=zero + math.inf, noise=around(self.mean(self.v)),
            noise_variance=self.variance(self.v)[None], central=self.variance(self.c)[None], fourth=fourth,
            norm8=zero + math.inf, replacement=Interval(zero, zero), tail=None, energy=None,
        )  # fmt: skip


def laws(kind: str, seed: int) -> Law:
    """Only some of c, V and s random, or all of them together; one atom often far away and rare."""
    dice, atoms = Dice(seed), 2 + seed % 3

    def rand(*shape: int) -> Tensor:
        return dice.uniform(shape=shape)

    weight = 10 ** (-3 * rand(NEURONS, atoms) * (rand(NEURONS, 1) < 0.5))
    weight = weight / weight.sum(-1, keepdim=True)
    scale = 10 ** (2 * rand(NEURONS, 1) - 1.5)
    c = 3 * dice.normal(NEURONS, 1) * rand(NEURONS, 1) ** 2 + 0 * weight
    v, s = 0.3 * rand(NEURONS, 1) + 0 * weight, 0.5 * rand(NEURONS, 1) + 0.02 + 0 * weight
    if kind in ("c", "all"):
        c = c + scale * (rand(NEURONS, atoms) - 0.5)
    if kind in ("v", "all"):
        v = v * (1 + scale * rand(NEURONS, atoms))
    if kind in ("s", "all"):
        s = s * (1 + scale * rand(NEURONS, atoms))
    if kind == "c without v":
        c, v = c + scale * (rand(NEURONS, atoms) - 0.5), 0 * v
    return Law(weight, c, v, s)


@pytest.mark.parametrize("wide", [0.0, 0.2])
@pytest.mark.parametrize("seed", slow_but(range(3), 0))
@pytest.mark.parametrize("kind", ["nothing", "c", "c without v", "v", "s", "all"])
def test_no_law_breaks_the_bounds(kind: str, seed: int, wide: float) -> None:
    law = laws(kind, seed)
    before, m = law.before(wide), law.mean(law.c)[None]
    first, second, fourth = (law.truth(power) for power in (1, 2, 4))
    for reach in (0.0, wide):
        mean = Interval(m - reach, m + 0.5 * reach)
        planes, latent = relax(before, mean)
        slope, offset = planes.lower()
        below, above = (slope * m[:, None] + offset)[0, 0], (planes.upper_slope * m + planes.upper_offset)[0]
        for low, high in ((below, above), (latent.mean.lower[0], latent.mean.upper[0])):
            assert (low <= first + 1e-13).all()  # the rounding of the finite sums
            assert (high >= first - 1e-13).all()
        assert (latent.second.lower[0] <= second + 1e-12).all()
        assert (latent.second.upper[0] >= second - 1e-12).all()
        assert (latent.variance[0] >= second - first**2 - 1e-12).all()
        assert (latent.fourth[0] >= fourth * (1 - 1e-12)).all()


@pytest.mark.parametrize("kind", ["nothing", "c", "v", "s"])
def test_small_variances_cost_little(kind: str) -> None:
    """So that the test above means something: bounds and truth meet where nothing, or little, is random."""
    law = laws(kind, 5)
    tenth = Law(law.weight, *(law.mean(x)[:, None] + 0.05 * (x - law.mean(x)[:, None]) for x in (law.c, law.v, law.s)))
    m = tenth.mean(tenth.c)[None]
    _, latent = relax(tenth.before(0.0), Interval(m, m))
    gap = latent.mean.upper[0] - latent.mean.lower[0]
    assert (gap <= 1e-11 + (0.0 if kind == "nothing" else 0.02)).all()


# Cov(f(m), s), f = d_s g(., sqrt s0), in the second hidden layer: the range of E f'(m), what is left of it without
# E f'(m) Cov(m, s), and the rounding of sums that cancel; by quadrature over one or two sources.


def slope(m: Tensor, s0: Tensor) -> Tensor:
    """f'(m) = d_m d_s g(m, sqrt s0)."""
    u = m / s0.sqrt()
    return -u * density(u) / (2 * s0)


def both_ends(before: PreActivation) -> tuple[tuple[int, Tensor, Tensor], ...]:
    """Sign, s0 and replacement error of an upper and of a lower bound."""
    return (1, before.spread.upper, before.replacement.upper), (-1, before.spread.lower, before.replacement.lower)


@pytest.mark.parametrize("u", [-2.0, -1.0, 0.0, 0.6, 2.0])
@pytest.mark.parametrize("mu", [-0.06, 0.06])
def test_what_the_replacement_adds_to_the_mean_slope(u: float, mu: float) -> None:
    """Nearly all of it is needed at M = 0, where the sixth derivative of g is largest: it cannot be left out."""
    before = behind(sources([u], [1.0]), [mu], [0.0], 1.0)
    z, p = rectified_law(u, 1.0)
    s0 = before.spread.upper
    truth = (p * slope(mu * (z - (p * z).sum()), s0)).sum().item()
    found = subject._mixed(before, exactly(0.0), s0, before.replacement.upper)
    assert found.lower.item() <= truth <= found.upper.item()
    assert 0.9 * found.upper.item() <= abs(truth) <= found.upper.item()


@pytest.mark.parametrize("seed", slow_but(range(12), 0, 3, 7))
def test_the_range_of_the_mean_slope(seed: int) -> None:
    """Over all M of an interval, with one source that dominates or hardly counts."""
    dice = random.Random(seed)
    u, mu, floor = dice.uniform(-2, 4), dice.choice([-1, 1]) * dice.choice([0.05, 0.5, 1.5]), dice.choice([0.3, 1.0])
    before = behind(sources([u], [1.0]), [mu], [0.1], floor)
    z, p = rectified_law(u, 1.0)
    t = mu * (z - (p * z).sum())
    for place in (-2.0, -1.0, -0.3, 0.0, 0.4, 1.0, 3.0):
        for width in (0.0, 0.1, 1.0, 3.0):
            interval = Interval(tensor(place - width), tensor(place + width))
            for _, s0, error in both_ends(before):
                found = subject._mixed(before, interval, s0, error)
                inside = place + width * torch.linspace(-1, 1, 21, dtype=F64)[:, None]
                truth = (p * slope(inside + t, s0)).sum(-1)
                assert found.lower.item() <= truth.min().item() + 1e-11
                assert found.upper.item() >= truth.max().item() - 1e-11


def test_the_range_of_the_noise_is_used() -> None:
    """With nothing to replace, E f'(m) at both ends of N and between."""
    before = behind(sources([3.0], [1.0]), [0.8], [0.1], 0.5)
    before = replace(before, noise=Interval(tensor(0.1), tensor(2.0)))
    s0 = before.spread.upper
    for place in (-2.0, -0.7, 0.0, 0.2, 1.1):
        found = subject._mixed(before, exactly(place), s0, torch.zeros_like(s0))
        for n in (0.1, 0.4, 1.0, 2.0):
            assert found.lower.item() <= slope(tensor(place), s0 + n).item() <= found.upper.item()


@pytest.mark.parametrize("mu", [-0.02, 0.02])
def test_the_rest_is_needed(mu: float) -> None:
    """A source that is rarely active, at M = 0: Cov(f(m), s) differs from its first order by nearly all of the rest."""
    u, sigma = -3.0, 0.5
    before = behind(sources([u], [1.0]), [mu], [sigma], 1.0)
    z, p = rectified_law(u, 1.0)
    s0 = before.spread.upper
    m, s = mu * (z - (p * z).sum()), sigma**2 * z * z
    f = density(m / s0.sqrt()) / (2 * s0.sqrt())
    centred = s - (p * s).sum()
    first_order = (p * slope(m, s0)).sum() * (p * m * centred).sum()
    difference = ((p * f * centred).sum() - first_order).abs().item()
    rest = subject._rest(before.cross, s0).item()
    assert 0.85 * rest <= difference <= rest


@pytest.mark.parametrize("s0", [0.04, 1.0, 9.0])
def test_both_parts_of_the_rest(s0: float) -> None:
    """Half the largest f'' and half the largest f''' times the sums, both found on a grid."""
    u = torch.linspace(-6, 6, 24_001, dtype=F64)
    twice = (0.5 * (u * u - 1) * density(u)).abs().max().item() / s0**1.5
    thrice = (0.5 * (u**3 - 3 * u) * density(u)).abs().max().item() / s0**2
    for second, third in ((1.0, 0.0), (0.0, 1.0), (2.0, 3.0)):
        record = Cross(exactly(0.0), tensor(0.0), tensor(second), tensor(third))
        exact = 0.5 * (twice * second + thrice * third)
        assert exact * (1 - 1e-9) <= subject._rest(record, tensor(s0)).item() <= exact * 1.001


@pytest.mark.parametrize("seed", slow_but(range(40), *range(8)))
def test_covariance_of_the_slope_in_s(seed: int) -> None:
    """Two sources, so that everything is a double sum; M is moved by the bias over the interesting range."""
    dice, normal = random.Random(seed), Dice(seed)
    r = [dice.choice([0.1, 0.5, 1.0]) for _ in range(2)]
    m = [dice.uniform(-2, 4) * each for each in r]
    mu = normal.normal(2) * dice.choice([0.1, 0.5, 1.0])
    sigma, floor = normal.uniform(shape=(2,)) * dice.choice([0.3, 1.0]), dice.choice([0.3, 1.0])
    (z1, p1), (z2, p2) = (rectified_law(m[k], r[k], 16) for k in range(2))
    p = p1[:, None] * p2
    t = mu[0] * z1[:, None] + mu[1] * z2
    t = t - (p * t).sum()
    s = sigma[0] ** 2 * z1[:, None] ** 2 + sigma[1] ** 2 * z2**2 + floor**2
    big_s = float((p * s).sum())
    before = behind(sources(m, r), mu.tolist(), sigma.tolist(), floor)
    places = torch.tensor([-3.0, -1.9, -1.5, -1.0, -0.5, 0.0, 0.3, 1.0, 1.4, 2.0], dtype=F64)
    places = places * math.sqrt(big_s + float((p * t * t).sum()))
    tolerance = 1e-9 * float((p * (s - big_s).abs()).sum())
    for sign, s0, error in both_ends(before):
        root = s0.sqrt()
        truths = [sign * float((p * density((t + at) / root) / (2 * root) * (s - big_s)).sum()) for at in places]
        for i, j in ((0, 2), (3, 5), (7, 9), *((k, k) for k in range(len(places)))):
            interval = Interval(places[i].reshape(1, 1), places[j].reshape(1, 1))
            found = subject._covariance(before, before.cross, interval, s0, error, sign).item()
            assert found >= max(truths[i : j + 1]) - tolerance


def test_derivatives_of_the_slope_in_s() -> None:
    """f = d_s g has f^(k) = He_k phi/(2 rho^(k+1)) up to the sign; that of order 4 goes with g^(3) = u phi/rho^2."""
    assert proved(hermite_peak(2) / 2, subject._MIXED_TWICE)
    assert proved(hermite_peak(3) / 2, subject._MIXED_THRICE)
    assert proved(hermite_peak(4) / 2 / hermite_peak(1), subject._TO_MIXED)


def test_it_can_be_negative_and_is_then_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sources that push m down and s up, M below zero: the upper bound falls below g(M, rho) plus the other errors."""
    before = behind(sources([1.0] * 40, [0.3] * 40), [-0.05] * 40, [0.05] * 40, 0.1)
    without = replace(before, cross=None)
    monkeypatch.setattr(subject, "_DELTAS", (0.0,))  # the only one at which the covariance counts
    for (sign, s0, error), place in zip(both_ends(before), (-0.4, 0.4), strict=True):
        assert subject._covariance(before, before.cross, exactly(place), s0, error, sign) < 0
        used, plain = (subject._enclose(record, exactly(place)) for record in (before, without))
        assert used.high_end < plain.high_end if sign > 0 else used.loss < plain.loss


def test_a_part_that_is_not_known_is_no_bound() -> None:
    before = behind(sources([1.0], [1.0]), [0.5], [0.2], 0.5)
    known, (_, s0, error) = before.cross, both_ends(before)[0]
    assert known is not None
    for bad in (math.inf, math.nan):
        part = replace(known, second=known.second * bad)
        whole = MEAN_MIXED * known.absolute / s0
        assert subject._covariance(before, part, exactly(0.2), s0, error, 1) >= whole
        assert not subject._mixed(before, exactly(0.2), s0, error * bad).upper < MEAN_MIXED / s0


def test_a_sum_that_cancels_is_not_below_the_exact_one() -> None:
    """Each term may be off by 32 rounded operations; exact sums by fractions."""
    dice = random.Random(0)
    for _ in range(300):
        n = dice.choice([2, 3, 4])
        terms = [dice.uniform(-1, 1) * 10.0 ** dice.randint(-3, 3) for _ in range(n - 1)]
        terms.append(-math.fsum(terms) * (1 + dice.choice([0.0, 1e-15, 1e-9])))
        found = subject._total(*(tensor(value) for value in terms)).item()
        true = sum(Fraction(value) + abs(Fraction(value)) * 32 * Fraction(UNIT) for value in terms)
        assert Fraction(found) >= true
        assert Fraction(found) - true <= Fraction(1e-13) * sum(abs(Fraction(value)) for value in terms)


@pytest.mark.parametrize("place", [-0.4, 0.4])
def test_a_negative_loss_is_rounded_outward(monkeypatch: pytest.MonkeyPatch, place: float) -> None:
    """Whatever the sign of the loss, the plane keeps its slack and its size."""
    before = behind(sources([1.0] * 40, [0.3] * 40), [-0.05 if place > 0 else 0.05] * 40, [0.05] * 40, 0.1)
    enclosure = subject.Enclosure(tensor(0.5), tensor(-2.0), tensor(0.1), tensor(0.1))
    monkeypatch.setattr(subject, "_enclose", lambda *_: enclosure)
    found, latent = relax(before, exactly(place))
    assert found.loss.item() + 2.0 >= subject._ROUND * (abs(place) + 2.0)
    steep, offset = found.lower()
    assert found.size.item() >= (steep * place).abs().item() + offset.abs().item()
    usual = expected_relu(tensor(place), tensor(0.5)).item()
    assert latent.mean.lower.item() <= usual + 2.0 - subject._ROUND * 2.0
