"""The answer of a certification: an interval for each output of each box, and how it was found."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.errors import InputError
from bnndp.geometry.bounds import AffineBounds, PiecewiseAffine
from bnndp.questions.notebook import html_table


@dataclass(frozen=True, slots=True)
class Bounds:
    """Certified bounds for every x of each box, over the whole posterior.

    They bound the mean output, the expected softmax of a classifier, or another quantity that was asked for. A bound
    that is NaN or crossed is refused here and never reaches a caller.

    Attributes:
        lower: Lower bounds, ``(batch, outputs)``.
        upper: Upper bounds, ``(batch, outputs)``.
        affine: Affine bounds on each whole box; regression only.
        method: For each box, the method that gave its interval.
        cells: The cells of a refinement; None after a single pass.

    Examples:
        >>> Bounds(torch.tensor([[0.0]]), torch.tensor([[0.5]]), None, ("moment",)).width
        tensor([[0.5000]])
    """

    lower: Tensor  # (batch, outputs)
    upper: Tensor  # (batch, outputs)
    affine: AffineBounds | None
    method: tuple[str, ...]
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
