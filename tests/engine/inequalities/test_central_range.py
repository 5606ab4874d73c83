"""Central moments over rectangles contain those at every point of them, which the contract of activations proves."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from flint import arb
from support import oracles
from support.activation_truths import TRUTHS
from support.dice import Dice
from support.layer_networks import ACTS, activation
from tests.marks import slow_but
from torch import Tensor

from bnndp.activations import LeakyRelu
from bnndp.activations.activation import Central, Shape
from bnndp.engine.inequalities.central_range import _SLOPES, BENDS, HINGE, _hinge, _over, central_range, variance_range
from bnndp.geometry.bounds import Interval

WIDTHS = (0.0, 1e-3, 0.1, 1.0, 10.0)


def rectangles(count: int, seed: int) -> tuple[Interval, Interval]:
    generator = torch.Generator().manual_seed(seed)

    def uniform() -> Tensor:
        return torch.rand(count, 1, generator=generator, dtype=torch.float64)

    r = 10 ** (3 * uniform() - 2)
    wide = torch.tensor(WIDTHS, dtype=torch.float64)[torch.randint(len(WIDTHS), (2, count, 1), generator=generator)]
    m = (3 * uniform() - 1.5) + (4 * uniform() - 2) * r
    low = torch.where(uniform() < 0.1, 0.0, r)  # r = 0 is an end
    return Interval(m, m + wide[0] * r * uniform()), Interval(low, r + wide[1] * r * uniform())


@pytest.mark.parametrize("act", slow_but(ACTS, "relu", "hard_tanh", "tanh", "elu", "gelu"))
def test_moments_of_every_point_are_inside(act: str) -> None:
    phi = activation(act)
    count = 20 if act == "piecewise_affine" else 300
    m, r = rectangles(count, 3)
    found = central_range(phi, m, r)
    generator = torch.Generator().manual_seed(4)
    for _ in range(4 if act == "piecewise_affine" else 40):
        a, b = torch.rand(2, count, 1, generator=generator, dtype=torch.float64)
        at_m, at_r = m.lower + a * (m.upper - m.lower), r.lower + b * (r.upper - r.lower)
        at = phi.central(at_m, at_r)
        for name, degree in (("variance", 2), ("third", 3), ("fourth", 4)):
            inner, outer, slack = getattr(at, name), getattr(found, name), 1e-12 * r.upper**degree
            assert bool((outer.lower <= inner.upper + slack).all()), name
            assert bool((inner.lower <= outer.upper + slack).all()), name
        # The norms of points are upper bounds themselves, most of them those of Lipschitz functions.
        assert bool((found.norm8 >= at.fourth.lower.clamp_min(0) ** 0.25 * (1 - 1e-9)).all())
        assert bool((found.norm16 >= found.variance.lower.sqrt() * (1 - 1e-9)).all())


@pytest.mark.parametrize("act", ["relu", "leaky_relu"])
def test_norms_of_rectangles_below_a_kink(act: str) -> None:
    m = Interval(torch.tensor([[-3.0]], dtype=torch.float64), torch.tensor([[-2.0]], dtype=torch.float64))
    r = Interval(torch.tensor([[0.5]], dtype=torch.float64), torch.tensor([[0.8]], dtype=torch.float64))
    found, truth = central_range(activation(act), m, r), TRUTHS[act]
    for a in (-3.0, -2.5, -2.0):
        for b in (0.5, 0.65, 0.8):
            assert found.norm8.item() >= float(truth.norm(a, b, 8))
            assert found.norm16.item() >= float(truth.norm(a, b, 16))


def test_a_point_is_left_as_it_is() -> None:
    phi = activation("tanh")
    m, r = torch.tensor([[0.3, -1.0]], dtype=torch.float64), torch.tensor([[0.2, 1.0]], dtype=torch.float64)
    found, at = central_range(phi, Interval(m, m), Interval(r, r)), phi.central(m, r)
    assert torch.equal(found.third.lower, at.third.lower)
    assert torch.equal(found.fourth.upper, at.fourth.upper)


def test_constants() -> None:
    """The terms of the second derivatives one by one, with L = r = 1, as they are left after those of phi'^2 cancel.

    In both directions: -2 h^2 for the variance, -12 h E A phi' eta for the third moment and -24 h E A^2 phi' eta +
    12 h^2 v for the fourth, h the derivative of the mean, at most 1 and E |xi|; and n E phi' (A^(n-1) - E A^(n-1))
    times xi or xi^3 - 2 xi, whose deviations are 1 and sqrt 7.
    """
    bend, mean = math.sqrt(7), math.sqrt(2 / math.pi)
    sizes = (1.0, math.sqrt(3), math.sqrt(15))  # deviations of A^(n-1), at most those of a Gaussian
    for n, size, first, (in_m, in_r) in zip((2, 3, 4), sizes, _SLOPES, BENDS, strict=True):
        assert first >= n * size
        left_m = {2: 2.0, 3: 12.0, 4: 24.0 + 12.0}[n]
        left_r = {2: 2 * mean**2, 3: 12 * mean, 4: 24 * mean * math.sqrt(3) + 12 * mean**2}[n]
        assert in_m >= left_m + n * size
        assert in_r >= left_r + n * size * bend


# One kink at zero: moments of degree n of slopes a and 1


def hinge_moments(a: Tensor, u: Tensor) -> tuple[dict[int, Tensor], dict[int, tuple[Tensor, Tensor]]]:
    r"""Central moments F_n of :math:`\varphi(u+\xi)` for slopes a and 1, and two derivatives in u, by n.

    With :math:`A=\varphi-h`, b = 1 - a and :math:`J_k=\mathbb EA^k1_{X>0}`: :math:`F_n'=nb(J_{n-1}-\Phi F_{n-1})`, and
    :math:`J_{n-1}'=(n-1)(1-h')J_{n-2}+(-h)^{n-1}p(u)`.
    """
    b, cdf, pdf = 1 - a, torch.special.ndtr(u), torch.exp(-0.5 * u * u) / math.sqrt(2 * math.pi)
    above = [cdf, u * cdf + pdf]  # E X^k 1[X > 0]
    for k in (2, 3, 4):
        above.append(u * above[-1] + (k - 1) * above[-2])
    whole = [torch.ones_like(u), u, u**2 + 1, u**3 + 3 * u, u**4 + 6 * u**2 + 3]
    h, slope = a * u + b * above[1], a + b * cdf

    def active(n: int) -> Tensor:  # J_n
        return sum(math.comb(n, j) * above[j] * (-h) ** (n - j) for j in range(n + 1))

    def moment(n: int) -> Tensor:
        below = (math.comb(n, j) * a**j * (whole[j] - above[j]) * (-h) ** (n - j) for j in range(n + 1))
        return active(n) + sum(below)

    moments = {1: torch.zeros_like(a + u), **{n: moment(n) for n in (2, 3, 4)}}
    first, derivatives = {1: torch.zeros_like(a + u)}, {}
    for n in (2, 3, 4):
        first[n] = n * b * (active(n - 1) - cdf * moments[n - 1])
        second = (
            (n - 1) * (1 - slope) * active(n - 2) + pdf * (-h) ** (n - 1) - pdf * moments[n - 1] - cdf * first[n - 1]
        )
        derivatives[n] = first[n], n * b * second
    return moments, derivatives


@oracles.precise
def exact_moment(n: int, a: float, u: arb) -> arb:
    """F_n in ball arithmetic: aX + b R of a Gaussian X and its rectifier R, by their raw moments."""
    z, s = oracles.rectified(u, arb(1)), arb(a)
    above = [oracles.cdf(u), z.mean, z.second, z.third, z.fourth]
    whole = [arb(1), u, u**2 + 1, u**3 + 3 * u, u**4 + 6 * u**2 + 3]
    raw = [above[k] + s**k * (whole[k] - above[k]) for k in range(5)]
    return sum((math.comb(n, k) * raw[k] * (-raw[1]) ** (n - k) for k in range(n + 1)), arb(0))


@pytest.mark.parametrize("a", [0.0, 0.01, 0.3, 0.9, 1.0])
@oracles.precise
def test_the_moments_of_hinges_are_those_of_ball_arithmetic(a: float) -> None:
    """And their derivatives, by differences over 1e-20."""
    step = arb("1e-20")
    for u in (-11.7, -4.0, -1.3, -0.237, 0.001, 0.596, 1.21, 2.154, 6.0, 12.0):
        moments, derivatives = hinge_moments(*(torch.tensor([t], dtype=torch.float64) for t in (a, u)))
        for n in (3, 4):
            low, at, high = (exact_moment(n, a, arb(u) + k * step) for k in (-1, 0, 1))
            size = 1e-13 * (1 + abs(u)) ** n
            truths = (at, (high - low) / (2 * step), (high - 2 * at + low) / step**2)
            for found, truth in zip((moments[n], *derivatives[n]), truths, strict=True):
                assert abs(found.item() - float(truth.mid())) <= size


def test_the_constants_of_hinges() -> None:
    """Between two points of the grid a value differs from one of them by no more than they differ, nearly."""
    a = torch.linspace(0, 1, 161, dtype=torch.float64)[:, None] ** 2
    for ends in ((-12.0, -4.0, 1601), (-4.0, 4.0, 16_001), (4.0, 12.0, 1601)):
        u = torch.linspace(*ends, dtype=torch.float64)[None]
        _, derivatives = hinge_moments(a, u)
        rounding = 1e-13 * (1 + u.abs()) ** 4
        for values, limit in zip(derivatives[3], HINGE, strict=True):
            size = values.abs()
            moved = torch.zeros_like(size)
            moved[:, 1:] = size.diff(dim=1).abs()
            moved[1:] = moved[1:].maximum(size.diff(dim=0).abs())
            assert bool((size + 0.5 * moved + rounding <= limit).all())
        assert bool((derivatives[4][0] >= -rounding).all())  # the fourth moment rises: its ends are enough
    _, derivatives = hinge_moments(torch.zeros(1, 1, dtype=torch.float64), torch.linspace(-4, 4, 16_001)[None].double())
    for values, limit in zip(derivatives[3], HINGE, strict=True):
        assert limit < 1.005 * float(values.abs().max())  # and no larger than they have to be


@dataclass(frozen=True)
class Turned:
    """``outer * phi(inner * x)``, inner 1 or -1: concave and falling hinges."""

    slope: float
    outer: float
    inner: int

    @property
    def shape(self) -> Shape:
        left, right = self.slope * self.outer, self.outer
        if self.inner < 0:
            left, right = -right, -left
        jump = right - left
        return Shape(
            (min(left, right), max(left, right)),
            max(jump, 0.0),
            max(-jump, 0.0),
            math.inf if jump > 0 else 0.0,
            math.inf if jump < 0 else 0.0,
            kinks=((0.0, jump),),
        )

    def central(self, m: Tensor, r: Tensor) -> Central:
        found, size = LeakyRelu(self.slope).central(self.inner * m, r), abs(self.outer)
        third = Interval(found.third.lower * size**3, found.third.upper * size**3)
        if self.outer < 0:
            third = Interval(-third.upper, -third.lower)
        fourth = Interval(found.fourth.lower * size**4, found.fourth.upper * size**4)
        return Central(self.variance(m, r), third, fourth, lambda: (size * found.norm8, size * found.norm16))

    def variance(self, m: Tensor, r: Tensor) -> Interval:
        found = LeakyRelu(self.slope).variance(self.inner * m, r)
        return Interval(found.lower * self.outer**2, found.upper * self.outer**2)

    def moments(self, m: Tensor, r: Tensor) -> dict[int, Tensor]:
        """Of the second, third and fourth degree, r > 0."""
        u = (self.inner * m / r).clamp(-14, 14)
        if self.slope <= 1:
            found = {
                n: value * self.outer**n
                for n, value in hinge_moments(torch.tensor(self.slope, dtype=torch.float64), u)[0].items()
            }
        else:  # the steeper side is on the left: reflect
            size = self.outer * self.slope
            found = {
                n: value * (-size) ** n
                for n, value in hinge_moments(torch.tensor(1 / self.slope, dtype=torch.float64), -u)[0].items()
            }
        return {n: value * r**n for n, value in found.items() if n > 1}


TURNED = [Turned(a, outer, inner) for a in (0.0, 0.1, 0.95, 3.0) for outer in (1.0, -1.0, 2.5) for inner in (1, -1)]


@pytest.mark.parametrize("phi", TURNED, ids=str)
def test_turned_hinges_over_rectangles(phi: Any) -> None:
    """Convex, concave, rising and falling ones; the ends of the ranges among the points, r = 0 among the ends."""
    assert _hinge(phi)
    m, r = rectangles(400, 5)
    m = Interval(torch.cat([m.lower, torch.full_like(m.lower, -0.5)]), torch.cat([m.upper, 0.5 + 0 * m.upper]))
    r = Interval(torch.cat([r.lower, r.lower]), torch.cat([r.upper, r.upper]))  # ranges that hold zero
    found, alone = central_range(phi, m, r), variance_range(phi, m, r)
    steep, shares = phi.shape.steepest, Dice(1).uniform(shape=(30, 2))
    shares[:4] = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    for a, b in shares.tolist():
        at_m, at_r = m.lower + a * (m.upper - m.lower), r.lower + b * (r.upper - r.lower)
        truth = phi.moments(at_m, at_r.clamp_min(1e-9))
        slack = 1e-10 * steep**4
        for n, ranges in ((2, (found.variance, alone)), (3, (found.third,)), (4, (found.fourth,))):
            for interval in ranges:
                scale = slack * r.upper**n + 1e-18
                assert bool((interval.lower <= truth[n] + scale).all()), n
                assert bool((interval.upper >= truth[n] - scale).all()), n


def test_the_variance_of_a_hinge_is_monotone() -> None:
    """In m, towards the steeper side, and in r: what lets the corners be its range."""
    m, r = torch.linspace(-4, 4, 401, dtype=torch.float64)[:, None], torch.linspace(0.02, 3, 150, dtype=torch.float64)
    for phi in TURNED:
        variance = phi.moments(m, r)[2]
        left, right = (phi.slope * phi.outer, phi.outer)[:: phi.inner]
        change = variance.diff(dim=0) * (1 if abs(right) > abs(left) else -1)
        assert bool((change >= -1e-12 * variance.max()).all())
        assert bool((variance.diff(dim=1) >= -1e-12 * variance.max()).all())


def test_points_of_hinges_are_tight() -> None:
    """Within the rounding that is granted; wide ranges lose what their steps allow."""
    phi, m = LeakyRelu(0.1), torch.linspace(-3, 3, 61, dtype=torch.float64)[None]
    r = torch.full_like(m, 0.7)
    found, truth = central_range(phi, Interval(m, m), Interval(r, r)), Turned(0.1, 1.0, 1).moments(m, r)
    for n, interval in ((2, found.variance), (3, found.third), (4, found.fourth)):
        assert torch.allclose(interval.lower, truth[n], rtol=0, atol=1e-9)
        assert torch.allclose(interval.upper, truth[n], rtol=0, atol=1e-9)
    zero = torch.zeros(3, dtype=torch.float64)
    assert _over(zero + torch.tensor([-1.0, 0.0, 1.0]), zero).tolist() == [-12.0, 0.0, 12.0]
