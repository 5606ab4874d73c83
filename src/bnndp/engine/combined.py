"""Passes made of others: of what the first layer sees behind a shift of the inputs, and the better of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bnndp.engine.protocol import BranchablePass, Deviations, Pass, Planes, Slopes, Wrapped, known
from bnndp.geometry.bounds import Affine, Interval
from bnndp.geometry.box import Box, apply_rows
from bnndp.geometry.half_space import HalfSpace
from bnndp.maths.rounding import TINY, gamma


@dataclass(frozen=True)
class Shifted(Wrapped):
    """A pass over ``x - shift``, as one over x: its functions are carried back."""

    shift: Tensor  # (n,), or (batch, n)
    region: Box  # of x

    @property
    def box(self) -> Box:
        """The boxes of x."""
        return self.region

    def affine(self, rows: Tensor) -> Planes:
        """``A (x - shift) + b`` as functions of x, rounded down; what they are at least is known before."""
        found = self.inner.affine(rows)
        return Planes(self._back(found.affine), found.least, found.method)

    def _back(self, plane: Affine) -> Affine:
        shift = self.shift.expand(self.region.batch, -1)
        size = apply_rows(plane.matrix.abs(), shift.abs()) + plane.offset.abs()
        lost = gamma(2 * self.region.n + 8) * size + TINY
        return Affine(plane.matrix, plane.offset - apply_rows(plane.matrix, shift) - lost)

    @property
    def branchable(self) -> BranchablePass | None:
        """That of the pass behind the shift, with its functions carried back."""
        found = self.inner.branchable
        return None if found is None else ShiftedBranches(found, self.shift, self.region)


@dataclass(frozen=True)
class ShiftedBranches(Shifted):
    """The same for a pass that can be restricted to cells."""

    inner: BranchablePass
    cut: HalfSpace | None = None  # of x, on cells

    def slopes(self, rows: Tensor) -> tuple[Slopes, Slopes] | None:
        """Those behind the shift."""
        return self.inner.slopes(rows)

    def multiplier_scale(self, rows: Tensor) -> float:
        """As behind the shift."""
        return self.inner.multiplier_scale(rows)

    def affine_at(self, rows: Tensor, slopes: Slopes) -> Affine:
        """As :meth:`affine`, with these slopes."""
        return self._back(self.inner.affine_at(rows, slopes))

    def least_of(self, plane: Affine) -> Tensor:
        """Of functions of x that were carried back."""
        cut, of = self.cut, (plane.matrix, plane.offset)
        return self.region.minimum(*of) if cut is None else cut.least(self.region, *of)

    @property
    def widths(self) -> Sequence[int]:
        """Of the hidden layers."""
        return self.inner.widths

    @property
    def empty(self) -> Tensor:
        """Cells (batch,) that provably hold no x."""
        return self.inner.empty

    def restricted(
        self,
        owner: Tensor,
        signs: tuple[Tensor, ...],
        cut: HalfSpace | None = None,
        ranges: tuple[Interval, ...] = (),
        anew: tuple[Tensor, ...] = (),
    ) -> ShiftedBranches:
        """The pass on cells of the boxes ``owner``."""
        shift = self.shift if self.shift.ndim == 1 else self.shift[owner]
        inside = None if cut is None else cut.moved(shift)
        inner = self.inner.restricted(owner, signs, inside, ranges, anew)
        return ShiftedBranches(inner, shift, self.region[owner], cut)

    @property
    def ranges_of_means(self) -> tuple[Interval, ...]:
        """As behind the shift."""
        return self.inner.ranges_of_means

    def with_ranges(self, ranges: tuple[Interval, ...]) -> ShiftedBranches:
        """As behind the shift."""
        return replace(self, inner=self.inner.with_ranges(ranges))

    def for_most_weights(self, deviations: Deviations) -> ShiftedBranches | None:
        """As behind the shift."""
        found = self.inner.for_most_weights(deviations)
        return None if found is None else replace(self, inner=found)

    def before(self, number: int) -> BranchablePass | None:
        """As behind the shift."""
        return self.inner.before(number)

    def covariance(self, left: Tensor, right: Tensor) -> Tensor:
        """As behind the shift."""
        return self.inner.covariance(left, right)

    def branching_scores(self, rows: Tensor, slopes: Slopes, worst: Tensor) -> list[Tensor]:
        """As behind the shift."""
        return self.inner.branching_scores(rows, slopes, worst)


@dataclass(frozen=True)
class Best(Wrapped):
    """The better of two passes over the same boxes, row by row; ``second`` may know less (``Pass.moments``).

    Variances and tails are those of ``inner``.
    """

    second: Pass

    @property
    def name(self) -> str:
        """Of both engines."""
        names = (self.inner.name, self.second.name)
        return names[0] if names[0] == names[1] else "+".join(names)

    @property
    def moments(self) -> bool:
        """Those of the first pass, at least."""
        return True

    @property
    def costly_tails(self) -> bool:
        """Not beside a pass that costs as much."""
        return False

    @property
    def branchable(self) -> BranchablePass | None:
        """The pass on whose cells a decision can be branched."""
        return self.inner.branchable or self.second.branchable

    def affine(self, rows: Tensor) -> Planes:
        """The functions with the larger least value; the method of a box is that of all its rows, or both."""
        a = self.inner.affine(rows)
        if not self.second.moments and rows.ndim != 2:  # rows of each box are not outputs
            return a
        b = self.second.affine(rows)
        first, second = (known(self.box.minimum(each.affine.matrix, each.affine.offset)) for each in (a, b))
        better = second > first  # (batch, rows)
        found = Affine(
            torch.where(better[..., None], b.affine.matrix, a.affine.matrix),
            torch.where(better, b.affine.offset, a.affine.offset),
        )
        counts = zip(better.sum(-1).tolist(), a.method, b.method, strict=True)
        every = better.shape[-1]
        names = tuple(x if n == 0 or x == y else y if n == every else f"{x}+{y}" for n, x, y in counts)
        return Planes(found, torch.maximum(known(a.least), known(b.least)), names)

    def least(self, rows: Tensor) -> Tensor:
        """The larger of both lower bounds."""
        first = known(self.inner.least(rows))
        return torch.maximum(first, known(self.second.least(rows))) if self.second.moments else first

    def softmax(self, rows: Tensor) -> Tensor | None:
        """Of either."""
        first, second = self.inner.softmax(rows), self.second.softmax(rows)
        return second if first is None else first if second is None else torch.fmax(first, second)
