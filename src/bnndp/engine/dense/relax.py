r"""Bounds of E ReLU(X) for a hidden layer whose input is random, and their affine relaxation in the mean of X.

Given z, X is Gaussian with mean m(z) and variance s(z); M = E m, S = E s. Four steps lead from E g(m, sqrt s) to g(M,
rho), each with a bounded error (docs/theory.md, sections 4.2 to 4.5):

1. s is replaced by a constant s0: by a Taylor step of second order in s, whose first order is a covariance that may
   be negative, or by Scarf's bound on E(s - s0)_+;
2. given the layer y before z, m is a sum of independent terms, which are replaced by Gaussians (Lindeberg);
3. the variance V(y) of that Gaussian is replaced by a constant n0, again by a Taylor step of second order;
4. the mean c(y) = E[m | y] is replaced by its mean M: below by Jensen's inequality, above by the largest curvature,
   :math:`\varphi(0)V_c/(2\rho)`.

So :math:`g(M,\sqrt{s_1+n_1})-\text{errors}\le\mathbb E\,\mathrm{ReLU}(X)\le g(M,\sqrt{s_0+n_0})+\text{errors}`.
Jensen's bound g(M, R), the curvature bound without step 2 and Scarf's bound hold beside it. Every bound is a convex
increasing function of M with all else fixed over the box, so below a tangent and above the chord over the range of M
are affine bounds; of several the tightest in the middle of the range is kept.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.engine.dense.rare_neurons import rarity
from bnndp.engine.dense.records import Cross, Latent, PreActivation, Relaxation
from bnndp.engine.dense.slope import slope
from bnndp.geometry.bounds import Interval
from bnndp.maths.normal import pdf
from bnndp.maths.rectified import expected_relu, ratio, second_moment
from bnndp.maths.replacement import TO_SECOND_MOMENT
from bnndp.maths.rounding import ELEMENTARY, SMALL, TINY, gamma
from bnndp.maths.tails import (
    HALF_PEAK,
    MEAN_ABOVE,
    MEAN_BELOW,
    MEAN_MIXED,
    PEAK,
    SECOND_CURVATURE,
    SECOND_MIXED,
    excess,
    relu_scarf,
    shortfall,
)

__all__ = ["Enclosure", "relax"]

_DELTAS = (0.0, 0.5, 1.5)
"""Levels s0 = S + delta sqrt(Vs) tried for the upper bounds."""

_ROUND = 8 * ELEMENTARY
_MIXED_TWICE = 0.5 * PEAK  # sup |f''| s0^1.5 for f = d_s g(., sqrt s0): |u^2 - 1| phi(u) / 2
_MIXED_THRICE = 0.5 * 0.5507  # sup |f'''| s0^2: |u^3 - 3u| phi(u) / 2
_TO_MIXED = 1.5 * PEAK / (2 * MEAN_MIXED)  # sup of f'''' s0^2.5, |u^4 - 6u^2 + 3| phi(u) / 2, over that of g''' s0
_LOST = gamma(64)  # of the sizes of a few terms, each the result of at most 32 rounded operations


@dataclass(frozen=True, slots=True)
class Enclosure:
    """``g(M, rho) - loss <= E ReLU(X)`` and ``E ReLU(X) <= above(M)`` for every M of the range; (batch, n) each."""

    rho: Tensor
    loss: Tensor  # of either sign
    low_end: Tensor  # value of the upper bound at the lower end of M
    high_end: Tensor  # and at the upper end


def relax(before: PreActivation, mean: Interval) -> tuple[Relaxation, Latent]:
    """Affine bounds of E z in M for M in ``mean``, and the moments of z."""
    enclosure = _enclose(before, mean)
    middle = 0.5 * (mean.lower + mean.upper)
    u = ratio(middle, enclosure.rho)
    # g is convex and of degree one: its tangent plane at u is Phi(u) M + phi(u) rho.
    loss = enclosure.loss + _ROUND * (mean.magnitude + enclosure.rho + enclosure.loss.abs())
    top = mean.magnitude + torch.maximum(enclosure.high_end.abs(), enclosure.low_end.abs())
    upper_slope = (enclosure.high_end - enclosure.low_end) / (mean.upper - mean.lower).clamp_min(TINY)
    upper_slope = upper_slope.clamp(0, 1)
    upper_offset = torch.maximum(
        enclosure.low_end - upper_slope * mean.lower, enclosure.high_end - upper_slope * mean.upper
    )
    upper_offset = upper_offset + _ROUND * top
    latent = _latent(before, mean, enclosure)
    flat = latent.mean.upper < upper_slope * middle + upper_offset  # of a neuron that is hardly ever active
    upper_slope = torch.where(flat, 0.0, upper_slope)
    upper_offset = torch.where(flat, latent.mean.upper, upper_offset)
    size = mean.magnitude + torch.maximum(PEAK * enclosure.rho + loss.abs(), upper_offset.abs())
    relaxation = Relaxation(u, enclosure.rho, loss, upper_slope, upper_offset, size)
    return relaxation, latent


def _enclose(before: PreActivation, mean: Interval) -> Enclosure:
    rho, loss = _lower(before, mean)
    middle = 0.5 * (mean.lower + mean.upper)
    total = before.spread.upper + before.mean_variance
    best = relu_scarf(middle, total)
    scarf, deviation, error = torch.ones_like(best, dtype=torch.bool), total, total
    for delta in _DELTAS:
        s0 = (before.spread.upper + delta * before.spread_variance.sqrt()).clamp_min(TINY)
        step = HALF_PEAK * excess(before.spread.upper, before.spread_variance, s0) / s0.sqrt()
        if delta == 0:
            step = torch.minimum(step, _taylor_in_s(before, mean, s0, before.replacement.upper, MEAN_ABOVE, 1))
        curved = _total(step, HALF_PEAK * before.mean_variance / s0.sqrt())
        level = s0 + before.noise.upper
        gaussian = _total(
            step,
            before.replacement.upper,
            _taylor_in_v(before, level, MEAN_ABOVE),
            HALF_PEAK * before.central / level.sqrt(),
        )
        for root, add in ((s0.sqrt(), curved), (level.sqrt(), gaussian)):
            found = expected_relu(middle, root) + add
            take = found < best  # NaN and infinity never win
            best, scarf = torch.where(take, found, best), scarf & ~take
            deviation, error = torch.where(take, root, deviation), torch.where(take, add, error)
    low, high = (
        torch.where(scarf, relu_scarf(m, total), expected_relu(m, deviation) + error) for m in (mean.lower, mean.upper)
    )
    slack = _ROUND * (mean.magnitude + high.abs() + total.sqrt())  # s0, level <= total wherever step < 0
    return Enclosure(rho, loss, low + slack, high + slack)


def _lower(before: PreActivation, mean: Interval) -> tuple[Tensor, Tensor]:
    """The better at the middle of M of Jensen's bound and of the four steps, as ``g(M, rho) - loss``."""
    s1 = before.spread.lower.clamp_min(TINY)
    step = PEAK * shortfall(before.spread.lower, before.spread_variance, s1) / s1.sqrt()
    step = torch.minimum(step, _taylor_in_s(before, mean, s1, before.replacement.lower, MEAN_BELOW, -1))
    level = s1 + before.noise.lower
    loss = _total(step, before.replacement.lower, _taylor_in_v(before, level, MEAN_BELOW))
    rho = level.sqrt() * (1 - ELEMENTARY)
    middle = 0.5 * (mean.lower + mean.upper)
    gain = expected_relu(middle, rho) - loss > expected_relu(middle, before.jensen)  # false where loss is infinite
    gain &= before.spread.lower >= SMALL**2  # below it powers of s1 underflow
    return torch.where(gain, rho, before.jensen), torch.where(gain, loss, 0.0)


