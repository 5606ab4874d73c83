"""Cov(d_s g(m, sqrt s0), s) in the second hidden layer: each of its parts against ball arithmetic or quadrature.

Write f = d_s g(., sqrt s0). The parts are Cov(z, z^2) of a source, the sums over sources, the range of E f'(m), what is
left of Cov(f(m), s) without E f'(m) Cov(m, s), and the rounding of sums that cancel.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from flint import arb, ctx
from support import oracles
from torch import Tensor

from bnndp.engine.dense import first as first_module
from bnndp.engine.dense import relax
from bnndp.engine.dense.first import FirstLayer, first_layer
from bnndp.engine.dense.pre_activation import _cross as sums_of
from bnndp.engine.dense.pre_activation import pre_activation
from bnndp.engine.dense.records import Cross, PreActivation
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.maths.rectified import moments
from bnndp.maths.rounding import ELEMENTARY, UNIT

F64 = torch.float64


def tensor(*values: float) -> Tensor:
    return torch.tensor([values], dtype=F64)


# Cov(z, z^2)


def cross(m: arb, r: arb) -> arb:
    z = oracles.rectified(m, r)
    return z.third - z.mean * z.second


def test_the_covariance_of_z_and_its_square_increases_in_both() -> None:
    """So the ends of the ranges of m and r bound it."""
    with ctx.workprec(2 * oracles.PRECISION):
        values = [arb(k) / 8 for k in range(-64, 65)]
        scales = [arb(k) / 8 for k in range(1, 33)]
        table = [[cross(m, r) for r in scales] for m in values]
    for i in range(len(values)):
        for j in range(len(scales)):
            assert i == 0 or table[i][j] > table[i - 1][j]
            assert j == 0 or table[i][j] > table[i][j - 1]


def test_the_proof_that_it_increases_in_r() -> None:
    """d_s C = (3 - Phi) g - phi E z^2 / 2 for r = 1, by a difference quotient; and phi E z^2 <= 5/4 g."""
    with ctx.workprec(4 * oracles.PRECISION):
        step = arb(2) ** -200
        for k in range(-80, 81):
            u = arb(k) / 4
            z, active, density = oracles.rectified(u, arb(1)), oracles.cdf(u), oracles.pdf(u)
            slope = (cross(u, (1 + step).sqrt()) - cross(u, (1 - step).sqrt())) / (2 * step)
            formula = (3 - active) * z.mean - density * z.second / 2
            assert abs(slope - formula) < formula * arb("1e-20")
            assert density * z.second <= z.mean * 5 / 4


@pytest.mark.parametrize("r", [1e-25, 1e-3, 1.0, 1e4, 1e20])
def test_its_rounding(r: float) -> None:
    """Within an eighth of the error granted, so the ends with that error lie on their sides."""
    for k in range(-320, 321):
        m = (k / 8 + 0.01) * r
        at = moments(tensor(m), tensor(r))
        found = at.cross.item()
        scale = max(m, 0.0) + r
        with ctx.workprec(2 * oracles.PRECISION):
            truth = cross(arb(m), arb(r))
            assert oracles.error(found, truth) <= arb(ELEMENTARY) / 8 * arb(scale) * arb(r) ** 2
            m_range, r_range = Interval(tensor(m), tensor(m)), Interval(tensor(r), tensor(r))
            ends = first_module._cross(at, at, first_module.Ranges(m_range, r_range, tensor(m), tensor(r)))
            assert oracles.below(ends.lower.item(), truth)
            assert oracles.above(ends.upper.item(), truth)


@pytest.mark.parametrize("seed", range(8))
def test_the_range_over_a_box(seed: int) -> None:
    dice, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    layer = Linear(
        *(
            torch.randn(*s, generator=generator, dtype=F64).abs() - k
            for s, k in (((5, 3), 0.7), ((5, 3), 0.0), ((5,), 0.7), ((5,), 0.0))
        )
    )
    box = Box.ball(torch.randn(3, generator=generator, dtype=F64), dice.choice([0.0, 0.01, 0.5]))
    found = first_layer(layer, box).sources.cross
    low, high = box.lower[0], box.upper[0]
    for _ in range(10):
        x = (low + (high - low) * torch.rand(3, generator=generator, dtype=F64)).clamp(low, high)
        m = layer.weight_mean @ x + layer.bias_mean
        r = (layer.weight_std.square() @ x.square() + layer.bias_std.square()).sqrt()
        for i in range(5):
            truth = float(cross(arb(m[i].item()), arb(r[i].item())))
            assert found.lower[0, i].item() <= truth * (1 + 1e-10) + 1e-13
            assert found.upper[0, i].item() >= truth * (1 - 1e-10) - 1e-13
            if torch.equal(low, high):
                assert found.upper[0, i].item() == pytest.approx(truth, rel=1e-8, abs=1e-11)


# Sums over the sources


def fixed(m: list[float], r: list[float]) -> FirstLayer:
    """A first layer whose sources have these means and deviations at its only input."""
    zero = torch.zeros(len(m), 1, dtype=F64)
    layer = Linear(zero, zero, torch.tensor(m, dtype=F64), torch.tensor(r, dtype=F64))
    return first_layer(layer, Box(torch.zeros(1, 1, dtype=F64), torch.zeros(1, 1, dtype=F64)))


def second_layer(first: FirstLayer, mu: list[float], sigma: list[float], floor: float) -> PreActivation:
    layer = Linear(tensor(*mu), tensor(*sigma), torch.zeros(1, dtype=F64), torch.tensor([floor], dtype=F64))
    return pre_activation(layer, first, [first.latent], [])


def cross_of(before: PreActivation) -> Cross:
    assert before.cross is not None
    return before.cross


@pytest.mark.parametrize("scale", [1.0, 1e33])
@pytest.mark.parametrize("seed", range(6))
def test_the_sums(seed: int, scale: float) -> None:
    """Large z and small weights in the second case: powers of the weights underflow, and the rests must not vanish."""
    dice, n = random.Random(seed), 12
    m, r = ([scale * dice.uniform(*ends) for _ in range(n)] for ends in ((-1.5, 2.0), (0.3, 1.0)))
    small = 1.0 if scale == 1 else 1e-65
    mu, sigma = ([small * dice.uniform(*ends) for _ in range(n)] for ends in ((-1.0, 1.0), (0.1, 1.0)))
    if seed % 2:  # pairs that cancel but for the last one
        half = n // 2
        m, r, sigma = m[:half] * 2, r[:half] * 2, sigma[:half] * 2
        mu = mu[:half] + [-w for w in mu[:half]]
        mu[-1] *= 1 + 1e-13
    found = cross_of(second_layer(fixed(m, r), mu, sigma, 0.0))
    with ctx.workprec(2 * oracles.PRECISION):
        parts = []
        for a, b, w, s in zip(m, r, mu, sigma, strict=True):
            z = oracles.rectified(arb(a), arb(b))
            fourth = z.fourth - 4 * z.mean * z.third + 6 * z.mean**2 * z.second - 3 * z.mean**4
            c, w2, s2 = cross(arb(a), arb(b)), arb(w) ** 2, arb(s) ** 2
            mixed = (fourth * z.square_variance).sqrt()
            parts.append(
                (arb(w) * s2 * c, abs(arb(w)) * s2 * c, w2 * s2 * mixed, abs(arb(w)) * w2 * s2 * z.variance * c)
            )
        covariance, absolute, second, third = (sum(column, arb(0)) for column in zip(*parts, strict=True))
        assert oracles.below(found.covariance.lower.item(), covariance)
        assert oracles.above(found.covariance.upper.item(), covariance)
        for value, truth in ((found.absolute, absolute), (found.second, second), (found.third, third)):
            assert oracles.above(value.item(), truth)
        if scale == 1:
            width = (found.covariance.upper - found.covariance.lower).item()
            assert arb(width) <= absolute * arb("1e-11")
            for value, truth in ((found.absolute, absolute), (found.second, second), (found.third, third)):
                assert value.item() == pytest.approx(float(truth), rel=1e-9)


def test_the_rounding_of_the_sums() -> None:
    """With Cov(z, z^2) known exactly, the sums alone: exact ones by fractions, none on the wrong side."""
    generator, n = torch.Generator().manual_seed(7), 9
    first = fixed([1.0] * n, [1.0] * n).sources
    for _ in range(40):
        c, mu, sigma = (torch.randn(1, n, generator=generator, dtype=F64) for _ in range(3))
        c, sigma = c.abs(), sigma.abs()
        bias = torch.zeros(1, dtype=F64)
        found = sums_of(Linear(mu, sigma, bias, bias), replace(first, cross=Interval(c, c)))
        columns = zip(mu[0].tolist(), sigma[0].tolist(), c[0].tolist(), strict=True)
        parts = [Fraction(w) * Fraction(s) ** 2 * Fraction(k) for w, s, k in columns]
        assert Fraction(found.covariance.lower.item()) <= sum(parts) <= Fraction(found.covariance.upper.item())
        assert Fraction(found.absolute.item()) >= sum(abs(part) for part in parts)


# E f'(m), the rest, and the whole, by quadrature over one or two sources


def rectified(m: float, r: float, panels: int = 40) -> tuple[Tensor, Tensor]:
    """Nodes and weights of max(N(m, r^2), 0): the atom, and twelve Gauss-Legendre nodes in each panel above it."""
    k = torch.arange(1, 12, dtype=F64)
    off = k / (4 * k * k - 1).sqrt()
    x, vectors = torch.linalg.eigh(torch.diag(off, 1) + torch.diag(off, -1))
    w = 2 * vectors[0] ** 2
    low, high = max(-m / r, -9.0), max(9.0, 4.0 - m / r)
    half = (high - low) / (2 * panels)
    xi = (torch.linspace(low, high, panels + 1, dtype=F64)[:-1, None] + half * (x + 1)).flatten()
    weight = (half * w).repeat(panels) * density(xi)
    atom = torch.tensor([0.5 * math.erfc(m / r / math.sqrt(2))], dtype=F64)
    return torch.cat([torch.zeros(1, dtype=F64), m + r * xi]), torch.cat([atom, weight])


def density(u: Tensor) -> Tensor:
    return torch.exp(-0.5 * u * u) / math.sqrt(2 * math.pi)


def slope(m: Tensor, s0: Tensor) -> Tensor:
    """f'(m) = d_m d_s g(m, sqrt s0)."""
    u = m / s0.sqrt()
    return -u * density(u) / (2 * s0)


