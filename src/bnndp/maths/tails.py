r"""Bounds on expectations from two moments only, for any law with those moments."""

import math

import torch
from torch import Tensor

PEAK = 1 / math.sqrt(2 * math.pi)
r"""Largest value of the normal density, :math:`\varphi(0)`."""

HALF_PEAK = 0.5 * PEAK
r"""Largest value of :math:`\sqrt s\,\partial g/\partial s=\tfrac12\varphi(m/\sqrt s)`."""

MEAN_ABOVE = 0.0411
r"""Largest :math:`D\,s_0^{3/2}/(s-s_0)^2` over all m and s >= 0.

Here :math:`D=g(m,\sqrt s)-g(m,\sqrt{s_0})-\partial_sg(m,\sqrt{s_0})(s-s_0)`.
"""

MEAN_BELOW = HALF_PEAK + 1e-4
"""Largest value of the negative of the same quotient."""

MEAN_LOCAL_BELOW = 0.25 * HALF_PEAK * (1 + 1e-15)
r"""The same from below for :math:`s\ge s_0`: the limit at s = s_0, :math:`\varphi(0)/8`."""

MEAN_LOCAL_ABOVE = 0.0223
r"""The same from above for :math:`s\ge s_0`: :math:`\tfrac14\varphi(\sqrt3)`, rounded up."""

STEP_THREE = 0.02494
r"""Of the Taylor polynomial of g of second order in s: the remainder is at most
:math:`a|s-s_0|^3s_0^{-5/2}+b(s_0-s)_+^4s_0^{-7/2}` over all m and s >= 0; a is :math:`3\varphi(0)/48`, rounded up."""

STEP_FOUR_ABOVE = 0.01401
"""The factor b of the same from above."""

STEP_FOUR_BELOW = 0.12468
r"""The factor b of the same from below: :math:`5\varphi(0)/16`, rounded up."""

BEND_THREE = 0.5505878396 / 48
r"""The factor a of the same for :math:`\tfrac12\mathbb E\,\mathrm{ReLU}^2`, on both sides, with
:math:`a|s-s_0|^3s_0^{-2}+b(s_0-s)_+^4s_0^{-3}`."""

BEND_FOUR = 0.5505878396 / 24
"""And its factor b."""

SECOND_CURVATURE = 0.1013
r"""As MEAN_ABOVE, on both sides, for :math:`\mathbb E\,\mathrm{ReLU}^2` as a function of s, times :math:`s_0`."""


def relu_scarf(mean: Tensor, variance: Tensor) -> Tensor:
    r"""Upper bound :math:`\mathbb E[X]_+\le\tfrac12(\mu+\sqrt{\mu^2+V})` for any X with that mean and Var X <= V.

    Scarf (1958); it increases in both arguments and is convex in the mean. Written so that a negative mean does not
    cancel: :math:`\tfrac12 V/(\sqrt{\mu^2+V}-\mu)` for :math:`\mu<0`.
    """
    root = torch.hypot(mean, variance.sqrt())  # the square of a large mean would overflow
    left = 0.25 * variance / (0.5 * root - 0.5 * mean).clamp_min(torch.finfo(mean.dtype).tiny)
    return torch.where(mean < 0, left, 0.5 * mean + 0.5 * root)
