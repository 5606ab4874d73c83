"""The mean of a sigmoid from two moments: every parabola proved in ball arithmetic, and laws of all kinds against it.

The proof of a parabola ``f(t) + f'(t) u + gamma u^2 >= f(t + u)``, ``f(D) = 1/(1 + e^D)``, has three parts. Near t the
divided difference is a Taylor polynomial and a remainder: f is a sum of ``-1/(D - i k pi)`` over odd k, so its n-th
Taylor coefficient at any real point is at most ``2.2 pi^-(n+1)``. Further out the difference itself is enclosed. Left
of some point the parabola is above one and falls, right of another it is above f and rises.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from flint import arb, arb_poly, ctx
from hypothesis import given, settings
from hypothesis import strategies as st

from bnndp.maths.logistic import _PARABOLAS, HALF_CURVATURE, logistic_tail

NEAR = 1.5  # where the Taylor polynomial is used
TERMS = 26


@pytest.fixture(autouse=True)
def enough_bits() -> Iterator[None]:
    with ctx.workprec(160):
        yield


def f(x: arb) -> arb:
    return 1 / (1 + x.exp())


def slope(x: arb) -> arb:
    value = f(x)
    return -value * (1 - value)


def taylor(x: arb, terms: int) -> list[arb]:
    """Taylor coefficients of f at x: f' = f^2 - f."""
    a = [f(x)]
    for k in range(terms - 1):
        a.append((sum((a[i] * a[k - i] for i in range(k + 1)), arb(0)) - a[k]) / (k + 1))
    return a


def positive(function: Callable[[arb], arb], derivative: Callable[[arb], arb], low: float, high: float) -> bool:
    """Whether a function is proved positive on [low, high], by bisection and the mean value form."""
    todo = [(low, high)]
    for _ in range(100_000):
        if not todo:
            return True
        a, b = todo.pop()
        middle = 0.5 * (a + b)
        ball = arb(middle, 0.5 * (b - a) * (1 + 1e-12))
        if function(arb(middle)) + derivative(ball) * (ball - middle) > 0:
            continue
        if function(arb(middle)) < 0:
            return False
        todo += [(a, middle), (middle, b)]
    return False


def proved(t: float, curvature: float) -> bool:
    """Whether the parabola at t is proved to lie above f everywhere."""
    at, gamma = arb(t), arb(curvature)
    value, tangent = f(at), slope(at)
    coefficients = taylor(at, TERMS)
    remainder = 2.2 * arb.pi() ** -(TERMS + 1) * arb(NEAR) ** (TERMS - 2)
    difference = gamma - remainder - arb_poly(coefficients[2:])
    if not positive(difference, difference.derivative(), -NEAR, NEAR):
        return False

    def parabola(x: arb) -> arb:
        return value + tangent * (x - at) + gamma * (x - at) ** 2

    left, right = t - 2 * NEAR, t + 2 * NEAR
    while not parabola(arb(left)) >= 1:
        left -= 0.5 + 0.1 * (t - left)
    while not (parabola(arb(right)) >= f(arb(right)) and tangent + 2 * gamma * (arb(right) - at) >= 0):
        right += 0.5 + 0.1 * (right - t)

    def above(x: arb) -> arb:
        return parabola(x) - f(x)

    def rise(x: arb) -> arb:
        return tangent + 2 * gamma * (x - at) - slope(x)

    return positive(above, rise, left, t - NEAR) and positive(above, rise, t + NEAR, right)


@pytest.mark.parametrize(("t", "curvature"), _PARABOLAS)
def test_a_parabola_lies_above_everywhere(t: float, curvature: float) -> None:
    assert proved(t, curvature)


@pytest.mark.parametrize(("t", "curvature"), _PARABOLAS[::5])
def test_a_slightly_flatter_parabola_is_refuted(t: float, curvature: float) -> None:
    """So the table is tight, and the proof can fail."""
    assert not proved(t, curvature * 0.99)


def test_the_rest_of_the_taylor_polynomial() -> None:
    """Its bound, ``2.2 pi^-(n+1)``, at points where the coefficients are largest."""
    for x in (0.0, 0.3, -0.7, 1.3, 2.0, 5.0):
        series = taylor(arb(x), TERMS + 1)
        for n in (2, 3, 8, TERMS):
            assert abs(series[n]) <= 2.2 * arb.pi() ** -(n + 1)


def test_the_largest_curvature() -> None:
    """With y = f(D), f'' = y (1 - y)(1 - 2 y): its derivative 1 - 6 y + 6 y^2 vanishes at y = (3 - sqrt 3) / 6."""
    y = (3 - arb(3).sqrt()) / 6
    assert (1 - 6 * y + 6 * y * y).contains(0)
    largest = y * (1 - y) * (1 - 2 * y)
    assert largest.overlaps(arb(3).sqrt() / 18)
    assert arb(HALF_CURVATURE) >= largest / 2
    assert arb(HALF_CURVATURE) <= largest / 2 * (1 + arb(1e-5))


# Laws


def bound(mean: float, variance: float) -> float:
    return logistic_tail(torch.tensor(mean, dtype=torch.float64), torch.tensor(variance, dtype=torch.float64)).item()


def mean_over(values: np.ndarray, weights: np.ndarray) -> tuple[float, float, float]:
    """Mean, variance and mean of sigma(-D) of a law on atoms (or on the nodes of a quadrature)."""
    mean = float(weights @ values)
    return mean, float(weights @ (values - mean) ** 2), float(weights @ np.exp(-np.logaddexp(0, values)))


