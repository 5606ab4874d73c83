"""What layers with weights without variance share: nothing of their outputs varies given the input."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import final

import torch
from torch import Tensor

from bnndp.engine.laws.weights import SpreadRemainder
from bnndp.engine.moments.joint_gaussian import Coupling, Near
from bnndp.engine.moments.pre_activation import Expansion
from bnndp.engine.moments.signal import SecondMoments, Signal
from bnndp.engine.rows import Rows
from bnndp.engine.sums.series import History
from bnndp.geometry.bounds import Interval

__all__ = ["FixedWeights"]


class FixedWeights(ABC):
    """Rules of variances (``weights.Weights``) of a layer that has none."""

    __slots__ = ()

    @property
    @abstractmethod
    def n_out(self) -> int:
        """Number of outputs."""

    @abstractmethod
    def pull(self, rows: Rows) -> Rows:
        """Rows mu."""

    @final
    @property
    def random(self) -> bool:
        return False

    @final
    @property
    def coupled(self) -> bool:
        return False

    @final
    @property
    def coupling(self) -> Coupling | None:
        return None

    @final
    def square_rows(self, numbers: int) -> Iterator[tuple[slice, Rows]] | None:
        return None

    @final
    def spread_remainder(self, z: Signal) -> SpreadRemainder | None:
        return None

    @final
    def expansion(self, z: Signal, history: History | None) -> Expansion | None:
        return None

    @final
    def joint(self, z: Interval) -> Near | None:
        return None

    @final
    def spread(self, z: Tensor) -> Tensor:
        return self._none(z)

    @final
    def spread_size(self, z: Tensor) -> Tensor:
        return self._none(z)

    @final
    def spread_excess(self, radius: Tensor) -> Tensor:
        return self._none(radius)

    @final
    def spread_deviation(self, z: Signal) -> Tensor:
        return self._none(z.variance)

    @final
    def mean_spread(self, z: Signal) -> Interval:
        none = self._none(z.variance)
        return Interval(none, none)

    @final
    def spread_pull(self, rows: Rows, z: Tensor) -> Rows:
        return self.variance_pull(rows)

    @final
    def variance_pull(self, rows: Rows) -> Rows:
        return self.pull(rows).map(torch.zeros_like)

    @final
    def row_parts(self, rows: Rows, z: SecondMoments, away: Tensor) -> tuple[Tensor, Tensor]:
        none = away.new_zeros(away.shape[0], rows.count, away.shape[-1])
        return none[..., 0], none

    def _none(self, z: Tensor) -> Tensor:  # (batch, n_in) -> (batch, n_out)
        return z.new_zeros(z.shape[0], self.n_out)
