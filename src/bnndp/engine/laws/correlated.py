r"""Rules of dense layers whose weights are correlated within a row or over the whole layer.

:math:`s_i(z)=\sum_j\sigma_{ij}^2\tilde z_j^2+|F_i^\top\tilde z|^2`. With one noise for all rows
:math:`\operatorname{Var}(u\cdot X\mid z)=\sum_iu_i^2\sum_j\sigma_{ij}^2\tilde z_j^2+|\sum_iu_iF_i^\top\tilde z|^2`.
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
from bnndp.geometry.box import apply_rows
from bnndp.layers import CorrelatedLinear
from bnndp.maths.rounding import UP, gamma

__all__ = ["Correlated"]


@dataclass(frozen=True, slots=True)
class Correlated(Coupled[CorrelatedLinear]):
    """A dense layer with factors."""

    layer: CorrelatedLinear
    random: bool

    @property
    def groups(self) -> int:
        return 1 if self.layer.shared else self.layer.n_out

    def joint(self, z: Interval) -> Near | None:
        if not self.layer.shared or self.n_out**2 > LARGEST_JOINT:
            return None
        middle, radius = 0.5 * (z.lower + z.upper), 0.5 * (z.upper - z.lower) * UP
        loads, moved = self._loadings(middle), self._excess(radius[..., None])[..., 0]
        sizes = self._reach(middle.abs()[..., None], one=1.0)[..., 0]
        moved = moved + BLUR * sizes
        length = torch.linalg.vector_norm(loads, dim=-1) * UP
        away = moved[..., :, None] * length[..., None, :]
        off = away + away.mT + moved[..., :, None] * moved[..., None, :]
        plain, square = self._plain(middle.square(), 1.0), self._plain((2 * middle.abs() + radius) * radius, 0.0)
        value, blur = loads @ loads.mT, BLUR * length[..., :, None] * length[..., None, :]
        return Near(
            (value + torch.diag_embed(plain))[:, None],
            (off + blur + torch.diag_embed(square + BLUR * plain))[:, None] * UP,
        )

    @property
    def coupling(self) -> Coupling | None:
        covariance = self.covariance
        return None if covariance is None else Coupling.of(covariance)

    def spread(self, z: Tensor) -> Tensor:
        return self._plain(z.square(), 1.0) + self._loadings(z).square().sum(-1)

    def spread_size(self, z: Tensor) -> Tensor:
        return self._plain(z.square(), 1.0) + self._reach(z.abs()[..., None], one=1.0)[..., 0].square()

    def spread_pull(self, rows: Rows, z: Tensor) -> Rows:
        u = rows.dense().values
        plain = (u @ self.layer.weight_std.square()) * (2 * z[:, None])
        # sum_i u_i F_i (F_i' z): first the gradient of every row, (batch, n_out, n_in)
        each = 2 * torch.einsum("biq,ijq->bij", self._loadings(z), self.layer.factor[:, :-1])
        return DenseRows(plain + u @ each)

    def spread_excess(self, radius: Tensor) -> Tensor:
        reach = self._excess(radius[..., None])[..., 0]
        return (self._plain(radius.square(), 0.0) + reach.square()) * UP

    def mean_spread(self, z: Signal) -> Interval:
        return mean_form(self, z, self.diagonal, self.covariance)

    def spread_deviation(self, z: Signal) -> Tensor:
        r"""With d = z - E z, :math:`s=s(\mathbb Ez)+\nabla s(\mathbb Ez)\cdot d+d^\top\Sigma d`."""
        factor = self.layer.factor[:, :-1]  # (n_out, n_in, rank)
        largest = z.mean.magnitude
        gradient = 2 * (largest[:, None] * self.layer.weight_std.square())  # (batch, n_out, n_in)
        loads = torch.einsum("bj,ijq->biq", largest, factor.abs()) + self.layer.factor[:, -1].abs()
        gradient = gradient + 2 * torch.einsum("biq,ijq->bij", loads, factor.abs())
        sd = z.variance.sqrt()
        linear = apply_rows(gradient.square(), z.variance).sqrt() if z.source else apply_rows(gradient, sd)
        norm4 = z.norms[..., 0]
        reach = self._excess(norm4[..., None])[..., 0]
        return (linear + self._plain(norm4.square(), 0.0) + reach.square()) * UP

    def row_parts(self, rows: Rows, z: SecondMoments, away: Tensor) -> tuple[Tensor, Tensor]:
        u = rows.dense().values
        u = u.expand(z.variance.shape[0], *u.shape[1:])
        middle, radius = 0.5 * (z.mean.lower + z.mean.upper), 0.5 * (z.mean.upper - z.mean.lower)
        square = u.square()
        loads = self._loadings(middle)  # (batch, n_out, rank)
        lost = gamma(2 * (self.n_in + self.n_out) + 8) * self._reach(middle.abs()[..., None], one=1.0)[..., 0]
        if self.layer.shared:
            at, further = self._shared(u, loads, lost, torch.cat([radius[..., None], away], -1))
        else:
            reach = self._excess(torch.cat([radius[..., None], away], -1))  # (batch, n_out, 1 + k)
            own = (torch.linalg.vector_norm(loads, dim=-1) * UP + reach[..., 0] + lost).square()
            at, further = apply_rows(square, own).sqrt(), (square @ reach[..., 1:].square()).sqrt()
        plain = apply_rows(square, self._plain(z.mean.magnitude.square(), 1.0))
        moved = (square @ self.layer.weight_std.square()) @ away.square()
        return (at.square() + plain).sqrt() * UP, (further.square() + moved).sqrt() * UP

    def _shared(self, u: Tensor, loads: Tensor, lost: Tensor, radii: Tensor) -> tuple[Tensor, Tensor]:
        r"""The form :math:`|\sum_iu_iF_i^\top\tilde z|` on the box (radii[..., 0]), and of deviations (the others).

        With :math:`\Sigma_u=\sum_{ik}u_iu_kF_iF_k^\top`, at a point c + d, :math:`|d|\le\rho`, its square is at most
        that at c, plus :math:`2\rho\cdot|\Sigma_u\tilde c|`, plus :math:`\rho^\top|\Sigma_u|\rho`. Where these
        matrices are too large, norms of the rows are added.
        """
        size, joint = u.abs(), u @ loads  # (batch, rows, rank)
        centre = torch.linalg.vector_norm(joint, dim=-1) * UP + apply_rows(size, lost)
        n = self.n_in
        if self.n_out**2 * n**2 > LARGEST:
            reach = self._excess(radii)
            return centre + apply_rows(size, reach[..., 0]), size @ reach[..., 1:]
        factor = self.layer.factor[:, :-1]
        cross = torch.einsum("ijq,klq->ikjl", factor, factor)
        blur = gamma(2 * factor.shape[-1] + 2 * self.n_out**2 + 8)
        root = torch.linalg.vector_norm(factor, dim=-1)  # (n_out, n): |F_ij| as a vector
        spread = torch.einsum("bri,ij->brj", size, root)
        found = []
        step = max(1, LARGEST // (u.shape[1] * n * n))
        for part, more, radius in zip(u.split(step), spread.split(step), radii.split(step), strict=True):
            form = torch.einsum("bri,brk,ikjl->brjl", part, part, cross).abs()
            form = form + blur * more[..., :, None] * more[..., None, :]
            found.append(torch.einsum("bjk,brjl,blk->brk", radius, form, radius).sqrt())
        reach = torch.cat(found) * UP  # (batch, rows, 1 + k)
        gradient = (torch.einsum("ijq,brq->brij", factor, joint) * u[..., None]).sum(2).abs()
        gradient = gradient + blur * spread * (
            torch.linalg.vector_norm(joint, dim=-1, keepdim=True) + centre[..., None]
        )
        gradient = gradient + spread * apply_rows(size, lost)[..., None]
        first = 2 * apply_rows(gradient, radii[..., 0]) * UP
        other = centre.square() + first + reach[..., 0].square()
        return torch.minimum(other.sqrt(), centre + reach[..., 0]) * UP, reach[..., 1:]

    def _loadings(self, z: Tensor) -> Tensor:
        """F_i' (z, 1): (batch, n_out, rank)."""
        return torch.einsum("bj,ijq->biq", z, self.layer.factor[:, :-1]) + self.layer.factor[:, -1]

    def _reach(self, radius: Tensor, one: float = 0.0) -> Tensor:  # (batch, n_in, k)
        """Sup |F_i' (d, one)| over |d| <= radius, at most: (batch, n_out, k)."""
        sizes = torch.einsum("bjk,ijq->bikq", radius, self.layer.factor[:, :-1].abs())
        return torch.linalg.vector_norm(sizes + one * self.layer.factor[:, None, -1].abs(), dim=-1) * UP

    def _excess(self, radius: Tensor) -> Tensor:  # (batch, n_in, k)
        """Sup |F_i' d| over |d| <= radius, at most, by the matrices |F_i F_i'| where they fit: (batch, n_out, k)."""
        factor = self.layer.factor[:, :-1]
        if factor.shape[0] * factor.shape[1] ** 2 > LARGEST:
            return self._reach(radius)
        root = torch.linalg.vector_norm(factor, dim=-1)
        form = (factor @ factor.mT).abs() + gamma(2 * factor.shape[-1] + 8) * root[..., :, None] * root[..., None, :]
        return torch.einsum("bjk,ijl,blk->bik", radius, form, radius).sqrt() * UP

    def _plain(self, square: Tensor, one: float) -> Tensor:
        return square @ self.layer.weight_std.square().mT + one * self.layer.bias_std.square()

    @property
    def covariance(self) -> Tensor | None:
        factor = self.layer.factor
        if factor.shape[0] * factor.shape[1] ** 2 > LARGEST:
            return None
        plain = torch.cat([self.layer.weight_std, self.layer.bias_std[:, None]], -1).square()
        return factor @ factor.mT + torch.diag_embed(plain)

    @property
    def diagonal(self) -> Tensor:
        return self.layer.weight_std.square() + self.layer.factor[:, :-1].square().sum(-1)


@weights_of.register
def _(layer: CorrelatedLinear, shape: tuple[int, ...]) -> Weights:
    return Correlated(layer, layer.random)
