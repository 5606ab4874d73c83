"""Bounds as values: intervals, affine functions of the input, and the region on which they hold."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.errors import InputError
from bnndp.regions import Box, apply_rows
from bnndp.shown import html_table

__all__ = ["Affine", "AffineBounds", "Bounds", "Interval", "PiecewiseAffine"]


@dataclass(frozen=True, slots=True)
class Interval:
    """``lower <= value <= upper``, element by element."""

    lower: Tensor  # (batch, n)
    upper: Tensor  # (batch, n)

    @property
    def magnitude(self) -> Tensor:
        """``max |value|``."""
        return self.lower.abs().maximum(self.upper.abs())

    def where_sign(self, signs: Tensor) -> Interval:
        """The part of each interval on which ``signs * value >= 0``, for signs -1, 0 and 1; crossed where empty."""
        return Interval(
            torch.where(signs > 0, self.lower.clamp_min(0), self.lower),
            torch.where(signs < 0, self.upper.clamp_max(0), self.upper),
        )


@dataclass(frozen=True, slots=True)
class Affine:
    """The affine functions ``matrix @ x + offset``, one a row and box."""

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


@dataclass(frozen=True, slots=True)
class Bounds:
    """``lower <= E f(x) <= upper`` for every x of each box, over the whole posterior; E softmax for classifiers.

    ``affine`` holds on each whole box (regression only); ``cells`` are the pieces of a refinement (None after a single
    pass). A bound that is not a number or crossed never reaches a caller: it is refused here.
    """

    lower: Tensor  # (batch, outputs)
    upper: Tensor  # (batch, outputs)
    affine: AffineBounds | None
    method: tuple[str, ...]  # of each box: which method gave the interval
    cells: PiecewiseAffine | None = None

    def __post_init__(self) -> None:
        bad = ~(self.lower <= self.upper) | (self.lower == torch.inf) | (self.upper == -torch.inf)
        if bad.any():
            b, i = bad.nonzero()[0].tolist()
            raise InputError(
                f"No bound for box {b}, output {i}: lower={self.lower[b, i].item()}, upper={self.upper[b, i].item()}. "
                "The weights or the box are too large for float64; scale the inputs."
            )

    @property
    def width(self) -> Tensor:
        """The certified gamma of each box and output, rounded up: (batch, outputs)."""
        width = self.upper - self.lower
        return torch.where(width > 0, torch.nextafter(width, torch.full_like(width, torch.inf)), width)

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        ends = {"lower": self.lower, "upper": self.upper, "width": self.width}
        columns = {name: end.tolist() for name, end in ends.items()}
        return html_table(f"Bounds of {len(self.method)} boxes", columns | {"method": self.method})
