"""Rows of coefficients over all coordinates of a vector."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.engine.rows.mapped import MappedRows
from bnndp.geometry.box import apply_rows

__all__ = ["DenseRows", "single_rows"]


@dataclass(frozen=True, slots=True)
class DenseRows(MappedRows):
    """Rows over all coordinates."""

    values: Tensor  # (batch, rows, n)

    @property
    def count(self) -> int:
        """Number of rows."""
        return self.values.shape[1]

    @property
    def batch(self) -> int:
        """Number of boxes."""
        return self.values.shape[0]

    def map(self, function: Callable[[Tensor], Tensor]) -> DenseRows:
        """A function of each coefficient that keeps zero."""
        return DenseRows(function(self.values))

    def times(self, v: Tensor) -> DenseRows:  # (batch, n)
        """Each coefficient times that of a vector of its box."""
        return DenseRows(self.values * v[:, None])

    def with_negatives(self) -> DenseRows:
        """The rows, then their negatives."""
        return DenseRows(torch.cat([self.values, -self.values], 1))

    def plus(self, other: DenseRows) -> DenseRows:
        """The sum with rows of the same kind."""
        return DenseRows(self.values + other.values)

    def add_times(self, other: DenseRows, v: Tensor) -> DenseRows:  # (batch, n)
        """The sum with ``other.times(v)``, in the place of these rows: nobody else may hold them."""
        return DenseRows(self.values.addcmul_(other.values, v[:, None]))

    def dot(self, v: Tensor) -> Tensor:  # (batch, n) or (n,) -> (batch, rows)
        """Products with a vector."""
        if self.batch == 1 and v.ndim == 2:
            return apply_rows(self.values[0], v)
        batch = max(self.batch, v.shape[0] if v.ndim > 1 else 1)
        return apply_rows(self.values.expand(batch, -1, -1), v.expand(batch, -1))

    def dots(self, v: Tensor) -> Tensor:  # (batch, n, q) -> (batch, rows, q)
        """Products with several vectors."""
        return self.values @ v

    def group_dots(self, v: Tensor, groups: int) -> Tensor:  # (batch, n, q) -> (batch, rows, groups, q)
        """Products with several vectors, summed within equal contiguous groups."""
        parts = self.values.reshape(*self.values.shape[:2], groups, -1)
        return torch.einsum("brgp,bgpq->brgq", parts, v.reshape(v.shape[0], groups, -1, v.shape[-1]))

    def dense(self) -> DenseRows:
        """Itself."""
        return self


def single_rows(at: Tensor, n: int) -> DenseRows:  # (batch, k) of integers
    """The rows (batch, k, n) that are one coordinate each."""
    rows = torch.zeros(*at.shape, n, dtype=torch.float64, device=at.device)
    return DenseRows(rows.scatter_(2, at[..., None], 1.0))
