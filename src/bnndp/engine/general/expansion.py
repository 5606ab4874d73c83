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

*Moments of* :math:`\delta=s-S`. It is a sum of centred :math:`Y_k`, and :math:`d_k=-Y_k` is at most the mean of the
k-th term of s, as that is not negative. For a centred d independent of a, :math:`\mathbb E(a+d)_+^4\le\mathbb
Ea_+^4+6\mathbb Ea_+^2\mathbb Ed^2+4\mathbb Ea_+\mathbb Ed_+^3+\mathbb Ed_+^4`: the third derivative of
:math:`x_+^4` is not negative, so for d < 0 the second order is enough. With :math:`\mathbb Ea_+\le\tfrac12
\operatorname{sd}a`, one term after the other, :math:`\mathbb E\delta_-^4\le3V^2+2\sqrt V\sum_k\lVert d_{k+}\rVert_4^3
+\sum_k\lVert d_{k+}\rVert_4^4`, V = Var s. Terms of heavy tails count with :math:`\lVert d_{k+}\rVert_4` instead
(Minkowski). And :math:`\mathbb E|\delta|^3=\sum_k\mathbb EY_k^3+2\mathbb E\delta_-^3`. Given a random history V is of
order two, and ``with_mean`` adds what E[s | Y] varies. As :math:`s\ge0`, of the lower side of every part only
:math:`\min(S,\cdot)` counts: for :math:`\mathbb E[s\mid Y]`, also if that is of the squares alone, its norm in L4 is at
most the root of S times the standard deviation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial

import torch
from torch import Tensor

from bnndp.engine.general.independent import norm_of_moments, norms_of_moments
from bnndp.engine.general.intervals import BLUR, minus, plus, square, times
from bnndp.engine.general.signal import GAUSSIAN, POWERS, Expansion, Pieces, Series, Signal, SquareNoise
from bnndp.geometry.bounds import Interval
from bnndp.maths.hinge import root_of
from bnndp.maths.replacement import blocks_of
from bnndp.maths.rounding import SMALL, UP, power_of

__all__ = ["History", "Products", "Sums", "expansion_of", "norms_of_sum", "sums_of"]

_GAUSS_5 = 6.3831  # E |xi|^5 = 8 sqrt(2 / pi), rounded up
_HEAVY = (torch.inf, 20.0, 2.0)  # a term is heavy if its variance is above this times the square of its mean

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


def expansion_of(
    z: Signal,
    sums: Sums,
    signed: Sums,
    history: History | None = None,
    mean: Interval | None = None,
    products: Products | None = None,
) -> Expansion:
    r"""Of sums of values z_k times Gaussian weights, independent given ``history`` (None: independent at all).

    ``signed`` keeps the sign of the means of the weights. With weights that are correlated within a row, ``mean`` are
    the :math:`\bar h_k` for which s has the slope :math:`2\Sigma_{kk}\bar h_k` in z_k at E z, and ``products`` is what
    the products of two terms add.
    """
    terms = _terms(z, mean)
    terms = terms if z.squares is None or mean is not None else _with_squares(terms, z.squares)
    spread = sums(terms.squares_size, 0, 2)  # Var s given Y
    found = _independent_spread(terms, spread, sums)
    spread8 = _eighth_norm(terms, sums) if history is None else torch.full_like(spread, torch.inf)
    independent = found.variance
    if history is not None:
        found = found.with_mean(history, spread).plus(history.extra_norm4, history.extra_norm4)
        independent = found.variance
    if products is not None:
        found = replace(found.plus(products.norm4, products.norm4), variance=found.variance + products.variance)
        spread8 = spread8 + products.norm8
    return Expansion(
        cache(lambda: _series(terms, sums, signed, history, products, spread, independent)),
        cache(partial(_pieces, terms, sums, signed)) if history is None else None,
        found.variance * UP,
        found.third * UP,
        found.fourth * UP,
        spread8 * UP,
        found.low * UP,
        norms_of_sum(z, sums),
    )


