"""The line cut at -1 and 1."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bnndp.activations.activation import Central, Elementwise, Shape
from bnndp.activations.moments import central_of, lipschitz_central
from bnndp.maths.hinge import clipped_raw
from bnndp.maths.normal import interval_probability
from bnndp.maths.rectified import expected_relu, ratio
from bnndp.maths.rounding import ELEMENTARY


@dataclass(frozen=True, slots=True)
class HardTanh(Elementwise):
    r"""The activation ``min(max(x, -1), 1)``.

    For :math:`m\le0` its mean is :math:`-1+g(m+1,r)-g(m-1,r)`; the mean is an odd function of m.

    Examples:
        >>> import torch
        >>> HardTanh()(torch.tensor([0.5, -2.0]))
        tensor([ 0.5000, -1.0000])
    """

    kind: ClassVar[str] = "hard_tanh"

    @property
    def shape(self) -> Shape:
        """Two kinks of mass one, up at -1 and down at 1."""
        return Shape((0.0, 1.0), 1.0, 1.0, math.inf, math.inf, kinks=((-1.0, 1.0), (1.0, -1.0)))

    @property
    def square(self) -> Shape:
        """A parabola between slopes that jump to zero."""
        return Shape((-2.0, 2.0), 4.0, 4.0, 2.0, math.inf, slope_known=False)

    def __call__(self, x: Tensor) -> Tensor:
        """X cut to [-1, 1]."""
        return x.clamp(-1, 1)

    def mean(self, m: Tensor, r: Tensor) -> Tensor:
        r"""With :math:`g(x,r)=[x]_++r\gamma(|x|/r)` the lines give the value at m, the tails what r changes."""
        tails = expected_relu(-(m + 1).abs(), r) - expected_relu(-(m - 1).abs(), r)
        return (m.clamp(-1, 1) + tails).clamp(-1, 1)

    def error(self, m: Tensor, r: Tensor) -> Tensor:
        """Rounding of two tails, each at most 0.4 r; the value at m is exact, and all lies in [-1, 1]."""
        return (ELEMENTARY * (1 + 2 * r)).clamp_max(2) + 0 * m

    def slope(self, m: Tensor, r: Tensor) -> Tensor:
        """The probability of the line."""
        return interval_probability(ratio(-1 - m, r), ratio(1 - m, r))

    def central(self, m: Tensor, r: Tensor) -> Central:
        """Central moments in closed form; the ends in units of r are rounded, which shifts a cut by that much."""
        lower, upper = ratio(-1 - m, r), ratio(1 - m, r)
        errors = [torch.full_like(r, 8 * ELEMENTARY) for _ in range(4)]
        return central_of(clipped_raw(lower, upper), errors, r, lipschitz_central(r + 0 * m, 1.0, 2.0))
