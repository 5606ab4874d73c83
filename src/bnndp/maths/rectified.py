r"""Moments of a rectified Gaussian :math:`Z=\max(m+r\xi,0)`, with the tails that the printed formulas cancel away.

Everything is written in :math:`t=|m|/r` and ``Z = c + r Y`` with :math:`c=[m]_+`: for :math:`m<0`,
:math:`Y=(\xi-t)_+`; for :math:`m\ge0`, :math:`Y=\max(\xi,-t)`. The raw moments of ``Y`` need the density and the tail
:math:`Q` at ``t`` only, which are small where the textbook forms subtract large numbers:

.. math::
   m<0:&\quad \varphi-tQ,\ (t^2+1)Q-t\varphi,\ (t^2+2)\varphi-(t^3+3t)Q,\ (t^4+6t^2+3)Q-(t^3+5t)\varphi\\
   m\ge0:&\quad \varphi-tQ,\ 1-(1-t^2)Q-t\varphi,\ (t^2+2)\varphi-t^3Q,\ 3-(3-t^4)Q-(t^3+3t)\varphi

Both are a common factor :math:`e^{-t^2/2}` times a difference in ``erfcx``, so that rounding leaves an absolute error
of a few units times :math:`(1+t)^3e^{-t^2/2}`. With ``E = maths.rounding.ELEMENTARY`` and ``h = |m| + r``, what is
returned lies within ``E h**k + TINY`` of the k-th moment, within ``E r**2 + TINY`` of Var Z and within
``E (r h)**2 + TINY`` of Var Z^2 (ball arithmetic shows less than an eighth of E). Errors *relative* to a moment are
larger in the left tail, where the moment itself vanishes: 1e-12 for the mean, 1e-9 for the second and 1e-4 for the
fourth at 37 standard deviations.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.maths.normal import INV_SQRT_2PI, bell, cdf

_FAR = 1e3  # beyond this many standard deviations every tail is exactly zero in float64
_SQRT1_2 = 0.5**0.5


@dataclass(frozen=True, slots=True)
class Moments:
    """Moments of Z = ReLU(N(m, r^2)); every field has the shape of the arguments."""

    mean: Tensor  # E Z
    second: Tensor  # E Z^2
    fourth: Tensor  # E Z^4
    variance: Tensor  # Var Z
    square_variance: Tensor  # Var Z^2


def ratio(m: Tensor, r: Tensor) -> Tensor:
    """``m / r``, cut at +-1000 so that r = 0 gives the deterministic limit (0 for ``m = r = 0``)."""
    info = torch.finfo(r.dtype)
    smallest = info.tiny * info.eps  # subnormal: a clamp at the smallest normal number would be wrong below it
    m = torch.where(r == 0, m * 2.0**60, m)  # a subnormal m would be no more than a few times the smallest r
    return (m / r.clamp_min(smallest)).clamp(-_FAR, _FAR)


def expected_relu(m: Tensor, r: Tensor) -> Tensor:
    r"""Mean of a rectified Gaussian, :math:`g(m,r)=m\Phi(m/r)+r\varphi(m/r)`, with :math:`g(m,0)=[m]_+`.

    Evaluated as :math:`[m]_++r\,\gamma_1(|m|/r)`, which cannot be negative. ``g`` is jointly convex in ``(m, r)``
    and increases in both (Adams et al. 2023, Lemma ``lemma:convexityExpectRectNormalSigmaMu``, errata item 6).
    """
    return m.clamp_min(0) + r * _gamma1(ratio(m, r).abs())


def relu_probability(m: Tensor, r: Tensor) -> Tensor:
    r""":math:`\partial g/\partial m=\Phi(m/r)`: the probability that the neuron is active."""
    return cdf(ratio(m, r))


def second_moment(m: Tensor, r: Tensor) -> Tensor:
    r""":math:`\mathbb E Z^2=(m^2+r^2)\Phi+mr\varphi`; convex and increasing in ``m``, increasing in ``r``."""
    y1, y2 = first_two(ratio(m, r).abs(), m >= 0)
    c = m.clamp_min(0)
    return c * c + 2 * (y1 * r * c) + y2 * r * r


def moments(m: Tensor, r: Tensor) -> Moments:
    r"""All moments at once; each field increases in ``m`` and in ``r``.

    For the variances of :math:`f(X)`, f the ReLU or its square, Stein's identity gives
    :math:`\partial_m\operatorname{Var}f=2\operatorname{Cov}(f,f')` and
    :math:`\partial_r\operatorname{Var}f=2r(\mathbb E f'^2+\operatorname{Cov}(f,f''))`, with covariances of increasing
    functions (for the ReLU itself the second is :math:`2r(\Phi-\varphi\,g(u,1))\ge0`). Both are computed as sums of
    non-negative terms, since :math:`\operatorname{Cov}(Y,Y^2)\ge0`: plain for :math:`Y\ge0`; for
    :math:`Y=\max(\xi,-t)` its derivative in t is :math:`Q\,(\mathbb EY^2-3t^2-2t\,\mathbb EY)`, whose bracket falls, so
    that the covariance rises from 0.6 and then falls to its limit 0. Products start at the factor that may be zero, so
    that overflow gives infinity and not NaN.
    """
    y1, y2, y3, y4 = standard_raw(ratio(m, r).abs(), m >= 0)
    v = (y2 - y1 * y1).clamp_min(0)  # Var Y
    skew = (y3 - y1 * y2).clamp_min(0)  # Cov(Y, Y^2)
    w = (y4 - y2 * y2).clamp_min(0)  # Var Y^2
    c = m.clamp_min(0)
    cr = c * r
    mean = c + r * y1
    second = c * c + 2 * (y1 * r * c) + y2 * r * r
    square_variance = 4 * (v * cr * cr) + 4 * (skew * c * r * r * r) + w * r * r * r * r
    return Moments(mean, second, square_variance + second * second, v * r * r, square_variance)


def _gamma1(t: Tensor) -> Tensor:
    """E (xi - t)_+ for t >= 0; decreasing, positive, 0.3989 at t = 0."""
    return bell(t) * (INV_SQRT_2PI - 0.5 * t * torch.special.erfcx(_SQRT1_2 * t)).clamp_min(0)


def standard_raw(t: Tensor, active: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Raw moments of Y (module docstring) at t >= 0; ``active`` says on which side of zero the mean lies."""
    scale = bell(t)
    q = 0.5 * torch.special.erfcx(_SQRT1_2 * t)  # Q = scale * q
    t2 = t * t
    low3 = (scale * ((t2 + 2) * INV_SQRT_2PI - (t2 + 3) * t * q)).clamp_min(0)
    low4 = (scale * ((t2 * t2 + 6 * t2 + 3) * q - (t2 + 5) * t * INV_SQRT_2PI)).clamp_min(0)
    high3 = scale * ((t2 + 2) * INV_SQRT_2PI - t2 * t * q)
    high4 = 3 - scale * ((3 - t2 * t2) * q + (t2 + 3) * t * INV_SQRT_2PI)
    return (
        *_one_and_two(t, active, scale, q),
        torch.where(active, high3, low3),
        torch.where(active, high4, low4),
    )


def first_two(t: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
    """The first two of :func:`standard_raw`."""
    return _one_and_two(t, active, bell(t), 0.5 * torch.special.erfcx(_SQRT1_2 * t))


def _one_and_two(t: Tensor, active: Tensor, scale: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    t2 = t * t
    low = (scale * ((t2 + 1) * q - t * INV_SQRT_2PI)).clamp_min(0)
    high = 1 - scale * ((1 - t2) * q + t * INV_SQRT_2PI)
    return scale * (INV_SQRT_2PI - t * q).clamp_min(0), torch.where(active, high, low)
