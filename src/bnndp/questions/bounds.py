"""The answer of a certification: an interval for each output of each box, and how it was found."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.errors import InputError
from bnndp.geometry.bounds import AffineBounds, PiecewiseAffine
from bnndp.questions.notebook import html_table

__all__ = ["Bounds"]


@dataclass(frozen=True, slots=True)
class Bounds:
    """``lower <= E f(x) <= upper`` for every x of each box, over the whole posterior; E softmax for classifiers.

    ``affine`` holds on each whole box (regression only); ``cells`` are the cells of a refinement (None after a single
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