@pytest.mark.parametrize("u", [-2.0, -1.0, 0.0, 0.6, 2.0])
@pytest.mark.parametrize("mu", [-0.06, 0.06])
def test_what_the_replacement_adds_to_the_mean_slope(u: float, mu: float) -> None:
    """Nearly all of it is needed at M = 0, where the sixth derivative of g is largest: it cannot be left out."""
    before = second_layer(fixed([u], [1.0]), [mu], [0.0], 1.0)
    z, p = rectified(u, 1.0)
    m = mu * (z - (p * z).sum())
    s0, zero = before.spread.upper, tensor(0.0)
    truth = (p * slope(m, s0)).sum().item()
    found = relax._mixed(before, Interval(zero, zero), s0, before.replacement.upper)
    assert found.lower.item() <= truth <= found.upper.item()
    assert 0.9 * found.upper.item() <= abs(truth) <= found.upper.item()


@pytest.mark.parametrize("seed", range(12))
def test_the_range_of_the_mean_slope(seed: int) -> None:
    """Over all M of an interval, with one source that dominates or hardly counts."""
    dice = random.Random(seed)
    u, mu, floor = dice.uniform(-2, 4), dice.choice([-1, 1]) * dice.choice([0.05, 0.5, 1.5]), dice.choice([0.3, 1.0])
    before = second_layer(fixed([u], [1.0]), [mu], [0.1], floor)
    z, p = rectified(u, 1.0)
    t = mu * (z - (p * z).sum())
    for place in (-2.0, -1.0, -0.3, 0.0, 0.4, 1.0, 3.0):
        for width in (0.0, 0.1, 1.0, 3.0):
            interval = Interval(tensor(place - width), tensor(place + width))
            for s0, error in (
                (before.spread.lower, before.replacement.lower),
                (before.spread.upper, before.replacement.upper),
            ):
                found = relax._mixed(before, interval, s0, error)
                inside = place + width * torch.linspace(-1, 1, 21, dtype=F64)[:, None]
                truth = (p * slope(inside + t, s0)).sum(-1)
                assert found.lower.item() <= truth.min().item() + 1e-11
                assert found.upper.item() >= truth.max().item() - 1e-11


