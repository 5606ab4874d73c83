r"""Planes ready for rows: what a coefficient of z becomes on the way through an activation and the layer before it.

A coefficient r of z meets the lower plane :math:`\alpha M+\beta T+c` where it is positive and the upper one where it is
negative. All that it adds to the constant of a bound (that of the plane, the bias times :math:`\alpha`, the rounding of
both) is r times one of two numbers, so a row costs two products whatever there is to add.

Rounding. With v and w the numbers of the lower and of the upper plane, :math:`rv+\min(r,0)(w-v)` is off by at most
:math:`3\gamma_n|r|\max(|v|,|w|)`, and the coefficients likewise. v and w are at most the size of the planes plus the
steeper slope times that of the means; both are taken off with more than their share (``gamma`` is doubled).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.engine.planes.mean import Planes
from bnndp.engine.rows import Rows
from bnndp.maths.rounding import gamma

__all__ = ["Folded", "folded"]


@dataclass(frozen=True, slots=True)
class Before:
    """A lower bound in terms of what goes into an activation: coefficients of M, of T and of the tangent of S."""

    alpha: Rows
    beta: Rows | None
    tangent: Rows | None  # those of the lower planes, at least zero, where the tangent stands for T
    constant: Tensor  # (batch, rows)

    @property
    def both(self) -> Rows | None:
        """Coefficients of s at the middle of the means, and of its slopes there."""
        return _sum(self.beta, self.tangent)

    def plus(self, other: Before) -> Before:
        """The sum with a bound without a tangent, with the constant of the other one."""
        alpha = self.alpha.plus(other.alpha)  # type: ignore[arg-type]
        return Before(alpha, _sum(self.beta, other.beta), self.tangent, other.constant)


@dataclass(frozen=True, slots=True)
class Folded:
    """Numbers of the lower planes, and those of the upper ones less them: (batch, n) each."""

    alpha: tuple[Tensor, Tensor]
    beta: tuple[Tensor, Tensor] | None  # None if no plane has a slope in T
    constant: tuple[Tensor, Tensor]
    underflow: Tensor  # (batch, 1)
    tangent: bool  # whether that of S is meant below

    def apply(self, rows: Rows, constant: Tensor) -> Before:  # constant (batch, rows)
        """From rows of what lies between the planes."""
        negative = rows.negative()
        added = rows.dot(self.constant[0]) + negative.dot(self.constant[1])
        constant = constant + added - gamma(8) * constant.abs() - self.underflow
        alpha = rows.times(self.alpha[0]).add_times(negative, self.alpha[1])  # type: ignore[arg-type]
        if self.beta is None:
            return Before(alpha, None, None, constant)
        if not self.tangent:
            beta = rows.times(self.beta[0]).add_times(negative, self.beta[1])  # type: ignore[arg-type]
            return Before(alpha, beta, None, constant)
        low, step = self.beta
        return Before(alpha, negative.times(low + step), rows.positive().times(low), constant)


def folded(planes: Planes, means: Tensor | float, lost: Tensor | float, underflow: Tensor) -> Folded:
    """Of planes in M; ``means`` are counted with its coefficients, ``lost`` is the rounding of a unit coefficient."""
    steep = torch.maximum(planes.lower_alpha.abs(), planes.upper_alpha.abs())
    slack = gamma(4 * steep.shape[-1] + 16) * planes.size + lost * steep
    low = planes.lower_offset + planes.lower_alpha * means - slack
    high = planes.upper_offset + planes.upper_alpha * means + slack
    beta = (planes.lower_beta, planes.upper_beta - planes.lower_beta) if planes.tilted else None
    return Folded(
        (planes.lower_alpha, planes.upper_alpha - planes.lower_alpha),
        beta,
        (low, high - low),
        underflow,
        planes.tangent,
    )


def _sum(a: Rows | None, b: Rows | None) -> Rows | None:
    if a is None or b is None:
        return b if a is None else a
    return a.plus(b)  # type: ignore[arg-type]
