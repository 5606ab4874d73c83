"""Bounds as values: what they hold, what they refuse, and their rounding against exact rational arithmetic."""

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
from bnndp.geometry.bounds import Affine, AffineBounds, Interval
from bnndp.geometry.box import Box
from bnndp.questions.bounds import Bounds


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make(lower: Tensor, upper: Tensor) -> Bounds:
    region = Box(torch.zeros(lower.shape[0], 1), torch.ones(lower.shape[0], 1))
    flat = Affine(torch.zeros(*lower.shape, 1, dtype=torch.float64), torch.zeros_like(lower))
    return Bounds(lower, upper, AffineBounds(flat, flat, region), ("moment",) * lower.shape[0])


def of(lower: float, upper: float) -> Bounds:
    return make(torch.tensor([[lower]], dtype=torch.float64), torch.tensor([[upper]], dtype=torch.float64))


@pytest.mark.parametrize(
    ("lower", "upper"),
    [
        (math.nan, 1.0),
        (0.0, math.nan),
        (math.nan, math.nan),
        (1.0, 0.0),
        (5e-324, 0.0),
        (math.inf, math.inf),
        (-math.inf, -math.inf),
        (math.inf, -math.inf),
        (math.nan, math.inf),
    ],
)
def test_what_is_no_bound_never_reaches_a_caller(lower: float, upper: float) -> None:
    with pytest.raises(InputError, match=r"No bound for box 0, output 0: lower="):
        of(lower, upper)


@pytest.mark.parametrize(
    ("lower", "upper"), [(0.0, 0.0), (-0.0, 0.0), (-math.inf, math.inf), (-math.inf, 3.0), (1.0, math.inf)]
)
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


def test_interval_magnitude() -> None:
    interval = Interval(torch.tensor([[-3.0, 1.0, -1.0]]), torch.tensor([[1.0, 2.0, -0.5]]))
    assert interval.magnitude.tolist() == [[3, 2, 1]]


def test_affine_values_for_own_and_shared_matrices() -> None:
    matrix, offset, x = random(4, 3, 2), random(4, 3, seed=1), random(4, 2, seed=2)
    expected = torch.stack([matrix[b] @ x[b] + offset[b] for b in range(4)])
    torch.testing.assert_close(Affine(matrix, offset)(x), expected)
    shared = torch.stack([matrix[0] @ x[b] + offset[0] for b in range(4)])
    torch.testing.assert_close(Affine(matrix[0], offset[0])(x), shared)


@pytest.mark.parametrize("norm", [1, 2, math.inf])
def test_interval_of_affine_bounds_encloses_both_functions_exactly(norm: float) -> None:
    """On the box the ends are attained at vertices; all 2^n of them are tried, in rational arithmetic."""
    n, rows = 4, 3
    region = Box.ball(random(2, n), 0.3, norm=norm)
    low, high = (Affine(random(2, rows, n, seed=s), random(2, rows, seed=s + 1)) for s in (3, 5))
    interval = AffineBounds(low, high, region).interval()
    if norm == math.inf:
        points = [[(region.lower, region.upper)[bits >> i & 1][:, i] for i in range(n)] for bits in range(2**n)]
        tries = torch.stack([torch.stack(point, -1) for point in points])
    else:
        tries = region.project(region.centre + random(200, 2, n, seed=9))
    least: dict[tuple[int, int], Fraction] = {}
    for point in tries.tolist():
        for b in range(2):
            for r in range(rows):
                below, above = (
                    sum(
                        (Fraction(w) * Fraction(z) for w, z in zip(f.matrix[b, r].tolist(), point[b], strict=True)),
                        Fraction(f.offset[b, r].item()),
                    )
                    for f in (low, high)
                )
                assert Fraction(interval.lower[b, r].item()) <= below
                assert above <= Fraction(interval.upper[b, r].item())
                least[b, r] = min(below, least.get((b, r), below))
    if norm == math.inf:  # attained, up to rounding
        assert all(
            value - Fraction(interval.lower[b, r].item()) < Fraction(1, 10**12) for (b, r), value in least.items()
        )


def test_bounds_are_frozen() -> None:
    bounds = of(0.0, 1.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        bounds.lower = bounds.upper  # type: ignore[misc]
