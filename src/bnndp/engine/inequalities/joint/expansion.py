r"""The mean of an activation above values of a jointly Gaussian vector (``joint_gaussian.py``), to third order.

:math:`X=m+\sqrt s\,\xi` with :math:`m=\mu\cdot z+\bar b`, :math:`z_j=\varphi(X_j)`. At a given x let
:math:`L=\sum_j\mu_jp_j(X_j-\mathbb EX_j)`, a Gaussian of variance v, :math:`m=M+L+R` and :math:`s=S+\delta`. R is of
degree two and more in Hermite polynomials of X, so :math:`\operatorname{Cov}(L,R)=0` and :math:`\operatorname{Var}m=
v+\operatorname{Var}R`. With :math:`c_j=\operatorname{Cov}(L,X_j)`, :math:`\rho^2=S+\operatorname{Var}m`, :math:`G_p`
the p-th derivative of :math:`G(\cdot,r)` and :math:`\lVert G_p\rVert` its largest size for :math:`r^2\ge S`,

.. math:: \Bigl|\mathbb E\varphi(X)-G-\tfrac12\bigl(\sum_j\mu_jb_jc_j^2+\mathbb EL\delta\bigr)G_3\Bigr|_{(M,\rho)}
          \le\tfrac12\lVert G_2\rVert\operatorname{Var}R+\tfrac12\lVert G_3\rVert\operatorname{sd}R\operatorname{sd}
          \delta+R_4\lVert G_4\rVert+R_5\lVert G_5\rVert+R_s .

Proof. *s becomes S.* :math:`\mathbb EG(m,\sqrt s)=\mathbb EG(m,\sqrt S)+\tfrac12\mathbb EG_2(m,\sqrt S)\delta` up to
:math:`R_s` (``expectation._second_step``). :math:`G_2(M+L+R)` is :math:`G_2(M+L)` up to :math:`\lVert G_3\rVert|R|`.
A function f(L) is :math:`\mathbb Ef+\mathbb Ef'\,L` plus a part of degree two and more, of standard deviation at most
:math:`v\sup|f''|/\sqrt2` (of degree k and more :math:`v^{k/2}\sup|f^{(k)}|/\sqrt{k!}`), which meets only what
:math:`\delta` has of these degrees in L, of standard deviation :math:`\delta_2`, say. As :math:`\mathbb
EG_3(M+L,\sqrt S)=G_3(M,\sqrt{S+v})`, the linear term is :math:`\tfrac12G_3(M,\sqrt{S+v})\,\mathbb EL\delta` up to
:math:`\tfrac1{2\sqrt2}\lVert G_4\rVert v\delta_2`.

*R.* :math:`G(M+L+R,\sqrt S)` is :math:`G(M+L)+G_1(M+L)R` up to :math:`\tfrac12G_2R^2` somewhere between. The mean of
the first is :math:`G(M,\sqrt{S+v})`. In the second :math:`R=\sum_j\mu_jR_j` meets :math:`f=G_1(M+L)` in degrees two
and more. That of degree two is :math:`\tfrac12\mathbb Ef''\sum_j\mu_jb_jc_j^2` (Stein's identity twice), and what is
left of :math:`R_j` has a correlation of at most :math:`|c_j/(r_j\sqrt v)|^3` with functions of L (Mehler), so it is at
most :math:`\tfrac1{\sqrt6}\lVert G_4\rVert\sum_j|\mu_j||c_j/r_j|^3t_j`. Where :math:`b_j` is not known, degree two
counts with :math:`\tfrac1{\sqrt2}\lVert G_3\rVert|\mu_j|(c_j/r_j)^2u_j`.

*The variance of R.* :math:`G(M,\sqrt{S+v})` is :math:`G(M,\rho)-\tfrac12G_2(M,\cdot)\operatorname{Var}R`, the
derivative being one at a spread between. So :math:`\tfrac12(\mathbb EG_2R^2-G_2\operatorname{Var}R)` is left, at most
:math:`\tfrac12\operatorname{Var}R` times the range of :math:`G_2`: that is :math:`\lVert G_2\rVert` for a convex or
concave activation, and at most twice that for all others. :math:`G_3` at :math:`S+v` is that at :math:`\rho` up to
:math:`\tfrac12\lVert G_5\rVert\operatorname{Var}R`.

*Moments of* :math:`\delta`. With :math:`d=z-\mathbb Ez`, :math:`\delta=g\cdot d+\sum_j\Sigma_{jj}(d_j^2-\mathbb
Ed_j^2)+q`, g the gradient of s at E z and q what products of two coordinates leave. :math:`\mathbb EL\,g\cdot d=
\sum_jg_jp_jc_j`, and :math:`\mathbb ELd_j^2=2c_j\operatorname{Cov}(\varphi'(X_j),z_j)`.

*One order more.* :math:`\tfrac12\mathbb EG_2(M+L)R^2` is also :math:`\tfrac12G_2\operatorname{Var}R` up to what
``squares.py`` says of the covariance, :math:`\tfrac14\lVert G_4\rVert(\operatorname{Var}R)^2` and the cube of R.
Of :math:`\delta=H+\delta_2`, H the part of degree one and :math:`\eta_j=\operatorname{Cov}(H,X_j)`, :math:`\mathbb
EG_2(m)H=\sum_j\eta_j\mu_j\mathbb EG_3(m)\varphi'(X_j)` (Stein). So :math:`\tfrac12\mathbb E(G_2(m)-G_2(M+L))H` is half
of :math:`\mathbb EG_3(m)D'` plus :math:`\mathbb ELH` times :math:`\mathbb E(G_3(m)-G_3(M+L))`, :math:`D'=\sum_j\mu_j
\eta_j(\varphi'(X_j)-p_j)`. The first is :math:`\mathbb EG_3(M+L)D'` up to :math:`\lVert
G_4\rVert\operatorname{sd}R\operatorname{sd}D'`, the second :math:`\mathbb EG_4(M+L)R` up to :math:`\tfrac12\lVert
G_5\rVert\operatorname{Var}R`; functions of L meet those of X_j with the correlation :math:`c_j/(r_j\sqrt v)`, and R in
degrees two and more.

*The lower side of s.* s is convex in z, so :math:`S-s\le\mathbb Ed^\top\Sigma d-g\cdot d`. Of :math:`g\cdot d=g\cdot
D+g\cdot R` the first part is Gaussian, and :math:`R_j\ge-r_j^2b_j` for a convex activation: that is above all its
tangents, so above their mean :math:`\mathbb Ez_j+p_j(X_j-\mathbb EX_j)-\operatorname{Cov}(\varphi'(X_j),X_j)`.

*Derivatives that meet a function of L alone* count by a norm at M + L, not by their supremum
(``local_derivatives.py``): :math:`G_2R^2` with :math:`\lVert R\rVert_4^2` and :math:`\tfrac16\lVert
G_3\rVert\mathbb E|R|^3`, :math:`G_3R\delta_2` with :math:`\lVert R\rVert_4` and :math:`\tfrac14\lVert
G_4\rVert\lVert R\rVert_4^2\operatorname{sd}\delta_2`. As :math:`G_2(M,r)`, :math:`S\le r^2\le\rho^2`, is a mean of
:math:`G_2(M+L',\sqrt S)`, the variance of L counts with that of R there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from bnndp.engine.inequalities.joint.products import products_deviation
from bnndp.engine.inequalities.joint.squares import square_with_line
from bnndp.engine.laws.weights import Weights
from bnndp.engine.moments.intervals import BLUR
from bnndp.engine.moments.joint_gaussian import Coupling, Joint, Near
from bnndp.engine.moments.pre_activation import Expansion, Factors, Local, Series
from bnndp.engine.moments.signal import Signal
from bnndp.engine.rows import DenseRows
from bnndp.geometry.bounds import Interval
from bnndp.maths.rounding import SMALL, TINY, UP

__all__ = ["Gradient", "Moments", "gradient_of", "joint_expansion", "side_by_side"]

_ALL = 0  # the supremum of a derivative, not a norm
_HALF_GAUSSIAN = 1.5**0.25 * UP  # ||xi_+||_4
_HALF_ROOT, _SIXTH_ROOT = math.sqrt(0.5) * UP, math.sqrt(1 / 6) * UP


@dataclass(frozen=True, slots=True)
class Moments:
    """Norms of z_j - E z_j, and of what a line leaves of it: (batch, n, q)."""

    norms: Tensor
    remainders: Tensor


@dataclass(frozen=True, slots=True)
class Gradient:
    """How s varies with z: its gradient at E z, its squares, and its products of two coordinates."""

    rows: Near  # g: (batch, n_out, n)
    squares: Tensor  # Sigma_jj: (1, n_out, n)
    coupling: Coupling | None  # Sigma_jk for j != k


def gradient_of(
    weights: Weights,
    z: Signal,
    coupling: Coupling | None,  # all that is coupled in these rows
    unit: Tensor,  # (1, rows, n_out)
) -> Gradient | None:
    """Of the variances of some outputs of a layer above z; None if they are constant."""
    if not weights.random:
        return None
    mean = z.mean
    middle, radius = 0.5 * (mean.lower + mean.upper), 0.5 * (mean.upper - mean.lower) * UP
    squares = weights.variance_pull(DenseRows(unit)).dense().values
    rows = weights.spread_pull(DenseRows(unit), middle).dense().values
    away = radius + BLUR * middle.abs()
    off = 2 * squares * away[:, None]
    if coupling is not None:
        off = off + 2 * torch.einsum("ojk,bk->boj", coupling.forms.abs(), away) * coupling.scale[:, None]
    return Gradient(Near(rows, (off + BLUR * rows.abs()) * UP), squares, coupling)


def joint_expansion(
    joint: Joint,
    mu: Tensor,  # (1, n_out, n)
    s: Gradient | None,  # None: s is constant
    z: Moments,
    spread: Tensor,  # (batch, n_out): S, at most
    row_norm4: Tensor,  # (batch, n_out): of the rows of the gradient
) -> Expansion:
    """Of rows ``mu . z`` and their variances s."""
    slope, size = joint.slope, mu.abs()
    w = mu * slope.value[:, None]
    loose = size * slope.off[:, None] + BLUR * w.abs()  # of w
    gaussian = joint.gaussian
    off = joint.apply(loose, gaussian.size) + joint.apply(w.abs(), gaussian.off + BLUR * gaussian.size)
    c = Near(joint.apply(w, gaussian.value), off * UP)  # (batch, n_out, n)
    v = ((w * c.value).sum(-1) + (w.abs() * c.off + loose * c.size).sum(-1)).clamp_min(0) * UP
    each = torch.minimum(c.size / joint.root[:, None].clamp_min(TINY), v.sqrt()[..., None]) * UP  # |c_j| / r_j
    remainder = joint.form(joint.remainder, mu).interval.upper.clamp_min(0).sqrt() * UP  # sd R
    square = (size * z.remainders[:, None, :, 0]).sum(-1).square() * UP  # ||R||_4^2
    kappa, third = _degree_two(joint, mu, c, each)
    fourth = _SIXTH_ROOT * (size * each**3 * joint.third[:, None]).sum(-1)
    zero = torch.zeros_like(v)
    deviation, low4, spread4 = zero, zero, zero
    along = square_with_line(joint, mu, c.size, each, z.remainders[..., 0])
    beyond = {(3, _ALL): remainder * square / 6}
    smooth = {(3, 2): 0.5 * along.first, (4, 2): 0.5 * _HALF_ROOT * along.second, (4, _ALL): 0.25 * remainder**4}
    bent: list[tuple[Factors, ...]] = [
        ({(2, 2): 0.5 * square, **beyond}, {**smooth, **beyond}, {(2, _ALL): 0.5 * remainder.square()})
    ]
    if s is not None:
        moved = _moved(joint, s, c, each, v, z)
        deviation = moved.deviation
        near = {(3, 4): 0.5 * square.sqrt() * moved.curved, (4, _ALL): 0.25 * square * moved.curved}
        bent.append((near, {(3, _ALL): 0.5 * remainder * moved.curved}))
        tilt = (size * moved.covariance * joint.slope_deviation[:, None]) * UP  # |mu_j Cov(H, X_j)| sd phi'(X_j)
        wide = (size * each.square() * joint.second[:, None]).sum(-1)
        straight = {
            (4, 2): 0.5 * (tilt * each).sum(-1),
            (4, _ALL): 0.5 * remainder * joint.length(tilt),
            (5, _ALL): 0.25 * moved.cross.size * remainder.square(),
            (6, 2): 0.5 * _HALF_ROOT * moved.cross.size * wide,
        }
        bent.append((straight, {(3, _ALL): 0.5 * remainder * moved.linear}))
        fourth = fourth + moved.fourth
        kappa = Near(kappa.value + moved.cross.value, kappa.off + moved.cross.off)
        spread4 = (row_norm4 + moved.norm4) ** 4
        low4 = torch.fmin(_lower_side(joint, s, z.remainders[..., 0]) ** 4, spread.square() * deviation.square()) * UP
    fifth = 0.25 * kappa.size * remainder.square()
    infinite = torch.full_like(v, torch.inf)
    none = Interval(zero, zero)
    parts = (*bent, ({(3, 2): third},), ({(4, 2): fourth},), ({(5, _ALL): fifth},))
    local = Local(
        (v + remainder.square()) * UP,
        tuple(tuple({k: f * UP for k, f in way.items()} for way in ways) for ways in parts),
    )
    kappa3 = Interval(3 * (kappa.value - kappa.off), 3 * (kappa.value + kappa.off))
    series = Series(kappa3, none, none, {}, {4: infinite}, local)
    return Expansion(
        in_full=lambda: series,
        in_pieces=None,
        spread_variance=deviation.square() * UP,
        spread_third=infinite,
        spread_fourth=spread4 * UP,
        spread_norm8=infinite,
        spread_low=low4,
        norms=torch.full((*v.shape, 3), torch.inf, dtype=v.dtype, device=v.device),
    )


def side_by_side(pieces: Sequence[Expansion]) -> Expansion:
    """Those of consecutive rows as one."""
    names = [field.name for field in fields(Expansion) if not field.name.startswith("in_")]
    moments = {name: torch.cat([getattr(piece, name) for piece in pieces], 1) for name in names}
    series = _joined([piece.series for piece in pieces])
    return Expansion(in_full=lambda: series, in_pieces=None, **moments)


def _joined(parts: Sequence[Any]) -> Any:
    """Records, dictionaries and tuples of tensors (batch, rows): with all rows."""
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(parts, 1)  # type: ignore[arg-type]
    if isinstance(first, dict):
        return {key: _joined([part[key] for part in parts]) for key in first}
    if isinstance(first, tuple):
        return tuple(_joined(each) for each in zip(*parts, strict=True))
    return type(first)(*(_joined([getattr(part, field.name) for part in parts]) for field in fields(first)))


def _degree_two(joint: Joint, mu: Tensor, c: Near, each: Tensor) -> tuple[Near, Tensor]:
    """The sum of mu b c^2, and the factor of the third derivative for neurons of which b is hardly known."""
    square, bend, size = c.times(c), joint.bend, mu.abs()
    found = square.times(Near(bend.value[:, None].nan_to_num(0.0), bend.off[:, None]))
    coarse = 2 * _HALF_ROOT * each.square() * joint.second[:, None]
    known = found.off < coarse  # false for NaN
    value = torch.where(known, mu * found.value, 0.0).sum(-1)
    off = torch.where(known, size * (found.off + BLUR * found.value.abs()), 0.0).sum(-1)
    return Near(value, off * UP), torch.where(known, 0.0, 0.5 * size * coarse).sum(-1) * UP


@dataclass(frozen=True, slots=True)
class _Moved:
    """What delta costs: (batch, n_out) each."""

    deviation: Tensor  # sd delta
    linear: Tensor  # of the part of degree one, H
    curved: Tensor  # of what is of degree two and more
    covariance: Tensor  # |Cov(H, X_j)|: (batch, n_out, n)
    cross: Near  # E L delta
    fourth: Tensor  # factor of the fourth derivative
    norm4: Tensor  # of what the gradient leaves of delta


def _moved(joint: Joint, s: Gradient, c: Near, each: Tensor, v: Tensor, z: Moments) -> _Moved:
    slope, curved = _slope_in(joint, s), _curved(joint, s, z)
    bent = (joint.apply(curved, joint.correlation.square()) * curved).sum(-1).sqrt()
    fourth = (curved * each.square()).sum(-1)
    norm4 = (s.rows.off * z.norms[:, None, :, 0]).sum(-1)
    norm4 = norm4 + (s.squares * z.norms[:, None, :, 1].square()).sum(-1)  # centring makes no square larger
    if s.coupling is not None:
        products = products_deviation(joint, s.coupling, z.remainders)
        bent, norm4 = bent + products[0], norm4 + products[1]
        fourth = fourth + v * products[0]
        more = _slope_of_products(joint, s.coupling)
        slope = Near(slope.value + more.value, slope.off + more.off + BLUR * (slope.value.abs() + more.value.abs()))
    linear = joint.form(joint.gaussian, slope.value).interval.upper.clamp_min(0).sqrt()
    linear = linear + (slope.off * joint.spread_root[:, None]).sum(-1)  # of standard deviations
    gaussian = joint.gaussian
    value = joint.apply(slope.value, gaussian.value).abs()
    off = joint.apply(slope.size, gaussian.off + BLUR * gaussian.size) + joint.apply(slope.off, gaussian.size)
    cross = slope.times(c)
    cross = Near(cross.value.sum(-1), (cross.off + BLUR * cross.value.abs()).sum(-1) * UP)
    return _Moved(
        deviation=(linear.square() + bent.square()).sqrt() * UP,
        linear=linear * UP,
        curved=bent * UP,
        covariance=(value + off) * UP,
        cross=cross,
        fourth=0.5 * _HALF_ROOT * fourth * UP,
        norm4=(norm4 + SMALL**2) * UP,
    )


def _lower_side(joint: Joint, s: Gradient, norm4: Tensor) -> Tensor:  # (batch, n) -> (batch, n_out)
    """The norm of (S - s)_+ in L4, at most: s is convex, so above its tangent at E z."""
    products = joint.variance.upper @ s.squares[0].mT
    if s.coupling is not None:
        products = (products + joint.products(s.coupling).interval.upper).clamp_min(0)
    up, down = (s.rows.value + s.rows.off).clamp_min(0), (s.rows.off - s.rows.value).clamp_min(0)
    linear = joint.form(joint.linear, s.rows.value).interval.upper.clamp_min(0).sqrt()
    linear = linear + (s.rows.off * (joint.slope.size * joint.spread_root)[:, None]).sum(-1)
    remainder = (up * torch.fmin(joint.dip, norm4)[:, None] + down * norm4[:, None]).sum(-1)
    return (products + _HALF_GAUSSIAN * linear + remainder + SMALL**2) * UP


def _slope_in(joint: Joint, s: Gradient) -> Near:
    """Mean slopes of the parts of s in X_j alone, g_j p_j + 2 Sigma_jj Cov(phi'(X_j), z_j): (batch, n_out, n)."""
    p, own = (Near(part.value[:, None], part.off[:, None]) for part in (joint.slope, joint.slope_covariance))
    coarse = (joint.slope_deviation * joint.deviation)[:, None]
    take = own.off < coarse  # false for NaN
    both = Near(torch.where(take, own.value, 0.0), torch.where(take, own.off, coarse))
    line = s.rows.times(p)
    return Near(
        line.value + 2 * s.squares * both.value, line.off + 2 * s.squares * (both.off + BLUR * both.value.abs())
    )


def _curved(joint: Joint, s: Gradient, z: Moments) -> Tensor:
    """Standard deviation of what is of degree two and more in the part of s in X_j alone: (batch, n_out, n)."""
    square = (z.norms[..., 0] ** 4 * UP - joint.variance.lower.clamp_min(0).square() / UP).clamp_min(0).sqrt()
    return (s.rows.size * joint.second[:, None] + s.squares * square[:, None]) * UP


def _slope_of_products(joint: Joint, coupling: Coupling) -> Near:
    """Mean slopes of the products, 2 sum of Sigma_jk Cov(phi'(X_j), z_k) over k != j: (batch, n_out, n)."""
    blocks, lines, scale = joint.blocks(coupling.forms), joint.slope_of_pairs, 2 * coupling.scale[:, None]
    value = torch.einsum("ogjk,bgjk->bogj", blocks, lines.value).flatten(2) * scale
    off = torch.einsum("ogjk,bgjk->bogj", blocks.abs(), lines.off + BLUR * lines.value.abs()).flatten(2) * scale
    return Near(value, off * UP)