def test_the_range_of_the_noise_is_used() -> None:
    """With nothing to replace, E f'(m) at both ends of N and between."""
    before = second_layer(fixed([3.0], [1.0]), [0.8], [0.1], 0.5)
    before = replace(before, noise=Interval(tensor(0.1), tensor(2.0)))
    s0 = before.spread.upper
    for place in (-2.0, -0.7, 0.0, 0.2, 1.1):
        at = tensor(place)
        found = relax._mixed(before, Interval(at, at), s0, torch.zeros_like(s0))
        for n in (0.1, 0.4, 1.0, 2.0):
            rho = (s0 + n).sqrt()
            truth = (-(at / rho) * density(at / rho) / (2 * rho * rho)).item()
            assert found.lower.item() <= truth <= found.upper.item()


@pytest.mark.parametrize("mu", [-0.02, 0.02])
def test_the_rest_is_needed(mu: float) -> None:
    """A source that is rarely active, at M = 0: Cov(f(m), s) differs from its first order by nearly all of the rest."""
    u, sigma = -3.0, 0.5
    before = second_layer(fixed([u], [1.0]), [mu], [sigma], 1.0)
    z, p = rectified(u, 1.0)
    s0 = before.spread.upper
    m, s = mu * (z - (p * z).sum()), sigma**2 * z * z
    f = density(m / s0.sqrt()) / (2 * s0.sqrt())
    centred = s - (p * s).sum()
    first_order = (p * slope(m, s0)).sum() * (p * m * centred).sum()
    difference = ((p * f * centred).sum() - first_order).abs().item()
    rest = relax._rest(cross_of(before), s0).item()
    assert 0.85 * rest <= difference <= rest


