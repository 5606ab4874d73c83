"""The numerical constants of the moment method, proved: by a formula or by branch and bound in ball arithmetic.

Everything is scaled to s0 = 1. Remainders in s are written as integrals,
``F(s) - F(1) - F'(1)(s - 1) = (s - 1)^2 int_0^1 (1 - t) F''(1 + t (s - 1)) dt``, so that a bound of F'' by a power of s
settles all s but those near zero. There, and nowhere else, the plane (m, s) is searched; symmetry leaves m >= 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from flint import arb, ctx

from bnndp.engine.dense import conditional, relax
from bnndp.engine.dense import rare_neurons as tail
from bnndp.engine.dense.records import Energy, PreActivation
from bnndp.engine.dense.slope import slope
from bnndp.geometry.bounds import Interval
from bnndp.layers import Linear
from bnndp.maths import replacement, tails

BITS = 80
Cell = tuple[float, float, float, float]  # m from, m to, s from, s to
ROUNDED = arb(1) + arb(2) ** -50  # the constants are floats, the true values need not be


@pytest.fixture(autouse=True)
def _precision() -> Iterator[None]:
    with ctx.workprec(BITS):
        yield


def pdf(t: arb) -> arb:
    return (-t * t / 2).exp() / (2 * arb.pi()).sqrt()


def cdf(t: arb) -> arb:
    return (-t / arb(2).sqrt()).erfc() / 2


def mean(m: float, s: float) -> arb:
    """``g(m, sqrt s)`` for m >= 0."""
    if s == 0:
        return arb(m)
    r = arb(s).sqrt()
    return arb(m) * cdf(m / r) + r * pdf(m / r)


def second(m: float, s: float) -> arb:
    """``E ReLU(N(m, s))^2`` for m >= 0."""
    if s == 0:
        return arb(m) ** 2
    u = m / arb(s).sqrt()
    return (arb(m) ** 2 + s) * cdf(u) + m * arb(s).sqrt() * pdf(u)


def active(m: float, s: float) -> arb:
    """``Phi(m / sqrt s)`` for m >= 0, its limit for s = 0 (the larger one at m = 0)."""
    return arb(1) if s == 0 else cdf(m / arb(s).sqrt())


def hull(a: arb, b: arb) -> arb:
    return a.union(b)


def proved(value: arb, limit: arb) -> bool:
    """Whether value <= limit for all points of both balls, apart from the rounding of ``limit`` to a float."""
    return bool(value <= limit * ROUNDED)


def search(negative: Callable[[Cell], bool], start: Cell, most: int = 60_000) -> None:
    """Prove ``negative`` on ``start`` by cutting cells across their longer side; fail where a cell gets too small."""
    cells, seen = [start], 0
    while cells:
        m0, m1, s0, s1 = cell = cells.pop()
        seen += 1
        assert seen < most, f"no proof after {most} cells"
        if negative(cell):
            continue
        assert m1 - m0 > 1e-7, f"no proof near m = {m0}, s = {s0}"
        if m1 - m0 > s1 - s0:
            middle = 0.5 * (m0 + m1)
            cells += [(m0, middle, s0, s1), (middle, m1, s0, s1)]
        else:
            middle = 0.5 * (s0 + s1)
            cells += [(m0, m1, s0, middle), (m0, m1, middle, s1)]


# Remainders of E ReLU in s


def spread_density(cell: Cell) -> arb | None:
    """``phi(m / sqrt s) / sqrt s`` on a cell where it falls in m and rises in s (s <= m^2), else None."""
    m0, m1, s0, s1 = cell
    if not arb(s1) <= arb(m0) ** 2:
        return None
    low = arb(0) if s0 == 0 else pdf(m1 / arb(s0).sqrt()) / arb(s0).sqrt()
    return hull(low, pdf(m0 / arb(s1).sqrt()) / arb(s1).sqrt())


def test_mean_above() -> None:
    """``g(m, sqrt s) <= g(m, 1) + (s - 1) phi(m)/2 + C (s - 1)^2``.

    d_ss g = phi(u)(u^2 - 1)/(4 s^1.5) <= phi(sqrt 3)/(2 s^1.5), so the quotient is at most phi(sqrt 3)/(1 + sqrt s)^2.
    """
    c, least = arb(tails.MEAN_ABOVE), 0.25
    assert proved(pdf(arb(3).sqrt()) / (1 + arb(least).sqrt()) ** 2, c)  # s >= 1/4
    assert proved(pdf(arb(2)) / 2, c * (1 - arb(least)))  # m >= 2, s <= 1/4: g(m, sqrt s) <= g(m, 1)

    def negative(cell: Cell) -> bool:
        m0, m1, s0, s1 = cell
        # d_m (g(m, sqrt s) - g(m, 1)) = Phi(m / sqrt s) - Phi(m) >= 0
        plain = mean(m1, s1) - mean(m1, 1.0) + pdf(arb(m0)) * (1 - arb(s0)) / 2 - c * (1 - arb(s1)) ** 2
        if plain < 0:
            return True
        density = spread_density(cell)
        if density is None:
            return False
        m, s = 0.5 * (m0 + m1), 0.5 * (s0 + s1)
        at = mean(m, s) - mean(m, 1.0) + pdf(arb(m)) * (1 - arb(s)) / 2 - c * (1 - arb(s)) ** 2
        ms, ss = hull(arb(m0), arb(m1)), hull(arb(s0), arb(s1))
        d_m = hull(active(m0, s1), active(m1, s0)) - cdf(ms) - ms * pdf(ms) * (1 - ss) / 2
        d_s = density / 2 - pdf(ms) / 2 + 2 * c * (1 - ss)
        return bool(at + d_m * (ms - m) + d_s * (ss - s) < 0)

    search(negative, (0.0, 2.0, 0.0, least))


def test_mean_above_is_not_far_from_sharp() -> None:
    """At s = 0 the quotient is m Q(m) - phi(m)/2 for m >= 0: a constant 0.3 % smaller fails, so the search can."""
    m = arb(1.19)
    assert m * cdf(-m) - pdf(m) / 2 > arb(tails.MEAN_ABOVE) * 0.997


def test_mean_below() -> None:
    """-d_ss g <= phi(0)/(4 s^1.5), so the quotient is at most phi(0)/(2 (1 + sqrt s)^2) <= phi(0)/2 for all s >= 0."""
    assert proved(pdf(arb(0)) / 2, arb(tails.MEAN_BELOW))


# Remainders of E ReLU^2 in s


def test_second_curvature() -> None:
    """``|E ReLU(N(m, s))^2 - (the same at 1) - (s - 1) Phi(m)| <= C (s - 1)^2``; odd in m, negative for m > 0.

    |d_ss| = |u| phi(u)/(2 s) <= phi(1)/(2 s), so the quotient is at most phi(1)/2 (s log s - s + 1)/(1 - s)^2, which
    falls in s. For m >= 2 and s <= 0.1 the numerator is below m phi(m) - m^2 Q(m) + s E (xi - m/sqrt s)_+^2, and that
    below phi(m)/m + s/2.
    """
    c, least = arb(tails.SECOND_CURVATURE), 0.1
    s_least = arb(least)
    assert proved(pdf(arb(1)) / 2 * (s_least * s_least.log() - s_least + 1) / (1 - s_least) ** 2, c)
    assert proved(pdf(arb(2)) / 2 + s_least / 2, c * (1 - s_least) ** 2)

    def negative(cell: Cell) -> bool:
        m0, m1, s0, s1 = cell
        # d_m (H(m, 1) - H(m, s)) = 2 (g(m, 1) - g(m, sqrt s)) >= 0
        plain = second(m1, 1.0) - second(m1, s0) - cdf(arb(m0)) * (1 - arb(s1)) - c * (1 - arb(s1)) ** 2
        if plain < 0:
            return True
        m, s = 0.5 * (m0 + m1), 0.5 * (s0 + s1)
        at = second(m, 1.0) - second(m, s) - cdf(arb(m)) * (1 - arb(s)) - c * (1 - arb(s)) ** 2
        ms, ss = hull(arb(m0), arb(m1)), hull(arb(s0), arb(s1))
        gap = hull(mean(m1, 1.0) - mean(m1, s1), mean(m0, 1.0) - mean(m0, s0))  # falls in m and in s
        d_m = 2 * gap - pdf(ms) * (1 - ss)
        d_s = cdf(ms) - hull(active(m0, s1), active(m1, s0)) + 2 * c * (1 - ss)
        return bool(at + d_m * (ms - m) + d_s * (ss - s) < 0)

    search(negative, (0.0, 2.0, 0.0, least))


def test_second_curvature_is_not_far_from_sharp() -> None:
    """At s = 0 the quotient is m (phi(m) - m Q(m)) for m >= 0."""
    m = arb(0.61)
    assert m * (pdf(m) - m * cdf(-m)) > arb(tails.SECOND_CURVATURE) * 0.998


# Derivatives: phi times a Hermite polynomial is largest at a zero of the next one


def hermite_peak(k: int) -> arb:
    """``sup |He_k(u)| phi(u)`` for k = 0..4: its derivative is -He_{k+1} phi."""
    u2 = {
        0: [arb(0)],
        1: [arb(1)],
        2: [arb(0), arb(3)],
        3: [3 - arb(6).sqrt(), 3 + arb(6).sqrt()],
        4: [arb(0), 5 - arb(10).sqrt(), 5 + arb(10).sqrt()],
    }[k]
    values = {
        0: lambda x: arb(1),
        1: lambda x: x.sqrt(),
        2: lambda x: x - 1,
        3: lambda x: x.sqrt() * (x - 3),
        4: lambda x: x * x - 6 * x + 3,
    }[k]
    peak = arb(0)
    for x in u2:
        peak = peak.max(abs(values(x)) * (-x / 2).exp() / (2 * arb.pi()).sqrt())
    return peak


def test_first_derivatives() -> None:
    """d_s g = phi/(2 sqrt s), d_ms g = -u phi/(2 s), d_mmm g = -u phi/s; d_ms E ReLU^2 = phi/sqrt s, all at u."""
    assert proved(hermite_peak(0), arb(tails.PEAK))
    assert proved(hermite_peak(0) / 2, arb(tails.HALF_PEAK))
    assert proved(hermite_peak(1) / 2, arb(tails.MEAN_MIXED))
    assert proved(hermite_peak(0), arb(tails.SECOND_MIXED))
    assert proved(hermite_peak(1) / 6, arb(conditional._THIRD))


# What replacement errors of the mean are multiplied by; a step is of third order, so a factor is the largest third
# derivative over that of g, phi(1)/rho^2.


def test_replacement_constants() -> None:
    assert proved(hermite_peak(1), arb(replacement._PHI_1))


def test_to_second_moment() -> None:
    """Third derivative of E ReLU^2: 2 phi(u)/rho, times rho <= sqrt(s0 + V)."""
    assert proved(2 * hermite_peak(0) / hermite_peak(1), arb(replacement.TO_SECOND_MOMENT))


def test_to_cdf() -> None:
    """Third derivative of Phi(m/rho): He_2 phi/rho^3, over rho >= sqrt(s0)."""
    assert proved(hermite_peak(2) / hermite_peak(1), arb(replacement.TO_CDF))


def test_to_density_square() -> None:
    """phi(m/sqrt s0)^2 is sqrt(s0)/(2 sqrt pi) times the density of N(0, s0/2).

    Smoothed by a variance V it is that of N(0, tau^2), tau^2 = s0/2 + V >= rho^2/2, with third derivative
    He_3 phi/tau^4; the factor sqrt(s0)/rho^2 is at most 1/sqrt(s0). At V = 0 there is equality.
    """
    third = hermite_peak(3) * 4 / (2 * arb.pi().sqrt())
    assert proved(third / hermite_peak(1), arb(replacement.TO_DENSITY_SQUARE))


def test_derivatives_of_the_slope_in_s() -> None:
    """f = d_s g has f^(k) = He_k phi/(2 rho^(k+1)) up to the sign; that of order 4 goes with g^(3) = u phi/rho^2."""
    assert proved(hermite_peak(2) / 2, arb(relax._MIXED_TWICE))
    assert proved(hermite_peak(3) / 2, arb(relax._MIXED_THRICE))
    assert proved(hermite_peak(4) / 2 / hermite_peak(1), arb(relax._TO_MIXED))


# Variance of a rectified Gaussian, v(u) for s = 1


def standard_mean(u: float) -> arb:
    u_ = arb(u)
    return u_ * cdf(u_) + pdf(u_)


def search_line(value: Callable[[float, float], arb], limit: float, ends: tuple[float, float]) -> None:
    """Prove value <= limit between the ends, ``value(a, b)`` bounding it on [a, b]."""
    cells, seen = [ends], 0
    while cells:
        a, b = cells.pop()
        seen += 1
        assert seen < 60_000, "no proof"
        if proved(value(a, b), arb(limit)):
            continue
        assert b - a > 1e-9, f"no proof near u = {a}"
        middle = 0.5 * (a + b)
        cells += [(a, middle), (middle, b)]


def density_range(a: float, b: float) -> tuple[arb, arb]:
    """Smallest and largest density on [a, b], which has 0 inside only as an end."""
    near, far = (a, b) if abs(a) < abs(b) else (b, a)
    return pdf(arb(far)), pdf(arb(near))


FAR = 8.0


def test_variance_slope() -> None:
    """``v'(u) = 2 g(u, 1) (1 - Phi(u))``; g rises and 1 - Phi falls. For u >= 8 it is at most 2 (u + 1) phi(u)/u."""
    limit = conditional._VARIANCE_SLOPE
    for ends in ((-FAR, 0.0), (0.0, FAR)):
        search_line(lambda a, b: 2 * standard_mean(b) * cdf(-arb(a)), limit, ends)
    assert proved(2 * (FAR + 1) * pdf(arb(FAR)) / FAR, arb(limit))
    assert proved(2 * standard_mean(-FAR), arb(limit))