def two_point(d: float, v: float) -> float:
    """The largest mean of sigma(-D) over laws on two points with mean d and variance v: theory, section 6."""
    a = np.geomspace(1e-4, 1e4, 4001) * math.sqrt(v)
    low = np.exp(-np.logaddexp(0, d - a))
    high = np.exp(-np.logaddexp(0, d + v / a))
    return float((v / (v + a * a) * low + a * a / (v + a * a) * high).max())


GRID = [(d, v) for d in (-20.0, -6.0, -2.0, -0.6, 0.0, 0.7, 2.3, 4.4, 6.0, 9.3, 17.0, 33.0, 58.0) for v in
        (1e-8, 1e-4, 1e-2, 0.1, 0.5, 1.0, 3.0, 8.0, 25.0, 100.0)]  # fmt: skip


@pytest.mark.parametrize(("d", "v"), GRID)
def test_the_two_point_law_is_nearly_attained(d: float, v: float) -> None:
    truth, found = two_point(d, v), bound(d, v)
    assert found >= truth * (1 - 1e-15)
    if d < 7:
        assert found <= truth * 1.02
    elif d < 20 and v >= 1:
        assert found <= truth * 1.9
    assert found <= truth + 3e-3  # far out the table is sparse: two per mille say nothing about a decision


@pytest.mark.parametrize("d", [-5.0, -1.0, 0.0, 0.5, 2.0, 5.0, 12.0, 40.0, 70.0, 200.0])
@pytest.mark.parametrize("sd", [1e-6, 1e-2, 0.3, 1.0, 2.5, 6.0, 20.0])
def test_gaussian_and_heavy_tailed_laws_stay_below(d: float, sd: float) -> None:
    nodes, weights = np.polynomial.hermite_e.hermegauss(200)
    weights = weights / weights.sum()
    u = (np.arange(20_000) + 0.5) / 20_000
    laws = {
        "gaussian": (nodes, weights),
        "uniform": (u * 2 - 1, np.full(u.size, 1 / u.size)),
        "exponential to the left": (np.log(u), np.full(u.size, 1 / u.size)),
        "exponential to the right": (-np.log(u), np.full(u.size, 1 / u.size)),
        "pareto to the left": (-(u**-0.4), np.full(u.size, 1 / u.size)),
        "pareto to the right": (u**-0.4, np.full(u.size, 1 / u.size)),
        "cubes": (nodes**3, weights),
    }
    for name, (values, share) in laws.items():
        centre = share @ values
        scale = math.sqrt(share @ (values - centre) ** 2)
        mean, variance, truth = mean_over(d + sd * (values - centre) / scale, share)
        assert bound(mean, variance) >= truth * (1 - 1e-12), name


@settings(max_examples=300, deadline=None)
@given(
    atoms=st.lists(st.tuples(st.floats(-80, 80), st.floats(1e-9, 1)), min_size=1, max_size=6),
    less=st.floats(0, 3),
    more=st.floats(0, 3),
)
def test_no_law_on_atoms_breaks_the_bound(atoms: list[tuple[float, float]], less: float, more: float) -> None:
    """Also where the mean is larger and the variance smaller than what is given."""
    values, weights = (np.array(part) for part in zip(*atoms, strict=True))
    mean, variance, truth = mean_over(values, weights / weights.sum())
    assert bound(mean - less, variance + more) >= truth * (1 - 1e-12) - 1e-300


def test_it_is_monotone() -> None:
    mean = torch.linspace(-10, 90, 401, dtype=torch.float64)
    rows = torch.stack([logistic_tail(mean, torch.full_like(mean, v)) for v in (0.0, 1e-3, 0.1, 1.0, 10.0, 1e3)])
    assert (rows.diff(dim=0) >= 0).all()
    assert (rows.diff(dim=1) <= 3e-3).all()  # up to the spacing of the table


def test_without_variance_it_is_the_sigmoid_up_to_sixty() -> None:
    mean = torch.tensor([-50.0, -1.0, 0.0, 1.0, 30.0, 60.0], dtype=torch.float64)
    found = logistic_tail(mean, torch.zeros_like(mean))
    for d, value in zip(mean.tolist(), found.tolist(), strict=True):
        truth = f(arb(d))
        assert arb(value) >= truth
        assert arb(value) <= truth * (1 + arb(1e-13))


# The ends of float64

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("mean", "variance"), [(NAN, 1.0), (1.0, NAN), (NAN, NAN), (-INF, 1.0), (-INF, 0.0), (1.0, INF), (-INF, INF),
                           (INF, INF), (INF, NAN), (NAN, INF), (-1e308, 1.0), (-800.0, 0.0), (0.0, 1e308)]
)  # fmt: skip
def test_nothing_known_is_one(mean: float, variance: float) -> None:
    assert bound(mean, variance) == 1


@pytest.mark.parametrize("mean", [60.0, 61.0, 800.0, 7500.0, 1e5, 1e100, 1e154, 2e154, 1e200, 1e300, INF])
@pytest.mark.parametrize("variance", [0.0, 1e-320, 1.0, 1e4, 1e100, 1e300, 1.7e308])
def test_huge_margins_are_no_less_than_the_truth(mean: float, variance: float) -> None:
    """Half of Cantelli's probability is at or below zero, where sigma is a half or more, in the worst law."""
    d, v = arb(min(mean, 1e300)), arb(variance)
    a = d + 1 if mean < 1e300 else d
    worst = v / (v + a * a) / 2 if mean < INF else arb(0)
    found = bound(mean, variance)
    assert arb(found) >= worst
    if mean < 1e5:
        assert arb(found) >= f(arb(mean))
