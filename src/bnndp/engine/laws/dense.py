"""Rules of dense layers with independent Gaussian weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from bnndp.engine.laws.mean_matrix import MeanMatrix
from bnndp.engine.laws.weights import SpreadRemainder, Weights, weights_of
from bnndp.engine.moments.joint_gaussian import Coupling, Near
from bnndp.engine.moments.pre_activation import Expansion
from bnndp.engine.moments.signal import SecondMoments, Signal
from bnndp.engine.rows import DenseRows, Rows, pieces_of
from bnndp.engine.sums.expansion import expansion_of
from bnndp.engine.sums.series import History
from bnndp.engine.sums.terms import sums_of
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import apply_rows
from bnndp.layers import Linear
from bnndp.maths.rounding import UP

__all__ = ["Dense"]


@dataclass(frozen=True, slots=True)
class Dense(MeanMatrix[Linear]):
    r"""s_i(z) = sum_j sigma_ij^2 z_j^2 + sigma_b^2, outputs independent given z."""

    layer: Linear
    random: bool

    @property
    def groups(self) -> int:
        return self.layer.n_out

    def square_rows(self, numbers: int) -> Iterator[tuple[slice, Rows]] | None:
        return pieces_of(self._variance, numbers) if self.random else None

    def spread_remainder(self, z: Signal) -> SpreadRemainder | None:
        return None

    def expansion(self, z: Signal, history: History | None) -> Expansion | None:
        sums = sums_of(self.layer.weight_mean, self._variance, lambda values, matrix: values @ matrix.mT)
        return expansion_of(z, *sums, history)

    def joint(self, z: Interval) -> Near | None:
        return None  # independent rows

    @property
    def coupling(self) -> Coupling | None:
        return None

    def spread(self, z: Tensor) -> Tensor:
        return z.square() @ self._variance.mT + self._bias_variance

    def spread_size(self, z: Tensor) -> Tensor:
        return self.spread(z)

    def spread_pull(self, rows: Rows, z: Tensor) -> Rows:
        return self.variance_pull(rows).times(2 * z)

    @property
    def coupled(self) -> bool:
        return False

    def variance_pull(self, rows: Rows) -> DenseRows:
        values = rows.dense().values
        used = values.abs().sum((0, 1)).nonzero()[:, 0]  # few planes of a layer have a slope in s
        if 2 * used.shape[0] > values.shape[2]:
            return DenseRows(values @ self._variance)
        return DenseRows(values[..., used] @ self._variance[used])

    def spread_excess(self, radius: Tensor) -> Tensor:
        return radius.square() @ self._variance.mT * UP

    def mean_spread(self, z: Signal) -> Interval:
        second = z.second
        return Interval(
            (second.lower @ self._variance.mT + self._bias_variance) / UP,
            (second.upper @ self._variance.mT + self._bias_variance) * UP,
        )

    def spread_deviation(self, z: Signal) -> Tensor:
        each = z.square_std
        if z.source:
            return (each.square() @ self._variance.square().mT).sqrt() * UP
        return each @ self._variance.mT * UP

    def row_parts(self, rows: Rows, z: SecondMoments, away: Tensor) -> tuple[Tensor, Tensor]:
        u = rows.dense().values
        square = u.square()
        at = apply_rows(square, self.spread(z.mean.magnitude)).sqrt() * UP
        return at, ((square @ self._variance) @ away.square()).sqrt() * UP

    @property
    def _variance(self) -> Tensor:
        return self.layer.weight_std.square()

    @property
    def _bias_variance(self) -> Tensor:
        return self.layer.bias_std.square()


@weights_of.register
def _(layer: Linear, shape: tuple[int, ...]) -> Weights:
    return Dense(layer, layer.random)