def _total(*terms: Tensor) -> Tensor:
    """Their sum, not below that of the exact terms: they may cancel, so the slack is of the sum of their sizes."""
    size = torch.stack([term.abs() for term in terms]).sum(0)
    return torch.stack(terms).sum(0) + _LOST * size


def _taylor_in_s(
    before: PreActivation, mean: Interval, s0: Tensor, replacement: Tensor, curvature: float, sign: int
) -> Tensor:
    """Error of step 1 at a level s0 that is an end of the range of S: second order, and Cov(d_s g(m, s0), s).

    Of either sign: a covariance that is known to be negative makes an upper bound smaller (``sign`` 1; -1 for a lower).
    """
    square = before.spread_variance + (before.spread.upper - before.spread.lower).square()
    covariance = MEAN_MIXED * (before.mean_variance * before.spread_variance).sqrt() / s0
    if before.cross is not None:
        covariance = torch.minimum(covariance, _covariance(before, before.cross, mean, s0, replacement, sign))
    return _total(covariance, curvature * square / (s0 * s0.sqrt()))


def _covariance(
    before: PreActivation, cross: Cross, mean: Interval, s0: Tensor, replacement: Tensor, sign: int
) -> Tensor:
    r"""Upper bound of ``sign * Cov(f(m), s)``, f = d_s g(., sqrt s0), in the second hidden layer.

    With C_j = Cov(z_j, z_j^2) the covariance is within :func:`_rest` of :math:`\mathbb Ef'(m)\operatorname{Cov}(m,s)`,
    :math:`\operatorname{Cov}(m,s)=\sum_j\mu_j\sigma_j^2C_j`, and at most
    :math:`\sup|f'|\sum_j|\mu_j|\sigma_j^2C_j` on both sides (proofs: docs/theory.md, section 4.3).
    """
    slope, c = _mixed(before, mean, s0, replacement), cross.covariance
    corners = torch.stack([sign * a * b for a in (slope.lower, slope.upper) for b in (c.lower, c.upper)]).amax(0)
    rest, whole = _rest(cross, s0), MEAN_MIXED / s0 * cross.absolute
    # A product is at most ``whole`` and so are the three parts of its factor: _LOST of the sizes covers all rounding.
    signed = (corners + rest + _LOST * (whole + rest)).nan_to_num(torch.inf, posinf=torch.inf)
    return torch.minimum(signed, whole * (1 + _LOST))


