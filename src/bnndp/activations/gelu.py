r"""The Gaussian error linear unit :math:`x\,\Phi(x)`, exact (with erf)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bnndp.activations.activation import ANY_SLOPE, Central, Elementwise, Shape
from bnndp.activations.moments import Analytic, analytic_central
from bnndp.maths import spectrum
from bnndp.maths.normal import cdf, pdf
from bnndp.maths.normal_difference import cdf_difference
from bnndp.maths.rounding import ELEMENTARY, TINY

_STEEPEST = 1.1289043  # Phi(x) + x phi(x) at x = sqrt 2, rounded up


@dataclass(frozen=True, slots=True)
class Gelu(Elementwise):
    r"""The activation :math:`x\,\Phi(x)`.

    Its mean is :math:`m\,\Phi(v)+\frac{r^2}q\varphi(v)` with :math:`v=m/q` and :math:`q^2=1+r^2`.

    Examples:
        >>> import torch
        >>> Gelu()(torch.tensor([1.0, -1.0]))
        tensor([ 0.8413, -0.1587])
    """

    kind: ClassVar[str] = "gelu"

    @property
    def shape(self) -> Shape:
        r"""Extremes of the derivatives.

        :math:`\varphi(2-x^2)` for the second, zero at :math:`\sqrt2`, where the slope is 1.1289042; the third,
        :math:`\varphi(x^3-4x)`, is zero at 0 and 2, the fourth, :math:`\varphi(7x^2-4-x^4)`, at
        :math:`x^2=(7\pm\sqrt{33})/2`. The slope falls from 0 to -0.1289, rises to 1.1289 and falls to 1.
        """
        return Shape(
            (1 - _STEEPEST, _STEEPEST),
            rise=2 * _STEEPEST - 1,
            fall=2 * (_STEEPEST - 1),
            bend_up=0.7978845608028655,  # 2 phi(0)
            bend_down=0.1079820,  # 2 phi(2)
            third=0.7790,
            fourth=1.5957691216057309,  # 4 phi(0)
            fifth=2.8426,
            sixth=7.18097,  # 18 phi(0)
            seventh=16.448,
            eighth=47.8731,  # 120 phi(0)
            spectrum=spectrum.gelu,
        )

    @property
    def square(self) -> Shape:
        """Extremes of the derivatives, rounded up."""
        return Shape(
            ANY_SLOPE, math.inf, math.inf, 2.7667, 0.16881, 3.0352, 5.4788, 15.3193, 41.6393, 149.4214, 510.304,
            slope_known=False, variation=4.3876,
        )  # fmt: skip

    def __call__(self, x: Tensor) -> Tensor:
        """X Phi(x)."""
        return x * cdf(x)

    def mean(self, m: Tensor, r: Tensor) -> Tensor:
        """Closed form (Stein's identity)."""
        root = torch.hypot(r, torch.ones_like(r))
        v = m / root
        return m * cdf(v) + r * (r / root) * pdf(v)

    def error(self, m: Tensor, r: Tensor) -> Tensor:
        """Rounding."""
        return ELEMENTARY * (m.abs() + r) + TINY

    def slope(self, m: Tensor, r: Tensor) -> Tensor:
        """Phi(v) + v phi(v) / (1 + r^2)."""
        root = torch.hypot(r, torch.ones_like(r))
        v = m / root
        return cdf(v) + v * pdf(v) / root / root

    def central(self, m: Tensor, r: Tensor) -> Central:
        """By the trapezoid rule up to r = 4."""
        # A difference of Phi is within 64 units of delta, and m times as far in the difference of phi.
        return analytic_central(_ANALYTIC, m, r, 2 + 2 * m.abs())


def _difference(m: Tensor, delta: Tensor) -> Tensor:
    return delta * cdf(m + delta) + m * cdf_difference(m, delta)


_ANALYTIC = Analytic(
    _difference,
    strip=1.2,
    widened=3.5,  # |Phi(z)| + |z phi(z)| <= 1 + (y phi(0) + phi(1) + y phi(0)) exp(y^2 / 2) with y = 1.2
    steepest=_STEEPEST,
)
