"""The answer of a certification: what is no bound is refused, and widths are rounded up."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from bnndp.errors import InputError
from bnndp.questions.bounds import Bounds


def make(lower: Tensor, upper: Tensor) -> Bounds:
    return Bounds(lower, upper, None, ("moment",) * lower.shape[0])


def of(lower: float, upper: float) -> Bounds:
    return make(torch.tensor([[lower]], dtype=torch.float64), torch.tensor([[upper]], dtype=torch.float64))


NAN, INF = math.nan, math.inf
CROSSED = [(1.0, 0.0), (5e-324, 0.0), (INF, INF), (-INF, -INF), (INF, -INF)]


@pytest.mark.parametrize(("lower", "upper"), [(NAN, 1.0), (0.0, NAN), (NAN, NAN), (NAN, INF), *CROSSED])
def test_what_is_no_bound_never_reaches_a_caller(lower: float, upper: float) -> None:
    with pytest.raises(InputError, match=r"No bound for box 0, output 0: lower="):
        of(lower, upper)


@pytest.mark.parametrize(("lower", "upper"), [(0.0, 0.0), (-0.0, 0.0), (-INF, INF), (-INF, 3.0), (1.0, INF)])
def test_touching_and_one_sided_bounds_are_bounds(lower: float, upper: float) -> None:
    bounds = of(lower, upper)
    assert bounds.width.item() == upper - lower


def test_the_first_bad_entry_is_named() -> None:
    lower, upper = torch.zeros(3, 4, dtype=torch.float64), torch.ones(3, 4, dtype=torch.float64)
    lower[2, 1] = math.nan
    with pytest.raises(InputError, match=r"box 2, output 1: lower=nan, upper=1\.0"):
        make(lower, upper)


@settings(max_examples=300, deadline=None)
@given(a=st.floats(-1e300, 1e300), b=st.floats(-1e300, 1e300))
@example(a=-1e-20, b=1.0)
@example(a=-1.0, b=1e-20)
@example(a=0.1, b=0.1)
def test_width_is_never_below_the_exact_width(a: float, b: float) -> None:
    lower, upper = min(a, b), max(a, b)
    width = of(lower, upper).width.item()
    assert Fraction(width) >= Fraction(upper) - Fraction(lower)
    assert width <= math.nextafter(upper - lower, math.inf)
    assert (width == 0) == (lower == upper)


def test_bounds_are_frozen() -> None:
    bounds = of(0.0, 1.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        bounds.lower = bounds.upper  # type: ignore[misc]
