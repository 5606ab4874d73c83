"""VNN-LIB properties: what is read says exactly what the file says; everything else is refused."""

from __future__ import annotations

import gzip
import math
import random
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bnndp.errors import InputError, ModelFileError
from bnndp.files.regions import regions_of
from bnndp.files.vnnlib import Case, Inequality, Property, VnnBox, parse_vnnlib, read_vnnlib

TWO = "(declare-const X_0 Real)\n(declare-const X_1 Real)\n"
OUT = "(declare-const Y_0 Real)(declare-const Y_1 Real)"
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
    found = parse_vnnlib(TWO + "(declare-const Y_0 Real)" + claims).box()
    assert found == VnnBox((0.0, math.nextafter(-0.3, -1)), (1.0, 2.5), 1)  # -0.3 as float64 lies above the decimal


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no fault
@given(
    st.decimals(-1000, 1000, places=25).filter(lambda value: value == value),
    st.decimals(0, 1000, places=25),
    st.integers(-330, 300),
)
def test_every_decimal_is_rounded_outward_and_no_further(low: object, width: object, power: int) -> None:
    first, second = f"{low:f}e{power}", f"{low + width:f}e{power}"  # type: ignore[operator]
    box = parse_vnnlib(f"(declare-const X_0 Real)(assert (>= X_0 {first}))(assert (<= X_0 {second}))").box()
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
    "(declare-const X_0 Real)(declare-const X_0 Real)": "declares X_0 twice",
    "(declare-const X_0 Int)": "not a supported declaration",
    "(declare-const Z_0 Real)": "not a supported declaration",
    "(declare-const X_00 Real)": "not a supported declaration",
    "(declare-const (X_0) Real)": "not a supported declaration",
    "(declare-fun X_0 (Real) Real)": "not a supported declaration",
    "(assert (<= X_0 1))": "X_0 is used before it is declared",
    "(vnnlib-version <2.0>)": "only files of VNN-LIB 1.0",
    TWO + ENDS + "(assert (<= 1 0))": "between numbers that is false",
    TWO + "(assert (<= X_0 nan))": "line 3: nan is neither a decimal number",
    TWO + "(assert (<= X_0 inf))": "inf is neither a decimal number",
    TWO + "(assert (<= X_0 1_0))": "1_0 is neither a decimal number",
    TWO + "(assert (<= X_0 0x10))": "0x10 is neither a decimal number",
    TWO + "(assert (<= X_0 1e999999999))": "out of range",
    TWO + "(assert (<= X_0 1e-999999999))": "out of range",
    TWO + "(assert (<= X_0 " + "1" * 2000 + "))": "neither a decimal number",
    TWO + "(assert (<= (* X_0 X_1) 1))": "not a linear term",
    TWO + "(assert (<= (/ 1 X_0) 1))": "not a linear term",
    TWO + "(assert (<= (+) 1))": "not a linear term",
    TWO + "(assert (not (<= X_0 1)))": "is not supported",
    TWO + "(assert (<= X_0 1 2))": "is not supported",
    TWO + "(assert X_0)": "is not supported",
    TWO + "(assert)": "use declare-const and assert",
    TWO + "(push 1)": "use declare-const and assert",
    TWO + "X_0": "use declare-const and assert",
    TWO + "(assert (<= X_0 1)": "opened in line 3; the file is not whole",
    TWO + "(assert (<= X_0 1)))": "not opened",
    TWO + "(assert " + "(and " * 40 + ")" * 41: "more than 32 parentheses",
    TWO + "(declare-const Y_1 Real)" + ENDS: "but not Y_0",
    TWO + ENDS + "(assert (>= X_0 1.5))": "the box is empty: X_0 is to lie between 1.5 and 1.0",
    TWO + ENDS + "(assert (or (>= X_0 1.5) (<= X_1 -7)))": "no input satisfies any of the alternatives",
    TWO + OUT + "(assert (or (<= Y_0 0) (>= Y_0 1)))" * 24: "more than can be read",
    TWO + OUT + ENDS + "(assert (or (<= Y_0 0) (>= Y_0 1)))" * 17: "more than can be read",
}