def test_variance_curvature() -> None:
    """``v''(u)/2 = Phi(u)(1 - Phi(u)) - g(u, 1) phi(u)``, from above and below."""
    limit = conditional._VARIANCE_CURVATURE

    def above(a: float, b: float) -> arb:
        return cdf(arb(b)) * cdf(-arb(a)) - standard_mean(a) * density_range(a, b)[0]

    def below(a: float, b: float) -> arb:
        return standard_mean(b) * density_range(a, b)[1] - cdf(arb(a)) * cdf(-arb(b))

    for ends in ((-FAR, 0.0), (0.0, FAR)):
        search_line(above, limit, ends)
        search_line(below, limit, ends)
    assert proved(cdf(-arb(FAR)), arb(limit))
    assert proved((FAR + 1) * pdf(arb(FAR)), arb(limit))  # g(u, 1) phi(u) <= (u + 1) phi(u), which falls for u >= 8


def test_variance_grows_with_s_by_at_most_one() -> None:
    """``d_s Var = Phi - phi g(u, 1)``, between ``P(xi > -u) Var(xi | xi > -u) = Phi - u phi - phi^2/Phi >= 0`` and Phi.

    The first because their difference is ``phi (1 - Phi) g / Phi``; checked here at many points, up to 36 deviations.
    """
    with ctx.workprec(1200):
        for i in range(-360, 361):
            u = arb(i) / 10
            density, probability = pdf(u), cdf(u)
            g = u * probability + density
            value = probability - density * g
            given = probability - u * density - density**2 / probability
            assert (value - given - density * (1 - probability) * g / probability).contains(0)
            assert given > 0
            assert value < probability


