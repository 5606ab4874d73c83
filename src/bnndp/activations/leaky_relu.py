"""The leaky rectifier: a small slope below zero."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bnndp.activations.activation import ANY_SLOPE, Central, Elementwise, Shape
from bnndp.activations.moments import hinged_central, hinged_variance
from bnndp.activations.settings import finite
from bnndp.geometry.bounds import Interval
from bnndp.maths.rectified import expected_relu, relu_probability
from bnndp.maths.rounding import ELEMENTARY, TINY


@dataclass(frozen=True, slots=True)
class LeakyRelu(Elementwise):
    r"""The activation ``x`` for ``x > 0`` and ``negative_slope * x`` otherwise.

    It is :math:`[x]_+-a[-x]_+`, so its mean is :math:`g(m,r)-a\,g(-m,r)`.

    Args:
        negative_slope: The slope a for negative inputs.

    Examples:
        >>> LeakyRelu(0.1)(torch.tensor([1.0, -1.0]))
        tensor([ 1.0000, -0.1000])
    """

    kind: ClassVar[str] = "leaky_relu"
    settings: ClassVar[tuple[str, ...]] = ("negative_slope",)

    negative_slope: float = 0.01

    def __post_init__(self) -> None:
        finite(self, "negative_slope")

    @property
    def shape(self) -> Shape:
        """One kink, of mass ``1 - negative_slope``; rounded up."""
        low, high = min(self.negative_slope, 1.0), max(self.negative_slope, 1.0)
        jump = 1 - self.negative_slope
        rise, fall = (math.nextafter(j, math.inf) if j > 0 else 0.0 for j in (jump, -jump))
        kinks = ((0.0, rise - fall),) if jump != 0 else ()
        return Shape((low, high), rise, fall, _bend(rise), _bend(fall), kinks=kinks)

    @property
    def square(self) -> Shape:
        """The second derivative jumps from twice the square of the slope to 2."""
        below = 2 * self.negative_slope**2 * (1 + 1e-15)
        jump = 2 - 2 * self.negative_slope**2
        return Shape(
            ANY_SLOPE, math.inf, 0.0, max(2.0, below), 0.0,
            slope_known=False, variation=abs(jump) + 4e-15 * (2 + below), bumps=((0.0, jump),),
        )  # fmt: skip

    def __call__(self, x: Tensor) -> Tensor:
        """The value where positive, negative_slope * x elsewhere."""
        return torch.where(x > 0, x, self.negative_slope * x)

    def mean(self, m: Tensor, r: Tensor) -> Tensor:
        """Closed form."""
        return expected_relu(m, r) - self.negative_slope * expected_relu(-m, r)

    def error(self, m: Tensor, r: Tensor) -> Tensor:
        """Rounding of two rectified means."""
        return ELEMENTARY * (1 + abs(self.negative_slope)) * (m.abs() + r) + TINY

    def slope(self, m: Tensor, r: Tensor) -> Tensor:
        """The slopes on both sides, weighted by their probabilities."""
        p = relu_probability(m, r)
        return p + self.negative_slope * (1 - p)

    def central(self, m: Tensor, r: Tensor) -> Central:
        """Central moments in closed form."""
        return hinged_central(self.negative_slope, m, r)

    def variance(self, m: Tensor, r: Tensor) -> Interval:
        """The first of them."""
        return hinged_variance(self.negative_slope, m, r)


def _bend(mass: float) -> float:
    """The curvature of a kink of this mass."""
    return math.inf if mass > 0 else 0.0
