"""Bounds as values: intervals, affine functions of the input, and the region on which they hold."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.geometry.box import Box, apply_rows


@dataclass(frozen=True, slots=True)
class Interval:
    """``lower <= value <= upper``, element by element."""

    lower: Tensor  # (batch, n)
    upper: Tensor  # (batch, n)

    @property
    def magnitude(self) -> Tensor:
        """``max |value|``."""
        return self.lower.abs().maximum(self.upper.abs())

    def meet(self, other: Interval) -> Interval:
        """The intersection, crossed where it is empty; NaN says nothing."""
        return Interval(torch.fmax(self.lower, other.lower), torch.fmin(self.upper, other.upper))

    def where_sign(self, signs: Tensor) -> Interval:
        """The part of each interval on which ``signs * value >= 0``, for signs -1, 0 and 1; crossed where empty."""
        return Interval(
            torch.where(signs > 0, self.lower.clamp_min(0), self.lower),
            torch.where(signs < 0, self.upper.clamp_max(0), self.upper),
        )


@dataclass(frozen=True, slots=True)
class Affine:
    """The affine functions ``matrix @ x + offset``, one per row and box."""

    matrix: Tensor  # (batch, rows, n)
    offset: Tensor  # (batch, rows)

    def __call__(self, x: Tensor) -> Tensor:
        """Values at ``x`` (batch, n): (batch, rows)."""
        return apply_rows(self.matrix, x) + self.offset


@dataclass(frozen=True, slots=True)
class AffineBounds:
    """``lower(x) <= f(x) <= upper(x)`` for every ``x`` in ``region``."""

    lower: Affine
    upper: Affine
    region: Box

    def interval(self) -> Interval:
        """Smallest and largest value over the region, rounded outward."""
        return Interval(
            self.region.minimum(self.lower.matrix, self.lower.offset),
            self.region.maximum(self.upper.matrix, self.upper.offset),
        )


@dataclass(frozen=True, slots=True)
class PiecewiseAffine:
    """Affine bounds on cells that cover the boxes: cell ``i`` belongs to box ``owner[i]``."""

    pieces: AffineBounds
    interval: Interval  # (cells, outputs), of each cell
    owner: Tensor  # (cells,) of integers
