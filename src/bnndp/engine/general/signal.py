r"""What the general pass knows of the values z that flow through a network, over a whole box.

Every signal has a history Y, the randomness up to some layer below, given which its coordinates are independent. It is
``fixed`` if z is a function of x alone; ``source`` if Y is not random, so that the coordinates themselves are
independent. Where given nothing less than z the coordinates are independent, Y is z and the noise zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from bnndp.engine.general.joint_gaussian import Joint
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box
from bnndp.maths.hinge import root_of
from bnndp.maths.rounding import TINY, UP

__all__ = [
    "CENTRED",
    "GAUSSIAN",
    "POWERS",
    "RIO",
    "Expansion",
    "Factors",
    "Kernel",
    "Local",
    "Pieces",
    "Pre",
    "SecondMoments",
    "Series",
    "Signal",
    "SquareNoise",
    "fixed",
    "of_box",
]

_FEW = 4.0  # standard deviations
_SHARE = 0.1  # of the neurons

POWERS = (4, 8, 16)
"""The q of the norms ||.||_q that are carried along; the last axis of every ``norms``."""

GAUSSIAN = (3**0.25 * UP, 105**0.125 * UP, 2027025**0.0625 * UP)
"""||xi||_q of a standard Gaussian."""

CENTRED = (1.2116, 1.4776, 1.6772)
"""||X - E X||_q is at most this times ||X||_q: attained by laws on two points (Mori 2009)."""

RIO = (3**0.5 * UP, 7**0.5 * UP, 15**0.5 * UP)
"""sqrt(q - 1): ||sum of X_k||_q^2 <= (q - 1) sum of ||X_k||_q^2 for martingale differences X_k (Rio 2009)."""


def with_gaussian(norms: Tensor, deviations: Tensor) -> Tensor:  # (..., q) each
    r"""Norms of :math:`a+b\xi` in Lq, at most, from those of a and b; :math:`\xi` a Gaussian independent of both.

    For even q the odd moments of :math:`\xi` vanish, and :math:`\mathbb Ea^jb^{q-j}\le\lVert a\rVert_q^j\lVert
    b\rVert_q^{q-j}` (Hoelder): :math:`\mathbb E(a+b\xi)^q\le\sum_{j\text{ even}}\binom qj\lVert a\rVert_q^j\lVert
    b\rVert_q^{q-j}\mathbb E\xi^{q-j}`.
    """
    scale = torch.maximum(norms, deviations).clamp_min(TINY)
    found = []
    for q, a, b in zip(
        POWERS, (norms / scale).square().unbind(-1), (deviations / scale).square().unbind(-1), strict=False
    ):
        total, moment, power = torch.ones_like(a), 1.0, b  # by Horner's rule in a, with powers of b
        for j in range(q - 2, -1, -2):
            moment *= q - j - 1  # E xi^(q - j)
            total = torch.addcmul(math.comb(q, j) * moment * power, total, a)
            power = power * b
        found.append(root_of(total, q))
    return torch.where(scale.isinf(), torch.inf, scale * torch.stack(found, -1) * UP)


class SecondMoments(Protocol):
    """Mean and variance of a signal."""

    @property
    def mean(self) -> Interval:
        """E z_j: (batch, n)."""
        ...

    @property
    def variance(self) -> Tensor:
        """Var z_j, at most: (batch, n)."""
        ...

    @property
    def fixed(self) -> bool:
        """Whether z is a function of x alone."""
        ...


@dataclass(frozen=True, slots=True)
class SquareNoise:
    """How the squares z_j^2 vary given Y, with Q = E[z_j^2 | Y]: (batch, n) each, upper bounds."""

    variance: Tensor  # E Var(z_j^2 | Y)
    size: Tensor  # the norm in L2 of Var(z_j^2 | Y)
    norm4: Tensor  # ||z_j^2 - Q||_4


@dataclass(frozen=True, slots=True)
class Kernel:
    r"""For independent z_j: :math:`\operatorname{Var}f(z_j)\le\mathbb E\tau_jf'(z_j)^2` for every Lipschitz f.

    :math:`\tau_j\ge0` is a function of the randomness of z_j alone. (batch, n) each, upper bounds.
    """

    mean: Tensor  # E tau_j
    deviation: Tensor  # standard deviation of tau_j


@dataclass(frozen=True, slots=True)
class Signal:
    """Moments of z for every x of the box: (batch, n) each, upper bounds but for the intervals."""

    mean: Interval  # E z_j
    variance: Tensor  # Var z_j
    variance_low: Tensor  # Var z_j, at least
    norms: Tensor  # (batch, n, q): ||z_j - E z_j||_q
    inner: Tensor  # (batch, n, q): ||E[z_j | Y] - E z_j||_q
    given: Tensor  # (batch, n, q): ||z_j - E[z_j | Y]||_q
    deviations: Tensor  # (batch, n, q): the norm in Lq of the standard deviation of z_j given Y
    roughness: Tensor  # ||z_j - E[z_j | Y] - g||_2, g some Gaussian of the same variance given Y
    noise: Interval  # E Var(z_j | Y)
    noise_deviation: Tensor  # standard deviation of Var(z_j | Y)
    third: Interval  # E (z_j - E[z_j | Y])^3
    third_deviation: Tensor  # of the third central moment of z_j given Y; with a random Y after weights only
    noise_fourth: Interval  # E (z_j - E[z_j | Y])^4; from above of order two over Y, under the same condition
    fixed: bool
    source: bool
    squares: SquareNoise | None = None  # if more is known than follows from the other moments
    kernel: Kernel | None = None  # of a source, if it is known
    excess: Tensor | None = None  # norm in L2 over Y of E (z_j - E[z_j | Y])^4 - 3 Var(z_j | Y)^2 given Y, if known
    joint: Joint | None = None  # if z is made of jointly Gaussian values
    convex: bool = False  # given Y, each z_j is a convex and increasing function of a Gaussian variable

    @property
    def third_size(self) -> Tensor:
        """Root of the mean square of the third central moment of z_j given Y."""
        return (self.third.magnitude + self.third_deviation) * UP

    @property
    def excess_size(self) -> Tensor:
        """The excess, infinite where it is not known."""
        return torch.full_like(self.variance, torch.inf) if self.excess is None else self.excess

    @property
    def fourth(self) -> Tensor:
        """E (z_j - E z_j)^4."""
        return self.norms[..., 0] ** 4 * UP

    @property
    def second(self) -> Interval:
        """E z_j^2."""
        low, high = self.mean.lower, self.mean.upper
        least = torch.maximum(low, -high).clamp_min(0)
        return Interval((least.square() + self.variance_low) / UP, (self.mean.magnitude.square() + self.variance) * UP)

    @property
    def square_deviation(self) -> Tensor:
        """Standard deviation of z_j^2: z^2 = (E z)^2 + 2 E z d + d^2 with d = z - E z."""
        return (2 * self.mean.magnitude * self.variance.sqrt() + self.fourth.sqrt()) * UP

    @property
    def absolute_third(self) -> Tensor:
        """E |z_j - E[z_j | Y]|^3, by Cauchy and Schwarz."""
        return (
            self.noise.upper.sqrt() * self.noise_fourth.upper.sqrt() * UP
        )  # of sixth degree: the product may underflow

    def without_history(self) -> Signal:
        """The same with Y = z: nothing is said to be independent."""
        if self.fixed:
            return self
        zero = torch.zeros_like(self.variance)
        none = Interval(zero, zero)
        moments = (
            self.mean,
            self.variance,
            self.variance_low,
            self.norms,
            self.norms,
            *(torch.zeros_like(self.norms),) * 2,
        )
        return Signal(*moments, zero, none, zero, none, zero, none, fixed=False, source=False)


def of_box(box: Box) -> Signal:
    """The input itself."""
    return fixed(Interval(box.lower, box.upper))


def fixed(mean: Interval) -> Signal:
    """A signal without randomness."""
    zero = torch.zeros_like(mean.lower)
    norms, none = zero[..., None].expand(*zero.shape, len(POWERS)), Interval(zero, zero)
    moments = mean, zero, zero, norms, norms, norms, norms
    return Signal(*moments, zero, none, zero, none, zero, none, fixed=True, source=True)


@dataclass(frozen=True, slots=True)
class Pieces:
    """Blocks of independent terms that become Gaussian one after the other: (batch, n, blocks) each."""

    before: Tensor  # variance of the terms of the blocks before, at least
    third: Tensor  # sum of the sizes of the third moments of the terms
    quartic: Tensor  # sum of their fourth moments and three squared variances
    remainders: dict[int, Tensor]  # R_p at the smoothing S + before


Factors = dict[tuple[int, int], Tensor]
"""By the order of a derivative and the norm that is taken of it, 0 for its supremum: what it is multiplied with."""


@dataclass(frozen=True, slots=True)
class Local:
    """Parts of a remainder (``local_derivatives.py``), each of them in one or more ways of which the least counts."""

    variance: Tensor  # of the Gaussian part of m, at most: (batch, n)
    parts: tuple[tuple[Factors, ...], ...]


@dataclass(frozen=True, slots=True)
class Series:
    """Cumulants of X for every x of the box, and the factors of remainders (``expansion.py``): (batch, n) each."""

    third: Interval  # kappa_3
    fourth: Interval  # kappa_4, up to 24 R_4
    linear_fourth: Interval  # the same without Var s
    remainders: dict[int, Tensor]  # R_p, by p
    quadratic: dict[int, Tensor]  # more of them, if s is expanded to second order
    local: Local | None = None  # more of them, with derivatives near M


@dataclass(frozen=True, slots=True)
class Expansion:
    """Moments of m and s for independent coordinates below, and the expansion of X where it is asked for."""

    in_full: Callable[[], Series]
    in_pieces: Callable[[], Pieces] | None  # more factors, with more smoothing
    spread_variance: Tensor  # Var s: (batch, n), and so below
    spread_third: Tensor  # E |s - S|^3
    spread_fourth: Tensor  # E (s - S)^4
    spread_norm8: Tensor  # ||s - S||_8, infinite given a history
    spread_low: Tensor  # E (S - s)_+^4
    norms: Tensor  # (batch, n, q): ||m - E m||_q

    @property
    def series(self) -> Series:
        """Cumulants and the factors of remainders."""
        return self.in_full()

    @property
    def pieces(self) -> Pieces | None:
        """More of the factors of remainders."""
        return None if self.in_pieces is None else self.in_pieces()


@dataclass(frozen=True)
class Pre:
    """Moments of the values X that go into an activation: Gaussian given the signal z below, N(m(z), s(z)).

    Given the history Y of z, m is E[m | Y] plus a sum of independent terms. All (batch, n).
    """

    mean: Interval  # M = E X
    spread: Interval  # S = E s
    spread_deviation: Tensor  # standard deviation of s
    noise: Interval  # N = E Var(m | Y)
    noise_deviation: Tensor  # standard deviation of Var(m | Y)
    central: Tensor  # Var E[m | Y]
    third: Tensor  # sum of E |third central moment| of the terms of m
    absolute_third: Tensor  # sum of the third absolute central moments of the terms
    convex: bool  # whether the terms are convex and increasing functions of Gaussian variables
    quartic: Tensor  # sum of E (fourth central moment + 3 variance^2) of the terms
    norms: Tensor  # (batch, n, q): ||m - E m||_q
    spread_norms: Tensor  # (batch, n, q): ||sqrt(s)||_q
    spread_away: Tensor  # (batch, n, q): ||sqrt(s) - sqrt(S)||_q for any S of its range
    spread_deltas: Tensor  # (batch, n, 2): ||s - S||_q for q = 4, 8
    expansion: Expansion | None  # where the coordinates below are independent
    fixed: bool  # m and s are functions of x
    source: bool  # Y is not random
    central_norm4: Tensor | None = None  # ||E[m | Y] - E m||_4, where it is known apart
    central_least: Tensor | None = None  # Var E[m | Y], at least, where it is known
    spread_centre: Tensor | None = None  # s at the middle of the means of an input that is a function of x

    @property
    def mean_variance(self) -> Tensor:
        """Var m = N + Var E[m | Y], at most."""
        return self.noise.upper + self.central

    @property
    def variance(self) -> Tensor:
        """Var X, at most."""
        return self.mean_variance + self.spread.upper

    @cached_property
    def narrow(self) -> Tensor:
        """The boxes (batch,) on which some neurons move by less than a few standard deviations of X.

        On all others the ranges of the means decide, and errors of E phi(X) of higher order make no difference.
        """
        moved = self.mean.upper - self.mean.lower < _FEW * self.variance.sqrt()
        return (moved.sum(-1) > _SHARE * moved.shape[-1]) | (self.variance == 0).all(-1)

    @property
    def smoothing(self) -> Interval:
        """T = S + N."""
        return Interval(self.spread.lower + self.noise.lower, self.spread.upper + self.noise.upper)

    @property
    def spread_square(self) -> Tensor:
        """E s^2, at most."""
        return (self.spread.upper.square() + self.spread_deviation.square()) * UP

    @cached_property
    def total_norms(self) -> Tensor:
        r"""||X - E X||_q, at most: (batch, n, q); X - m is Gaussian given z.

        With T = m - M, :math:`\mathbb E(X-M)^4=\mathbb ET^4+6\mathbb ET^2s+3\mathbb Es^2`, and :math:`\mathbb ET^2s\le
        \operatorname{Var}m\,S+\lVert T\rVert_4^2\operatorname{sd}s`.
        """
        found, square = with_gaussian(self.norms, self.spread_norms), self.norms[..., 0].square()
        mixed = self.mean_variance * self.spread.upper + square * self.spread_deviation
        fourth = (square.square() + 6 * mixed + 3 * self.spread_square).sqrt().sqrt() * UP
        return torch.cat([torch.fmin(found[..., :1], fourth[..., None]), found[..., 1:]], -1)
