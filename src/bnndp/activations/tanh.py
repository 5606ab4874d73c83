r"""The hyperbolic tangent, :math:`\tanh x=2\sigma(2x)-1`."""

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


@dataclass(frozen=True, slots=True)
class Tanh(Elementwise):
    """The hyperbolic tangent; means are computed by the trapezoid rule.

    Examples:
        >>> Tanh()(torch.tensor([1.0]))
        tensor([0.7616])
    """

    kind: ClassVar[str] = "tanh"

    @property
    def shape(self) -> Shape:
        r"""In :math:`t=\tanh x` the derivatives are polynomials on [-1, 1].

        :math:`1-t^2`, :math:`-2t(1-t^2)` (largest :math:`4/(3\sqrt3)`), :math:`-2(1-t^2)(1-3t^2)` (2 at 0)
        :math:`8t(1-t^2)(2-3t^2)` (below 4.0859), then polynomials with the largest values 16, 52.266, 272 and 1223.73.
        """
        return Shape(
            (0.0, 1.0), 1.0, 1.0, 0.7698003589195011, 0.7698003589195011, 2.0, 4.0859, 16.0, 52.27, 272.0, 1223.8,
            spectrum=spectrum.tanh,
        )  # fmt: skip

    @property
    def square(self) -> Shape:
        r"""Those of :math:`-\tanh'`, one derivative later."""
        return Shape(
            (-0.7698004, 0.7698004), 1.5396008, 1.5396008, 2.0, 0.6666667, 4.0859, 16.0, 52.27, 272.0, 1223.8, 7936.0,
            slope_known=False, variation=6.6666667, spectrum=spectrum.tanh_square,
        )  # fmt: skip

    def __call__(self, x: Tensor) -> Tensor:
        """The hyperbolic tangent."""
        return torch.tanh(x)

    def mean(self, m: Tensor, r: Tensor) -> Tensor:
        """The rule of ``gaussian_rule`` up to r = 1, that of ``logistic_normal`` beyond."""
        return split(m, r, _LIMIT, _narrow, lambda m, r: 2 * wide_sigmoid(2 * m, 2 * r) - 1)

    def error(self, m: Tensor, r: Tensor) -> Tensor:
        """Twice that of the sigmoid."""
        return 2 * ELEMENTARY + 0 * (m + r)

    def slope(self, m: Tensor, r: Tensor) -> Tensor:
        """E tanh'."""
        return split(
            m,
            r,
            _LIMIT,
            lambda m, r: gaussian_mean(lambda x: torch.cosh(x.clamp(-300, 300)) ** -2, m, r),
            lambda m, r: 2 * wide_density(2 * m, 2 * r) / r,
        )

    def central(self, m: Tensor, r: Tensor) -> Central:
        """By the trapezoid rule up to r = 4."""
        return analytic_central(_ANALYTIC, m, r, torch.ones_like(m))


def _difference(m: Tensor, delta: Tensor) -> Tensor:
    r""":math:`\tanh(m+\delta)-\tanh m=\tanh\delta\,(1-\tanh(m+\delta)\tanh m)`."""
    return torch.tanh(delta) * (1 - torch.tanh(m + delta) * torch.tanh(m))


def _narrow(m: Tensor, r: Tensor) -> Tensor:
    return (torch.tanh(m) + r * analytic_raw(_difference, m, r, _STEP, 1)[0]).clamp(-1, 1)


_ANALYTIC = Analytic(
    _difference,
    strip=1.2,  # the poles are at +-i pi / 2
    widened=7.63,  # |tanh'(x + iy)| = 2 / (cosh 2x + cos 2y) <= 2 / (1 + cos 2.4)
    steepest=1.0,
    width=2.0,
    monotone=True,
)
_LIMIT, _STEP = _ANALYTIC.coarsest
