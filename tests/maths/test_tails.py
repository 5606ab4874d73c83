"""Two-moment bounds against laws that attain them and random discrete ones; proofs of the constants of Taylor steps."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from flint import arb, ctx
from hypothesis import given, settings
from hypothesis import strategies as st
from support.oracles import PRECISION, cdf, pdf
from support.proofs import Cell, hermite_peak, proved, search
from torch import Tensor

from bnndp.maths import tails
from bnndp.maths.tails import relu_scarf


@pytest.fixture(autouse=True)
def many_bits() -> Iterator[None]:
    with ctx.workprec(PRECISION):
        yield


def scalar(x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


def scarf(mean: float, variance: float) -> arb:
    """Its value at the law that attains it: the points -R and R, R^2 = mean^2 + variance."""
    mu, v = arb(mean), arb(variance)
    with ctx.workprec(2000):  # so that a far negative mean does not cancel
        root = (mu * mu + v).sqrt()
        return root * (1 + mu / root) / 2 if root > 0 else arb(0)


@pytest.mark.parametrize("mean", [0.0, 1e-300, 1.0, -1.0, 3.7, -3.7, 1e8, -1e8, 1e100, -1e100, -1e150])
@pytest.mark.parametrize("variance", [1e-200, 1e-8, 0.3, 1.0, 1e6, 1e100])
def test_scarf_is_the_mean_of_the_two_point_law(mean: float, variance: float) -> None:
    truth, found = scarf(mean, variance), relu_scarf(scalar(mean), scalar(variance)).item()
    assert abs(arb(found) - truth) <= truth * 1e-15 + arb(1e-300)


@pytest.mark.parametrize(
    ("mean", "variance"), [(-1.6e154, 3.4e307), (-1e160, 1e300), (-1e200, 1e300), (1e200, 1.0), (-1e308, 1e308)]
)
def test_scarf_is_no_less_than_the_truth_where_squares_overflow(mean: float, variance: float) -> None:
    found = relu_scarf(scalar(mean), scalar(variance)).item()
    assert not math.isnan(found)
    assert found == math.inf or arb(found) >= scarf(mean, variance) * (1 - 1e-14)


def test_scarf_without_variance_is_relu() -> None:
    mean = torch.tensor([-1e200, -2.0, -0.0, 0.0, 2.0, 1e150], dtype=torch.float64)
    assert torch.equal(relu_scarf(mean, torch.zeros_like(mean)), mean.clamp_min(0))


def test_scarf_with_infinite_variance_says_nothing() -> None:
    mean = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)
    assert not torch.isfinite(relu_scarf(mean, torch.full_like(mean, torch.inf))).any()


def test_scarf_increases_in_both_and_is_convex_in_the_mean() -> None:
    mean = torch.linspace(-5, 5, 401, dtype=torch.float64)
    rows = torch.stack([relu_scarf(mean, torch.full_like(mean, v)) for v in (0.0, 0.01, 1.0, 9.0)])
    assert (rows.diff(dim=0) > 0).all()
    assert (rows.diff(dim=1) >= 0).all()
    assert (rows.diff(n=2, dim=1) >= -1e-15).all()


def law(seed: int, atoms: int) -> tuple[Tensor, Tensor]:
    """Values and probabilities of a discrete law; few atoms, so that some come near the extremal one."""
    generator = torch.Generator().manual_seed(seed)
    values = 3 * torch.randn(atoms, generator=generator, dtype=torch.float64)
    weights = torch.rand(atoms, generator=generator, dtype=torch.float64) ** 4
    return values, weights / weights.sum()


@pytest.mark.parametrize("atoms", [2, 3, 7])
def test_no_law_breaks_the_bounds(atoms: int) -> None:
    """The mean may be on the safe side of the one given, the variance below it; only the other side is wrong."""
    for seed in range(200):
        values, weights = law(seed, atoms)
        mean = (weights * values).sum()
        variance = (weights * (values - mean) ** 2).sum()
        for level in (mean - 1, mean, mean + 0.3, mean + 4):
            over = (weights * (values - level).clamp_min(0)).sum()
            under = (weights * (level - values).clamp_min(0)).sum()
            for extra in (0.0, 0.5):
                assert over <= relu_scarf(mean + extra - level, variance + extra) * (1 + 1e-12)
                assert under <= relu_scarf(level - mean + extra, variance + extra) * (1 + 1e-12)


@settings(max_examples=60, deadline=None)
@given(mean=st.floats(-100, 100), variance=st.floats(1e-6, 1e4), level=st.floats(-100, 100))
def test_scarf_is_attained_on_both_sides_of_a_level(mean: float, variance: float, level: float) -> None:
    root = math.hypot(mean - level, math.sqrt(variance))
    high = 0.5 * (1 + (mean - level) / root)  # probability of level + root, the rest at level - root
    found = [relu_scarf(scalar(sign * (mean - level)), scalar(variance)).item() for sign in (1, -1)]
    assert found[0] == pytest.approx(high * root, rel=1e-9, abs=1e-12 * root)
    assert found[1] == pytest.approx((1 - high) * root, rel=1e-9, abs=1e-12 * root)


# The constants, with everything scaled to s0 = 1. Remainders in s are written as integrals,
# ``F(s) - F(1) - F'(1)(s - 1) = (s - 1)^2 int_0^1 (1 - t) F''(1 + t (s - 1)) dt``, so that a bound of F'' by a power of
# s settles all s but those near zero. There, and nowhere else, the plane (m, s) is searched; symmetry leaves m >= 0.


def mean(m: float, s: float) -> arb:
    """``g(m, sqrt s)`` for m >= 0."""
    r = arb(s).sqrt()
    return arb(m) if s == 0 else arb(m) * cdf(m / r) + r * pdf(m / r)


def second(m: float, s: float) -> arb:
    """``E ReLU(N(m, s))^2`` for m >= 0."""
    r = arb(s).sqrt()
    return arb(m) ** 2 if s == 0 else (arb(m) ** 2 + s) * cdf(m / r) + m * r * pdf(m / r)


def active(m: float, s: float) -> arb:
    """``Phi(m / sqrt s)`` for m >= 0, its limit for s = 0 (the larger one at m = 0)."""
    return arb(1) if s == 0 else cdf(m / arb(s).sqrt())


def spread_density(cell: Cell) -> arb | None:
    """``phi(m / sqrt s) / sqrt s`` on a cell where it falls in m and rises in s (s <= m^2), else None."""
    m0, m1, s0, s1 = cell
    if not arb(s1) <= arb(m0) ** 2:
        return None
    low = arb(0) if s0 == 0 else pdf(m1 / arb(s0).sqrt()) / arb(s0).sqrt()
    return low.union(pdf(m0 / arb(s1).sqrt()) / arb(s1).sqrt())


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
        ms, ss = arb(m0).union(arb(m1)), arb(s0).union(arb(s1))
        d_m = active(m0, s1).union(active(m1, s0)) - cdf(ms) - ms * pdf(ms) * (1 - ss) / 2
        d_s = density / 2 - pdf(ms) / 2 + 2 * c * (1 - ss)
        return bool(at + d_m * (ms - m) + d_s * (ss - s) < 0)

    search(negative, (0.0, 2.0, 0.0, least))
    m = arb(1.19)  # at s = 0 the quotient is m Q(m) - phi(m)/2 for m >= 0: a constant 0.3 % smaller fails
    assert m * cdf(-m) - pdf(m) / 2 > c * 0.997


def test_mean_local() -> None:
    """Constants of the first order in s for s >= 1, and with the lower side of s below.

    d_s g(m, sqrt t) - d_s g(m, 1) is half the difference of two densities, of which the ratio falls or rises in |m|: it
    is largest in size at m = 0 where it is positive for t < 1 and where it is negative for t > 1. So D is at least its
    value at m = 0, -phi(0)/2 (1 - sqrt s)^2, and (1 + sqrt(1 - x))^-2 is a power series of positive coefficients.
    """
    assert proved(hermite_peak(0) / 8, tails.MEAN_LOCAL_BELOW * (1 + 1e-12))
    assert proved(pdf(arb(3).sqrt()) / 4, tails.MEAN_LOCAL_ABOVE)
    assert proved(hermite_peak(0) / 16, tails.STEP_THREE)
    assert proved(5 * hermite_peak(0) / 16, tails.STEP_FOUR_BELOW)
    for i in range(1001):
        x = arb(i) / 1000
        assert 1 / (1 + (1 - x).sqrt()) ** 2 <= arb(1) / 4 + x / 8 + 5 * x * x / 8 + arb(2) ** -90


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
        ms, ss = arb(m0).union(arb(m1)), arb(s0).union(arb(s1))
        gap = (mean(m1, 1.0) - mean(m1, s1)).union(mean(m0, 1.0) - mean(m0, s0))  # falls in m and in s
        d_m = 2 * gap - pdf(ms) * (1 - ss)
        d_s = cdf(ms) - active(m0, s1).union(active(m1, s0)) + 2 * c * (1 - ss)
        return bool(at + d_m * (ms - m) + d_s * (ss - s) < 0)

    search(negative, (0.0, 2.0, 0.0, least))
    m = arb(0.61)  # at s = 0 the quotient is m (phi(m) - m Q(m)) for m >= 0
    assert m * (pdf(m) - m * cdf(-m)) > c * 0.998


def test_steps_of_third_order() -> None:
    """The remainder of second order in s, D, for every m and s >= 0.

    d_sss g = (u^4 - 6 u^2 + 3) phi(u) / (8 s^2.5) is at most 3 phi(0) / (8 s^2.5) in size, for s >= 1 without the power
    of s. For s = 1 - d it is ``-d^3 int (1 - t)^2 / 2 d_sss g(1 - t d) dt``, and the integral of (1 - t d)^-2.5 is
    I(d) = 2F1(5/2, 1; 4; d) / 6: convex, 1/6 at 0 and 1 at 1, so at most 1/6 + 5 d / 6.
    """
    a, above, below = arb(tails.STEP_THREE), arb(tails.STEP_FOUR_ABOVE), arb(tails.STEP_FOUR_BELOW)
    largest = 3 * hermite_peak(0) / 8
    assert proved(hermite_peak(4) / 8, largest)
    assert proved(largest / 6, a)
    assert proved(largest * 5 / 6, below)

    x = 5 - arb(10).sqrt()  # where He_5 is zero: the least value of the fourth derivative of phi
    least = -(x * x - 6 * x + 3) * (-x / 2).exp() / (2 * arb.pi()).sqrt() / 8
    assert least > 0
    steps = 200
    for i in range(steps):  # s >= 0.2
        low, high = (arb(0.8) * k / steps for k in (i, i + 1))
        assert least * high.hypgeom_2f1(arb(5) / 2, arb(1), arb(4)) / 6 < a + above * low
    assert proved(pdf(arb(2.1)) / 2, a * arb(0.8) ** 2 + above * arb(0.8) ** 3)  # m >= 2.1: g(m, sqrt s) <= g(m, 1)

    def remainder(m: float, s: float) -> arb:
        d, density = 1 - arb(s), pdf(arb(m))
        return mean(m, s) - mean(m, 1.0) + density * d / 2 + (1 - arb(m) ** 2) * density * d**2 / 8

    def negative(cell: Cell) -> bool:
        m0, m1, s0, s1 = cell
        ms, ss = arb(m0).union(arb(m1)), arb(s0).union(arb(s1))
        d, density = 1 - ss, pdf(ms)
        # d_m (g(m, sqrt s) - g(m, 1)) = Phi(m / sqrt s) - Phi(m) >= 0
        plain = mean(m1, s1) - mean(m1, 1.0) + density * d / 2 + (1 - ms * ms) * density * d**2 / 8
        if plain - a * d**3 - above * d**4 < 0:
            return True
        spread = spread_density(cell)
        if spread is None:
            return False
        m, s = 0.5 * (m0 + m1), 0.5 * (s0 + s1)
        at = remainder(m, s) - a * (1 - arb(s)) ** 3 - above * (1 - arb(s)) ** 4
        d_m = (
            active(m0, s1).union(active(m1, s0))
            - cdf(ms)
            - ms * density * d / 2
            + (ms**3 - 3 * ms) * density * d**2 / 8
        )
        d_s = spread / 2 - density / 2 - (1 - ms * ms) * density * d / 4 + 3 * a * d**2 + 4 * above * d**3
        return bool(at + d_m * (ms - m) + d_s * (ss - s) < 0)

    search(negative, (0.0, 2.1, 0.0, 0.2))
    assert remainder(0.9, 0.0) > (a + above) * 0.997
    assert -remainder(0.0, 0.0) > (a + below) * 0.999


def test_steps_of_third_order_of_parabolas() -> None:
    """The same for H = E ReLU^2 / 2: d_sss H = (u^3 - 3 u) phi(u) / (8 s^2) in size, so at most its peak over 8 s^2.

    For s = 1 - d the integral is d^3 times I(d) = 2F1(2, 1; 4; d) / 6, which is convex: 1/6 at 0 and 1/2 at 1, so at
    most 1/6 + d / 3.
    """
    a, b, peak = arb(tails.BEND_THREE), arb(tails.BEND_FOUR), hermite_peak(3) / 8
    assert proved(peak / 6, a)
    assert proved(peak / 3, b)
    for k in range(101):
        d = arb(k) / 101
        assert proved(d.hypgeom_2f1(arb(2), arb(1), arb(4)) / 6, arb(1) / 6 + d / 3)

    def remainder(m: float, s: float) -> arb:
        d = 1 - arb(s)
        return (second(m, s) - second(m, 1.0)) / 2 + cdf(arb(m)) * d / 2 + arb(m) * pdf(arb(m)) * d**2 / 8

    for i, j in ((i, j) for i in range(60) for j in range(60)):
        m, s = i / 12, (j / 12) ** 2
        assert abs(remainder(m, s)) <= a * abs(1 - arb(s)) ** 3 + b * max(0.0, 1 - s) ** 4 + arb(1e-20)
    near = max(float(abs(remainder(i / 50, 1.001)) / arb(0.001) ** 3) for i in range(150))
    assert near >= tails.BEND_THREE * 0.99  # a smaller factor fails near s = 1


def test_largest_derivatives() -> None:
    """d_s g = phi/(2 sqrt s) at u."""
    assert proved(hermite_peak(0), tails.PEAK)
    assert proved(hermite_peak(0) / 2, tails.HALF_PEAK)
    # -d_ss g <= phi(0)/(4 s^1.5), so the quotient is at most phi(0)/(2 (1 + sqrt s)^2) <= phi(0)/2 for all s >= 0.
    assert proved(hermite_peak(0) / 2, tails.MEAN_BELOW)