@pytest.mark.parametrize("s0", [0.04, 1.0, 9.0])
def test_both_parts_of_the_rest(s0: float) -> None:
    """Half the largest f'' and half the largest f''' times the sums, both found on a grid."""
    u = torch.linspace(-6, 6, 24_001, dtype=F64)
    twice = (0.5 * (u * u - 1) * density(u)).abs().max().item() / s0**1.5
    thrice = (0.5 * (u**3 - 3 * u) * density(u)).abs().max().item() / s0**2
    empty = Interval(tensor(0.0), tensor(0.0))
    for second, third in ((1.0, 0.0), (0.0, 1.0), (2.0, 3.0)):
        record = Cross(empty, tensor(0.0), tensor(second), tensor(third))
        exact = 0.5 * (twice * second + thrice * third)
        assert exact * (1 - 1e-9) <= relax._rest(record, tensor(s0)).item() <= exact * 1.001


@pytest.mark.parametrize("seed", range(40))
def test_covariance_of_the_slope_in_s(seed: int) -> None:
    """Two sources, so that everything is a double sum; M is moved by the bias over the interesting range."""
    dice, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    r = [dice.choice([0.1, 0.5, 1.0]) for _ in range(2)]
    u = [dice.uniform(-2, 4) for _ in range(2)]
    mu = torch.randn(2, generator=generator, dtype=F64) * dice.choice([0.1, 0.5, 1.0])
    sigma = torch.rand(2, generator=generator, dtype=F64) * dice.choice([0.3, 1.0])
    floor = dice.choice([0.3, 1.0])
    (z1, p1), (z2, p2) = (rectified(u[k] * r[k], r[k], 16) for k in range(2))
    p = p1[:, None] * p2
    t = mu[0] * z1[:, None] + mu[1] * z2
    t = t - (p * t).sum()
    s = sigma[0] ** 2 * z1[:, None] ** 2 + sigma[1] ** 2 * z2**2 + floor**2
    big_s = float((p * s).sum())
    before = second_layer(fixed([u[k] * r[k] for k in range(2)], r), mu.tolist(), sigma.tolist(), floor)
    scale = math.sqrt(big_s + float((p * t * t).sum()))
    ends = (
        (1, before.spread.upper, before.replacement.upper),
        (-1, before.spread.lower, before.replacement.lower),
    )
    for sign, s0, error in ends:
        places = torch.tensor([-3.0, -1.9, -1.5, -1.0, -0.5, 0.0, 0.3, 1.0, 1.4, 2.0], dtype=F64) * scale
        truths = []
        for at in places:
            f = density((t + at) / s0.sqrt()) / (2 * s0.sqrt())
            truths.append(sign * float((p * f * (s - big_s)).sum()))
        tolerance = 1e-9 * float((p * (s - big_s).abs()).sum())
        for i, j in ((0, 2), (3, 5), (7, 9), *((k, k) for k in range(len(places)))):
            interval = Interval(places[i].reshape(1, 1), places[j].reshape(1, 1))
            found = relax._covariance(before, cross_of(before), interval, s0, error, sign).item()
            assert found >= max(truths[i : j + 1]) - tolerance


