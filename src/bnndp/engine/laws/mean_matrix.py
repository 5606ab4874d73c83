"""The mean map of a dense layer, the same for all of its posteriors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from torch import Tensor

from bnndp.engine.rows import DenseRows, Rows, pieces_of
from bnndp.layers import CorrelatedLinear, Linear, MatrixNormalLinear

__all__ = ["MOST", "LayerT", "MeanMatrix"]

MOST = 0.9  # of the rows of a matrix are picked; more of them cost as much as all

LayerT = TypeVar("LayerT", Linear, CorrelatedLinear, MatrixNormalLinear)


class MeanMatrix(Generic[LayerT]):
    """What the rules of dense layers share: the matrix of means and the biases (``weights.Weights`` has the words)."""

    __slots__ = ()
    layer: LayerT

    @property
    def n_in(self) -> int:
        return self.layer.n_in

    @property
    def n_out(self) -> int:
        return self.layer.n_out

    @property
    def terms(self) -> int:
        return self.layer.n_in

    @property
    def bias(self) -> Tensor:
        return self.layer.bias_mean

    def apply(self, z: Tensor) -> Tensor:
        return z @ self.layer.weight_mean.mT

    def power(self, z: Tensor, exponent: int) -> Tensor:
        return z @ _power(self.layer.weight_mean, exponent).mT

    def pull(self, rows: Rows) -> Rows:
        return DenseRows(rows.dense().values @ self.layer.weight_mean)

    def power_pull(self, rows: Rows, exponent: int) -> Rows:
        return DenseRows(rows.dense().values @ _power(self.layer.weight_mean, exponent))

    def own_rows(self, numbers: int) -> Iterator[tuple[slice, Rows]]:
        return pieces_of(self.layer.weight_mean, numbers)

    @property
    def few(self) -> int:
        return int(MOST * self.n_out)

    def rows_at(self, at: Tensor) -> Rows:
        return DenseRows(self.layer.weight_mean[at])


def _power(weight: Tensor, exponent: int) -> Tensor:
    """|weight|^exponent."""
    return weight.abs() if exponent == 1 else weight.square() if exponent == 2 else weight.abs() ** exponent
