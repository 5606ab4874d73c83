"""A lower bound in terms of the values after a node, and its least value where their means or variances have ranges."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from bnndp.engine.moments.signal import Signal
from bnndp.engine.rows import Rows
from bnndp.geometry.bounds import Interval
from bnndp.maths.rounding import SMALL, TINY, UP, gamma

__all__ = ["Bound", "less_noise", "vanished", "within"]


@dataclass(frozen=True, slots=True)
class Bound:
    """A lower bound ``rows . E z + variances . Var z + constant`` in terms of a signal z.

    If it is to hold for most weights (``weighted.py``), of z itself, less some deviations of its noise.
    """

    rows: Rows
    constant: Tensor  # (batch, rows)
    variances: Rows | None = None
    noise: Tensor | None = None  # (batch, rows): variance of the noise that a node adds, for most weights

    def without_variances(self, z: Signal) -> Bound:
        """With the ranges of the variances in their place."""
        if self.variances is None:
            return self
        found = within(self.variances, Interval(z.variance_low, z.variance))
        return replace(self, constant=self.constant + found - gamma(4) * self.constant.abs(), variances=None)

    def least_in(self, mean: Interval, deviations: float = 0.0) -> Tensor:  # (batch, n) -> (batch, rows)
        """Its least value where E z is anywhere in this range, of a bound without variances."""
        least = self.constant + within(self.rows, mean) - gamma(4) * self.constant.abs()
        return less_noise(least, self.noise, deviations)


def less_noise(constant: Tensor, noise: Tensor | None, deviations: float) -> Tensor:  # (batch, rows) each
    """The constant less so many standard deviations of the noise, if there is some."""
    if noise is None:
        return constant
    return constant - deviations * UP * (noise + SMALL**2).sqrt() - gamma(4) * constant.abs()


def within(rows: Rows, values: Interval) -> Tensor:  # (batch, n) -> (batch, rows)
    """The least of ``rows . values``, less what rounding may take off it: as in ``folded.py``."""
    slack, negative = gamma(4 * values.lower.shape[-1] + 16) * values.magnitude, rows.negative()
    low, high = values.lower - slack, values.upper + slack
    return rows.dot(low) + negative.dot(high - low) - vanished(values)


def vanished(met: Interval) -> Tensor:  # (batch, n) -> (batch, 1)
    """What a bound may lose where coefficients of these values underflow: TINY of each."""
    return TINY * (1 + met.magnitude.sum(-1, keepdim=True))