def _series(  # noqa: PLR0913 (the parts of one sum)
    terms: _Terms,
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
        own = _steps_of(terms, sums, signed, torch.ones_like(terms.second))
        fourths = fourths + own.excess
        remainders[5] = remainders[5] + own.fifth
        remainders[6] = remainders[6] + third_sum.square() / 72 + own.sixth
        remainders[7] = remainders[7] + quartic_sum * third_sum / 144
    kappa3 = _signed(((terms.third, 3, 0, 1.0), (terms.cross, 1, 1, 3.0)), sums, signed)
    linear4 = _signed(((terms.excess, 4, 0, 1.0), (terms.both, 2, 1, 6.0)), sums, signed)
    kappa4 = plus(linear4, _signed(((terms.squares, 0, 2, 3.0),), sums, signed))
    quadratic = dict.fromkeys(range(4, 9), zero)  # of the square of s - S
    quadratic[5] = sums(terms.pair / 8, 1, 2)
    quadratic[6] = c_abs.square() / 8 + sums(terms.second * terms.squares_size / 16, 2, 2)
    for parts, size in ((remainders, fourths), (quadratic, spread / 8)):
        parts[7], parts[8] = parts[7] + third_sum * size / 6, parts[8] + quartic_sum * size / 24
    if history is not None:
        change = sums(terms.third_change, 3, 0) + 3 * sums(terms.cross_change, 1, 1)
        _with_history(remainders, history, change, kappa3.magnitude, (third_sum, quartic_sum, fourths))
        _with_history_of_squares(quadratic, history, c_abs, spread)
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


@dataclass(frozen=True, slots=True)
class _Steps:
    """What the steps of Lindeberg cost, of some of the terms: (batch, n_out) each."""

    noise: Tensor  # their variance, at least
    own: Tensor  # sum of |E A^3|
    third: Tensor  # A_3
    quartic: Tensor  # A_4
    excess: Tensor  # sum of |E A^4 - 3 v^2| / 24
    fifth: Tensor
    sixth: Tensor


def _steps_of(
    terms: _Terms, sums: Sums, signed: Sums, chosen: Tensor
) -> _Steps:  # (batch, n_in), or with an axis of outputs
    def total(values: Tensor, power: int) -> Tensor:
        return sums(values * chosen, power, 0)

    return _Steps(
        signed(terms.least * chosen, 2, 0) / UP,  # those of sizes are larger
        total(terms.third_size, 3),
        total(terms.step3, 3),
        total(terms.step4, 4),
        total(terms.excess_size, 4) / 24,
        total(terms.step5 / 120 + terms.third_size * terms.second / 12, 5),
        total(terms.excess_size * terms.second / 48, 6),
    )


def _pieces(terms: _Terms, sums: Sums, signed: Sums) -> Pieces:
    """The terms in blocks, the most nearly Gaussian ones first: once they are Gaussian they smooth for the others."""
    key = (terms.step5 / terms.gauss5).log().mul(1e6).round()  # so that rounding changes no order
    masks = blocks_of(key.squeeze(-2) if key.ndim == 3 else key)  # (batch, blocks, n_in)
    shape = key.shape
    steps = [_steps_of(terms, sums, signed, mask.to(key.dtype).reshape(shape)) for mask in masks.unbind(1)]
    stacked = {
        name: torch.stack([getattr(s, name) for s in steps], -1) for name in ("noise", "own", "third", "quartic")
    }
    before = torch.cumsum(stacked["noise"], -1) - stacked["noise"]
    # Terms that follow one of a block: those of later blocks, and on average over an order of the block and its
    # reverse half of the block itself. One of the two orders is at least as good as the average.
    later = {name: stacked[name].flip(-1).cumsum(-1).flip(-1) - 0.5 * stacked[name] for name in ("third", "quartic")}
    excess, fifth, sixth = (torch.stack([getattr(s, name) for s in steps], -1) for name in ("excess", "fifth", "sixth"))
    remainders = {
        5: fifth,
        6: stacked["own"] * later["third"] / 36 + sixth,
        7: excess * later["third"] / 6 + stacked["own"] * later["quartic"] / 144,
        8: excess * later["quartic"] / 24,
    }
    return Pieces(
        (before / UP).clamp_min(0),
        stacked["third"] * UP,
        stacked["quartic"] * UP,
        {order: part * UP for order, part in remainders.items()},
    )


@dataclass(frozen=True, slots=True)
class _Spread:
    """Moments of s - S: (batch, n_out) each."""

    variance: Tensor
    third: Tensor  # absolute
    fourth: Tensor
    low: Tensor  # E (S - s)_+^4

    def with_mean(self, y: History, size: Tensor) -> _Spread:
        r"""From those given Y, with E[s | Y] - S; ``size`` is that of Var s given Y, in L2 over Y.

        With a what varies given Y and b the rest, a centred given Y: :math:`\mathbb E(a+b)^4=\mathbb Ea^4+4\mathbb
        Eba^3+6\mathbb Eb^2a^2+\mathbb Eb^4`, from above also for the positive parts (as of a sum of two terms), and
        :math:`\mathbb E|a+b|^3\le\mathbb E|a|^3+3\mathbb E|b|a^2+3\mathbb E|a|b^2+\mathbb E|b|^3`; Hoelder.
        """
        square, low = y.spread_norm4.square(), y.spread_low4.square()
        third = self.third + 3 * (size * y.spread + size.sqrt() * square) + y.spread * square
        fourth = self.fourth + 4 * self.fourth**0.75 * y.spread_norm4 + 6 * size * square + square.square()
        lower = self.low + 4 * self.low**0.75 * y.spread_low4 + 6 * size * low + low.square()
        return _Spread(self.variance + y.spread.square(), third, fourth, lower)

    def plus(self, norm4: Tensor, below: Tensor) -> _Spread:
        """With one more part, of this norm in L4, and that of its lower side."""
        fourth, low = (self.fourth**0.25 + norm4) ** 4, (self.low**0.25 + below) ** 4
        return _Spread((self.variance.sqrt() + norm4).square(), (self.third ** (1 / 3) + norm4) ** 3, fourth, low)


def _independent_spread(terms: _Terms, spread: Tensor, sums: Sums) -> _Spread:
    spread4 = sums(terms.wide.square().square(), 0, 4) + 3 * spread.square()
    low = torch.minimum(_below(terms, sums), spread4.sqrt().sqrt())
    low4 = low.square().square()
    cubes = sums(terms.squares_size.sqrt() * terms.wide.square(), 0, 3)
    spread3 = torch.minimum((spread * spread4).sqrt(), cubes + 2 * low**3)
    return _Spread(spread, spread3, spread4, low4)


def _below(terms: _Terms, sums: Sums) -> Tensor:
    """The norm in L4 of the lower side of the sum of the terms of s, at most."""
    low = torch.minimum(terms.wide, terms.second_raw)  # ||(E z^2 - z^2)_+||_4
    found = []
    for ratio in _HEAVY:
        heavy = terms.squares_size > ratio * terms.second_raw.square()
        variance = sums(torch.where(heavy, SMALL**4, terms.squares_size), 0, 2)
        light = torch.where(heavy, SMALL**2, low)
        fourth = 3 * variance.square() + 2 * variance.sqrt() * sums(light**3, 0, 3) + sums(power_of(light, 4), 0, 4)
        found.append(sums(torch.where(heavy, low, SMALL**2), 0, 1) + fourth.sqrt().sqrt())
    return torch.stack(found).amin(0)


def _with_history(
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


def _with_history_of_squares(quadratic: dict[int, Tensor], y: History, c_abs: Tensor, spread: Tensor) -> None:
    """Add what it costs in the square of s - S; ``spread`` is the size of Var s given Y."""
    quadratic[4] = quadratic[4] + 0.25 * y.extra * y.deviation + (y.extra.square() + y.spread.square()) / 8
    quadratic[5] = quadratic[5] + 0.25 * y.spread * c_abs + spread * y.mean / 8
    quadratic[6] = quadratic[6] + spread * y.noise / 16


@dataclass(frozen=True, slots=True)
class _Terms:
    """Moments of A = z - E[z | Y] and B = z^2 - E[z^2 | Y] given Y: (batch, n_in), or with an axis of outputs before.

    Means over Y with their signs, and norms of order two over Y of their sizes.
    """

    third: Interval  # E A^3
    cross: Interval  # E A B
    both: Interval  # E A^2 B
    squares: Interval  # E B^2
    excess: Interval  # E A^4 - 3 v^2
    least: Tensor  # v, at least
    second: Tensor  # v
    third_size: Tensor
    cross_size: Tensor
    both_size: Tensor
    squares_size: Tensor
    fourth: Tensor  # E A^4
    excess_size: Tensor
    fifth: Tensor  # E |A|^5
    gauss5: Tensor  # v^(5/2)
    steps: Callable[[], tuple[Tensor, Tensor, Tensor]]  # found where asked for
    triple: Tensor  # E |A^3 B|
    pair: Tensor  # E |A| B^2
    wide: Tensor  # ||B||_4
    wide8: Tensor  # without a history
    second_raw: Tensor  # E z^2, of order four over Y
    third_change: Tensor  # standard deviations over Y of E A^3 and of E A B
    cross_change: Tensor

    @property
    def step3(self) -> Tensor:
        """Of a step to a Gaussian, times six: what is left before the third derivative."""
        return self.steps()[0]

    @property
    def step4(self) -> Tensor:
        """And times 24 before the fourth."""
        return self.steps()[1]

    @property
    def step5(self) -> Tensor:
        """Times 120, after the fourth."""
        return self.steps()[2]


def _terms(z: Signal, mean: Interval | None) -> _Terms:
    h = z.mean if mean is None else mean  # (batch, n_in), or (batch, n_out, n_in)
    parts = (z.noise, z.third, z.noise_fourth)
    numbers = (z.noise_deviation, z.third_deviation, *z.given.unbind(-1), *z.inner[..., :2].unbind(-1))
    numbers = (*numbers, *z.deviations[..., :2].unbind(-1), z.excess_size)
    if mean is not None:  # (batch, 1, n_in)
        parts = tuple(Interval(part.lower[:, None], part.upper[:, None]) for part in parts)  # type: ignore[assignment]
        numbers = tuple(part[:, None] for part in numbers)
    (v, k3, c), (dv, dk, fourth4, eighth, sixteenth, moved, moved8, deviation4, deviation8, most) = parts, numbers
    eighth, sixteenth = eighth.clamp_min(SMALL), sixteenth.clamp_min(SMALL)
    random = 0.0 if z.source else 1.0  # whether Y is
    v2 = Interval(v.lower.square() / UP, (v.upper.square() + dv.square()) * UP)
    size, hv = h.magnitude, random * moved * dv  # |E h v - E h E v|
    cross = _wider(plus(times(h, v, 2.0), k3), 2 * hv)  # 2 h v + E A^3
    both = _wider(plus(times(h, k3, 2.0), minus(c, v2)), 2 * random * moved * dk)
    squares = plus(times(square(h), v, 4.0), times(h, k3, 4.0), minus(c, v2))
    second = v2.upper.sqrt().clamp_min(SMALL**2)
    squares = _wider(squares, random * (8 * size * hv + 4 * moved.square() * second + 4 * moved * dk))
    excess = minus(c, Interval(3 * v2.lower, 3 * v2.upper))
    fourth1 = c.upper.clamp_min(SMALL**4)
    fifth = fourth1**0.75 * eighth.square() * UP  # between the fourth and the eighth moment
    root4, cube = fourth1.sqrt().sqrt(), (second * fourth1).sqrt()  # of E |A|^3
    wide = (2 * size * root4 + eighth.square() + second) * UP
    gauss5 = second.square() * second.sqrt()
    triple = 2 * size * fourth1 + fifth + second * cube
    pair = (2 * size * cube.sqrt() + fifth.sqrt() + second * second.sqrt().sqrt()).square()
    k3_size = k3.magnitude.clamp_min(SMALL**3)
    if z.source:
        sizes = (*(part.magnitude for part in (cross, both)), squares.upper, fourth1, excess.magnitude)
        k3_change = c_change = torch.zeros_like(fourth1)
        second_square = v2.upper  # E v^2
    else:
        four4 = deviation8.square()  # ||v||_4
        second_square = torch.minimum(four4.square(), fourth1)  # ||v^2||_2: v^2 is at most E A^4
        wide = (2 * (size * root4 + moved8 * eighth) + 2 * eighth.square()) * UP
        k3_size = k3_size + dk
        cross_size = 2 * (size * second + moved * four4) + k3_size
        both_size = 2 * (size * k3_size + moved * sixteenth**3) + fourth1
        squares_size = (2 * size * second.sqrt() + 2 * moved8 * deviation8 + fourth1.sqrt()).square()
        sizes = (
            cross_size,
            both_size,
            squares_size,
            fourth1,
            torch.fmin(fourth1 + second_square, most),
        )  # v^2 <= E A^4
        gauss5 = torch.minimum(fifth, deviation4.clamp_min(SMALL) ** 3 * deviation8.clamp_min(SMALL).square())
        triple = 2 * (size * fourth1 + fifth + moved * eighth**4)
        pair = 4 * (size * cube.sqrt() + fifth.sqrt() + moved * eighth**1.5).square()
        k3_change, c_change = dk, 2 * (size * dv + moved * four4) + dk
    cross_size, both_size, squares_size, fourth, excess_size = sizes

    plain = (k3_size, fourth + 3 * second_square, fifth if z.convex else fifth + _GAUSS_5 * gauss5)
    norms = fourth4, eighth, deviation4, deviation8
    steps = cache(partial(_steps_left, z, z.roughness if mean is None else z.roughness[:, None], plain, norms, second))
    return _Terms(
        k3,
        cross,
        both,
        squares,
        excess,
        v.lower.clamp_min(0),
        second,
        k3_size,
        cross_size.clamp_min(SMALL**3),
        both_size.clamp_min(SMALL**4),
        squares_size.clamp_min(SMALL**4),
        fourth.clamp_min(SMALL**4),
        excess_size.clamp_min(SMALL**4),
        fifth,
        gauss5,
        steps,
        triple,
        pair,
        wide,
        (2 * size * eighth + sixteenth.square() + second) * UP,
        size.square() + second if z.source else (size + moved8 + deviation8).square(),
        k3_change,
        c_change,
    )


def _with_squares(terms: _Terms, known: SquareNoise) -> _Terms:
    """With what is known of the squares of z given Y."""
    highest = torch.fmin(terms.squares.upper, known.variance.clamp_min(SMALL**4))
    return replace(
        terms,
        squares=Interval(terms.squares.lower, highest),
        squares_size=torch.fmin(terms.squares_size, known.size.clamp_min(SMALL**4)),
        wide=torch.fmin(terms.wide, known.norm4.clamp_min(SMALL**2)),
    )


def _steps_left(
    z: Signal,
    rough: Tensor,
    plain: tuple[Tensor, Tensor, Tensor],
    norms: tuple[Tensor, Tensor, Tensor, Tensor],
    second: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """What steps to Gaussians leave, of the third, fourth and fifth order."""
    fourth4, eighth, deviation4, deviation8 = norms
    close3 = 1.5 * rough * (fourth4.square() + (GAUSSIAN[0] * deviation4).square())
    close5 = 2.5 * rough * (power_of(eighth, 4) + power_of(GAUSSIAN[1] * deviation8, 4))
    if not z.source:
        close3 = torch.full_like(close3, torch.inf)  # a mean over Y, not of order two
    step3, step4, step5 = _step_sizes(z.convex, plain, close3, close5, second.sqrt())
    return step3.clamp_min(SMALL**3), step4.clamp_min(SMALL**4), step5


def _step_sizes(
    convex: bool, plain: tuple[Tensor, Tensor, Tensor], close3: Tensor, close5: Tensor, unit: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    r"""What a step from A to a Gaussian g of the same variance leaves: 6, 24 and 120 times the factors of derivatives.

    By moments, ``plain``; or by the distance of A from g: what the Taylor polynomial of F of order p leaves at A and
    at g differs by at most :math:`|A-g|(|A|^p+|g|^p)\sup|F^{(p+1)}|/(2p!)`. For a convex function of a Gaussian
    variable the kernel of the step has one sign: the third and the fifth moment are enough (``maths/replacement.py``).
    """
    third, fourth, fifth = plain
    if convex:
        return third, torch.zeros_like(fourth), torch.minimum(fifth, close5)
    near = close3 * unit < third * unit + 0.25 * fourth
    return torch.where(near, close3, third), torch.where(near, 0.0, fourth), torch.minimum(fifth, close5)


def _wider(a: Interval, by: Tensor) -> Interval:
    return Interval(a.lower - by * UP, a.upper + by * UP)


def norms_of_sum(z: Signal, sums: Sums) -> Tensor:
    """Norms of the sum of the independent centred terms of m, infinite given a history: (batch, n_out, q)."""
    v, c = z.noise.upper.clamp_min(SMALL**2), z.noise_fourth.upper.clamp_min(SMALL**4)
    eighth, sixteenth = (z.norms[..., k].clamp_min(SMALL) for k in (1, 2))
    found = _norms(v, c, eighth, sixteenth, lambda values, p: sums(values, p, 0))
    return found if z.source else torch.full_like(found, torch.inf)


def _norms(v: Tensor, c: Tensor, eighth: Tensor, last: Tensor, sums: Callable[[Tensor, int], Tensor]) -> Tensor:
    r"""Of sums of independent centred terms, times weights: (batch, n_in) each -> (batch, n_out, q).

    From variances, fourth moments and norms in L8 and L16 (``independent.py``); beyond the eighth,
    :math:`M_p\le(\sum_k\lVert X_k\rVert_{16}^8)^{p/8}`.
    """
    root = sums(v, 2).sqrt()
    scaled = {2: torch.ones_like(root), 3: sums((v * c).sqrt(), 3) / root**3}  # M_p / M_2^(p / 2)
    quarter, square = c.sqrt().sqrt(), eighth.square()  # c^(2 - p / 4) times the eighth norm to the power 2p - 8
    moments = {p: power_of(square, p - 4) if p > 4 else torch.ones_like(c) for p in range(4, 9)}
    scaled |= {
        p: sums(moments[p] * power_of(quarter, 8 - p) if p < 8 else moments[p], p) / power_of(root, p)
        for p in range(4, 9)
    }
    largest = root_of(sums(power_of(last, 8), 8), 8) / root
    scaled |= {p: power_of(largest, p) for p in range(9, 17)}
    return torch.stack([root * norm for norm in norms_of_moments(scaled, POWERS)], -1) * UP


def _eighth_norm(terms: _Terms, sums: Sums) -> Tensor:
    r"""The norm in L8 of the sum of the terms of s.

    Beyond the fourth, :math:`M_p\le(\sum_k\lVert X_k\rVert_8^4)^{p/4}`.
    """
    root = sums(terms.squares_size, 0, 2).sqrt()
    fourth = sums(power_of(terms.wide, 4), 0, 4) / power_of(root, 4)
    scaled = {2: torch.ones_like(root), 3: fourth.sqrt(), 4: fourth}
    largest = sums(power_of(terms.wide8, 4), 0, 4).sqrt().sqrt() / root
    scaled |= {p: power_of(largest, p) for p in range(5, 9)}
    return root * norm_of_moments(scaled, 8) * UP


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
