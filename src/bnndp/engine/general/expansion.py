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

*Weights that are correlated within a row* add :math:`\chi=\sum_{k\ne l}\Sigma_{kl}A_kA_l` to s, uncorrelated with the
:math:`\beta_k`. In the linear term :math:`\mathbb EG_2(m)A_kA_l=\mu_k\mu_lv_kv_l\mathbb EG_4(a)` up to
:math:`\tfrac12\lVert G_5\rVert\mathbb E|\alpha_k\alpha_lA_kA_l|(|\alpha_k|+|\alpha_l|)`, a mixed difference again; in
the quadratic one :math:`\tfrac14\beta\chi+\tfrac18\chi^2` goes into :math:`R_4\lVert G_4\rVert`. Then
:math:`\kappa_4` is without :math:`3\operatorname{Var}\chi`.

*Moments of* :math:`\delta=s-S`. s is a sum of independent :math:`Y_k\ge0`, and :math:`e^{-y}\le1-y+\tfrac12y^2`, so
:math:`\mathbb P(S-s>t)\le e^{-t^2/2W}` with :math:`W=\sum_k\mathbb EY_k^2`: :math:`\mathbb E(S-s)_+^4\le8W^2`,
:math:`\mathbb E(S-s)_+^3\le3\sqrt{\pi/2}W^{3/2}`, and :math:`\mathbb E|\delta|^3=\sum_k\mathbb E\beta_k^3+2\mathbb
E(S-s)_+^3`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.engine.general.intervals import BLUR, minus, plus, square, times
from bnndp.engine.general.signal import Expansion, Signal
from bnndp.geometry.bounds import Interval
from bnndp.maths.rounding import SMALL, UP

__all__ = ["Products", "Sums", "expansion_of", "norms_of_sum", "sums_of"]

_GAUSS_5 = 6.3831  # E |xi|^5 = 8 sqrt(2 / pi), rounded up
_LOW_3 = 7.5200  # 2 * 3 sqrt(pi / 2): twice the third moment of the lower side of a sub-Gaussian variable

Sums = Callable[[Tensor, int, int], Tensor]
"""(batch, n_in), powers a, b of the mean and of the variance of a weight -> (batch, n_out): sums over the terms.

Those of sizes are at least ``SMALL**(a + 2 * b)``, and made of weights of at least ``SMALL``: nothing underflows.
"""


def sums_of(mean: Tensor, variance: Tensor, apply: Callable[[Tensor, Tensor], Tensor]) -> tuple[Sums, Sums]:
    """Sums of sizes and signed sums over weights; ``apply`` takes values and numbers for the weights to their sums."""
    size, spread = mean.abs().clamp_min(SMALL), variance.clamp_min(SMALL**2)
    return (
        lambda values, a, b: apply(values, size**a * spread**b) + SMALL ** (a + 2 * b),
        lambda values, a, b: apply(values, mean**a * variance**b),
    )


@dataclass(frozen=True, slots=True)
class Products:
    r"""What products of two terms add to s: :math:`\chi=\sum_{k\ne l}\Sigma_{kl}A_kA_l`; (batch, n_out) each."""

    variance: Tensor  # Var chi
    norm4: Tensor  # ||chi||_4
    cross: Interval  # sum of Sigma_kl mu_k mu_l v_k v_l
    fifth: Tensor  # sum of |Sigma_kl| mu_k^2 |mu_l| E |A_k|^3 v_l
    sixth: Tensor  # sum of |Sigma_kl mu_k mu_l| v_k v_l mu_k^2 v_k
    size: Tensor  # sum of |Sigma_kl mu_k mu_l| v_k v_l


