r"""The sigmoid linear unit :math:`x\,\sigma(x)`, also called swish."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bnndp.activations.activation import ANY_SLOPE, Central, Elementwise, Shape
from bnndp.activations.moments import Analytic, analytic_central, split
from bnndp.activations.sigmoid import sigmoid_difference
from bnndp.maths import spectrum
from bnndp.maths.gaussian_rule import analytic_raw, gaussian_mean
from bnndp.maths.logistic_normal import wide_density, wide_sigmoid, wide_silu_slope
from bnndp.maths.rounding import ELEMENTARY

_STEEPEST = 1.0998394  # sigma + x sigma' at x = 2.3994, where 2 sigma' + x sigma'' is zero; rounded up


@dataclass(frozen=True, slots=True)
class Silu(Elementwise):
    r"""The activation :math:`x\,\sigma(x)`, also called swish.

    Its mean is :math:`m\,\mathbb E\sigma+r^2\,\mathbb E\sigma'` (Stein's identity).

    Examples:
        >>> Silu()(torch.tensor([1.0, -1.0]))
        tensor([ 0.7311, -0.2689])
    """

    kind: ClassVar[str] = "silu"

    @property
    def shape(self) -> Shape:
        r"""Extremes of :math:`\varphi^{(k)}=k\sigma^{(k-1)}+x\sigma^{(k)}`.

        The slope falls from 0 to -0.0998, rises to 1.0998 and falls to 1; the second derivative is even, 1/2 at zero.
        """
        return Shape(
            (1 - _STEEPEST, _STEEPEST),
            rise=2 * _STEEPEST - 1,
            fall=2 * (_STEEPEST - 1),
            bend_up=0.5,
            bend_down=0.03692,
            third=0.3082,
            fourth=0.5,
            fifth=0.6581,
            sixth=1.5,
            seventh=2.9086,
            eighth=8.5,
            spectrum=spectrum.silu,
        )

    @property
    def square(self) -> Shape:
        """Extremes of the derivatives, rounded up."""
        return Shape(
            ANY_SLOPE, math.inf, math.inf, 2.5903, 0.15295, 1.8362, 1.8864, 4.1584, 8.3878, 22.6347, 63.584,
            slope_known=False, variation=3.7106,
        )  # fmt: skip

    def __call__(self, x: Tensor) -> Tensor:
        """X sigma(x)."""
        return x * torch.sigmoid(x)

    def mean(self, m: Tensor, r: Tensor) -> Tensor:
        """The rule of ``gaussian_rule`` up to r = 2, that of ``logistic_normal`` beyond."""
        return split(m, r, _LIMIT, self._narrow, lambda m, r: m * wide_sigmoid(m, r) + r * wide_density(m, r))

    def error(self, m: Tensor, r: Tensor) -> Tensor:
        """Of either rule, see there."""
        return ELEMENTARY * (1 + m.abs() + r)

    def slope(self, m: Tensor, r: Tensor) -> Tensor:
        """E (sigma + x sigma')."""
        return split(m, r, _LIMIT, lambda m, r: gaussian_mean(_slope, m, r), wide_silu_slope)

    def central(self, m: Tensor, r: Tensor) -> Central:
        """By the trapezoid rule up to r = 8."""
        return analytic_central(_ANALYTIC, m, r, 1 + m.abs())  # m times a difference of sigmoids

    def _narrow(self, m: Tensor, r: Tensor) -> Tensor:
        return self(m) + r * analytic_raw(_difference, m, r, _STEP, 1)[0]


def _difference(m: Tensor, delta: Tensor) -> Tensor:
    return delta * torch.sigmoid(m + delta) + m * sigmoid_difference(m, delta)


def _slope(x: Tensor) -> Tensor:
    p = torch.sigmoid(x)
    return p + x * p * torch.sigmoid(-x)


_ANALYTIC = Analytic(
    _difference,
    strip=2.4,  # the poles are at +-i pi
    widened=6.3,  # |sigma| + |z sigma'| <= 1 / sin y + (|x| + y) / (2 (cosh x + cos y)) with y = 2.4
    steepest=_STEEPEST,
)
_LIMIT, _STEP = _ANALYTIC.coarsest
