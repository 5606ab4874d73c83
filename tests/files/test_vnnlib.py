"""VNN-LIB boxes: what is read holds all that the file says; everything else is refused."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bnndp.errors import InputError
from bnndp.files.vnnlib import VnnBox, parse_vnnlib

TWO = "(declare-const X_0 Real)\n(declare-const X_1 Real)\n"
ENDS = "(assert (<= X_0 1)) (assert (>= X_0 0)) (assert (<= X_1 2.5)) (assert (>= X_1 -3e-1))"


@pytest.mark.parametrize(
    "claims",
    [
        ENDS,
        "; a comment (assert (<= X_0 0))\n(assert (and (<= X_0 1.0) (and (>= X_0 0) (<= X_1 2.5)) (>= X_1 -0.3)))",
        "(assert(<= 0 X_0))(assert(>= 1 X_0))(assert(>= 2.5 X_1))(assert (<= -.3 X_1))",
        ENDS + "(assert (<= X_0 3)) (assert (>= X_1 -7))",  # the tighter of two
    ],
)
def test_ways_to_say_a_box(claims: str) -> None:
    found = parse_vnnlib(TWO + "(declare-const Y_0 Real)" + claims)
    assert found == VnnBox((0.0, math.nextafter(-0.3, -1)), (1.0, 2.5), 1)  # -0.3 as float64 lies above the decimal


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no fault
@given(
    st.decimals(-1000, 1000, places=25).filter(lambda value: value == value),
    st.decimals(0, 1000, places=25),
    st.integers(-330, 300),
)
def test_every_decimal_is_rounded_outward_and_no_further(low: object, width: object, power: int) -> None:
    first, second = f"{low:f}e{power}", f"{low + width:f}e{power}"  # type: ignore[operator]
    box = parse_vnnlib(f"(declare-const X_0 Real)(assert (>= X_0 {first}))(assert (<= X_0 {second}))")
    lower, upper = Fraction(box.lower[0]), Fraction(box.upper[0])
    assert lower <= Fraction(first)
    assert Fraction(second) <= upper
    assert Fraction(math.nextafter(box.lower[0], math.inf)) > Fraction(first)
    assert Fraction(math.nextafter(box.upper[0], -math.inf)) < Fraction(second)


REFUSED = {
    "": "declares no inputs",
    "(declare-const X_0 Real)": "X_0 has no lower end",
    "(declare-const X_0 Real)(assert (>= X_0 0))": "X_0 has no upper end",
    "(declare-const X_1 Real)(assert (>= X_1 0))(assert (<= X_1 0))": "but not X_0",
    "(declare-const X_0 Real)(declare-const X_0 Real)": "X_0 is declared twice",
    "(declare-const X_0 Int)": "not a supported declaration",
    "(declare-const Z_0 Real)": "not a supported declaration",
    "(declare-const X_00 Real)": "not a supported declaration",
    "(declare-const (X_0) Real)": "not a supported declaration",
    "(declare-fun X_0 () Real)": "use declare-const and assert",
    "(assert (<= X_0 1))": "X_0 is used before it is declared",
    TWO + "(assert (<= X_0 X_1))": "does not compare one input with one number",
    TWO + "(assert (<= 0 1))": "does not compare one input with one number",
    TWO + "(assert (<= X_0 nan))": "does not compare one input with one number",
    TWO + "(assert (<= X_0 inf))": "does not compare one input with one number",
    TWO + "(assert (<= X_0 1_0))": "does not compare one input with one number",
    TWO + "(assert (<= X_0 0x10))": "does not compare one input with one number",
    TWO + "(assert (<= X_0 (- 1)))": "does not compare one input with one number",
    TWO + "(assert (<= X_0 1e999))": "too large",
    TWO + "(assert (< X_0 1))": "(< X_0 1) is not supported",
    TWO + "(assert (= X_0 1))": "is not supported",
    TWO + "(assert (or (<= X_0 1) (<= X_1 1)))": "is not supported",
    TWO + "(assert (not (<= X_0 1)))": "is not supported",
    TWO + "(assert (and (<= X_0 1) (or (<= X_1 1))))": "is not supported",
    TWO + "(assert (<= X_0 1 2))": "is not supported",
    TWO + "(assert X_0)": "is not supported",
    TWO + "(assert)": "use declare-const and assert",
    TWO + "(check-sat)": "use declare-const and assert",
    TWO + "X_0": "use declare-const and assert",
    TWO + "(assert (<= X_0 1)": "ends within parentheses",
    TWO + "(assert (<= X_0 1)))": "not opened",
    TWO + "(assert " + "(and " * 40 + ")" * 41: "more than 32 parentheses",
    TWO + "(declare-const Y_0 Real)(assert (<= Y_0 1))": "constrains the output Y_0; only inputs are read",
    TWO + "(declare-const Y_0 Real)(declare-const Y_1 Real)(assert (<= Y_0 Y_1))": "asked by --label",
    TWO + "(declare-const Y_1 Real)" + ENDS: "but not Y_0",
    TWO + ENDS + "(assert (>= X_0 1.5))": "the box is empty: X_0 is to lie between 1.5 and 1.0",
}


@pytest.mark.parametrize("text", REFUSED)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_vnnlib(text)
    assert REFUSED[text] in str(caught.value)
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)


def test_a_number_with_a_huge_exponent_takes_no_time() -> None:
    text = "(declare-const X_0 Real)(assert (>= X_0 -1e-999999999))(assert (<= X_0 1e-999999999))"
    assert parse_vnnlib(text) == VnnBox((-5e-324,), (5e-324,), 0)
