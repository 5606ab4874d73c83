"""Lines above log E exp(a max(m + r xi, 0)), against quadrature at other points."""

from __future__ import annotations

import itertools

import pytest

flint = pytest.importorskip("flint", reason="the checker needs python-flint")
from flint import arb  # noqa: E402

from bnndp_checker.ball_arithmetic import pdf, use_precision  # noqa: E402
from bnndp_checker.tilted import _at, line  # noqa: E402

POINTS = [arb(k) / 64 for k in range(-640, 641)]  # ten standard deviations; the trapezoidal rule


@pytest.fixture(autouse=True)
def _precision() -> None:
    use_precision()


def _log_mean(a: arb, m: arb, r: arb) -> arb:
    """By the exact tail below the kink and the rule above it: good to 1e-4."""
    if r == 0:
        return a * m.max(arb(0))
    values = [(a * (m + r * x).max(arb(0))).exp() * pdf(x) for x in POINTS]
    return (sum(values, arb(0)) / 64).log()


@pytest.mark.parametrize(
    "a", [-3.0, 0.0, 0.7, *(pytest.param(a, marks=pytest.mark.slow) for a in (-0.5, -1e-3, 1e-3, 2.0))]
)
@pytest.mark.parametrize("mean", [(-0.4, 0.9), (-2.0, -1.0), (0.5, 0.5), (1.0, 3.0)])
@pytest.mark.parametrize("std", [(0.0, 0.0), (0.3, 0.3), (0.2, 1.1)])
def test_a_line_is_above_on_the_whole_rectangle(a: float, mean: tuple[float, float], std: tuple[float, float]) -> None:
    slope, constant = line(arb(a), tuple(map(arb, mean)), tuple(map(arb, std)))
    for s, t in itertools.product((0.0, 0.25, 0.5, 1.0), (0.0, 0.5, 1.0)):
        m, r = arb(mean[0] + s * (mean[1] - mean[0])), arb(std[0] + t * (std[1] - std[0]))
        assert _log_mean(arb(a), m, r) <= slope * m + constant + 2e-4
        assert _at(arb(a), m, r)[0] <= slope * m + constant + 1e-20


@pytest.mark.parametrize(("a", "m", "r"), [(-1.5, 0.3, 0.8), (0.8, -0.6, 1.2), (2.0, 0.4, 0.1)])
def test_the_logarithm_and_its_derivatives(a: float, m: float, r: float) -> None:
    value, in_m, in_r = _at(arb(a), arb(m), arb(r))
    h = arb(2) ** -30
    assert abs(value - _log_mean(arb(a), arb(m), arb(r))) < 2e-4
    assert abs((_at(arb(a), m + h, arb(r))[0] - _at(arb(a), m - h, arb(r))[0]) / (2 * h) - in_m) < 1e-9
    assert abs((_at(arb(a), arb(m), r + h)[0] - _at(arb(a), arb(m), r - h)[0]) / (2 * h) - in_r) < 1e-9


def test_a_line_is_tight_in_the_middle_and_at_the_ends() -> None:
    for a, at in ((arb(-2), arb(0.5)), (arb(2), arb(1))):
        slope, constant = line(a, (arb(0), arb(1)), (arb(0.3), arb(0.3)))
        assert abs(slope * at + constant - _at(a, at, arb(0.3))[0]) < 1e-20


def test_a_sign_that_is_not_known_takes_the_larger_factor() -> None:
    ball = arb(0, 1e-20)
    slope, constant = line(ball, (arb(1), arb(2)), (arb(1), arb(1)))
    assert slope >= 0
    assert slope * 2 + constant >= 0


def test_a_tilt_that_overflows_proves_nothing() -> None:
    slope, constant = line(arb(1e8), (arb(0), arb(1)), (arb(1), arb(1)))
    assert not slope + constant <= 1e6
