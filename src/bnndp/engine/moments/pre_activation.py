"""What the pass knows of the values X that go into an activation, over a whole box."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bnndp.engine.moments.signal import with_gaussian
from bnndp.geometry.bounds import Interval
from bnndp.maths.rounding import UP

__all__ = [
    "Expansion",
    "Factors",
    "JointRowMoments",
    "Local",
    "Pieces",
    "PreActivation",
    "RowMoments",
    "Series",
    "Squares",
]

_FEW = 4.0  # standard deviations
_SHARE = 0.1  # of the neurons


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
    """Cumulants of X for every x of the box, and the factors of remainders (``series.py``): (batch, n) each."""

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
class PreActivation:
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


@dataclass(frozen=True, slots=True)
class Squares:
    """How a sum of squares varies: (batch, rows), (batch, rows, 2)."""

    std: Tensor
    central: Tensor  # of the mean given the history
    central_norm4: Tensor  # its norm in L4
    norms: Tensor  # in L4 and L8
    extra: Tensor  # standard deviation of what is no square
    extra_norm4: Tensor  # its norm in L4
    low4: Tensor | None = None  # the norm in L4 of what it falls below its mean by, where it is known apart


@dataclass(frozen=True, slots=True)
class RowMoments:
    """What the nodes below say of the rows of a layer: (batch, n_out) each."""

    central: Tensor  # Var E[m | Y]
    norms: Tensor  # (batch, n_out, q): of m - E m
    spread: Squares | None  # of s, where it is a sum of squares
    central_norm4: Tensor | None = None  # ||E[m | Y] - E m||_4, where it is known apart
    central_least: Tensor | None = None  # Var E[m | Y], at least
    jointly: JointRowMoments | None = None  # where the values below are made of jointly Gaussian ones


@dataclass(frozen=True, slots=True)
class JointRowMoments:
    """Of rows of values that are made of jointly Gaussian ones: (batch, n_out)."""

    noise: Interval  # Var m
    expansion: Expansion
