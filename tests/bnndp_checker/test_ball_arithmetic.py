"""Ball arithmetic: a comparison is true only if it is proved, no knowledge stays none, closed forms meet integrals."""

from __future__ import annotations

import pytest

pytest.importorskip("flint", reason="the checker needs python-flint")
from flint import acb, arb, ctx

from bnndp_checker.ball_arithmetic import Rejected, cdf, g, larger, parts, pdf, require, smaller, sq, upper_root
from bnndp_checker.moment import moments
from bnndp_checker.vectors import dot, matrix, minus, plus, product

NAN, WIDE, INFINITE = arb("nan"), arb(0, 1), arb("inf")


@pytest.fixture(autouse=True)
def _precision() -> None:
    ctx.prec = 96


def test_a_comparison_with_an_unknown_number_is_false() -> None:
    for known in (arb(0), arb(-1e300), INFINITE, NAN):
        assert not known <= NAN
        assert not known >= NAN
        assert not known < NAN
        assert not known == NAN  # noqa: SIM201 (arb has its own "not equal")
    assert not 0 < NAN < 1
    assert not NAN.is_zero()


def test_a_comparison_holds_for_all_points_of_both_balls() -> None:
    half, same = arb(0.5), arb(0, 1)
    assert not half <= WIDE
    assert not half >= WIDE
    assert arb(1.01) >= WIDE
    assert not same == WIDE  # noqa: SIM201 (two numbers of the same ball need not be the same)


@pytest.mark.parametrize("of", [larger, smaller, lambda a, b: a + b, lambda a, b: a * b, lambda a, b: larger(b, a)])
def test_what_comes_from_an_unknown_number_is_unknown(of: object) -> None:
    assert of(NAN, arb(1)).is_nan()  # type: ignore[operator]


@pytest.mark.parametrize("of", [WIDE.sqrt, lambda: 1 / WIDE, WIDE.log, lambda: INFINITE - INFINITE])
def test_functions_outside_of_their_domain_know_nothing(of: object) -> None:
    found = of()  # type: ignore[operator]
    assert not found <= 1e300
    assert not found >= -1e300


@pytest.mark.parametrize("x", [arb(0, 1e-30), arb(1e-31, 1e-30), arb(-3), arb(3, 4), arb(0)])
def test_squares_and_their_roots_hold_the_number(x: arb) -> None:
    """Also for balls around zero, of which a power is NaN and a root would be."""
    for at in (x.lower(), x.mid(), x.upper()):
        assert sq(x).contains(at * at)
        assert upper_root(sq(x)) >= abs(at)
    assert not upper_root(NAN).is_finite()


def test_larger_and_smaller_hold_all_choices() -> None:
    assert larger(arb(1), arb(3), arb(2)) == 3
    assert smaller(arb(1), arb(3), arb(2)) == 1
    assert larger(WIDE, arb(0)).contains(arb(0))
    assert larger(WIDE, arb(0)).contains(arb(1))
    assert not larger(WIDE, arb(0)) >= 0.001
    positive, negative = parts(WIDE)
    assert positive.contains(arb(1))
    assert negative.contains(arb(-1))
    with pytest.raises(TypeError):
        larger()


@pytest.mark.parametrize("value", [False, None, 1, arb(1), "yes"])
def test_only_true_is_a_proof(value: object) -> None:
    with pytest.raises(Rejected, match="what was to be shown"):
        require(value, "what was to be shown")  # type: ignore[arg-type]


def test_vectors_of_different_lengths_are_refused() -> None:
    for of in (plus, dot):
        with pytest.raises(ValueError, match="argument"):
            of([arb(1)], [arb(1), arb(2)])
    with pytest.raises(ValueError, match="length"):
        matrix([[arb(1), arb(2)], [arb(1)]], 2)
    with pytest.raises(ValueError, match="incompatible"):
        product(matrix([[arb(1), arb(2)]], 2), [arb(1)])
    assert product(matrix([[arb(1), arb(2)]], 2), minus([arb(3), arb(4)])) == [-11]


def _mean(power: int, m: float, r: float) -> arb:
    """E max(m + r xi, 0)^power as an integral."""

    def density(t: acb, _: bool) -> acb:
        return (acb(m) + acb(r) * t) ** power * (-t * t / 2).exp() / (2 * acb.pi()).sqrt()

    start = max(-m / r, -30.0)
    return acb.integral(density, start, max(start, 30.0)).real


@pytest.mark.parametrize(("m", "r"), [(0.3, 0.7), (-2.0, 0.5), (4.0, 1e-3), (-0.1, 3.0), (0.0, 1.0)])
def test_moments_of_a_rectified_gaussian(m: float, r: float) -> None:
    closed = moments(arb(m), arb(r))
    for power, found in zip((1, 2, 4), closed, strict=True):
        assert abs(found - _mean(power, m, r)) < 1e-20 * (1 + found)
    assert abs(g(arb(m), arb(r)) - closed[0]) < 1e-20
    assert abs(cdf(arb(m)) + cdf(-arb(m)) - 1) < 1e-25
    assert abs(pdf(arb(m)) - (-(arb(m) ** 2) / 2).exp() / (2 * arb.pi()).sqrt()) < 1e-25


def test_moments_without_deviation() -> None:
    assert [float(x) for x in moments(arb(-1), arb(0))] == [0, 0, 0]
    assert [float(x) for x in moments(arb(2), arb(0))] == [2, 4, 16]
    assert g(arb(2), arb(0)) == 2
    assert g(arb(-2), arb(0)) == 0


def test_far_tails_stay_positive_and_tiny() -> None:
    """The closed form cancels in the left tail; the ball must still be useful there."""
    found = g(arb(-9), arb(1))
    assert found > 0
    assert found < 1e-18
    assert cdf(arb(-1e200)) <= 1e-300
    assert abs(g(arb(1e200), arb(1)) / arb(1e200) - 1) < 1e-20
