"""Arithmetic of moments: of intervals, rounded outward relative to the sizes of the terms, and of unknown factors."""

from __future__ import annotations

import torch
from torch import Tensor

from bnndp.geometry.bounds import Interval

__all__ = ["BLUR", "minus", "plus", "product", "square", "times"]

BLUR = 1e-10  # covers the rounding of sums of terms of both signs, relative to the sum of their sizes


def times(a: Interval, b: Interval, factor: float = 1.0) -> Interval:
    """The product, times a positive factor."""
    ends = torch.stack([x * y for x in (a.lower, a.upper) for y in (b.lower, b.upper)]) * factor
    return _out(ends.amin(0), ends.amax(0))


def square(a: Interval) -> Interval:
    """The square."""
    least = torch.maximum(a.lower, -a.upper).clamp_min(0)
    return _out(least.square(), a.magnitude.square())


def plus(*parts: Interval) -> Interval:
    """The sum."""
    return _out(sum(p.lower for p in parts), sum(p.upper for p in parts), sum(p.magnitude for p in parts))  # type: ignore[arg-type]


def minus(a: Interval, b: Interval) -> Interval:
    """The difference."""
    return _out(a.lower - b.upper, a.upper - b.lower, a.magnitude + b.magnitude)


def product(a: Tensor, b: Tensor) -> Tensor:
    """Zero where either is: an unknown derivative, which is infinite, times no width."""
    return torch.where((a == 0) | (b == 0), 0.0, a * b)


def _out(low: Tensor, high: Tensor, size: Tensor | None = None) -> Interval:
    """Rounded outward, relative to the size of the terms."""
    if size is None:
        size = torch.maximum(low.abs(), high.abs())
    return Interval(low - BLUR * size, high + BLUR * size)
