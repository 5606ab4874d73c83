"""The logistic function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bnndp.activations.activation import Central, Elementwise, Shape
from bnndp.activations.moments import Analytic, analytic_central, split
from bnndp.maths import spectrum
from bnndp.maths.gaussian_rule import analytic_raw, gaussian_mean
from bnndp.maths.logistic_normal import wide_density, wide_sigmoid
from bnndp.maths.rounding import ELEMENTARY


def sigmoid_difference(m: Tensor, delta: Tensor) -> Tensor:
    r""":math:`\sigma(m+\delta)-\sigma(m)=\tfrac12\tanh\tfrac\delta2\,(1-\tanh\tfrac{m+\delta}2\tanh\tfrac m2)`."""
    return 0.5 * torch.tanh(0.5 * delta) * (1 - torch.tanh(0.5 * (m + delta)) * torch.tanh(0.5 * m))


@dataclass(frozen=True, slots=True)
class Sigmoid(Elementwise):
    r"""The activation :math:`\sigma(x)=1/(1+e^{-x})`; means are computed by the trapezoid rule.

    Examples:
        >>> Sigmoid()(torch.tensor([0.0]))
        tensor([0.5000])
    """

    kind: ClassVar[str] = "sigmoid"

    @property
    def shape(self) -> Shape:
        r"""Those of :math:`\tfrac12\tanh(x/2)`: 1/4, :math:`1/(6\sqrt3)`, 1/8 and 1/32 of the fourth of tanh."""
        return Shape(
            (0.0, 0.25),
            0.25,
            0.25,
            0.09622504486493766,
            0.09622504486493766,
            0.125,
            0.12769,
            0.25,
            0.40834,
            1.0625,
            2.3902,
            spectrum=spectrum.sigmoid,
        )

    @property
    def square(self) -> Shape:
        """Extremes of the derivatives, rounded up."""
        return Shape(
            (0.0, 0.2962963), 0.2962963, 0.2962963, 0.15406, 0.12021,
            0.20203, 0.27819, 0.52774, 1.13339, 2.81403, 8.0914,
            slope_known=False, variation=0.54853, spectrum=spectrum.sigmoid_square,
        )  # fmt: skip

    def __call__(self, x: Tensor) -> Tensor:
        """1 / (1 + exp(-x))."""
        return torch.sigmoid(x)

    def mean(self, m: Tensor, r: Tensor) -> Tensor:
        """The rule of ``gaussian_rule`` up to r = 2, that of ``logistic_normal`` beyond."""
        return split(m, r, _LIMIT, _narrow, wide_sigmoid)

    def error(self, m: Tensor, r: Tensor) -> Tensor:
        """Of either rule, see there; the value is at most one."""
        return ELEMENTARY + 0 * (m + r)

    def slope(self, m: Tensor, r: Tensor) -> Tensor:
        """E sigma'."""
        return split(
            m,
            r,
            _LIMIT,
            lambda m, r: gaussian_mean(lambda x: torch.sigmoid(x) * torch.sigmoid(-x), m, r),
            lambda m, r: wide_density(m, r) / r,
        )

    def central(self, m: Tensor, r: Tensor) -> Central:
        """By the trapezoid rule up to r = 8."""
        return analytic_central(_ANALYTIC, m, r, torch.ones_like(m))


def _narrow(m: Tensor, r: Tensor) -> Tensor:
    return (torch.sigmoid(m) + r * analytic_raw(sigmoid_difference, m, r, _STEP, 1)[0]).clamp(0, 1)


_ANALYTIC = Analytic(
    sigmoid_difference,
    strip=2.4,  # the poles are at +-i pi
    widened=1.91,  # |sigma'(x + iy)| = 1 / (2 (cosh x + cos y)) <= 1 / (2 (1 + cos 2.4))
    steepest=0.25,
    width=1.0,
    monotone=True,
)
_LIMIT, _STEP = _ANALYTIC.coarsest
