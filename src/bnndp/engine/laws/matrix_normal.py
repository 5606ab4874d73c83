r"""Rules of dense layers with a matrix-normal posterior.

With :math:`U=AA^\top` and :math:`q(z)=|B^\top\tilde z|^2`, :math:`\operatorname{Cov}(X_i,X_k\mid z)=U_{ik}\,q(z)`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.engine.laws.coupled import Coupled
from bnndp.engine.laws.quadratic import LARGEST, mean_form
from bnndp.engine.laws.weights import Weights, weights_of
from bnndp.engine.moments.intervals import BLUR
from bnndp.engine.moments.joint_gaussian import LARGEST_JOINT, Coupling, Near
from bnndp.engine.moments.signal import SecondMoments, Signal
from bnndp.engine.rows import DenseRows, Rows
from bnndp.geometry.bounds import Interval
from bnndp.layers import MatrixNormalLinear
from bnndp.maths.rounding import UP, gamma

__all__ = ["MatrixNormal"]


@dataclass(frozen=True, slots=True)
class MatrixNormal(Coupled[MatrixNormalLinear]):
    """A dense layer with the covariance of its rows times that of its columns."""

    layer: MatrixNormalLinear
    random: bool

    @property
    def groups(self) -> int:
        return 1

    def joint(self, z: Interval) -> Near | None:
        if self.n_out**2 > LARGEST_JOINT:
            return None
        middle, radius = 0.5 * (z.lower + z.upper), 0.5 * (z.upper - z.lower) * UP
        factor, rows = self.layer.column_factor.abs(), self.layer.row_factor
        load = self._loadings(middle)
        moved = radius @ factor[:-1] + BLUR * (middle.abs() @ factor[:-1] + factor[-1])
        moved = torch.linalg.vector_norm(moved, dim=-1) * UP
        root = torch.linalg.vector_norm(load, dim=-1) * UP
        size, length = (rows @ rows.mT)[None, None], torch.linalg.vector_norm(rows, dim=-1)
        scale = Near(
            root.square()[:, None, None, None], ((2 * root + moved) * moved + BLUR * root.square())[:, None, None, None]
        )
        return scale.times(Near(size, (BLUR * length[:, None] * length)[None, None].expand_as(size)))

    @property
    def coupling(self) -> Coupling | None:
        factor = self.layer.column_factor
        return None if factor.shape[0] ** 2 > LARGEST else Coupling.of((factor @ factor.mT)[None], self._rows)

    def spread(self, z: Tensor) -> Tensor:
        return self._rows * self._loadings(z).square().sum(-1, keepdim=True)

    def spread_size(self, z: Tensor) -> Tensor:
        factor = self.layer.column_factor.abs()
        return self._rows * (z.abs() @ factor[:-1] + factor[-1]).square().sum(-1, keepdim=True)

    def spread_pull(self, rows: Rows, z: Tensor) -> Rows:
        weight = (rows.dense().values * self._rows).sum(-1, keepdim=True)  # (batch, rows, 1)
        return DenseRows(weight * (2 * self._loadings(z) @ self.layer.column_factor[:-1].mT)[:, None])

    def spread_excess(self, radius: Tensor) -> Tensor:
        return self._rows * (radius @ self.layer.column_factor[:-1].abs()).square().sum(-1, keepdim=True) * UP

    def mean_spread(self, z: Signal) -> Interval:
        return mean_form(self, z, self.diagonal, self.covariance)

    def spread_deviation(self, z: Signal) -> Tensor:
        factor = self.layer.column_factor[:-1].abs()
        loads = z.mean.magnitude @ factor + self.layer.column_factor[-1].abs()  # (batch, b)
        gradient = 2 * loads @ factor.mT  # (batch, n_in)
        if z.source:
            linear = (gradient.square() * z.variance).sum(-1, keepdim=True).sqrt()
        else:
            linear = (gradient * z.variance.sqrt()).sum(-1, keepdim=True)
        quadratic = (z.norms[..., 0] @ factor).square().sum(-1, keepdim=True)
        return self._rows * (linear + quadratic) * UP

    def row_parts(self, rows: Rows, z: SecondMoments, away: Tensor) -> tuple[Tensor, Tensor]:
        u = rows.dense().values
        lost = gamma(2 * self.n_out + 8) * (u.abs() @ self.layer.row_factor.abs()).square().sum(-1).sqrt()
        root = torch.linalg.vector_norm(u @ self.layer.row_factor, dim=-1) + lost  # of u' U u
        middle, radius = 0.5 * (z.mean.lower + z.mean.upper), 0.5 * (z.mean.upper - z.mean.lower)
        factor = self.layer.column_factor.abs()
        blur = gamma(2 * self.n_in + 8) * (middle.abs() @ factor[:-1] + factor[-1])
        at = torch.linalg.vector_norm(self._loadings(middle).abs() + radius @ factor[:-1] + blur, dim=-1)
        further = torch.linalg.vector_norm(torch.einsum("bjk,jq->bkq", away, factor[:-1]), dim=-1)
        return root * at[:, None] * UP, root[..., None] * further[:, None] * UP

    def _loadings(self, z: Tensor) -> Tensor:
        """B' (z, 1): (batch, b)."""
        return z @ self.layer.column_factor[:-1] + self.layer.column_factor[-1]

    @property
    def covariance(self) -> Tensor | None:
        factor = self.layer.column_factor
        if self.n_out * factor.shape[0] ** 2 > LARGEST:
            return None
        return self._rows[:, None, None] * (factor @ factor.mT)

    @property
    def diagonal(self) -> Tensor:
        return self._rows[:, None] * self.layer.column_factor[:-1].square().sum(-1)

    @property
    def _rows(self) -> Tensor:
        """Diagonal of A A': (n_out,)."""
        return self.layer.row_factor.square().sum(-1)


@weights_of.register
def _(layer: MatrixNormalLinear, shape: tuple[int, ...]) -> Weights:
    return MatrixNormal(layer, layer.random)
