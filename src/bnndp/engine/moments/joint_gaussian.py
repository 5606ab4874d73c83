r"""Values :math:`z_j=\varphi(X_j)` of a vector X that is jointly Gaussian at every x: noise that several outputs share.

A layer whose weights are shared by its outputs (kernels of convolutions, Kronecker factors, low-rank factors), on
inputs that are functions of x, has outputs :math:`X\sim N(m,C)` with a covariance C that is known. With
:math:`p_j=\mathbb E\varphi'(X_j)`, :math:`b_j=\mathbb E\varphi''(X_j)` and the correlations :math:`\rho_{jk}` of X,

.. math:: \operatorname{Cov}(z_j,z_k)=p_jp_kC_{jk}+\tfrac12b_jb_kC_{jk}^2+e_{jk},\qquad
          |e_{jk}|\le|\rho_{jk}|^3t_jt_k,

:math:`t_j^2=\operatorname{Var}z_j-p_j^2r_j^2-\tfrac12b_j^2r_j^4`, :math:`r_j^2=C_{jj}`. Proof. In Hermite polynomials
:math:`\varphi(X_j)=\sum_pa_p\,He_p((X_j-m_j)/r_j)/p!` with :math:`a_p=r_j^p\mathbb E\varphi^{(p)}(X_j)`, and
:math:`\mathbb EHe_p(\xi)He_q(\eta)=p!\rho^p1_{p=q}` for standard Gaussians of correlation :math:`\rho` (Mehler). So the
covariance is :math:`\sum_pa_pa_p'\rho^p/p!`; of its terms from p = 3 on, Cauchy and Schwarz. The same with one term
less has :math:`\rho^2u_ju_k`, :math:`u_j^2=\operatorname{Var}z_j-p_j^2r_j^2`. Without any,
:math:`|\operatorname{Cov}(f(X_j),g(X_k))|\le|\rho_{jk}|\operatorname{sd}f\operatorname{sd}g` (Gebelein 1941).

Everything depends on x. It is known as a value and how far it may be off on the box (``Near``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bnndp.engine.moments.intervals import BLUR, product
from bnndp.geometry.bounds import Interval
from bnndp.maths.rounding import SMALL, TINY, UP

__all__ = ["LARGEST_JOINT", "Coupling", "Joint", "Near"]

LARGEST_JOINT = 2**18
"""Numbers in the covariances of a layer that are formed for each box."""

_HELD = 2**22  # numbers of rows that are held at a time


@dataclass(frozen=True, slots=True)
class Near:
    """A quantity that is within ``off`` of ``value`` for every x of the box; tensors of one shape."""

    value: Tensor
    off: Tensor

    @classmethod
    def zero(cls, like: Tensor) -> Near:
        """Zeros of a shape."""
        none = torch.zeros_like(like)
        return cls(none, none)

    @property
    def size(self) -> Tensor:
        """Its largest size."""
        return self.value.abs() + self.off

    @property
    def least(self) -> Tensor:
        """Its smallest size."""
        return (self.value.abs() - self.off).clamp_min(0)

    @property
    def interval(self) -> Interval:
        """Its range."""
        return Interval(self.value - self.off, self.value + self.off)

    def times(self, other: Near) -> Near:
        """The product."""
        off = product(self.off, other.size) + product(self.value.abs(), other.off)
        return Near(self.value * other.value, (off + BLUR * (self.value * other.value).abs()) * UP)

    def outer(self, groups: int) -> Near:  # (batch, n) -> (batch, groups, g, g)
        """Products of two coordinates of a group."""
        left, right = (
            Near(*(part.reshape(part.shape[0], groups, -1).unsqueeze(axis) for part in (self.value, self.off)))
            for axis in (-1, -2)
        )
        return left.times(right)


@dataclass(frozen=True, slots=True)
class Coupling:
    """Covariances of two different weights of a row: ``scale`` times ``forms``, symmetric and zero on the diagonal."""

    forms: Tensor  # (n_out, n, n), or (1, n, n) if all rows have the same one
    scale: Tensor  # (n_out,), not negative

    @classmethod
    def of(cls, covariance: Tensor, scale: Tensor | None = None) -> Coupling:  # (n_out or 1, n + 1, n + 1), (n_out,)
        """Of covariances with the bias last."""
        forms = covariance[:, :-1, :-1]
        forms = forms - torch.diag_embed(forms.diagonal(dim1=-2, dim2=-1))
        return cls(forms, forms.new_ones(len(forms)) if scale is None else scale)

    def __getitem__(self, part: slice) -> Coupling:
        """Of some of the rows."""
        return Coupling(self.forms if len(self.forms) == 1 else self.forms[part], self.scale[part])


@dataclass(frozen=True, eq=False)
class Joint:
    """What is known of z: (batch, n); matrices (batch, groups, g, g), as those of different groups are independent."""

    gaussian: Near  # C
    slope: Near  # p
    bend: Near  # b
    deviation: Tensor  # sd z, at most
    second: Tensor  # u: the standard deviation of what is of degree two and more, at most
    second_low: Tensor  # the same, at least
    third: Tensor  # t: of degree three and more
    slope_second: Tensor  # of phi'(X), of degree two and more
    root: Tensor  # r, at least
    spread_root: Tensor  # r, at most
    widest: Tensor  # sup |phi' - p|
    slope_deviation: Tensor  # sd phi'(X), at most
    slope_covariance: Near  # Cov(phi'(X_j), z_j)
    variance: Interval  # of z
    dip: Tensor  # how far z_j is below its line, E z_j + p_j (X_j - E X_j), at most; infinite where it is not known

    @property
    def groups(self) -> int:
        """Number of groups."""
        return self.gaussian.value.shape[1]

    @cached_property
    def correlation(self) -> Tensor:
        """The size of the correlations of X, at most."""
        safe = self._pairs(self.root).clamp_min(TINY)
        return (self.gaussian.size / safe * UP).clamp_max(1.0).nan_to_num(1.0)

    @cached_property
    def linear(self) -> Near:
        """p_j p_k C_jk."""
        return self.slope.outer(self.groups).times(self.gaussian)

    @property
    def quadratic(self) -> Near:
        """b_j b_k C_jk^2 / 2: covariances of what is of degree two."""
        found = self.bend.outer(self.groups).times(self.gaussian.times(self.gaussian))
        return Near(0.5 * found.value, 0.5 * found.off)

    @property
    def cubic(self) -> Tensor:
        """The size of the covariances of what is of degree three and more, at most."""
        return (self.correlation**3 * self._pairs(self.third)) * UP

    @cached_property
    def remainder(self) -> Near:
        """Covariances of z_j - p_j X_j: of what is of degree two and more."""
        coarse = self.correlation.square() * self._pairs(self.second) * UP
        quadratic = self.quadratic
        fine = quadratic.off + self.cubic
        take = fine < coarse  # false for NaN
        found = Near(torch.where(take, quadratic.value, 0.0), torch.where(take, fine, coarse))
        high, low = (self._grouped(part.square()) for part in (self.second, self.second_low))
        return _with_diagonal(found, Interval(low, high))

    @cached_property
    def covariance(self) -> Near:
        """Of z."""
        fine = self.linear.off + self.remainder.off
        coarse = self.correlation * self._pairs(self.deviation) * UP
        take = fine < coarse  # false for NaN
        value = torch.where(take, self.linear.value + self.remainder.value, 0.0)
        blur = BLUR * (self.linear.value.abs() + self.remainder.value.abs())
        off = torch.where(take, fine + blur, coarse)
        low, high = self._grouped(self.variance.lower), self._grouped(self.variance.upper)
        return _with_diagonal(Near(value, off), Interval(low, high))

    @property
    def apart(self) -> Near:
        """Covariances of different coordinates alone."""
        zero = torch.zeros_like(self._grouped(self.deviation))
        return _with_diagonal(self.covariance, Interval(zero, zero))

    def form(self, matrix: Near, rows: Tensor) -> Near:  # rows (batch or 1, rows, n) -> (batch, rows)
        """The quadratic form ``u M u`` of rows u."""
        slack = matrix.off + BLUR * matrix.value.abs()
        step = max(1, _HELD // (len(slack) * rows.shape[-1]))
        found = []
        for some in rows.split(step, 1):
            size = some.abs()
            value, off = (self.apply(some, matrix.value) * some).sum(-1), (self.apply(size, slack) * size).sum(-1)
            found.append(torch.stack([value, torch.where(off.isnan(), torch.inf, off) * UP]))
        return Near(*torch.cat(found, -1))

    def apply(self, rows: Tensor, matrix: Tensor) -> Tensor:  # (batch or 1, rows, n), (batch, G, g, g)
        """Rows times a matrix: (batch, rows, n)."""
        parts = rows.reshape(*rows.shape[:2], self.groups, -1).transpose(1, 2)  # (batch or 1, groups, rows, g)
        found = (parts @ matrix).transpose(1, 2)
        return found.reshape(*found.shape[:2], -1)

    def products(self, coupling: Coupling) -> Near:  # -> (batch, n_out)
        """The sums of coupling_jk Cov(z_j, z_k)."""
        blocks, matrix = self.blocks(coupling.forms), self.covariance
        value = torch.einsum("bgjk,ogjk->bo", matrix.value, blocks) * coupling.scale
        off = torch.einsum("bgjk,ogjk->bo", matrix.off + BLUR * matrix.value.abs(), blocks.abs()) * coupling.scale
        return Near(value, off * UP)

    def blocks(self, matrix: Tensor) -> Tensor:  # (n_out, n, n) -> (n_out, groups, g, g)
        """The blocks of the groups."""
        size = matrix.shape[-1] // self.groups
        parts = matrix.reshape(-1, self.groups, size, self.groups, size)
        return parts.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)

    @property
    def slope_of_pairs(self) -> Near:
        """Covariances of phi'(X_j) and z_k: b_j p_k C_jk up to what is of degree two and more in both, or Gebelein."""
        left, right = (
            Near(*(self._grouped(part).unsqueeze(axis) for part in (near.value, near.off)))
            for near, axis in ((self.bend, -1), (self.slope, -2))
        )
        fine = left.times(right).times(self.gaussian)
        more = self.correlation.square() * self._grouped(self.slope_second)[..., :, None]
        off = fine.off + more * self._grouped(self.second)[..., None, :]
        coarse = self.correlation * self._grouped(self.slope_deviation)[..., :, None]
        coarse = coarse * self._grouped(self.deviation)[..., None, :]
        take = off < coarse  # false for NaN
        return Near(torch.where(take, fine.value, 0.0), torch.where(take, off, coarse) * UP)

    def length(self, sizes: Tensor, part: slice = slice(None)) -> Tensor:  # (batch, rows, n) -> (batch, rows)
        """The root of the sum of |rho_jk| sizes_j sizes_k, of the boxes of a part."""
        return ((self.apply(sizes, self.correlation[part]) * sizes).sum(-1) * UP).sqrt() * UP

    def pair_norms(self, norm4: Tensor, part: slice = slice(None)) -> Tensor:  # (batch, n) -> (batch, groups, g, g)
        """Of R_j R_k in L2, from norms of R in L4: E R_j^2 R_k^2 <= u_j^2 u_k^2 + |rho| ||R_j||_4^2 ||R_k||_4^2."""
        own, norms = (self._pairs(values)[part].square() for values in (self.second, norm4))
        return (own + self.correlation[part] * norms).sqrt() * UP

    def row_deviation(self, rows: Tensor) -> Tensor:  # (batch or 1, rows, n) -> (batch, rows)
        """Standard deviation of ``rows . z``, at most."""
        return self.form(self.covariance, rows).interval.upper.clamp_min(0).sqrt() * UP + SMALL

    def _grouped(self, values: Tensor) -> Tensor:  # (batch, n) -> (batch, groups, g)
        return values.reshape(values.shape[0], self.groups, -1)

    def _pairs(self, values: Tensor) -> Tensor:  # (batch, n) -> (batch, groups, g, g)
        parts = self._grouped(values)
        return parts[..., :, None] * parts[..., None, :]


def _with_diagonal(matrix: Near, ends: Interval) -> Near:  # (batch, groups, g, g), (batch, groups, g)
    """With this range of its diagonal."""
    value, off = 0.5 * (ends.lower + ends.upper), 0.5 * (ends.upper - ends.lower) * UP + BLUR * ends.upper
    return Near(
        *(torch.diagonal_scatter(a, b, dim1=-2, dim2=-1) for a, b in ((matrix.value, value), (matrix.off, off)))
    )
