r"""The standard normal law: density, distribution function, interval probabilities, quantiles of a rectangle.

All tails are computed without cancellation. Rounding leaves an absolute error below ``2**-51`` in every probability and
a relative one below ``(1 + t**2) * 2**-51`` in a tail at ``t``, down to where float64 underflows (about 37 stds).
"""

import math

import torch
from torch import Tensor

from bnndp.errors import InputError

INV_SQRT_2PI = 1 / math.sqrt(2 * math.pi)
_SQRT1_2 = math.sqrt(0.5)
_LOWEST, _NORMAL = -708.0, 3.32e-308  # the exponential of the first is 3.31e-308
_SMALLEST = 1e-300  # below it the tail is not a normal float64 number and loses digits


def bell(t: Tensor) -> Tensor:
    r""":math:`e^{-t^2/2}`, zero where that is no normal float64 number: there ``exp`` takes ten times as long."""
    return torch.nn.functional.threshold(torch.exp((-0.5 * t * t).clamp_min(_LOWEST)), _NORMAL, 0.0)


def pdf(t: Tensor) -> Tensor:
    r"""Density :math:`\varphi(t)=e^{-t^2/2}/\sqrt{2\pi}`."""
    return bell(t) * INV_SQRT_2PI


def cdf(t: Tensor) -> Tensor:
    r"""Distribution function :math:`\Phi(t)=\tfrac12\operatorname{erfc}(-t/\sqrt2)`, accurate in the left tail."""
    return 0.5 * torch.special.erfc(-_SQRT1_2 * t)


def tail(t: Tensor) -> Tensor:
    r"""Upper tail :math:`Q(t)=\Phi(-t)`, accurate in the right tail."""
    return 0.5 * torch.special.erfc(_SQRT1_2 * t)


def hazard(t: Tensor) -> Tensor:
    r"""Hazard rate :math:`\varphi(t)/Q(t)=\sqrt{2/\pi}/\operatorname{erfcx}(t/\sqrt2)`, which increases."""
    return 2 * INV_SQRT_2PI / torch.special.erfcx(_SQRT1_2 * t)


def interval_probability(a: Tensor, b: Tensor) -> Tensor:
    r""":math:`P(a\le\xi\le b)` for standard normal :math:`\xi` and :math:`a\le b` (infinite ends allowed).

    Ends on one side of zero are taken from the tail there, so that the error is relative to that tail and not to one.
    """
    flip = a > 0
    left = torch.where(flip, -b, a)
    right = torch.where(flip, -a, b)
    return (cdf(right) - cdf(left)).clamp_min(0)


def rectangle_quantile(epsilon: float, n: int) -> float:
    r"""Half width :math:`c` with :math:`P(|\xi_i|\le c,\ i\le n)\ge1-\varepsilon` (``prop:FindRectForProbBounds``).

    .. math:: c=\sqrt2\,\operatorname{erf}^{-1}((1-\varepsilon)^{1/n})

    Computed as a tail, :math:`2Q(c)=-\mathrm{expm1}(\mathrm{log1p}(-\varepsilon)/n)`, because
    :math:`(1-\varepsilon)^{1/n}` rounds to one for many neurons; the result is moved outward, to the safe side.
    """
    if not (n >= 1 and epsilon < 1 and epsilon / n >= _SMALLEST):
        raise InputError(
            f"a rectangle needs n >= 1 and {_SMALLEST} <= epsilon / n < 1 / n, got epsilon={epsilon}, n={n}."
        )
    eta = -math.expm1(math.log1p(-epsilon) / n)
    c = float(-torch.special.ndtri(torch.tensor(0.5 * eta, dtype=torch.float64)))
    return c * (1 + 2.0**-40) + 2.0**-50