def test_it_can_be_negative_and_is_then_used() -> None:
    """Sources that push m down and s up, M below zero: the upper bound falls below g(M, rho) plus the other errors."""
    first = fixed([1.0] * 40, [0.3] * 40)
    before = second_layer(first, [-0.05] * 40, [0.05] * 40, 0.1)
    at = Interval(tensor(-0.4), tensor(-0.4))
    without = replace(before, cross=None)
    assert relax._covariance(before, cross_of(before), at, before.spread.upper, before.replacement.upper, 1) < 0
    assert relax._enclose(before, at, (0.0,)).high_end < relax._enclose(without, at, (0.0,)).high_end
    up = Interval(tensor(0.4), tensor(0.4))
    assert relax._covariance(before, cross_of(before), up, before.spread.lower, before.replacement.lower, -1) < 0
    assert relax._enclose(before, up, (0.0,)).loss < relax._enclose(without, up, (0.0,)).loss


def test_a_part_that_is_not_known_is_no_bound() -> None:
    before = second_layer(fixed([1.0], [1.0]), [0.5], [0.2], 0.5)
    at, s0 = Interval(tensor(0.2), tensor(0.2)), before.spread.upper
    known = cross_of(before)
    whole = relax.MEAN_MIXED * known.absolute / s0
    for bad in (math.inf, math.nan):
        part = Cross(known.covariance, known.absolute, known.second * bad, known.third)
        assert relax._covariance(before, part, at, s0, before.replacement.upper, 1) >= whole
        found = relax._mixed(before, at, s0, before.replacement.upper * bad)
        assert not found.upper < relax.MEAN_MIXED / s0


# Rounding of sums that cancel


def test_a_sum_that_cancels_is_not_below_the_exact_one() -> None:
    """Each term may be off by 32 rounded operations; exact sums by fractions."""
    dice = random.Random(0)
    for _ in range(300):
        n = dice.choice([2, 3, 4])
        terms = [dice.uniform(-1, 1) * 10.0 ** dice.randint(-3, 3) for _ in range(n - 1)]
        terms.append(-math.fsum(terms) * (1 + dice.choice([0.0, 1e-15, 1e-9])))
        found = relax._total(*(tensor(value) for value in terms)).item()
        true = sum(Fraction(value) + abs(Fraction(value)) * 32 * Fraction(UNIT) for value in terms)
        assert Fraction(found) >= true
        assert Fraction(found) - true <= Fraction(1e-13) * sum(abs(Fraction(value)) for value in terms)


@pytest.mark.parametrize("place", [-0.4, 0.4])
def test_a_negative_loss_is_rounded_outward(place: float) -> None:
    """Whatever the sign of the loss, the plane keeps its slack and its size."""
    before = second_layer(fixed([1.0] * 40, [0.3] * 40), [-0.05 if place > 0 else 0.05] * 40, [0.05] * 40, 0.1)
    mean = Interval(tensor(place), tensor(place))
    loss = torch.tensor([[-2.0]], dtype=F64)
    enclosure = relax.Enclosure(tensor(0.5), loss, tensor(0.1), tensor(0.1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(relax, "_enclose", lambda *_: enclosure)
        found, latent = relax.relax(before, mean)
    assert found.loss.item() - loss.item() >= relax._ROUND * (abs(place) + 2.0)
    slope_, offset = found.lower()
    assert found.size.item() >= (slope_ * place).abs().item() + offset.abs().item()
    assert latent.mean.lower.item() <= relax.expected_relu(tensor(place), tensor(0.5)).item() + 2.0 - relax._ROUND * 2.0
