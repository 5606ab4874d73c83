"""No activation: the value itself."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from bnndp.activations.activation import ANY_SLOPE, Central, Elementwise, Shape
from bnndp.activations.moments import lipschitz_central
from bnndp.geometry.bounds import Interval
from bnndp.maths.rounding import TINY, UNIT


@dataclass(frozen=True, slots=True)
class Identity(Elementwise):
    """The activation ``x``; its moments are exact.

    Examples:
        >>> import torch
        >>> Identity()(torch.tensor([1.0, -1.0]))
        tensor([ 1., -1.])
    """

    kind: ClassVar[str] = "identity"

    @property
    def shape(self) -> Shape:
        """A line."""
        return Shape((1.0, 1.0), *(0.0,) * 10)

    @property
    def square(self) -> Shape:
        """A parabola."""
        return Shape(ANY_SLOPE, math.inf, 0.0, 2.0, *(0.0,) * 7, slope_known=False, variation=0.0)

    def __call__(self, x: Tensor) -> Tensor:
        """Itself."""
        return x

    def mean(self, m: Tensor, r: Tensor) -> Tensor:
        """Itself."""
        return m + 0 * r

    def error(self, m: Tensor, r: Tensor) -> Tensor:
        """Nothing is computed."""
        return 0 * (m + r)

    def slope(self, m: Tensor, r: Tensor) -> Tensor:
        """One."""
        return 1 + 0 * (m + r)

    def central(self, m: Tensor, r: Tensor) -> Central:
        """Those of a Gaussian."""
        s, zero = r * r + 0 * m, 0 * (m + r)
        variance = Interval((s * (1 - 4 * UNIT) - TINY).clamp_min(0), s * (1 + 4 * UNIT) + TINY)
        fourth = 3 * (s * s)
        within = Interval((fourth * (1 - 8 * UNIT) - TINY).clamp_min(0), fourth * (1 + 8 * UNIT) + TINY)
        known = lipschitz_central(r + 0 * m, 1.0)
        return Central(variance, Interval(zero, zero), within, known.norms)
