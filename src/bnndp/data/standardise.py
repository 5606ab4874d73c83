r"""Standardisation: :math:`z=(x-s)/c` with a shift and a scale for each column, fitted on training data.

A network trained on standardised data is certified in the user's units by mapping boxes. The map is monotone, so the
bounds of a box map to the bounds of its image. Each of the two operations is correctly rounded (IEEE 754); after each
the bounds move outward by one float64 step, hence the exact image lies inside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.data.records import ClassificationData, Data, RegressionData
from bnndp.errors import InputError


@dataclass(frozen=True, slots=True, eq=False)
class Standardisation:
    """A shift and a positive scale for each column.

    >>> units = Standardisation.fit(torch.tensor([[0.0, 7.0], [4.0, 7.0]]))
    >>> units.shift.tolist(), units.scale.tolist()
    ([2.0, 7.0], [2.0, 1.0])
    >>> units.apply(torch.tensor([6.0, 7.0])).tolist()
    [2.0, 0.0]
    """

    shift: Tensor  # (n,), float64
    scale: Tensor  # (n,), float64

    def __post_init__(self) -> None:
        for field in ("shift", "scale"):
            value = torch.as_tensor(getattr(self, field)).detach().to(torch.float64, copy=True)
            if value.ndim != 1 or not value.numel():
                raise InputError(f"{field} must have shape (columns,), got {tuple(value.shape)}.")
            object.__setattr__(self, field, value)
        if self.shift.shape != self.scale.shape:
            raise InputError(f"shift has {self.shift.numel()} columns, scale has {self.scale.numel()}; give the same.")
        for field, good in (("shift", self.shift.isfinite()), ("scale", self.scale.isfinite() & (self.scale > 0))):
            if not good.all():
                column = int((~good).nonzero()[0])
                wanted = "finite" if field == "shift" else "finite and > 0"
                raise InputError(f"{field}[{column}] must be {wanted}, got {getattr(self, field)[column].item()}.")

    @classmethod
    def fit(cls, values: Tensor) -> Standardisation:  # values (points, n)
        """Means and population standard deviations of the columns.

        A constant column gets its value as shift and 1 as scale.
        """
        values = values.detach().to(torch.float64)
        if values.ndim != 2 or 0 in values.shape or not values.isfinite().all():
            raise InputError(f"standardisation needs finite values (points, columns), got {tuple(values.shape)}.")
        low, high = values.amin(0), values.amax(0)
        constant = low == high  # not std == 0: the mean of equal numbers may be rounded away from them
        half = values / 2  # so that neither sums of large numbers nor differences overflow
        shift = torch.where(constant, low, 2 * half.mean(0).clamp(low / 2, high / 2))
        step = half - shift / 2
        widest = step.abs().amax(0)  # dividing by it keeps the squares from underflow and overflow
        widest = torch.where(widest > 0, widest, 1.0)
        spread = 2 * widest * (step / widest).square().mean(0).sqrt()
        return cls(shift, torch.where(constant | ~(spread > 0), 1.0, spread))

    @classmethod
    def from_lists(cls, lists: Mapping[str, Sequence[float]]) -> Standardisation:
        """Read what :meth:`to_lists` returned."""
        if set(lists) != {"shift", "scale"}:
            raise InputError(f"a standardisation has the entries shift and scale, got {', '.join(sorted(lists))}.")
        return cls(*(_column(field, lists[field]) for field in ("shift", "scale")))

    def to_lists(self) -> dict[str, list[float]]:
        """Plain lists; they survive JSON bit for bit."""
        return {"shift": self.shift.tolist(), "scale": self.scale.tolist()}

    @property
    def columns(self) -> int:
        """Number of columns."""
        return self.shift.numel()

    def apply(self, x: Tensor) -> Tensor:  # (..., n)
        """Standardise ``x``."""
        return (self._checked(x) - self.shift) / self.scale

    def undo(self, z: Tensor) -> Tensor:  # (..., n)
        """Map back to the user's units: the inverse of :meth:`apply` up to rounding."""
        return self._checked(z) * self.scale + self.shift

    def apply_bounds(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:  # (..., n) each
        """Bounds that enclose the exact image of [lower, upper]; infinite bounds stay infinite."""
        low, high = _outward(self._checked(lower) - self.shift, self._checked(upper) - self.shift)
        return _outward(low / self.scale, high / self.scale)

    def undo_bounds(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:  # (..., n) each
        """Bounds in the user's units that enclose the exact image of [lower, upper] under the inverse."""
        low, high = _outward(self._checked(lower) * self.scale, self._checked(upper) * self.scale)
        return _outward(low + self.shift, high + self.shift)

    def _checked(self, values: Tensor) -> Tensor:
        if values.ndim == 0 or values.shape[-1] != self.columns:
            raise InputError(
                f"values have shape {tuple(values.shape)}, but the standardisation has {self.columns} columns."
            )
        return values.to(torch.float64)

    def __repr__(self) -> str:
        """Size only."""
        return f"Standardisation(columns={self.columns})"


@dataclass(frozen=True, slots=True)
class DataStandardisation:
    """The standardisation of the inputs of a data set and, for regression, of its targets."""

    inputs: Standardisation
    targets: Standardisation | None = None

    @classmethod
    def fit(cls, data: Data) -> DataStandardisation:
        """Fit to a training set."""
        targets = Standardisation.fit(data.y) if isinstance(data, RegressionData) else None
        return cls(Standardisation.fit(data.x), targets)

    def apply(self, data: Data) -> Data:
        """Standardise inputs and targets."""
        if isinstance(data, ClassificationData):
            if self.targets is not None:
                raise InputError("this standardisation has targets, but classes have none; fit it on this data set.")
            return ClassificationData(self.inputs.apply(data.x), data.y, data.classes)
        targets = self.targets
        if targets is None:
            raise InputError("this standardisation has no targets, but the data set has; fit it on this data set.")
        clean = None if data.clean is None else targets.apply(data.clean)
        return RegressionData(self.inputs.apply(data.x), targets.apply(data.y), clean)


def _outward(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """The next float64 below ``lower`` and above ``upper``: they enclose what one rounded operation lost."""
    return torch.nextafter(lower, lower.new_tensor(-torch.inf)), torch.nextafter(upper, upper.new_tensor(torch.inf))


def _column(field: str, values: Sequence[float]) -> Tensor:
    try:
        return torch.tensor(values, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{field} must be a list of numbers: {str(error).splitlines()[0]}.") from error