def _mixed(before: PreActivation, mean: Interval, s0: Tensor, replacement: Tensor) -> Interval:
    r"""Range of :math:`\mathbb Ef'(m)`, :math:`f'=\partial_m\partial_sg(\cdot,\sqrt{s_0})`, in the second hidden layer.

    Were m Gaussian, it would be :math:`-u\varphi(u)/(2\rho^2)` at :math:`\rho^2=s_0+N`, :math:`u=M/\rho`. The
    replacement adds at most its error times :math:`\tfrac32\varphi(0)/(\varphi(1)s_0^{3/2})`: the third derivative of
    f' smoothed to rho_j is at most :math:`\tfrac32\varphi(0)/\rho_j^5`, that of g :math:`\varphi(1)/\rho_j^2`.
    """
    low, high = s0 + before.noise.lower, s0 + before.noise.upper
    u = torch.stack([ratio(end, level.sqrt()) for end in (mean.lower, mean.upper) for level in (low, high)])
    first, last = u.amin(0), u.amax(0)
    one = torch.ones_like(first)
    at = torch.stack([first, last, one.clamp(first, last), (-one).clamp(first, last)])
    values = at * pdf(at)  # u phi(u) is extreme at the ends and at +-1
    most, least = values.amax(0) + ELEMENTARY, values.amin(0) - ELEMENTARY
    off = _TO_MIXED * replacement / (s0 * s0.sqrt())
    limit = MEAN_MIXED / s0
    top = torch.maximum(-least / (2 * low), -least / (2 * high)) + off
    bottom = torch.minimum(-most / (2 * low), -most / (2 * high)) - off
    return Interval(torch.maximum(bottom, -limit), torch.minimum(top, limit))


def _rest(cross: Cross, s0: Tensor) -> Tensor:
    r"""Bound of :math:`|\operatorname{Cov}(f(m),s)-\mathbb Ef'(m)\operatorname{Cov}(m,s)|`, f as in _covariance.

    One source z_j at a time, the others integrated out, is expanded at E z_j:

    .. math::
       \tfrac12\sup|f''|\sum_j\mu_j^2\sigma_j^2\sqrt{c_{4,j}\operatorname{Var}z_j^2}
       +\tfrac12\sup|f'''|\sum_j|\mu_j|^3\sigma_j^2v_jC_j.
    """
    second = _MIXED_TWICE * cross.second / (s0 * s0.sqrt())
    return 0.5 * (second + _MIXED_THRICE * cross.third / s0.square())


def _taylor_in_v(before: PreActivation, level: Tensor, curvature: float) -> Tensor:
    """Error of step 3 at ``level`` = s0 + an end of the range of N: the same with V(y) for s and c(y) for m."""
    square = before.noise_variance + (before.noise.upper - before.noise.lower).square()
    covariance = (before.central * before.noise_variance).sqrt()
    return MEAN_MIXED * covariance / level + curvature * square / (level * level.sqrt())