def test_slope_in_s() -> None:
    """``|Phi(m / sqrt s) - Phi(m / sqrt s0)|`` is at most 1/2 and at most ``phi(1)/2 |log t|``, t = s / s0.

    For t >= 1 the logarithm is at most t - 1; for 1/2 <= t <= 1 it is at most (1 - t) / t in size.
    """
    limit, half, peak = conditional._SLOPE_IN_S, arb(1) / 2, pdf(arb(1))
    assert proved(peak, arb(limit))  # covers both
    search_line(
        lambda a, b: half.min(half * peak * -arb(a).log()) / (1 - arb(b)) if a else half / (1 - arb(b)),
        limit,
        (0.0, 0.5),
    )
    for u in (1e-3, 0.1, 1.0, 3.0):  # and not by far: small s turn any m > 0 into a slope of one
        for t in (1e-8, 1e-3, 0.1, 0.9, 1.5, 10.0):
            change = (cdf(arb(u) / arb(t).sqrt()) - cdf(arb(u))) / (1 - arb(t))
            assert proved(abs(change), arb(limit))
    assert cdf(arb(10)) - cdf(arb("1e-3")) > arb("0.49")


# Norms


def test_eighth_moments() -> None:
    """E xi^8 = 7!!, E xi^16 = 15!!, int_0^inf 8 t^7 2 exp(-t^2/2) dt = 16 * 48 (tails of a 1-Lipschitz function)."""
    assert proved(arb(7 * 5 * 3), arb(tail._XI_8) ** 8)
    assert proved(arb(math.prod(range(1, 16, 2))), arb(tail._XI_16) ** 16 * ROUNDED**3)
    integral = 16 * (2**3 * math.factorial(3))
    assert proved(arb(integral), arb(tail._LIPSCHITZ_8) ** 8)
    assert proved(arb(integral), arb(conditional._LIPSCHITZ_8))


