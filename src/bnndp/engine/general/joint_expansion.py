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
\sum_jg_jp_jc_j`, and :math:`\mathbb ELd_j^2=2c_j\operatorname{Cov}(\varphi'(X_j),z_j)=2c_jb_jp_jr_j^2` up to
:math:`2|c_j|u_j` times the standard deviation of what is of degree two and more in :math:`\varphi'(X_j)`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.engine.general.intervals import BLUR
from bnndp.engine.general.joint_gaussian import Joint, Near
from bnndp.engine.general.rows import DenseRows
from bnndp.engine.general.signal import CENTRED, Expansion, Signal
from bnndp.engine.general.weights import Weights
from bnndp.geometry.bounds import Interval
from bnndp.maths.rounding import SMALL, TINY, UP

__all__ = ["Gradient", "gradient_of", "joint_expansion"]

_HALF_ROOT, _SIXTH_ROOT = math.sqrt(0.5) * UP, math.sqrt(1 / 6) * UP


@dataclass(frozen=True, slots=True)
class Gradient:
    """How s varies with z: its gradient at E z, its squares, and its products of two coordinates."""

    rows: Near  # g: (batch, n_out, n)
    squares: Tensor  # Sigma_jj: (1, n_out, n)
    products: Tensor  # (batch, n_out, 2): norms of q in L2 and L4, not centred


def gradient_of(weights: Weights, z: Signal) -> Gradient | None:
    """Of the variances of a layer above z; None if they are constant."""
    if not weights.random:
        return None
    mean = z.mean
    middle, radius = 0.5 * (mean.lower + mean.upper), 0.5 * (mean.upper - mean.lower) * UP
    unit = DenseRows(torch.eye(weights.n_out, dtype=middle.dtype, device=middle.device)[None])
    squares = weights.variance_pull(unit).dense().values
    rows = weights.spread_pull(unit, middle).dense().values
    off = 2 * squares * (radius + BLUR * middle.abs())[:, None]
    products = torch.zeros_like(rows[..., :2])
    if weights.coupled:
        rest = weights.spread_rest(z)
        off = off + (torch.inf if rest is None else rest.slack)
        products = products + (torch.inf if rest is None else rest.products[..., :2])
    return Gradient(Near(rows, off * UP), squares, products)


def joint_expansion(
    joint: Joint,
    mu: Tensor,  # (1, n_out, n)
    s: Gradient | None,  # None: s is constant
    norms: Tensor,  # (batch, n, q): of z_j - E z_j
    spread: Tensor,  # (batch, n_out): S, at most
    row_norm4: Tensor,  # (batch, n_out): of the rows of the gradient
) -> Expansion:
    """Of rows ``mu . z`` and their variances s."""
    slope, bend, size = joint.slope, joint.bend, mu.abs()
    w = mu * slope.value[:, None]
    loose = size * slope.off[:, None] + BLUR * w.abs()  # of w
    c = joint.apply(w, joint.gaussian.value)  # (batch, n_out, n)
    off = joint.apply(loose, joint.gaussian.size) + joint.apply(
        w.abs(), joint.gaussian.off + BLUR * joint.gaussian.size
    )
    c = Near(c, off * UP)
    v = ((w * c.value).sum(-1) + (w.abs() * c.off + loose * c.size).sum(-1)).clamp_min(0) * UP
    each = torch.minimum(c.size / joint.root[:, None].clamp_min(TINY), v.sqrt()[..., None]) * UP  # |c_j| / r_j
    rest = joint.form(joint.remainder, mu).interval.upper.clamp_min(0).sqrt() * UP  # sd R
    kappa, third = _degree_two(joint, mu, c, each)
    fourth = _SIXTH_ROOT * (size * each**3 * joint.third[:, None]).sum(-1)
    fifth = 0.0 * v
    zero = torch.zeros_like(v)
    deviation, low4, spread4 = zero, zero, zero
    if s is not None:
        cross = _with_spread(joint, slope, bend, c, s)
        inner = _squares(joint, s, norms) + s.products[..., 0]
        own = joint.form(joint.covariance, s.rows.value)
        linear = own.interval.upper.clamp_min(0).sqrt() + (s.rows.off * joint.deviation[:, None]).sum(-1)
        deviation = (linear + inner) * UP
        straight = (s.rows.size * each.square() * joint.second[:, None]).sum(-1)  # times v, of g . d
        third = third + 0.5 * rest * deviation
        fourth = fourth + 0.5 * _HALF_ROOT * (straight + v * inner)
        kappa = Near(kappa.value + cross.value, kappa.off + cross.off + v.sqrt() * s.products[..., 0])
        spread4 = (row_norm4 + _norm4(s, norms)) ** 4
        low4 = torch.minimum(spread4, spread.square() * deviation.square()) * UP
    fifth = 0.25 * kappa.size * rest.square()
    infinite = torch.full_like(v, torch.inf)
    none = Interval(zero, zero)
    return Expansion(
        third=Interval(3 * (kappa.value - kappa.off), 3 * (kappa.value + kappa.off)),
        fourth=none,
        linear_fourth=none,
        remainders={2: 0.5 * rest.square() * UP, 3: third * UP, 4: fourth * UP, 5: fifth * UP},
        quadratic={4: infinite},
        in_pieces=None,
        spread_variance=deviation.square() * UP,
        spread_third=infinite,
        spread_fourth=spread4 * UP,
        spread_norm8=infinite,
        spread_low=low4,
        norms=torch.full((*v.shape, 3), torch.inf, dtype=v.dtype, device=v.device),
    )


def _degree_two(joint: Joint, mu: Tensor, c: Near, each: Tensor) -> tuple[Near, Tensor]:
    """The sum of mu b c^2, and the factor of the third derivative for neurons of which b is hardly known."""
    square, bend, size = c.times(c), joint.bend, mu.abs()
    found = square.times(Near(bend.value[:, None].nan_to_num(0.0), bend.off[:, None]))
    coarse = 2 * _HALF_ROOT * each.square() * joint.second[:, None]
    known = found.off < coarse  # false for NaN
    value = torch.where(known, mu * found.value, 0.0).sum(-1)
    off = torch.where(known, size * (found.off + BLUR * found.value.abs()), 0.0).sum(-1)
    return Near(value, off * UP), torch.where(known, 0.0, 0.5 * size * coarse).sum(-1) * UP


def _with_spread(joint: Joint, slope: Near, bend: Near, c: Near, s: Gradient) -> Near:
    """E L delta, but for products of two coordinates: (batch, n_out)."""
    p = Near(slope.value[:, None], slope.off[:, None])
    straight = s.rows.times(c).times(p)
    b = Near(bend.value[:, None].nan_to_num(0.0), bend.off[:, None])
    diagonal = Near(
        *(part.diagonal(dim1=-2, dim2=-1).flatten(1)[:, None] for part in (joint.gaussian.value, joint.gaussian.off))
    )
    fine = b.times(p).times(diagonal)
    more = joint.slope_second * joint.second
    whole = torch.hypot(
        joint.slope_second, bend.size * joint.gaussian.size.diagonal(dim1=-2, dim2=-1).flatten(1).sqrt()
    )
    coarse = (whole.nan_to_num(torch.inf) * joint.deviation)[:, None]
    off = fine.off + more[:, None]
    take = off < coarse
    each = Near(torch.where(take, fine.value, 0.0), torch.where(take, off, coarse)).times(c)
    value = (straight.value + 2 * s.squares * each.value).sum(-1)
    sizes = straight.off + BLUR * straight.value.abs() + 2 * s.squares * (each.off + BLUR * each.value.abs())
    return Near(value, sizes.sum(-1) * UP)


def _squares(joint: Joint, s: Gradient, norms: Tensor) -> Tensor:  # (batch, n_out)
    """Standard deviation of the sum of Sigma_jj d_j^2 (Gebelein)."""
    rows = s.squares * norms[..., 0].square()[:, None]
    return ((joint.apply(rows, joint.correlation) * rows).sum(-1) * UP).sqrt() * UP


def _norm4(s: Gradient, norms: Tensor) -> Tensor:  # (batch, n_out)
    """The norm in L4 of what the gradient leaves of s, and of how far it is off."""
    loose = (s.rows.off * norms[:, None, :, 0]).sum(-1)
    square = CENTRED[0] * (s.squares * norms[:, None, :, 1].square()).sum(-1)
    return (loose + square + CENTRED[0] * s.products[..., 1] + SMALL**2) * UP
