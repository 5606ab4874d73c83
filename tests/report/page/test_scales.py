"""Numbers are rounded to the safe side; ticks and scales."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from bnndp.report.page.scales import Scale, percent, rounded, short, ticks


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(2, 8))
def test_numbers_are_rounded_to_their_side(value: float, digits: int) -> None:
    low, high = (rounded(value, up=up, digits=digits) for up in (False, True))
    assert low <= value <= high
    if math.isfinite(low) and math.isfinite(high) and abs(value) > 1e-300:
        assert high - low <= 10.0 ** (2 - digits) * abs(value)


@given(st.integers(0, 10**6), st.integers(1, 10**6))
def test_a_share_is_never_made_more(part: int, whole: int) -> None:
    down, up = (float(percent(part, whole, up=side).removesuffix(" %")) for side in (False, True))
    share = 100 * part / whole
    assert down <= share + 1e-9
    assert up >= share - 1e-9
    assert up - down <= 0.1 + 1e-9


def test_all_is_said_only_of_all() -> None:
    assert percent(10**6 - 1, 10**6) == "99.9 %"
    assert percent(1, 10**6, up=True) == "0.1 %"


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_are_few_and_within(low: float, relative: float) -> None:
    span = relative * max(1.0, abs(low))
    found = ticks(low, low + span)
    assert 2 <= len(found) <= 12
    assert all(low - 1e-6 * span <= value <= low + span * (1 + 1e-6) for value in found)


def test_a_scale_keeps_what_lies_beyond_at_its_ends() -> None:
    scale = Scale(0.0, 2.0, 10.0, 30.0)
    assert [scale(value) for value in (0.0, 1.0, 2.0, 5.0, math.inf, -math.inf)] == [10, 20, 30, 30, 30, 10]


def test_numbers_that_are_none_have_signs() -> None:
    assert [short(value) for value in (math.nan, math.inf, -math.inf, None)] == ["–", "∞", "−∞", "–"]
