r"""The mean of an activation of a sum of independent terms, to fourth order with the sign of each term.

:math:`X=m+\sqrt s\,\xi` with :math:`m=M+\sum_k\alpha_k` and :math:`s=S+\sum_k\beta_k`; the pairs
:math:`(\alpha_k,\beta_k)` are centred and independent (given the history Y, if it is random). X is a sum of independent
terms with the variance :math:`\rho^2=S+V` and the cumulants

.. math:: \kappa_3=\sum_k\mathbb E\alpha_k^3+3\mathbb E\alpha_k\beta_k,\qquad
          \kappa_4=\sum_k\mathbb E\alpha_k^4-3v_k^2+6\mathbb E\alpha_k^2\beta_k+3\mathbb E\beta_k^2 .

With :math:`G_p` the p-th derivative of :math:`G(\cdot,r)=\mathbb E\varphi(\cdot+r\xi)` and :math:`\lVert G_p\rVert` its
largest size for every r with :math:`r^2\ge S`,

.. math:: \bigl|\mathbb E\varphi(X)-G-\tfrac16\kappa_3G_3-\tfrac1{24}\kappa_4G_4\bigr|_{(M,\rho)}
          \le R_5\lVert G_5\rVert+R_6\lVert G_6\rVert+R_7\lVert G_7\rVert+R_8\lVert G_8\rVert+R_s .

Proof. *The variance s becomes S.* Of :math:`F(m,s)=G(m,\sqrt s)`, :math:`\partial_s=\tfrac12\partial_m^2`, the Taylor
polynomial of second order in s leaves :math:`R_s`: for a hinge, whatever m and s >= 0,
:math:`-a|\delta|^3S^{-5/2}-b_-\delta_-^4S^{-7/2}\le\cdot\le a|\delta|^3S^{-5/2}+b_+\delta_-^4S^{-7/2}` with
:math:`\delta_-=(S-s)_+` (``STEP_THREE``), so for any mixture of hinges; for a smooth activation
:math:`\tfrac1{48}\lVert\varphi^{(6)}\rVert|\delta|^3`.

*The linear term* is :math:`\tfrac12\sum_k\mathbb EG_2(m)\beta_k`. With a = m less its k-th term,
:math:`\mathbb EG_2(a+\alpha_k)\beta_k=\mathbb EG_3(a)C_k+\tfrac12\mathbb EG_4(a)D_k+\cdots`, :math:`C_k=\mathbb
E\alpha_k\beta_k`, :math:`D_k=\mathbb E\alpha_k^2\beta_k`, up to :math:`\tfrac16\lVert G_5\rVert\mathbb
E|\alpha_k^3\beta_k|`. *The quadratic one* is :math:`\tfrac18\mathbb EG_4(m)\delta^2`: its squares are
:math:`\mathbb EG_4(a)\mathbb E\beta_k^2` up to :math:`\lVert G_5\rVert\mathbb E|\alpha_k|\beta_k^2`, and its products
of two terms mixed differences of second order, at most :math:`\lVert G_6\rVert\mathbb E|\alpha_k\beta_k|\mathbb
E|\alpha_l\beta_l|`.

*The sum m becomes Gaussian*, one term after the other (Lindeberg): a step from :math:`\alpha_k` to a Gaussian of its
variance costs :math:`\tfrac16\kappa_3(\alpha_k)\mathbb EG_3(a)+\tfrac1{24}\kappa_4(\alpha_k)\mathbb EG_4(a)` up to
:math:`\tfrac1{120}\lVert G_5\rVert(\mathbb E|\alpha_k|^5+\mathbb E|\gamma|^5)`.

*The means of* :math:`G_p(a)`. a has the mean M and the variance V less :math:`v_k`; replacing its terms by Gaussians
costs :math:`\tfrac16\lVert G_{p+3}\rVert A_3+\tfrac1{24}\lVert G_{p+4}\rVert A_4`, :math:`A_3=\sum_l|\mathbb
E\alpha_l^3|`, :math:`A_4=\sum_l\mathbb E\alpha_l^4+3v_l^2` (in a step of Lindeberg only those of the terms that follow,
so that each pair counts once), and :math:`G_p` at the variance :math:`\rho^2-v_k` differs from that at :math:`\rho^2`
by at most :math:`\tfrac12v_k\lVert G_{p+2}\rVert`.

*Terms that are Gaussian already* smooth for those that follow: at the step of a term the derivatives are those at
:math:`S+\sum_lv_l` over the terms l before. They are taken in blocks, the most nearly Gaussian ones first, and only the
blocks before count. (Given a random history this is not used.)

*Weights that are correlated within a row* add :math:`\chi=\sum_{k\ne l}\Sigma_{kl}A_kA_l` to s, uncorrelated with the
:math:`\beta_k`. In the linear term :math:`\mathbb EG_2(m)A_kA_l=\mu_k\mu_lv_kv_l\mathbb EG_4(a)` up to
:math:`\tfrac12\lVert G_5\rVert\mathbb E|\alpha_k\alpha_lA_kA_l|(|\alpha_k|+|\alpha_l|)`, a mixed difference again; in
the quadratic one :math:`\tfrac14\beta\chi+\tfrac18\chi^2` goes into :math:`R_4\lVert G_4\rVert`. Then
:math:`\kappa_4` is without :math:`3\operatorname{Var}\chi`.

*To first order in s* the terms of the quadratic part, ``quadratic``, are not needed, and :math:`R_s` is what the first
order leaves.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.engine.moments.intervals import plus
from bnndp.engine.moments.pre_activation import Series
from bnndp.engine.sums.lindeberg import steps_of
from bnndp.engine.sums.terms import Sums, Terms, signed_sum
from bnndp.geometry.bounds import Interval
from bnndp.maths.rounding import UP

__all__ = ["History", "Products", "series_of", "with_history", "with_history_of_squares"]


@dataclass(frozen=True, slots=True)
class Products:
    r"""What products of two terms add to s: :math:`\chi=\sum_{k\ne l}\Sigma_{kl}A_kA_l`; (batch, n_out) each."""

    variance: Tensor  # Var chi
    norm4: Tensor  # ||chi||_4
    norm8: Tensor  # ||chi||_8
    cross: Interval  # sum of Sigma_kl mu_k mu_l v_k v_l
    fifth: Tensor  # sum of |Sigma_kl| mu_k^2 |mu_l| E |A_k|^3 v_l
    sixth: Tensor  # sum of |Sigma_kl mu_k mu_l| v_k v_l mu_k^2 v_k
    size: Tensor  # sum of |Sigma_kl mu_k mu_l| v_k v_l


@dataclass(frozen=True, slots=True)
class History:
    """How what is given by a random history Y varies: (batch, n_out) each."""

    mean: Tensor  # standard deviation of E[m | Y]
    noise: Tensor  # of Var(m | Y)
    spread: Tensor  # of E[s | Y]
    spread_norm4: Tensor  # its norm in L4
    spread_low4: Tensor  # and that of its lower side
    whole: Tensor  # standard deviation of m
    deviation: Tensor  # of s
    extra: Tensor  # of what is no square in s
    extra_norm4: Tensor  # its norm in L4
    low4: Tensor | None = None  # of the lower side of s, where it is known apart


def series_of(  # noqa: PLR0913 (the parts of one sum)
    terms: Terms,
    sums: Sums,
    signed: Sums,
    history: History | None,
    products: Products | None,
    spread: Tensor,  # (batch, n_out): Var s given Y
    variance: Tensor,  # (batch, n_out): of s without the products
) -> Series:
    """Cumulants and the factors of remainders."""
    third_sum, quartic_sum = sums(terms.step3, 3, 0), sums(terms.step4, 4, 0)
    c_sum, c_abs = sums(terms.cross_size, 1, 1), sums(terms.second.sqrt() * terms.squares_size.sqrt(), 1, 1)
    fourths = sums(terms.both_size, 2, 1) / 4  # sizes of what is multiplied with means of G_4
    zero = torch.zeros_like(spread)
    remainders = dict.fromkeys(range(3, 9), zero)
    remainders[5] = sums(terms.triple / 12 + terms.cross_size * terms.second / 4, 3, 1)
    remainders[6] = third_sum * c_sum / 12 + sums(terms.both_size * terms.second / 8, 4, 1)
    remainders[7] = quartic_sum * c_sum / 48
    if history is not None:
        own = steps_of(terms, sums, signed, torch.ones_like(terms.second))
        fourths = fourths + own.excess
        remainders[5] = remainders[5] + own.fifth
        remainders[6] = remainders[6] + third_sum.square() / 72 + own.sixth
        remainders[7] = remainders[7] + quartic_sum * third_sum / 144
    kappa3 = signed_sum(((terms.third, 3, 0, 1.0), (terms.cross, 1, 1, 3.0)), sums, signed)
    linear4 = signed_sum(((terms.excess, 4, 0, 1.0), (terms.both, 2, 1, 6.0)), sums, signed)
    kappa4 = plus(linear4, signed_sum(((terms.squares, 0, 2, 3.0),), sums, signed))
    quadratic = dict.fromkeys(range(4, 9), zero)  # of the square of s - S
    quadratic[5] = sums(terms.pair / 8, 1, 2)
    quadratic[6] = c_abs.square() / 8 + sums(terms.second * terms.squares_size / 16, 2, 2)
    for parts, size in ((remainders, fourths), (quadratic, spread / 8)):
        parts[7], parts[8] = parts[7] + third_sum * size / 6, parts[8] + quartic_sum * size / 24
    if history is not None:
        change = sums(terms.third_change, 3, 0) + 3 * sums(terms.cross_change, 1, 1)
        with_history(remainders, history, change, kappa3.magnitude, (third_sum, quartic_sum, fourths))
        with_history_of_squares(quadratic, history, c_abs, spread)
    if products is not None:
        both = (variance * products.variance).sqrt()
        quadratic[4] = quadratic[4] + 0.25 * both + products.variance / 8
        remainders[5], remainders[6] = remainders[5] + 0.5 * products.fifth, remainders[6] + 0.5 * products.sixth
        remainders[7] = remainders[7] + third_sum * products.size / 12
        remainders[8] = remainders[8] + quartic_sum * products.size / 48
        added = Interval(12 * products.cross.lower, 12 * products.cross.upper)
        linear4, kappa4 = plus(linear4, added), plus(kappa4, added)
    rounded = [{order: part * UP for order, part in parts.items()} for parts in (remainders, quadratic)]
    return Series(kappa3, kappa4, linear4, rounded[0], rounded[1])


def with_history(
    remainders: dict[int, Tensor],
    y: History,
    change: Tensor,
    third: Tensor,
    sizes: tuple[Tensor, Tensor, Tensor],
) -> None:
    """Add what a random history costs; ``change`` is the standard deviation of kappa_3 given Y, ``third`` its mean."""
    third_sum, quartic_sum, fourths = sizes
    remainders[3] = remainders[3] + 0.5 * (y.spread * y.mean + y.extra * y.whole)
    remainders[4] = remainders[4] + 0.25 * y.spread * y.noise + change * y.mean / 6
    remainders[5] = remainders[5] + y.spread * third_sum / 12 + fourths * y.mean
    remainders[5] = remainders[5] + (change * y.noise + third * (y.mean.square() + y.noise)) / 12
    remainders[6] = remainders[6] + y.spread * quartic_sum / 48 + 0.5 * fourths * y.noise


def with_history_of_squares(quadratic: dict[int, Tensor], y: History, c_abs: Tensor, spread: Tensor) -> None:
    """Add what it costs in the square of s - S; ``spread`` is the size of Var s given Y."""
    quadratic[4] = quadratic[4] + 0.25 * y.extra * y.deviation + (y.extra.square() + y.spread.square()) / 8
    quadratic[5] = quadratic[5] + 0.25 * y.spread * c_abs + spread * y.mean / 8
    quadratic[6] = quadratic[6] + spread * y.noise / 16
