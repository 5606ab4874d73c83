"""The rectifier ``max(x, 0)``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bnndp.activations.activation import ANY_SLOPE, Central, Elementwise, Shape
from bnndp.activations.moments import hinged_central, hinged_variance
from bnndp.geometry.bounds import Interval
from bnndp.maths.rectified import expected_relu, relu_probability
from bnndp.maths.rounding import ELEMENTARY, TINY


@dataclass(frozen=True, slots=True)
class Relu(Elementwise):
    """The activation ``max(x, 0)``; its moments have closed forms (``maths.rectified``).

    Examples:
        >>> Relu()(torch.tensor([1.0, -1.0]))
        tensor([1., 0.])
    """

    kind: ClassVar[str] = "relu"

    @property
    def shape(self) -> Shape:
        """One kink, of mass one."""
        return Shape((0.0, 1.0), rise=1.0, fall=0.0, bend_up=math.inf, bend_down=0.0, kinks=((0.0, 1.0),))

    @property
    def square(self) -> Shape:
        """The second derivative jumps from 0 to 2."""
        return Shape(ANY_SLOPE, math.inf, 0.0, 2.0, 0.0, slope_known=False, variation=2.0, bumps=((0.0, 2.0),))

    def __call__(self, x: Tensor) -> Tensor:
        """max(x, 0)."""
        return torch.relu(x)

    def mean(self, m: Tensor, r: Tensor) -> Tensor:
        """The mean of a rectified Gaussian."""
        return expected_relu(m, r)

    def error(self, m: Tensor, r: Tensor) -> Tensor:
        """Rounding, as in ``maths.rectified``."""
        return ELEMENTARY * (m.abs() + r) + TINY

    def slope(self, m: Tensor, r: Tensor) -> Tensor:
        """The probability of a positive value."""
        return relu_probability(m, r)

    def central(self, m: Tensor, r: Tensor) -> Central:
        """Central moments in closed form."""
        return hinged_central(0.0, m, r)

    def variance(self, m: Tensor, r: Tensor) -> Interval:
        """The first of them."""
        return hinged_variance(0.0, m, r)
