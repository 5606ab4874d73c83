r"""The moments of s and m that an expansion needs, and the expansion itself where it is asked for (``series.py``).

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

from bnndp.engine.moments.pre_activation import Expansion
from bnndp.engine.moments.signal import POWERS, Signal
from bnndp.engine.sums.lindeberg import pieces_of
from bnndp.engine.sums.norms import norm_of_moments, norms_of_moments
from bnndp.engine.sums.series import History, Products, series_of
from bnndp.engine.sums.terms import Sums, Terms, terms_of, with_squares
from bnndp.geometry.bounds import Interval
from bnndp.maths.hinge import root_of
from bnndp.maths.rounding import SMALL, UP, power_of

__all__ = ["expansion_of", "norms_of_sum"]

_HEAVY = (torch.inf, 20.0, 2.0)  # a term is heavy if its variance is above this times the square of its mean


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
    terms = terms_of(z, mean)
    terms = terms if z.squares is None or mean is not None else with_squares(terms, z.squares)
    spread = sums(terms.squares_size, 0, 2)  # Var s given Y
    found = _independent_spread(terms, spread, sums)
    spread8 = _eighth_norm(terms, sums) if history is None else torch.full_like(spread, torch.inf)
    independent = found.variance
    if history is not None:
        found = found.with_mean(history, spread).plus(history.extra_norm4, history.extra_norm4)
        found = found if history.low4 is None else found.with_low(history.low4)
        independent = found.variance
    if products is not None:
        found = replace(found.plus(products.norm4, products.norm4), variance=found.variance + products.variance)
        spread8 = spread8 + products.norm8
    return Expansion(
        cache(lambda: series_of(terms, sums, signed, history, products, spread, independent)),
        cache(partial(pieces_of, terms, sums, signed)) if history is None else None,
        found.variance * UP,
        found.third * UP,
        found.fourth * UP,
        spread8 * UP,
        found.low * UP,
        norms_of_sum(z, sums),
    )


@dataclass(frozen=True, slots=True)
class _Spread:
    """Moments of s - S: (batch, n_out) each."""

    variance: Tensor
    third: Tensor  # absolute
    fourth: Tensor
    low: Tensor  # E (S - s)_+^4
    cube: Tensor  # E (s - S)^3, at most

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
        cube = self.cube + 3 * size * y.spread + y.spread * square
        return _Spread(self.variance + y.spread.square(), third, fourth, lower, cube)

    def plus(self, norm4: Tensor, below: Tensor) -> _Spread:
        """With one more part, of this norm in L4, and that of its lower side."""
        fourth, low = (self.fourth**0.25 + norm4) ** 4, (self.low**0.25 + below) ** 4
        third = (self.third ** (1 / 3) + norm4) ** 3
        cube = torch.where(norm4 == 0, self.cube, third)
        return _Spread((self.variance.sqrt() + norm4).square(), third, fourth, low, cube)

    def with_low(self, low4: Tensor) -> _Spread:
        r"""With a norm in L4 of the lower side; :math:`\mathbb E|\delta|^3=\mathbb E\delta^3+2\mathbb E\delta_-^3`."""
        low = torch.fmin(self.low, low4.square().square())
        side = torch.minimum(low**0.75, (self.variance * low).sqrt())
        return replace(self, low=low, third=torch.fmin(self.third, self.cube + 2 * side))


def _independent_spread(terms: Terms, spread: Tensor, sums: Sums) -> _Spread:
    spread4 = sums(terms.wide.square().square(), 0, 4) + 3 * spread.square()
    low = torch.minimum(_below(terms, sums), spread4.sqrt().sqrt())
    low4 = low.square().square()
    cubes = sums(terms.squares_size.sqrt() * terms.wide.square(), 0, 3)
    spread3 = torch.minimum((spread * spread4).sqrt(), cubes + 2 * low**3)
    return _Spread(spread, spread3, spread4, low4, torch.minimum(spread3, cubes))


def _below(terms: Terms, sums: Sums) -> Tensor:
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


def norms_of_sum(z: Signal, sums: Sums) -> Tensor:
    """Norms of the sum of the independent centred terms of m, infinite given a history: (batch, n_out, q)."""
    v, c = z.noise.upper.clamp_min(SMALL**2), z.noise_fourth.upper.clamp_min(SMALL**4)
    eighth, sixteenth = (z.norms[..., k].clamp_min(SMALL) for k in (1, 2))
    found = _norms(v, c, eighth, sixteenth, lambda values, p: sums(values, p, 0))
    return found if z.source else torch.full_like(found, torch.inf)


def _norms(v: Tensor, c: Tensor, eighth: Tensor, last: Tensor, sums: Callable[[Tensor, int], Tensor]) -> Tensor:
    r"""Of sums of independent centred terms, times weights: (batch, n_in) each -> (batch, n_out, q).

    From variances, fourth moments and norms in L8 and L16 (``norms.py``); beyond the eighth,
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


def _eighth_norm(terms: Terms, sums: Sums) -> Tensor:
    r"""The norm in L8 of the sum of the terms of s.

    Beyond the fourth, :math:`M_p\le(\sum_k\lVert X_k\rVert_8^4)^{p/4}`.
    """
    root = sums(terms.squares_size, 0, 2).sqrt()
    fourth = sums(power_of(terms.wide, 4), 0, 4) / power_of(root, 4)
    scaled = {2: torch.ones_like(root), 3: fourth.sqrt(), 4: fourth}
    largest = sums(power_of(terms.wide8, 4), 0, 4).sqrt().sqrt() / root
    scaled |= {p: power_of(largest, p) for p in range(5, 9)}
    return root * norm_of_moments(scaled, 8) * UP
