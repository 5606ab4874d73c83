r"""Standardisation: :math:`z=(x-s)/c` with a shift and a scale for each column, fitted on training data.

A network trained on standardised numbers is certified in the user's units by carrying boxes through the same map. The
map is monotone, so that the ends of a box map to the ends of its image; they are moved outward by one step of float64
after each of the two operations, which are correctly rounded (IEEE 754), hence the real image lies inside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.data.records import ClassificationData, RegressionData
from bnndp.errors import InputError

__all__ = ["DataStandardisation", "Standardisation"]


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
        """Means and standard deviations (over all points, not one fewer) of the columns.

        A constant column has its value as shift and 1 as scale.
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
    def identity(cls, columns: int) -> Standardisation:
        """The map that changes nothing."""
        return cls(torch.zeros(columns, dtype=torch.float64), torch.ones(columns, dtype=torch.float64))

    @classmethod
    def from_lists(cls, lists: Mapping[str, Sequence[float]]) -> Standardisation:
        """What :meth:`to_lists` wrote."""
        if set(lists) != {"shift", "scale"}:
            raise InputError(f"a standardisation has the entries shift and scale, got {', '.join(sorted(lists))}.")
        return cls(*(_column(field, lists[field]) for field in ("shift", "scale")))

    def to_lists(self) -> dict[str, list[float]]:
        """Plain numbers; as JSON they come back bit for bit."""
        return {"shift": self.shift.tolist(), "scale": self.scale.tolist()}

    @property
    def columns(self) -> int:
        """Number of columns."""
        return self.shift.numel()

    def apply(self, x: Tensor) -> Tensor:  # (..., n)
        """Standardised numbers."""
        return (self._checked(x) - self.shift) / self.scale

    def undo(self, z: Tensor) -> Tensor:  # (..., n)
        """Numbers in the user's units: the inverse of :meth:`apply` up to rounding."""
        return self._checked(z) * self.scale + self.shift

    def undo_std(self, std: Tensor) -> Tensor:  # (..., n)
        """Standard deviations, or widths, in the user's units."""
        return self._checked(std) * self.scale

    def apply_bounds(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:  # (..., n) each
        """Ends that enclose the real image of [lower, upper], for every float64 ends, infinite ones too."""
        shift, scale = self.shift, self.scale
        return (
            _below(_below(self._checked(lower) - shift) / scale),
            _above(_above(self._checked(upper) - shift) / scale),
        )

    def undo_bounds(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:  # (..., n) each
        """Ends in the user's units that enclose the real image of [lower, upper] under the inverse."""
        shift, scale = self.shift, self.scale
        return (
            _below(_below(self._checked(lower) * scale) + shift),
            _above(_above(self._checked(upper) * scale) + shift),
        )

    def _checked(self, values: Tensor) -> Tensor:
        if values.ndim == 0 or values.shape[-1] != self.columns:
            raise InputError(
                f"values have shape {tuple(values.shape)}, the standardisation is of {self.columns} columns."
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
    def fit(cls, data: RegressionData | ClassificationData) -> DataStandardisation:
        """Fitted on a training set."""
        targets = Standardisation.fit(data.y) if isinstance(data, RegressionData) else None
        return cls(Standardisation.fit(data.x), targets)

    def apply(self, data: RegressionData | ClassificationData) -> RegressionData | ClassificationData:
        """The same points in standardised numbers."""
        if isinstance(data, ClassificationData):
            if self.targets is not None:
                raise InputError("this standardisation has targets, but classes have none; fit it on this data set.")
            return ClassificationData(self.inputs.apply(data.x), data.y, data.classes)
        targets = self.targets
        if targets is None:
            raise InputError("this standardisation has no targets, but the data set has; fit it on this data set.")
        clean = None if data.clean is None else targets.apply(data.clean)
        return RegressionData(self.inputs.apply(data.x), targets.apply(data.y), clean)


def _below(x: Tensor) -> Tensor:
    """The float64 number before each: at or below every real number that is rounded to it."""
    return torch.nextafter(x, torch.full_like(x, -torch.inf))


def _above(x: Tensor) -> Tensor:
    return torch.nextafter(x, torch.full_like(x, torch.inf))


def _column(field: str, values: Sequence[float]) -> Tensor:
    try:
        return torch.tensor(values, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{field} must be a list of numbers: {str(error).splitlines()[0]}.") from error
