r"""Quadratic majorants of log E exp of a rectified Gaussian in its mean m and variance s.

Both are needed where m and s are themselves random (docs/theory-exponential.md, section 3).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.maths.exponential import log_moment, tilted
from bnndp.maths.rectified import expected_relu
from bnndp.maths.rounding import ELEMENTARY, TINY
from bnndp.maths.tails import PEAK

_NODES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.55, 0.75, 1.0)  # of [0, top], between which the slope in s is bounded
_SMALL = 1e-4
_STEEP = math.sqrt(2 / math.pi)


@dataclass(frozen=True, slots=True)
class SquareMajorant:
    """``constant + slope (m - m0) + in_variance s + curvature (m - m0)^2 / 2``; every field has the shape of m0."""

    constant: Tensor
    slope: Tensor
    in_variance: Tensor
    curvature: Tensor


def relu_curvature(u: Tensor) -> Tensor:
    r""":math:`(\Phi(|u|)-\tfrac12)/|u|`: the least curvature of a parabola that touches g(., 1) at u and lies above it.

    :math:`g(u,1)-u/2` is even and a concave function of :math:`u^2`, since :math:`(\Phi(u)-\tfrac12)/u` falls.
    """
    size = u.abs()
    value = 0.5 * torch.special.erf(size.clamp_min(_SMALL) * 0.5**0.5) / size.clamp_min(_SMALL)
    return torch.where(size > _SMALL, value * (1 + ELEMENTARY), PEAK)


def harmful_curvature(m0: Tensor, r: Tensor, a: Tensor) -> Tensor:
    r"""Curvature of a parabola that touches :math:`L(\cdot,r;a,0)`, a > 0, at m0 and lies above it for every m.

    :math:`\partial_m^2L\le a\varphi(u)/r+a^2P(1-P)`, and the log-odds of P are an odd function of :math:`t=u+ar/2` of
    slope at least :math:`2\sqrt{2/\pi}`, so :math:`P(1-P)\le\tfrac14\operatorname{sech}^2(t\sqrt{2/\pi})`. Both bounds
    are even and fall on either side, so their shares are means between the centre and m0 (docs/theory-exponential.md).
    """
    x = (_STEEP * (m0 / r + 0.5 * a * r).abs()).clamp_min(_SMALL)
    return a / r * relu_curvature(m0 / r) + 0.25 * a.square() * (torch.tanh(x) / x + _SMALL**2)


@dataclass(frozen=True, slots=True)
class Parabola:
    """To be added to a tangent at m0: ``constant + slope (m - m0) + curvature (m - m0)^2 / 2``."""

    constant: Tensor
    slope: Tensor
    curvature: Tensor


def harmful_parabola(m0: Tensor, r: Tensor, a: Tensor, spread: Tensor) -> Parabola:
    r"""A bound, for every m, of what :math:`L(\cdot,r;a,0)`, a > 0, has above its tangent at m0; any spread is sound.

    :math:`L''\le\rho_1+\rho_2` with :math:`\rho_1=a\varphi(u)/r` and :math:`\rho_2=\tfrac14a^2
    \operatorname{sech}^2(t\sqrt{2/\pi})`, :math:`t=u+ar/2` (``harmful_curvature``). With :math:`e_i''=\rho_i`, even
    about centres :math:`c_i`, it is at most :math:`\sum_i[e_i(m)-e_i(m_0)-e_i'(m_0)(m-m_0)]`. Each :math:`e_i` is a
    concave function of :math:`(m-c_i)^2` and lies below its tangent in that variable, here at
    :math:`(m_0-c_i)^2+\text{spread}^2`, its usual value. With spread 0 the parabola touches L at m0.
    """
    u0, u1 = m0 / r, (m0.square() + spread.square()).sqrt() / r
    t0 = u0 + 0.5 * a * r
    t1 = (t0.square() + (spread / r).square()).sqrt()
    k1, k2 = a / r * relu_curvature(u1), 0.25 * a.square() * _tanh_mean(t1)
    even = [expected_relu(u, torch.ones_like(u)) - 0.5 * u for u in (u0, u1)]
    logs = [_log_cosh(_STEEP * t) for t in (t0, t1)]
    slope1, slope2 = (
        a * (0.5 * torch.special.erf(u0 * 0.5**0.5)),
        0.25 * a.square() * r / _STEEP * torch.tanh(_STEEP * t0),
    )
    constant = a * r * (even[1] - even[0]) - 0.5 * k1 * spread.square()
    constant = constant + (0.5 * a * r / _STEEP).square() * (logs[1] - logs[0]) - 0.5 * k2 * spread.square()
    size = a * r * (1 + u1) + (a * r).square() * (1 + t1) + (k1 + k2) * spread.square()
    slope = k1 * m0 - slope1 + k2 * t0 * r - slope2
    return Parabola(constant.clamp_min(0) + 64 * ELEMENTARY * size, slope, k1 + k2)


def _tanh_mean(t: Tensor) -> Tensor:
    x = (_STEEP * t.abs()).clamp_min(_SMALL)
    return torch.tanh(x) / x + _SMALL**2


def _log_cosh(x: Tensor) -> Tensor:
    return x.abs() + torch.log1p(torch.exp(-2 * x.abs())) - math.log(2)


def square_majorant(
    m0: Tensor,
    s0: Tensor,  # where in s the majorant should be lowest; any value in (0, top] is sound
    top: Tensor,  # the majorant holds for 0 <= s <= top
    c: Tensor,  # >= 0, 2 c top < 1
    spread: Tensor,  # > 0: the usual size of m - m0; any value is sound
) -> SquareMajorant:
    r"""Majorant of :math:`G(m,s)=\log\mathbb E\exp(c\max(X,0)^2)`, :math:`X\sim\mathcal N(m,s)`, for every m.

    :math:`\partial_m^2G\le2c/(1-2cs)`, so :math:`G(m,s)\le G(m_0,s)+\partial_mG(m_0,s)(m-m_0)+cw(m-m_0)^2`. The slope
    :math:`\partial_mG(m_0,s)=2c\,\mathbb E_tZ` stays within R of its value at :math:`s_0`, and
    :math:`R|m-m_0|\le R(\text{spread}+(m-m_0)^2/\text{spread})/2`. For the line in s see ``_line``.
    """
    zero = torch.zeros_like(c)
    at, end = tilted(m0, s0.sqrt(), zero, c), tilted(m0, top.sqrt(), zero, c)
    constant, in_variance = _line(m0, s0, top, c)
    start = c * m0.clamp_min(0).square()  # G at s = 0, the least value
    low = 2 * c * m0.clamp_min(0)  # E_t Z is at least E Z, which is at least [m0]_+
    high = 2 * c * end.mean * torch.exp(end.log - start) * (1 + 8 * ELEMENTARY)  # E[Z e^{c Z^2}] increases in s
    reach = torch.maximum(high - at.in_mean, at.in_mean - low).clamp_min(0)
    curvature = 2 * c / (1 - 2 * c * top) + reach / spread
    return SquareMajorant(constant + 0.5 * reach * spread, at.in_mean, in_variance, curvature)


def _line(m0: Tensor, s0: Tensor, top: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    r"""Constant and slope of a line in s above :math:`G(m_0,s)` on [0, top]: of three slopes the best at ``s0``.

    :math:`\partial_sG=cP_t+2c^2\mathbb E_tZ^2`. Between two nodes :math:`P_t=1-\Phi(-m_0/\sqrt s)e^{-G}` and
    :math:`\mathbb E_tZ^2=\mathbb E[Z^2e^{cZ^2}]e^{-G}` are bounded by the ends, as :math:`G` and
    :math:`\mathbb E[Z^2e^{cZ^2}]` increase in s and :math:`\Phi(-m_0/\sqrt s)` is monotone.
    """
    zero = torch.zeros_like(c)
    at = tilted(m0, s0.sqrt(), zero, c)
    end = log_moment(m0, top.sqrt(), zero, c)
    tangent = c * at.active + 2 * c * c * at.second
    chord = (end - c * m0.clamp_min(0).square()) / top
    beyond = torch.minimum(torch.maximum(tangent, (end - at.log) / (top - s0).clamp_min(1e-6 * top)), 10 * c)
    slopes = torch.stack([tangent, chord, beyond])
    constants = torch.full_like(slopes, -torch.inf)
    before = None
    for share in _NODES:
        s = share * top
        r = s.sqrt().clamp_min(TINY)
        here = tilted(m0, r, zero, c)
        ease = ELEMENTARY * (2 + here.log + c * m0.square() / (1 - 2 * c * top))  # as in log_moment, c >= 0
        value, tail = here.log + ease, torch.special.ndtr(-m0 / r) * (1 - 8 * ELEMENTARY)
        if before is not None:
            s1, log1, value1, tail1 = before
            p = 1 - torch.minimum(tail, tail1) * torch.exp(-value)
            second = here.second * torch.exp(value - log1) + ELEMENTARY * s
            steepest = (c * p + 2 * c * c * second) * (1 + 8 * ELEMENTARY)
            top_value = value1 + steepest * (s - s1)
            constants = torch.maximum(constants, torch.maximum(value1 - slopes * s1, top_value - slopes * s))
        before = (s, here.log - ease, value, tail)
    constants = constants + 8 * ELEMENTARY * (1 + slopes * top)
    best = (constants + slopes * s0).argmin(0, keepdim=True)
    return constants.gather(0, best)[0], slopes.gather(0, best)[0]