def _latent(before: PreActivation, mean: Interval, enclosure: Enclosure) -> Latent:
    slack = _ROUND * (mean.magnitude + enclosure.rho + enclosure.loss.abs())
    low = (expected_relu(mean.lower, enclosure.rho) - enclosure.loss - slack).clamp_min(0)
    second, fourth = _second(before, mean), _fourth(before, mean)
    activity = torch.ones_like(fourth)
    if before.tail is not None:
        rare = rarity(before.tail, mean, fourth)
        second = Interval(second.lower, torch.minimum(second.upper, rare.second))
        fourth, activity = torch.minimum(fourth, rare.fourth), rare.activity
    least = torch.maximum(second.lower, low * low * (1 - _ROUND))
    total = before.spread.upper + before.mean_variance
    variance = torch.minimum(total, (second.upper - low * low).clamp_min(0)) * (1 + _ROUND)
    high = torch.minimum(enclosure.high_end, second.upper.sqrt() * (1 + _ROUND))
    return Latent(Interval(low, high), Interval(least, second.upper), variance, fourth, activity)


def _second(before: PreActivation, mean: Interval) -> Interval:
    """Bounds of E ReLU(X)^2 by the same four steps, by Jensen's inequality below and from Var X above."""
    s0, n0 = before.spread.upper.clamp_min(TINY), before.noise.upper
    top = (s0 + n0).sqrt()
    over = torch.minimum(
        excess(before.spread.upper, before.spread_variance, s0), _second_error(before, s0, slope(before, mean).variance)
    )
    steps = TO_SECOND_MOMENT * top * before.replacement.upper + _second_error_v(before, s0 + n0) + before.central
    near = second_moment(mean.upper, top) + over + steps
    curved = second_moment(mean.upper, s0.sqrt()) + before.mean_variance + over
    any_law = mean.upper.clamp_min(0).square() + before.spread.upper + before.mean_variance  # also where M <= 0
    upper = torch.minimum(torch.minimum(curved, near.nan_to_num(torch.inf)), any_law)
    upper = upper + _ROUND * (any_law + s0)
    s1, n1 = before.spread.lower.clamp_min(TINY), before.noise.lower
    root = (s1 + n1).sqrt()
    loss = _second_error(before, s1, SECOND_MIXED**2 * before.mean_variance / s1) + _second_error_v(before, s1 + n1)
    loss = loss + TO_SECOND_MOMENT * root * before.replacement.lower
    jensen = second_moment(mean.lower, before.jensen)  # z -> E ReLU(w z + b)^2 is convex, so Jensen holds too
    near = torch.where(before.spread.lower >= SMALL**2, second_moment(mean.lower, root) - loss, 0.0)
    lower = torch.maximum(jensen, near.nan_to_num(0.0, neginf=0.0))
    return Interval((lower - _ROUND * (mean.lower.clamp_min(0) + root).square()).clamp_min(0), upper)


def _second_error(before: PreActivation, s0: Tensor, slope_variance: Tensor) -> Tensor:
    """Error of step 1 for the second moment: Cov(Phi(m / sqrt(s0)), s), and second order in s."""
    square = before.spread_variance + (before.spread.upper - before.spread.lower).square()
    return (slope_variance * before.spread_variance).sqrt() + SECOND_CURVATURE * square / s0


def _second_error_v(before: PreActivation, level: Tensor) -> Tensor:
    """Error of step 3 for the second moment."""
    square = before.noise_variance + (before.noise.upper - before.noise.lower).square()
    return SECOND_MIXED * (before.central * before.noise_variance / level).sqrt() + SECOND_CURVATURE * square / level


def _fourth(before: PreActivation, mean: Interval) -> Tensor:
    r"""Upper bound of :math:`\mathbb E z^4\le\mathbb E(m'+\sqrt s\,\xi)^4` with :math:`m'=m-\min(M,0)`.

    :math:`\mathbb E m'^4\le(M_++\|m-M\|_4)^4` and :math:`6\,\mathbb E m'^2s\le6\sqrt{\mathbb E m'^4\,\mathbb E s^2}`.
    """
    m4 = (mean.upper.clamp_min(0) + before.fourth.sqrt().sqrt()) ** 4
    s2 = before.spread.upper.square() + before.spread_variance
    return (m4 + 6 * torch.sqrt(m4 * s2) + 3 * s2) * (1 + _ROUND)
