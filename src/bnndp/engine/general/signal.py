r"""What the general pass knows of the values z that flow through a network, over a whole box.

Every signal has a history Y, the randomness up to some layer below, given which its coordinates are independent. It is
``fixed`` if z is a function of x alone; ``source`` if Y is not random, so that the coordinates themselves are
independent. Where given nothing less than z the coordinates are independent, Y is z and the noise zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box
from bnndp.maths.rounding import UP

__all__ = [
    "GAUSSIAN", "POWERS", "SUB_GAUSSIAN", "Expansion", "Pre", "Signal", "Tails", "fixed", "no_tails", "of_box",
]  # fmt: skip

POWERS = (4, 8, 16)
"""The q of the norms ||.||_q that are carried along; the last axis of every ``norms``."""

GAUSSIAN = (3**0.25 * UP, 105**0.125 * UP, 2027025**0.0625 * UP)
"""||xi||_q of a standard Gaussian."""

SUB_GAUSSIAN = (2.0 * UP, 768**0.125 * UP, 20643840**0.0625 * UP)
"""(q 2^(q/2) Gamma(q/2))^(1/q): ||L||_q of a sub-Gaussian variable with the constant 1, at most."""


@dataclass(frozen=True, slots=True)
class Tails:
    r"""How a centred variable T concentrates: norms, and T = L + R with L sub-Gaussian and R small in norm.

    :math:`\mathbb Ee^{\lambda L}\le e^{\lambda^2\Lambda^2/2}`, so :math:`P(|L|>t)\le2e^{-t^2/2\Lambda^2}`. L is a
    Lipschitz function of the Gaussians below, or of bounded differences in the factors of dropout; with
    :math:`\Lambda=0` R is T.
    """

    norms: Tensor  # (batch, n, q): ||T||_q
    constant: Tensor  # (batch, n): Lambda
    left: Tensor  # (batch, n, q): ||R||_q

    def plus(self, other: Tails) -> Tails:
        """Of the sum of two such variables, whatever their dependence."""
        return Tails(self.norms + other.norms, self.constant + other.constant, self.left + other.left)


def no_tails(norms: Tensor) -> Tails:
    """What norms alone say: R is all of it."""
    return Tails(norms, torch.zeros_like(norms[..., 0]), norms)


@dataclass(frozen=True, slots=True)
class Signal:
    """Moments of z for every x of the box: (batch, n) each, upper bounds but for the intervals."""

    mean: Interval  # E z_j
    variance: Tensor  # Var z_j
    norms: Tensor  # (batch, n, q): ||z_j - E z_j||_q
    noise: Interval  # E Var(z_j | Y)
    noise_deviation: Tensor  # standard deviation of Var(z_j | Y)
    third: Interval  # E (z_j - E[z_j | Y])^3
    third_size: Tensor  # E |third central moment of z_j given Y|
    noise_fourth: Interval  # E (z_j - E[z_j | Y])^4
    fixed: bool
    source: bool

    @property
    def fourth(self) -> Tensor:
        """E (z_j - E z_j)^4."""
        return self.norms[..., 0] ** 4 * UP

    @property
    def second(self) -> Interval:
        """E z_j^2."""
        low, high = self.mean.lower, self.mean.upper
        least = torch.maximum(low, -high).clamp_min(0)
        return Interval((least.square() + self.noise.lower) / UP, (self.mean.magnitude.square() + self.variance) * UP)

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
        return Signal(self.mean, self.variance, self.norms, none, zero, none, zero, none, fixed=False, source=False)


def of_box(box: Box) -> Signal:
    """The input itself."""
    return fixed(Interval(box.lower, box.upper))


def fixed(mean: Interval) -> Signal:
    """A signal without randomness."""
    zero = torch.zeros_like(mean.lower)
    norms, none = zero[..., None].expand(*zero.shape, len(POWERS)), Interval(zero, zero)
    return Signal(mean, zero, norms, none, zero, none, zero, none, fixed=True, source=True)


@dataclass(frozen=True, slots=True)
class Expansion:
    """Cumulants of X for every x of the box, and the factors of remainders (``expansion.py``): (batch, n) each."""

    third: Interval  # kappa_3
    fourth: Interval  # kappa_4, up to 24 R_4
    remainders: dict[int, Tensor]  # R_p, by p
    spread_variance: Tensor  # Var s
    spread_third: Tensor  # E |s - S|^3
    spread_fourth: Tensor  # E (s - S)^4
    spread_low: Tensor  # E (S - s)_+^4
    norm4: Tensor  # of m - E m
    norm8: Tensor


@dataclass(frozen=True, slots=True)
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
    quartic: Tensor  # sum of E (fourth central moment + 3 variance^2) of the terms
    tails: Tails  # of m - E m
    spread_norms: Tensor  # (batch, n, q): ||sqrt(s)||_q
    spread_away: Tensor  # (batch, n, q): ||sqrt(s) - sqrt(S)||_q for any S of its range
    expansion: Expansion | None  # where the coordinates below are independent
    fixed: bool  # m and s are functions of x
    source: bool  # Y is not random

    @property
    def mean_variance(self) -> Tensor:
        """Var m = N + Var E[m | Y], at most."""
        return self.noise.upper + self.central

    @property
    def variance(self) -> Tensor:
        """Var X, at most."""
        return self.mean_variance + self.spread.upper

    @property
    def spread_square(self) -> Tensor:
        """E s^2, at most."""
        return (self.spread.upper.square() + self.spread_deviation.square()) * UP

    @property
    def total_norms(self) -> Tensor:
        """||X - E X||_q, at most: (batch, n, q); X - m is Gaussian given z."""
        return self.total_tails.norms

    @property
    def norms(self) -> Tensor:
        """||m - E m||_q: (batch, n, q)."""
        return self.tails.norms

    @property
    def total_tails(self) -> Tails:
        """Of X - E X: X - m is Gaussian with the deviation of s at the mean of z, and a rest."""
        gaussian = self.norms.new_tensor(GAUSSIAN)
        return Tails(
            (self.norms + self.spread_norms * gaussian) * UP,
            (self.tails.constant.square() + self.spread.upper).sqrt() * UP,
            (self.tails.left + self.spread_away * gaussian) * UP,
        )