def expansion_of(
    z: Signal, sums: Sums, signed: Sums, mean: Interval | None = None, products: Products | None = None
) -> Expansion:
    r"""Of sums of independent values z_k times Gaussian weights; ``signed`` keeps the sign of their means.

    With weights that are correlated within a row, ``mean`` are the :math:`\bar h_k` for which s has the slope
    :math:`2\Sigma_{kk}\bar h_k` in z_k at E z, and ``products`` is what the products of two terms add.
    """
    h = z.mean if mean is None else mean  # (batch, n_in), or (batch, n_out, n_in)
    v, k3, c = z.noise, z.third, z.noise_fourth  # (batch, n_in)
    second, quartic, eighth = _at_least_small(z)
    if mean is not None:  # (batch, 1, n_in)
        v, k3, c = (Interval(part.lower[:, None], part.upper[:, None]) for part in (v, k3, c))
        second, quartic, eighth = second[:, None], quartic[:, None], eighth[:, None]
    v2 = Interval(v.lower.square() / UP, v.upper.square() * UP)
    cross = plus(times(h, v, 2.0), k3)  # Cov(z, z^2) = 2 h v + E A^3
    both = plus(times(h, k3, 2.0), minus(c, v2))  # E A^2 (z^2 - E z^2)
    squares = plus(times(square(h), v, 4.0), times(h, k3, 4.0), minus(c, v2))  # Var z^2
    squared = squares.upper.clamp_min(SMALL**4)
    excess = minus(c, Interval(3 * v2.lower, 3 * v2.upper))  # E A^4 - 3 v^2

    root, fourth = second.sqrt(), quartic.sqrt().sqrt()
    fifth = quartic**0.75 * eighth.square() * UP  # E |A|^5: between the fourth and the eighth moment
    cube, size = (second * quartic).sqrt(), 2 * h.magnitude  # E |A|^3; z^2 - E z^2 = 2 h A + A^2 - v
    wide = (size * fourth + eighth.square() + second) * UP  # ||z^2 - E z^2||_4
    k3_size, c_size = (part.magnitude.clamp_min(SMALL**3) for part in (k3, cross))
    k4_size, d_size = (part.magnitude.clamp_min(SMALL**4) for part in (excess, both))

    third_sum, quartic_sum = sums(k3_size, 3, 0), sums(quartic + 3 * second.square(), 4, 0)  # A_3, A_4
    c_sum, c_abs = sums(c_size, 1, 1), sums(root * squared.sqrt(), 1, 1)
    d_sum, spread = sums(d_size, 2, 1), sums(squared, 0, 2)
    r5 = (
        sums((fifth + _GAUSS_5 * second.square() * root) / 120 + k3_size * second / 12, 5, 0)
        + sums((size * quartic + fifth + second * cube) / 12 + c_size * second / 4, 3, 1)  # |A^3 (z^2 - E z^2)|
        + sums((size * cube.sqrt() + fifth.sqrt() + second * root.sqrt()).square() / 8, 1, 2)  # |A| (z^2 - E z^2)^2
    )
    r6 = (
        third_sum.square() / 72  # each pair of terms once
        + sums(k4_size * second / 48, 6, 0)
        + third_sum * c_sum / 12
        + sums(d_size * second / 8, 4, 1)
        + c_abs.square() / 8
        + sums(second * squared / 16, 2, 2)
    )
    fourths = sums(k4_size, 4, 0) / 24 + d_sum / 4 + spread / 8  # the sizes of what is multiplied with means of G_4
    kappa3 = _signed(((k3, 3, 0, 1.0), (cross, 1, 1, 3.0)), sums, signed)
    kappa4 = _signed(((excess, 4, 0, 1.0), (both, 2, 1, 6.0), (squares, 0, 2, 3.0)), sums, signed)
    spread4 = sums(wide.square().square(), 0, 4) + 3 * spread.square()
    proxy = sums(squared + (h.magnitude.square() + second).square(), 0, 2)  # sum of Sigma_kk^2 E (h + A)^4
    spread3 = torch.minimum((spread * spread4).sqrt(), sums(squared.sqrt() * wide.square(), 0, 3) + _LOW_3 * proxy**1.5)
    low4 = torch.minimum(8 * proxy.square(), spread4)
    r4 = torch.zeros_like(spread)
    if products is not None:
        r4 = 0.25 * (spread * products.variance).sqrt() + products.variance / 8
        r5, r6 = r5 + 0.5 * products.fifth, r6 + 0.5 * products.sixth
        fourths = fourths + 0.5 * products.size
        kappa4 = plus(kappa4, Interval(12 * products.cross.lower, 12 * products.cross.upper))
        spread = spread + products.variance
        spread3 = (spread3 ** (1 / 3) + products.norm4) ** 3
        spread4, low4 = ((part**0.25 + products.norm4) ** 4 for part in (spread4, low4))
    r7 = third_sum * fourths / 6 + quartic_sum * (third_sum / 6 + c_sum / 2) / 24
    r8 = quartic_sum * fourths / 24
    remainders = {4: r4 * UP, 5: r5 * UP, 6: r6 * UP, 7: r7 * UP, 8: r8 * UP}
    norm4, norm8 = norms_of_sum(z, sums)
    return Expansion(kappa3, kappa4, remainders, spread * UP, spread3 * UP, spread4 * UP, low4 * UP, norm4, norm8)


def norms_of_sum(z: Signal, sums: Sums) -> tuple[Tensor, Tensor]:
    r"""Norms in L4 and L8 of a sum of independent centred terms: (batch, n_out) each.

    :math:`\mathbb E(\sum X_k)^8` is a sum over the partitions of eight factors without single ones, each at most a
    product of :math:`M_p=\sum_k\mathbb E|X_k|^p`; the same for the fourth power.
    """
    v, c, eighth = _at_least_small(z)
    eight = eighth**8
    m2, m4, m8 = sums(v, 2, 0), sums(c, 4, 0), sums(eight, 8, 0)
    m3, m5, m6 = sums((v * c).sqrt(), 3, 0), sums(c**0.75 * eighth.square(), 5, 0), sums((c * eight).sqrt(), 6, 0)
    fourth = m4 + 3 * m2.square()
    total = m8 + 28 * m6 * m2 + 56 * m5 * m3 + 35 * m4.square() + 210 * m4 * m2.square() + 280 * m3.square() * m2
    total = total + 105 * m2.square().square()
    return fourth.sqrt().sqrt() * UP, total**0.125 * UP


def _at_least_small(z: Signal) -> tuple[Tensor, Tensor, Tensor]:
    """Variance, fourth moment and norm in L8 from above, at least the powers of ``SMALL``."""
    return z.noise.upper.clamp_min(SMALL**2), z.noise_fourth.upper.clamp_min(SMALL**4), z.norms[..., 1].clamp_min(SMALL)


def _signed(parts: tuple[tuple[Interval, int, int, float], ...], sums: Sums, signed: Sums) -> Interval:
    """The sum of weighted sums of terms known to intervals, rounded outward."""
    low: float | Tensor = 0.0
    high: float | Tensor = 0.0
    for part, mean, spread, factor in parts:
        middle, half = 0.5 * (part.lower + part.upper), 0.5 * (part.upper - part.lower)
        value = signed(middle, mean, spread)
        slack = sums(half * UP + BLUR * part.magnitude, mean, spread)
        low, high = low + factor * (value - slack), high + factor * (value + slack)
    return Interval(low, high)  # type: ignore[arg-type]