@pytest.mark.parametrize("text", REFUSED)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_vnnlib(text)
    assert REFUSED[text] in str(caught.value)
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("claims", "says"),
    [
        ("(assert (<= Y_0 Y_1))", "asked by --label or bnndp verify"),
        ("(assert (or (<= X_0 0.25) (>= X_0 0.75)))", "holds 2 boxes of inputs"),
        ("(assert (<= X_0 X_1))", "asked by --label or bnndp verify"),
    ],
)
def test_a_property_that_is_more_than_a_box_is_no_box(claims: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        parse_vnnlib(TWO + OUT + ENDS + claims).box()


def row(outputs: dict[int, int], bound: int | str, inputs: dict[int, str] | None = None) -> Inequality:
    of_outputs = tuple((index, Fraction(value)) for index, value in outputs.items())
    of_inputs = tuple((index, Fraction(value)) for index, value in (inputs or {}).items())
    return Inequality(of_outputs, of_inputs, Fraction(bound))


@pytest.mark.parametrize(
    ("claim", "unsafe"),
    [
        ("(<= Y_0 Y_1)", [[row({0: 1, 1: -1}, 0)]]),
        ("(>= Y_0 0.1)", [[row({0: -1}, "-1/10")]]),
        ("(< 1 (+ Y_0 (* 2 Y_1) (- 3)))", [[row({0: -1, 1: -2}, -4)]]),
        ("(= Y_0 Y_1)", [[row({0: 1, 1: -1}, 0), row({0: -1, 1: 1}, 0)]]),
        ("(<= (- Y_0 Y_1 1) (* -0.5 X_0))", [[row({0: 1, 1: -1}, 1, {0: "1/2"})]]),
        ("(or (<= Y_0 1) (and (<= Y_1 2) (>= Y_0 3)))", [[row({0: 1}, 1)], [row({1: 1}, 2), row({0: -1}, -3)]]),
        (
            "(and (or (<= Y_0 1) (<= Y_1 2)) (<= Y_0 5))",
            [[row({0: 1}, 1), row({0: 1}, 5)], [row({1: 1}, 2), row({0: 1}, 5)]],
        ),
        ("(or (<= Y_0 (- Y_0 1)) (<= Y_1 2))", [[row({1: 1}, 2)]]),  # the first is false
    ],
)
def test_output_constraints_are_brought_into_disjunctive_normal_form(
    claim: str, unsafe: list[list[Inequality]]
) -> None:
    found = parse_vnnlib(f"{TWO}{OUT}{ENDS}(assert {claim})")
    box = (Fraction(0), Fraction(-3, 10)), (Fraction(1), Fraction(5, 2))
    assert found == Property(2, 2, (Case(*box, tuple(map(tuple, unsafe))),))


def test_alternatives_of_boxes_are_cases() -> None:
    boxes = "(assert (or (and (<= X_0 0.25) (>= X_0 0)) (and (>= X_0 0.5) (<= X_0 0.75)) (>= X_0 3)))"
    found = parse_vnnlib(TWO + OUT + ENDS + boxes + "(assert (or (<= Y_0 0) (<= Y_1 0)))")
    assert [(float(case.lower[0]), float(case.upper[0]), len(case.unsafe)) for case in found.cases] == [
        (0.0, 0.25, 2),
        (0.5, 0.75, 2),
    ]


def formula(random_: random.Random, depth: int) -> tuple[str, object]:
    """A formula as text, and as a function of x and y."""
    kind = random_.choice(["and", "or", "leaf"]) if depth else "leaf"
    if kind != "leaf":
        parts = [formula(random_, depth - 1) for _ in range(random_.randint(1, 3))]
        join = all if kind == "and" else any
        return f"({kind} {' '.join(text for text, _ in parts)})", lambda x, y: join(each(x, y) for _, each in parts)  # type: ignore[operator]
    a, b, c, d = (random_.randint(-2, 2) for _ in range(4))
    text = f"(<= (+ (* {a} Y_0) (* {b} Y_1)) (+ {c} (* {d} X_0)))"
    return text, lambda x, y: a * y[0] + b * y[1] <= c + d * x[0]


@pytest.mark.parametrize("seed", range(40))
def test_the_normal_form_says_what_the_formula_says(seed: int) -> None:
    random_ = random.Random(seed)
    text, truth = formula(random_, 3)
    try:
        found = parse_vnnlib(f"{TWO}{OUT}{ENDS}(assert {text})")
    except InputError:
        found = Property(2, 2, ())
    for _ in range(100):
        x = (Fraction(random_.randint(0, 8), 8), Fraction(random_.randint(0, 8), 4))
        y = (Fraction(random_.randint(-3, 3)), Fraction(random_.randint(-3, 3)))
        unsafe = any(
            all(low <= v <= high for v, low, high in zip(x, case.lower, case.upper, strict=True))
            and any(
                all(sum(c * y[i] for i, c in r.outputs) + sum(c * x[i] for i, c in r.inputs) <= r.bound for r in rows)
                for rows in case.unsafe
            )
            for case in found.cases
        )
        assert unsafe == truth(x, y)  # type: ignore[operator]


def test_regions_hold_all_that_is_meant_and_search_in_no_more() -> None:
    text = f"{TWO}{OUT}(assert (= X_0 0.1))(assert (<= X_1 0.3))(assert (>= X_1 0.1))(assert (<= (* 0.1 Y_0) 0.7))"
    (region,) = regions_of(parse_vnnlib(text))
    for end, exact in zip(region.box.lower[0].tolist(), ("0.1", "0.1"), strict=True):
        assert Fraction(end) < Fraction(exact) < Fraction(math.nextafter(end, 1))
    assert Fraction(region.within.lower[0, 1].item()) > Fraction("0.1") > Fraction(region.box.lower[0, 1].item())
    assert region.within.upper[0, 0] > region.within.lower[0, 0]  # X_0 is no float64
    assert (region.unsafe.rows[0].tolist(), region.unsafe.bound.tolist()) == ([1.0, 0.0], [7.0])  # ten times as much


@pytest.mark.parametrize("bound", ["0.1", "-0.1", "1e-30", "3.991125645861615", "7"])
def test_bounds_are_rounded_by_less_than_one_step(bound: str) -> None:
    unsafe = regions_of(parse_vnnlib(f"{TWO}{OUT}{ENDS}(assert (<= Y_0 {bound}))"))[0].unsafe
    low, high = unsafe.certain.item(), unsafe.bound.item()
    assert Fraction(low) <= Fraction(bound) <= Fraction(high)
    assert high <= math.nextafter(low, math.inf)


def test_a_property_without_constraints_of_outputs_has_no_regions() -> None:
    with pytest.raises(InputError, match="nothing to verify"):
        regions_of(parse_vnnlib(TWO + OUT + ENDS))


def test_files_may_be_compressed(tmp_path: Path) -> None:
    path = tmp_path / "p.vnnlib.gz"
    path.write_bytes(gzip.compress((TWO + ENDS).encode()))
    assert read_vnnlib(path).box() == VnnBox((0.0, math.nextafter(-0.3, -1)), (1.0, 2.5), 0)
    for content, says in ((gzip.compress(b"\xff"), "UTF-8"), (gzip.compress(b"(")[:-9], "damaged gzip")):
        path.write_bytes(content)
        with pytest.raises(ModelFileError, match=f"{path}.*{says}"):
            read_vnnlib(path)


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "p.vnnlib.gz"
    path.write_bytes(gzip.compress(b" " * (2**26 + 1), 9))
    with pytest.raises(ModelFileError, match="when decompressed"):
        read_vnnlib(path)
