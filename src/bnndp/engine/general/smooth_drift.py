r"""How the second and third central moment of a smooth function of a Gaussian vary with its mean and variance.

:math:`z=\varphi(X)`, X Gaussian of mean m and variance s given a random input y; v and :math:`\kappa` are the central
moments of z given y. With :math:`a=\varphi-G`, :math:`a_j=\varphi^{(j)}-G_j`, all centred given y,

.. math:: v_m=2\mathbb Eaa_1,\quad v_{mm}=2\mathbb E(a_1^2+aa_2),\quad v_{mmm}=\mathbb E(6a_1a_2+2aa_3),\quad
          v_s=\tfrac12v_{mm}+G_1^2,\quad v_{ss}=\tfrac12\mathbb Eaa_4+2\mathbb E\varphi'\varphi'''
          +\tfrac32\mathbb E\varphi''^2-\tfrac12G_2^2,

.. math:: \kappa_{mmm}=\mathbb E(6a_1^3+18aa_1a_2+3a^2a_3),\quad\kappa_s=\tfrac12\kappa_{mm}+3G_1v_m,\quad
          \kappa_{ss}=\tfrac14\mathbb E(36a_1^2a_2+18aa_2^2+24aa_1a_3+3a^2a_4)+3G_3v_m+3G_2v_{mm}+3G_1v_{mmm}+6G_1^2G_2

by the heat equation :math:`\partial_s\mathbb E=\tfrac12\partial_m^2\mathbb E` for every function of X. Let L be the
Lipschitz constant and :math:`c_j=\sup|\varphi^{(j)}|`. :math:`a_j` is below :math:`c_{j+1}\sqrt s\,\xi` in convex order
(docs/theory.md, section 4.1), and at most :math:`2c_j`: that bounds all these means. So, with :math:`\tau=m-m_0`,
:math:`\delta=s-s_0` and W either moment, first in m at s_0 and then in s,

.. math:: |W-W_0|\le|W_m\tau|+|W_s\delta|+\tfrac12|W_{mm}|\tau^2+\tfrac16T|\tau|^3+D|\tau\delta|+\tfrac12E\delta^2

with the derivatives at (m_0, s_0), T and D the largest sizes of :math:`W_{mmm}` and :math:`W_{sm}` at s_0, and E that of
:math:`W_{ss}` for :math:`s\le2s_0`. Beyond, :math:`\delta>s_0`, :math:`|v-v(m,s_0)|\le L^2\delta` and
:math:`|\kappa-\kappa(m,s_0)|\le\tfrac32\sqrt3L^3(\sqrt{s_0}\delta+\delta^{3/2})` (``given.py``), less than
:math:`\delta^2` times what E is raised to. Derivatives in m at m_0 are central differences with a step h, off by
:math:`\tfrac16h^2T` and :math:`\tfrac13hT`. In the mean over y the linear terms are those of the means of :math:`\tau`
and :math:`\delta`; :math:`\lVert\tau\rVert_6^3\le\lVert\tau\rVert_4\lVert\tau\rVert_8^2`, and so on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.activations.activation import Activation, Central, Shape
from bnndp.engine.general.hinge_drift import Drift
from bnndp.engine.general.signal import Pre
from bnndp.geometry.bounds import Interval
from bnndp.maths.rounding import TINY, UP

__all__ = ["smooth_drift"]

_SLOPE = 1e-9  # error granted to a slope
_STEP = 0.02  # of the differences, times 0.2 and the root of s
_CUBE, _ROOT3 = 1.5958, 1.7320509  # E |xi|^3 and sqrt(3), rounded up


def smooth_drift(phi: Activation, x: Pre, at: Central) -> Drift | None:
    """Around the moments ``at`` the middle of the box; None unless five derivatives and the slope are known."""
    shape = phi.shape
    if not shape.slope_known or not math.isfinite(shape.fifth + shape.fourth + shape.third + shape.bend_up):
        return None
    m = (0.5 * x.mean.lower + 0.5 * x.mean.upper).clamp(x.mean.lower, x.mean.upper)
    s = (0.5 * (x.spread.lower + x.spread.upper)).clamp(x.spread.lower, x.spread.upper)
    root = s.sqrt()
    near, wider = _Sizes(shape, root), _Sizes(shape, math.sqrt(2) * root * UP)
    h = _STEP * (0.2 + root)
    sides = phi.central(m - h, root), phi.central(m + h, root)
    slope = phi.slope(m, root).abs() + _SLOPE
    v1, v2 = _differences([at.variance, *(side.variance for side in sides)], h, near.variance_third)
    k1, k2 = _differences([at.third, *(side.third for side in sides)], h, near.third_third)
    in_s, third_in_s = 0.5 * v2 + slope.square(), 0.5 * k2 + 3 * slope * v1
    least = s.clamp_min(TINY)
    steep = shape.steepest
    far = 2 * (steep**2 + in_s) / least
    third_far = 2 * (3 * _ROOT3 * steep**3 / root.clamp_min(TINY) + third_in_s / least)
    variance = _Taylor(v1, in_s, v2, near.variance_third, near.variance_mixed, torch.maximum(wider.variance_in_s, far))
    third = _Taylor(k1, third_in_s, k2, near.third_third, near.third_mixed, torch.maximum(wider.third_in_s, third_far))
    half, wide = (0.5 * (end.upper - end.lower) * UP for end in (x.mean, x.spread))
    tau = [half + norm for norm in (x.mean_variance.sqrt(), *x.norms[..., :2].unbind(-1))]
    delta = [wide + norm for norm in (x.spread_deviation, x.spread_deltas[..., 0])]
    mean = _Moved(half, wide, tau[0], tau[1], delta[0])
    deviation = _Moved(tau[0], delta[0], tau[1], tau[2], delta[1])
    return Drift(variance.over(mean), variance.over(deviation), third.over(mean), third.over(deviation))


def _differences(values: list[Interval], h: Tensor, third: Tensor) -> tuple[Tensor, Tensor]:
    """Sizes of the first and second derivative in the middle of three values, at most."""
    middle, left, right = (0.5 * (value.lower + value.upper) for value in values)
    off = torch.stack([0.5 * (value.upper - value.lower) for value in values]).amax(0) * UP
    off = off + 1e-15 * torch.stack([value.magnitude for value in values]).amax(0)
    first = 0.5 * (right - left).abs() / h + off / h + h.square() / 6 * third
    second = (right - 2 * middle + left).abs() / h.square() + 4 * off / h.square() + h / 3 * third
    return first * UP, second * UP


@dataclass(frozen=True, slots=True)
class _Moved:
    """Sizes of tau and delta in the linear terms, and of tau, tau and delta in those of higher order."""

    tau: Tensor
    delta: Tensor
    tau2: Tensor  # twice the order
    tau3: Tensor  # four times
    delta2: Tensor


@dataclass(frozen=True, slots=True)
class _Taylor:
    """The coefficients of the polynomial: (batch, n) each."""

    in_m: Tensor
    in_s: Tensor
    second: Tensor
    third: Tensor
    mixed: Tensor
    in_s2: Tensor

    def over(self, by: _Moved) -> Tensor:
        """Its norm over y."""
        found = self.in_m * by.tau + self.in_s * by.delta + 0.5 * self.second * by.tau2.square()
        found = found + self.third * by.tau2 * by.tau3.square() / 6
        found = found + self.mixed * by.tau2 * by.delta2 + 0.5 * self.in_s2 * by.delta2.square()
        return found * UP


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Bounds of derivatives of both moments for every m and every standard deviation up to r."""

    shape: Shape
    r: Tensor

    def _norm(self, j: int, factor: float = 1.0) -> Tensor:
        """Of a_j, by domination with this norm of a Gaussian; or by its size."""
        c = self._largest
        dominated = factor * c[j + 1] * self.r
        return dominated if j == 0 else dominated.clamp_max(2 * c[j])

    @property
    def _largest(self) -> tuple[float, ...]:
        shape = self.shape
        bend = max(shape.bend_up, shape.bend_down)
        return (math.inf, shape.steepest, bend, shape.third, shape.fourth, shape.fifth)

    @property
    def variance_third(self) -> Tensor:
        a, a1, a2, a3 = (self._norm(j) for j in range(4))
        return (6 * a1 * a2 + 2 * a * a3) * UP

    @property
    def _variance_first(self) -> Tensor:
        return 2 * self._norm(0) * self._norm(1)

    @property
    def _variance_second(self) -> Tensor:
        return 2 * (self._norm(1).square() + self._norm(0) * self._norm(2))

    @property
    def variance_mixed(self) -> Tensor:
        _, c1, c2, *_ = self._largest
        return (0.5 * self.variance_third + 2 * c1 * c2) * UP

    @property
    def variance_in_s(self) -> Tensor:
        _, c1, c2, c3, *_ = self._largest
        return (0.5 * self._norm(0) * self._norm(4) + 2 * c1 * c3 + 1.5 * c2**2) * UP

    @property
    def third_third(self) -> Tensor:
        a, a1, a2 = (self._norm(j, _CUBE ** (1 / 3)) for j in range(3))
        return (6 * a1**3 + 18 * a * a1 * a2 + 3 * _ROOT3 * self._norm(0).square() * self._norm(3)) * UP

    @property
    def third_mixed(self) -> Tensor:
        _, c1, c2, *_ = self._largest
        return (0.5 * self.third_third + 3 * c2 * self._variance_first + 3 * c1 * self._variance_second) * UP

    @property
    def third_in_s(self) -> Tensor:
        _, c1, c2, c3, *_ = self._largest
        a, a1, a2, a3 = (self._norm(j, _CUBE ** (1 / 3)) for j in range(4))
        fourth = 36 * a1.square() * a2 + 18 * a * a2.square() + 24 * a * a1 * a3
        fourth = fourth + 3 * _ROOT3 * self._norm(0).square() * self._norm(4)
        rest = 3 * c3 * self._variance_first + 3 * c2 * self._variance_second + 3 * c1 * self.variance_third
        return (0.25 * fourth + rest + 6 * c1**2 * c2) * UP