# The density in Poincare's inequality for the slope


@pytest.mark.parametrize("centre", [0.0, 0.4, -1.3])
def test_slope_variance_of_a_gaussian_mean(centre: float) -> None:
    """For m ~ N(M, N) exactly and small N, Var Phi(m) is phi(M)^2 N to first order: no bound may be below it."""
    n = 1e-4
    one = torch.ones(1, 1, dtype=torch.float64)
    zero = 0 * one
    layer = Linear(one, zero, zero[0], one[0])
    exactly = Interval(n * one, n * one)
    energy = Energy(n * one, zero, zero, n * one, zero)
    before = PreActivation(
        layer=layer, jensen=one, spread=Interval(one, one), spread_variance=zero, spread_fourth=zero, noise=exactly,
        noise_variance=zero, central=zero, fourth=3 * n * n * one, norm8=one / zero,
        replacement=Interval(zero, zero), tail=None, energy=energy,
    )  # fmt: skip
    found = slope(before, Interval(centre * one, centre * one))
    with ctx.workprec(120):
        m, total = arb(centre), arb(0)
        # Var Phi(m + sqrt(n) xi) = P(both of two standard normals below) - Phi^2 = int_0^rho of the bivariate density
        rho = arb(n) / (1 + arb(n))
        x = m / (1 + arb(n)).sqrt()
        steps = 64
        for i in range(steps):  # the density rises or falls by less than a thousandth: its smallest value on each step
            r = hull(rho * i / steps, rho * (i + 1) / steps)
            total += rho / steps * (-x * x / (1 + r)).exp() / (2 * arb.pi() * (1 - r * r).sqrt())
        assert arb(found.variance.item()) >= total.lower()
