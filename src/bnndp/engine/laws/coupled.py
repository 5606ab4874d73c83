"""What dense layers that couple the weights of a row share: rules of s from the covariances of these weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import final

from torch import Tensor

from bnndp.engine.laws.mean_matrix import LayerT, MeanMatrix
from bnndp.engine.laws.quadratic import form_expansion, spread_remainder
from bnndp.engine.laws.weights import SpreadRemainder
from bnndp.engine.moments.pre_activation import Expansion
from bnndp.engine.moments.signal import Signal
from bnndp.engine.rows import DenseRows, Rows, pieces_of
from bnndp.engine.sums.series import History

__all__ = ["Coupled"]


class Coupled(MeanMatrix[LayerT], ABC):
    """A dense layer with a quadratic form s of its inputs."""

    __slots__ = ()
    random: bool

    @property
    @abstractmethod
    def covariance(self) -> Tensor | None:
        """Covariances of the weights of every row, the bias last, where they fit: (n_out, n_in + 1, n_in + 1)."""

    @property
    @abstractmethod
    def diagonal(self) -> Tensor:
        """Variances of the weights: (n_out, n_in)."""

    @final
    @property
    def coupled(self) -> bool:
        return True

    @final
    def square_rows(self, numbers: int) -> Iterator[tuple[slice, Rows]] | None:
        known = self.random and self.covariance is not None
        return pieces_of(self.diagonal, numbers) if known else None

    @final
    def spread_remainder(self, z: Signal) -> SpreadRemainder | None:
        covariance = self.covariance
        return None if covariance is None else spread_remainder(z, covariance)

    @final
    def expansion(self, z: Signal, history: History | None) -> Expansion | None:
        covariance = self.covariance
        return None if covariance is None else form_expansion(z, self.layer.weight_mean, covariance, history)

    @final
    def variance_pull(self, rows: Rows) -> Rows:
        return DenseRows(rows.dense().values @ self.diagonal)
