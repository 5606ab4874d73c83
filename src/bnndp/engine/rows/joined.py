"""Rows of coefficients that the pass carries backward: over a whole vector, over windows of an image, or joined.

All kinds know the same operations. ``JoinedRows`` are rows over several vectors one after the other, each part of its
own kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bnndp.engine.rows.dense import DenseRows
from bnndp.engine.rows.local import LocalRows
from bnndp.engine.rows.mapped import MappedRows
from bnndp.geometry.box import Box
from bnndp.geometry.half_space import HalfSpace
from bnndp.maths.rounding import TINY, gamma

__all__ = ["DenseRows", "JoinedRows", "LocalRows", "Rows", "minimum", "pieces_of", "split", "sum_of"]


@dataclass(frozen=True, slots=True)
class JoinedRows(MappedRows):
    """Rows over the coordinates of several vectors, one after the other: the sum of the rows over each of them."""

    parts: tuple[Rows, ...]
    sizes: tuple[int, ...]  # of the vectors

    @property
    def count(self) -> int:
        """Number of rows."""
        return self.parts[0].count

    @property
    def batch(self) -> int:
        """Number of boxes, or 1 if the same for all."""
        return max(part.batch for part in self.parts)

    def map(self, function: Callable[[Tensor], Tensor]) -> JoinedRows:
        """A function of each coefficient that keeps zero."""
        return replace(self, parts=tuple(part.map(function) for part in self.parts))

    def times(self, v: Tensor) -> JoinedRows:  # (batch, n)
        """Each coefficient times that of a vector of its box."""
        pairs = zip(self.parts, v.split(self.sizes, -1), strict=True)
        return replace(self, parts=tuple(part.times(own) for part, own in pairs))

    def with_negatives(self) -> JoinedRows:
        """The rows, then their negatives."""
        return replace(self, parts=tuple(part.with_negatives() for part in self.parts))

    def plus(self, other: JoinedRows) -> JoinedRows:
        """The sum with rows over the same vectors."""
        return replace(self, parts=tuple(sum_of(a, b) for a, b in zip(self.parts, other.parts, strict=True)))

    def add_times(self, other: JoinedRows, v: Tensor) -> JoinedRows:  # (batch, n)
        """The sum with ``other.times(v)``."""
        return self.plus(other.times(v))

    def dot(self, v: Tensor) -> Tensor:  # (batch, n) or (n,) -> (batch, rows)
        """Products with a vector."""
        return sum(part.dot(own) for part, own in zip(self.parts, v.split(self.sizes, -1), strict=True))  # type: ignore[return-value]

    def dots(self, v: Tensor) -> Tensor:  # (batch, n, q) -> (batch, rows, q)
        """Products with several vectors."""
        return sum(part.dots(own) for part, own in zip(self.parts, v.split(self.sizes, 1), strict=True))  # type: ignore[return-value]

    def group_dots(self, v: Tensor, groups: int) -> Tensor:  # (batch, n, q) -> (batch, rows, groups, q)
        """Products with several vectors, summed within equal contiguous groups."""
        return self.dense().group_dots(v, groups)

    def dense(self) -> DenseRows:
        """The same rows over all coordinates."""
        values = [part.dense().values.expand(self.batch, -1, -1) for part in self.parts]
        return DenseRows(torch.cat(values, -1))


Rows = DenseRows | LocalRows | JoinedRows


def sum_of(a: Rows, b: Rows) -> Rows:
    """The sum of rows of any kind: joined ones stay so, and local ones whose windows move alike."""
    if isinstance(a, JoinedRows) and isinstance(b, JoinedRows) and a.sizes == b.sizes:
        return a.plus(b)
    if isinstance(a, LocalRows) and isinstance(b, LocalRows) and (a.grid, a.stride) == (b.grid, b.stride):
        if (a.window, a.offset) != (b.window, b.offset):
            a, b = a.around_both(b), b.around_both(a)
        return a.plus(b)
    return a.dense().plus(b.dense())


def split(rows: Rows, sizes: tuple[int, ...]) -> JoinedRows:
    """As rows over vectors of these sizes, of which the coordinates are made; those of images are their channels."""
    if isinstance(rows, JoinedRows) and sizes == rows.sizes:
        return rows
    if not isinstance(rows, LocalRows):
        return JoinedRows(tuple(map(DenseRows, rows.dense().values.split(sizes, -1))), sizes)
    height, width = rows.shape[1:]
    channels = [size // (height * width) for size in sizes]
    parts = zip(rows.values.split(channels, 3), channels, strict=True)
    return JoinedRows(tuple(replace(rows, values=v, shape=(count, height, width)) for v, count in parts), sizes)


def minimum(rows: Rows, constant: Tensor, box: Box, cut: HalfSpace | None = None) -> Tensor:  # constant (batch, rows)
    """Lower bound of ``rows . x + constant`` over the boxes, or what ``cut`` leaves of them: (batch, rows)."""
    if cut is not None:
        return cut.minimum(box, rows.dense().values.expand(box.batch, -1, -1), constant)
    if isinstance(rows, DenseRows) or box.within is not None:
        return box.minimum(rows.dense().values.expand(box.batch, -1, -1), constant)
    low = rows.positive().dot(box.lower) + rows.negative().dot(box.upper)
    lost = rows.abs().dot(box.magnitude) + constant.abs()
    return low + constant - gamma(2 * box.n + 8) * lost - TINY


def pieces_of(matrix: Tensor, numbers: int) -> Iterator[tuple[slice, Rows]]:  # (rows, n)
    """The rows of a matrix in pieces of about ``numbers`` coefficients."""
    step = max(1, numbers // matrix.shape[1])
    for start in range(0, matrix.shape[0], step):
        part = slice(start, min(start + step, matrix.shape[0]))
        yield part, DenseRows(matrix[None, part])
