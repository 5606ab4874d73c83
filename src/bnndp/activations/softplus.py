r"""The smooth rectifier :math:`\log(1+e^x)`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bnndp.activations.activation import ANY_SLOPE, Central, Elementwise, Shape
from bnndp.activations.moments import Analytic, analytic_central, split
from bnndp.maths import spectrum
from bnndp.maths.gaussian_rule import analytic_raw, gaussian_mean
from bnndp.maths.logistic_normal import wide_sigmoid, wide_softplus
from bnndp.maths.rounding import ELEMENTARY


@dataclass(frozen=True, slots=True)
class Softplus(Elementwise):
    """The activation ``log(1 + exp(x))``; its derivative is the sigmoid.

    Examples:
        >>> Softplus()(torch.tensor([0.0]))
        tensor([0.6931])
    """

    kind: ClassVar[str] = "softplus"

    @property
    def shape(self) -> Shape:
        """Those of the sigmoid, one derivative later; convex."""
        return Shape(
            (0.0, 1.0), 1.0, 0.0, 0.25, 0.0, 0.09622504486493766, 0.125, 0.12769, 0.25, 0.40834, 1.0625,
            spectrum=spectrum.softplus,
        )  # fmt: skip

    @property
    def square(self) -> Shape:
        """Extremes of the derivatives, rounded up; convex."""
        return Shape(
            ANY_SLOPE, math.inf, 0.0, 2.0908, 0.0, 0.7804, 0.4409, 0.7134, 0.9732, 2.1803, 4.5522,
            slope_known=False, variation=2.1817,
        )  # fmt: skip

    def __call__(self, x: Tensor) -> Tensor:
        """log(1 + exp(x))."""
        return x.clamp_min(0) + torch.log1p(torch.exp(-x.abs()))

    def mean(self, m: Tensor, r: Tensor) -> Tensor:
        """The rule of ``gaussian_rule`` up to r = 2, that of ``logistic_normal`` beyond."""
        return split(m, r, _LIMIT, self._narrow, wide_softplus)

    def error(self, m: Tensor, r: Tensor) -> Tensor:
        """Of either rule, see there."""
        return ELEMENTARY * (1 + m.abs() + r)

    def slope(self, m: Tensor, r: Tensor) -> Tensor:
        """E sigma."""
        return split(m, r, _LIMIT, lambda m, r: gaussian_mean(torch.sigmoid, m, r), wide_sigmoid)

    def central(self, m: Tensor, r: Tensor) -> Central:
        """By the trapezoid rule up to r = 8."""
        return analytic_central(_ANALYTIC, m, r, torch.ones_like(m))

    def _narrow(self, m: Tensor, r: Tensor) -> Tensor:
        return self(m) + r * analytic_raw(_difference, m, r, _STEP, 1)[0]


def _difference(m: Tensor, delta: Tensor) -> Tensor:
    r""":math:`\log(1+\sigma(m)(e^\delta-1))` for m <= 0; else by :math:`\varphi(x)=x+\varphi(-x)`: nothing cancels."""
    right = m > 0
    inner = torch.log1p(torch.sigmoid(-m.abs()) * torch.expm1(torch.where(right, -delta, delta)))
    return torch.where(right, delta + inner, inner)


_ANALYTIC = Analytic(
    _difference,
    strip=2.4,  # branch points at +-i pi
    widened=1.49,  # |sigma(x + iy)| = |1 + exp(-x - iy)|^-1, at most 1 / sin y for pi/2 < y: 1 / sin 2.4
    steepest=1.0,
    monotone=True,
)
_LIMIT, _STEP = _ANALYTIC.coarsest
