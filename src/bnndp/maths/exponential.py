r"""Exponential moments of a rectified Gaussian :math:`Z=\max(m+r\xi,0)`: :math:`L(m,r;a,c)=\log\mathbb E\exp(aZ+cZ^2)`.

With :math:`w=1/(1-2cr^2)`, which has to be positive, :math:`u=m/r` and :math:`\tilde u=(m+ar^2)\sqrt w/r`,

.. math:: e^L=\Phi(-u)+\sqrt w\,e^{w(am+cm^2+a^2r^2/2)}\,\Phi(\tilde u)
             =\Phi(-u)+\sqrt w\,\varphi(u)\,\Phi(\tilde u)/\varphi(\tilde u).

Given Z > 0, the law tilted by :math:`\exp(aZ+cZ^2)` is that of a Gaussian of mean :math:`\tilde m=w(m+ar^2)` and
variance :math:`\tilde r^2=wr^2` cut at zero. What is claimed here is proved in docs/theory-exponential.md.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.maths.normal import INV_SQRT_2PI
from bnndp.maths.rounding import ELEMENTARY, TINY

_SQRT1_2 = math.sqrt(0.5)
_LOG_PEAK = math.log(INV_SQRT_2PI)
_FAR = 4.0  # standard deviations beyond which the quantiles of ``lipschitz`` are bounded by Mills' ratio
_RARE = -50.0  # logarithm of P below which its quantile is bounded too
_LEAST = 1e-300
_LARGE = 1e6  # |u| beyond it counts as this: the tail at either is zero
_LEFT = -8.0  # below it the variance of a Gaussian cut at zero is bounded by the square of its mean
_STEPS = 2  # of the tilt on either side, in ``sub_gaussian``
_STEEP = 1e3  # |a| r beyond which the rounding of P may count: no constant near zero is claimed
_POLE = 2.0**-6  # nearer to 2 c r^2 = 1 the factor 1 / (1 - 2 c r^2) loses too many digits


@dataclass(frozen=True, slots=True)
class Tilted:
    """L and the law of Z tilted by exp(a Z + c Z^2); every field has the shape of the arguments."""

    log: Tensor  # L
    active: Tensor  # P(Z > 0)
    mean: Tensor  # E Z = dL/da
    second: Tensor  # E Z^2 = dL/dc
    in_mean: Tensor  # dL/dm
    in_std: Tensor  # dL/dr


def chernoff_gaussian(mean: Tensor, variance: Tensor) -> Tensor:  # (...) each
    r"""U >= E sigma(-D) of a Gaussian D with at least this mean and at most this variance, by one exponential moment.

    :math:`\mathbb E\sigma(-D)\le c(\lambda)\,\mathbb Ee^{-\lambda D}=c(\lambda)e^{-\lambda d+\lambda^2V/2}` for
    :math:`\lambda\ge0`; for a larger mean or a smaller variance the right side is smaller.
    """
    lam = (mean / variance.clamp_min(TINY)).clamp(1e-3, 1)
    total = -lam * mean + 0.5 * lam.square() * variance
    return chernoff_constant(lam) * torch.exp(total + ELEMENTARY * (lam * mean.abs() + variance)) + TINY


def chernoff_constant(lam: Tensor) -> Tensor:
    r""":math:`\lambda^\lambda(1-\lambda)^{1-\lambda}=\sup_D\sigma(-D)e^{\lambda D}` for ``0 < lam <= 1``; rounded."""
    return torch.exp(torch.xlogy(lam, lam) + torch.xlogy(1 - lam, 1 - lam)) * (1 + ELEMENTARY)


def log_moment(m: Tensor, r: Tensor, a: Tensor, c: Tensor) -> Tensor:
    """L, rounded up by ELEMENTARY times the size of its terms; infinite where ``2 c r^2 >= 1`` and where it is NaN."""
    off, on, size = _parts(m, r.clamp_min(TINY), a, c)
    value = torch.logaddexp(off, on)
    value = value + ELEMENTARY * (size + value.abs())
    exists = 2 * c * r * r < 1 - _POLE
    return torch.where(exists, value, torch.inf).nan_to_num(torch.inf, posinf=torch.inf, neginf=-torch.inf)


def tilted(m: Tensor, r: Tensor, a: Tensor, c: Tensor) -> Tilted:
    r"""L, the moments of the tilted law and the derivatives of L, to rounding.

    By Stein's identity :math:`\partial_mL=\mathbb E_tF'(X)` and :math:`\partial_rL=r\,\mathbb E_t(F''+F'^2)(X)` for
    :math:`F(x)=ax_++cx_+^2`: :math:`F'=a+2cx` above zero, and :math:`F''` has the mass a at zero.
    """
    r = r.clamp_min(TINY)
    off, on, _ = _parts(m, r, a, c)
    log = torch.logaddexp(off, on)
    active = torch.exp(on - log)
    w = 1 / (1 - 2 * c * r * r)
    std = w.sqrt() * r
    first, second = _cut_moments((m + a * r * r) * w.sqrt() / r)
    mean, square = active * std * first, active * std.square() * second
    in_mean = a * active + 2 * c * mean
    density = torch.exp(-0.5 * (m / r).square() - log) * INV_SQRT_2PI  # r times the density at zero
    in_std = a * density + r * ((2 * c + a * a) * active + 4 * a * c * mean + 4 * c * c * square)
    return Tilted(log, active, mean, square, in_mean, in_std)


def lipschitz(
    m: tuple[Tensor, Tensor],  # lower and upper ends, as of r
    r: tuple[Tensor, Tensor],
    a: Tensor,
    c: Tensor,  # >= 0
    cells: int = 1,
) -> Tensor:
    r"""Upper bound over the ranges of m and r of the Lipschitz constant of the tilted Z as a map of a Gaussian.

    The increasing map that takes a standard normal variable to the tilted Z has for :math:`a\le0` a derivative of at
    most :math:`\tilde r`, and else of at most :math:`\tilde r\max(1,\rho)`, :math:`\rho=h(-\Phi^{-1}(P))/h(-\tilde u)`
    with the hazard rate :math:`h=\varphi/Q` and :math:`P=P_t(Z>0)`. Hence
    :math:`\mathbb E_te^{\delta(Z-\mathbb E_tZ)}\le e^{\delta^2\ell^2/2}` for every delta, with :math:`\ell` the result.
    P and :math:`\tilde u` are bounded apart; ``cells`` parts of the range of u, one after the other, make up for it.
    """
    r_low, r_high = r[0].clamp_min(TINY), r[1].clamp_min(TINY)
    low, high = _range_of_u(m, (r_low, r_high))
    width, ease = (high - low) / cells, 1e-12 * (high - low)
    ends = [low + k * width for k in range(cells)] + [high]
    parts = [_steepest((ends[k] - ease, ends[k + 1] + ease), (r_low, r_high), a, c) for k in range(cells)]
    factor = torch.stack(parts).amax(0)
    return (factor * (1 + 1e-9) * r_high / (1 - 2 * c * r_high * r_high).sqrt()).nan_to_num(torch.inf)


def sub_gaussian(
    m: tuple[Tensor, Tensor],  # lower and upper ends, as of r
    r: tuple[Tensor, Tensor],
    a: Tensor,
    c: Tensor,  # >= 0
    reach: Tensor,  # >= 0
    cells: int = 1,
) -> Tensor:
    r"""Upper bound over the ranges of m and r of the square of a sub-Gaussian constant that holds near zero.

    :math:`\mathbb E_te^{\delta(Z-\mathbb E_tZ)}\le e^{\delta^2\ell^2/2}` for :math:`|\delta|\le` ``reach``. The
    logarithm of the left side is :math:`\delta^2\int_0^1(1-t)L_{aa}(a+t\delta)\,dt`, and :math:`L_{aa}` is the variance
    of Z under the tilt :math:`a+t\delta`. Steps of the largest variance up to there replace it on either side.
    """
    r_low, r_high = r[0].clamp_min(TINY), r[1].clamp_min(TINY)
    low, high = _range_of_u(m, (r_low, r_high))
    width, ease = (high - low) / cells, 1e-12 * (high - low)
    ends = [low + k * width for k in range(cells)] + [high]
    best = torch.zeros_like(a * low)
    for k in range(cells):
        u = (ends[k] - ease, ends[k + 1] + ease)
        for side in (1, -1):
            largest, mean = torch.zeros_like(best), torch.zeros_like(best)
            for step in range(_STEPS):
                near, far = (a + side * part / _STEPS * reach for part in (step, step + 1))
                found = _variance(u, (r_low, r_high), (near, far) if side > 0 else (far, near), c)
                largest = torch.maximum(largest, found)
                mean = mean + ((1 - step / _STEPS) ** 2 - (1 - (step + 1) / _STEPS) ** 2) * largest
            best = torch.maximum(best, mean)
    best = torch.where((a.abs() + reach) * r_high < _STEEP, best * (1 + 1e-9), torch.inf)
    return best.nan_to_num(torch.inf, posinf=torch.inf)


def _variance(u: tuple[Tensor, Tensor], r: tuple[Tensor, Tensor], a: tuple[Tensor, Tensor], c: Tensor) -> Tensor:
    r"""Upper bound of the variance of the tilted Z on ranges of u, r and a.

    With :math:`P=P_t(Z>0)` and E, V the mean and variance of :math:`\tilde u+\xi` given that it is positive, which both
    increase in :math:`\tilde u`, it is :math:`\tilde r^2(PV+P(1-P)E^2)`, concave in P.
    """
    w_high = 1 / (1 - 2 * c * r[1] * r[1])
    low, high = _range_of_tilted_u(u, r, a, c)
    odds = _log_odds(u, (low, high), r, c)
    first, _ = _cut_moments(high)
    square = first.square()
    # V = 1 - h E with the hazard rate h = E - u; far below zero V <= E^2, as for every log-concave law on z > 0.
    variance = torch.where(high < _LEFT, square, (1 - (first - high) * first).clamp_min(0))
    p = 0.5 * (1 + variance / square.clamp_min(TINY))
    p = torch.minimum(torch.maximum(p, torch.sigmoid(odds[0])), torch.sigmoid(odds[1]))
    return (p * variance + p * (1 - p) * square * (1 + 8 * ELEMENTARY) + 8 * ELEMENTARY) * w_high * r[1].square()


def _steepest(u: tuple[Tensor, Tensor], r: tuple[Tensor, Tensor], a: Tensor, c: Tensor) -> Tensor:
    """Upper bound of max(1, rho) of ``lipschitz`` on ranges of u and r, with P and u tilde bounded apart."""
    w_low = 1 / (1 - 2 * c * r[0] * r[0])
    low, high = _range_of_tilted_u(u, r, (a, a), c)
    odds, most = _log_odds(u, (low, high), r, c)
    p, complement = torch.sigmoid(odds), torch.sigmoid(-odds)
    quantile = torch.where(
        p < 0.5, torch.special.ndtri(p.clamp_min(_LEAST)), -torch.special.ndtri(complement.clamp_min(_LEAST))
    )
    log_p = torch.nn.functional.logsigmoid(odds)
    near = _LOG_PEAK - 0.5 * quantile.square() - log_p
    # Far below zero: P = Q(x) <= exp(-x^2/2)/2 and h(x) <= x + 1/x.
    root = (-2 * (log_p + math.log(2))).clamp_min(1).sqrt()
    near = torch.exp(torch.where(log_p < _RARE, torch.log(root + 1 / root), near) + _log_mills(high))
    # Far above zero: Q(x) = 1 - P, x <= root, and phi(x) <= Q(x) (x + 1/x), 1 - P <= phi(u tilde)/(u sqrt(w) Phi).
    root = (-2 * (torch.nn.functional.logsigmoid(-most) + math.log(2))).clamp_min(1).sqrt()
    far = (root + 1 / root) / (u[0].clamp_min(1) * w_low.sqrt() * p)
    factor = torch.where((u[0] > _FAR) & (low > _FAR), far, near)
    return torch.where(a <= 0, 1.0, factor.clamp_min(1))


def _range_of_u(m: tuple[Tensor, Tensor], r: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    low, high = torch.minimum(m[0] / r[0], m[0] / r[1]), torch.maximum(m[1] / r[0], m[1] / r[1])
    return low.clamp(-_LARGE, _LARGE), high.clamp(-_LARGE, _LARGE)


def _range_of_tilted_u(
    u: tuple[Tensor, Tensor], r: tuple[Tensor, Tensor], a: tuple[Tensor, Tensor], c: Tensor
) -> tuple[Tensor, Tensor]:
    """Of u tilde = (u + a r) sqrt(w)."""
    roots = [(1 / (1 - 2 * c * end * end)).sqrt() for end in r]
    low, high = u[0] + torch.minimum(a[0] * r[0], a[0] * r[1]), u[1] + torch.maximum(a[1] * r[0], a[1] * r[1])
    return torch.minimum(low * roots[0], low * roots[1]), torch.maximum(high * roots[0], high * roots[1])


def _log_odds(
    u: tuple[Tensor, Tensor], tilted_u: tuple[Tensor, Tensor], r: tuple[Tensor, Tensor], c: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Range of :math:`\log(P/(1-P))=\tfrac12\log w+\log R(\tilde u)-\log R(-u)`, :math:`P=P_t(Z>0)`."""
    low, high = (
        -0.5 * torch.log(1 - 2 * c * r[k] * r[k]) + _log_mills(tilted_u[k]) - _log_mills(-u[k]) for k in (0, 1)
    )
    return low, high


def _parts(m: Tensor, r: Tensor, a: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""Logarithms of the two terms of e^L and the size of what was added up in them.

    Where u tilde < 0 the large terms of the second cancel: :math:`-u^2/2+\log(\Phi/\varphi)(\tilde u)` does not.
    """
    s = r * r
    w = 1 / (1 - 2 * c * s)
    u, v = m / r, (m + a * s) * w.sqrt() / r
    power = w * (a * m + c * m * m + 0.5 * a * a * s)
    right = power + torch.special.log_ndtr(v.clamp_min(0))
    left = _LOG_PEAK - 0.5 * u * u + _log_mills(v.clamp_max(0))
    on = 0.5 * torch.log(w) + torch.where(v >= 0, right, left)
    size = 1 + torch.where(v >= 0, w * ((a * m).abs() + c.abs() * m * m + a * a * s), 0.0)
    return torch.special.log_ndtr(-u), on, size


def _log_mills(x: Tensor) -> Tensor:
    r""":math:`\log(\Phi(x)/\varphi(x))`, which increases."""
    left = torch.log(0.5 * torch.special.erfcx((-x).clamp_min(0) * _SQRT1_2))
    high = x.clamp_min(0)
    right = torch.special.log_ndtr(high) + 0.5 * high * high
    return torch.where(x < 0, left, right) - _LOG_PEAK


def _cut_moments(u: Tensor) -> tuple[Tensor, Tensor]:
    """E Y and E Y^2 for Y = u + xi given that it is positive."""
    high = u.clamp_min(0)
    left = math.sqrt(2 / math.pi) / torch.special.erfcx((-u).clamp_min(0) * _SQRT1_2)
    right = torch.exp(-0.5 * high * high) * INV_SQRT_2PI / torch.special.ndtr(high)
    first = (u + torch.where(u < 0, left, right)).clamp_min(0)
    return first, (1 + u * first).clamp_min(0)
