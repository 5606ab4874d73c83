r"""What the pass knows of the values z that flow through a network, over a whole box.

Every signal has a history Y, the randomness up to some layer below, given which its coordinates are independent. It is
``fixed`` if z is a function of x alone; ``source`` if Y is not random, so that the coordinates themselves are
independent. Where given nothing less than z the coordinates are independent, Y is z and the noise zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from bnndp.engine.moments.joint_gaussian import Joint
from bnndp.engine.rows import Rows
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box
from bnndp.maths.hinge import root_of
from bnndp.maths.rounding import TINY, UP

__all__ = [
    "CENTRED",
    "GAUSSIAN",
    "POWERS",
    "RIO",
    "Kernel",
    "SecondMoments",
    "Signal",
    "SquareNoise",
    "fixed",
    "nothing",
    "of_box",
    "with_gaussian",
]


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
    std: Tensor  # of tau_j


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
    def square_std(self) -> Tensor:
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


def nothing(signal: SecondMoments, rows: Rows, *more: int) -> Tensor:
    """Zeros (batch, rows, *more)."""
    return signal.variance.new_zeros(signal.variance.shape[0], rows.count, *more)
