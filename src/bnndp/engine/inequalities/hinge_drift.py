r"""How the second and third central moment of a hinge of a Gaussian vary with its mean and variance.

:math:`z=aX+cX_+`, X Gaussian of mean m and variance s given a random input y. With u = m / sqrt(s), P the normal
distribution function, f its density, :math:`E_j=\mathbb E(u+\xi)_+^j`, :math:`\nu=E_2-E_1^2` and
:math:`k=E_3-3E_1E_2+2E_1^3`,

.. math:: v=a^2s+2ac\,sP+c^2s\nu,\qquad\kappa_3=s^{3/2}(3a^2cf+3ac^2\nu'+c^3k)

(Stein: :math:`\operatorname{Cov}(X,X_+)=sP`, :math:`\mathbb E(X-m)^2X_+-s\,\mathbb EX_+=s^{3/2}f`,
:math:`\operatorname{Cov}(X,(X_+-\mathbb EX_+)^2)=2s^{3/2}E_1(1-P)`, and :math:`\nu'=2E_1(1-P)`). So both are sums of
:math:`W=s^dw(u)` with d = 1 or 3/2. By Taylor, in m at s_0 and then in s, with :math:`\tau=m-m_0`,
:math:`\delta=s-s_0`, :math:`r=\sqrt{s_0}`,

.. math:: |W-W_0|\le|w'|r^{2d-1}|\tau|+|dw-\tfrac12uw'|r^{2d-2}|\delta|
          +\tfrac12Ar^{2d-2}\tau^2+Br^{2d-3}|\tau\delta|+Cr^{2d-4}\delta^2

with w at u_0 and A, B and C the suprema over u of :math:`|w''|`, :math:`|(d-\tfrac12)w'-\tfrac12uw''|` and
:math:`|d(d-1)w-(d-\tfrac34)uw'+\tfrac14u^2w''|`, the factors of the second derivatives. The
second derivative in s at t is at most :math:`Ct^{d-2}`, and :math:`\int_s^{s_0}(t-s)t^{d-2}dt\le\delta^2r^{2d-4}`. In
the mean over y the linear terms are those of the means of :math:`\tau` and :math:`\delta`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from bnndp.activations.activation import Activation
from bnndp.engine.inequalities.powers import hinge_slopes
from bnndp.engine.moments.pre_activation import PreActivation
from bnndp.maths.normal import cdf, pdf, tail
from bnndp.maths.rectified import ratio
from bnndp.maths.rounding import TINY, UP

__all__ = ["Drift", "hinge_drift"]

_FAR = 8.5  # beyond it every w is constant up to less than ``_LOST``
_LOST = 1e-10  # granted to w and w'
# A, B and C, rounded up
_PROBABILITY = (0.24198, 0.24198, 0.15824)
_VARIANCE = (0.28763, 0.31645, 0.23711)
_DENSITY = (0.39895, 0.31647, 0.40736)
_SLOPE = (0.26336, 0.20624, 0.28338)  # of nu' / 2
_THIRD = (0.57634, 0.44637, 0.63938)


@dataclass(frozen=True, slots=True)
class Drift:
    """How far v and kappa_3 are off their values at the middle: in the mean and in L2 over y; (batch, n) each."""

    variance: Tensor
    variance_deviation: Tensor
    thirds: Callable[[], tuple[Tensor, Tensor]]  # of kappa_3: found where asked for


def hinge_drift(phi: Activation, x: PreActivation) -> Drift | None:
    """None unless the activation is a hinge with its kink at zero."""
    slopes = hinge_slopes(phi)
    if slopes is None:
        return None
    a, c = abs(slopes[0]), abs(slopes[1] - slopes[0]) * UP
    m = (0.5 * x.mean.lower + 0.5 * x.mean.upper).clamp(x.mean.lower, x.mean.upper)
    s0 = (0.5 * (x.spread.lower + x.spread.upper)).clamp(x.spread.lower, x.spread.upper)
    half, wide = (0.5 * (end.upper - end.lower) * UP for end in (x.mean, x.spread))
    root = s0.sqrt().clamp_min(TINY)
    u = ratio(m, root).clamp(-_FAR, _FAR)
    t2, t4 = ((half + norm) / root for norm in (x.mean_variance.sqrt(), x.norms[..., 0]))
    d2, d4 = ((wide + norm) / root / root for norm in (x.spread_deviation, x.spread_deltas[..., 0]))
    steps = (_Step(u, half / root, wide / root / root, t2, d2), _Step(u, t2, d2, t4, d4))  # in the mean, in L2
    p, q, f = cdf(u), tail(u), pdf(u)
    e1, e2 = u * p + f, (u * u + 1) * p + u * f
    slope = 2 * e1 * q  # nu'
    variances = [
        a * a * step.delta
        + 2 * a * c * step.change(1.0, p, f, _PROBABILITY)
        + c * c * step.change(1.0, e2 - e1 * e1, slope, _VARIANCE)
        for step in steps
    ]
    square = root.square() * UP

    def thirds() -> tuple[Tensor, Tensor]:
        bend, e3 = 2 * p * q - 2 * e1 * f, (u * u + 3) * u * p + (u * u + 2) * f  # nu'', E_3
        third, third_slope = e3 - 3 * e1 * e2 + 2 * e1**3, 3 * q * (e2 - 2 * e1 * e1)  # k, k'
        mean, deviation = (
            3 * a * a * c * step.change(1.5, f, -u * f, _DENSITY)
            + 6 * a * c * c * step.change(1.5, 0.5 * slope, 0.5 * bend, _SLOPE)
            + c**3 * step.change(1.5, third, third_slope, _THIRD)
            for step in steps
        )
        cube = root**3 * UP
        return mean * cube, deviation * cube

    return Drift(variances[0] * square, variances[1] * square, thirds)


@dataclass(frozen=True, slots=True)
class _Step:
    """u_0, sizes of tau / r and delta / s_0 in the linear terms, and their norms in the others: (batch, n) each."""

    u: Tensor
    tau: Tensor
    delta: Tensor
    tau2: Tensor
    delta2: Tensor

    def change(self, d: float, w: Tensor, slope: Tensor, second: tuple[float, float, float]) -> Tensor:
        """Of W over the power 2d of r, from w and its slope at u_0 and the suprema A, B and C."""
        in_s = (d * w - 0.5 * self.u * slope).abs() + 4 * _LOST
        found = (slope.abs() + _LOST) * self.tau + in_s * self.delta
        mixed = 0.5 * second[0] * self.tau2.square() + second[1] * self.tau2 * self.delta2
        return found + mixed + second[2] * self.delta2.square()
