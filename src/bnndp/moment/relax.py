r"""Bounds of E ReLU(X) for a hidden layer whose input is random, and their affine relaxation in the mean of X.

Given z, X is Gaussian with mean m(z) and variance s(z). M = E m, S = E s, Vm = Var m, Vs = Var s (docs/theory.md):

* below: :math:`g(M,R)` (Jensen), and, where m is known to be nearly Gaussian,
  :math:`g(M,\sqrt{s_1+V_m})-\text{error}-\varphi(0)\,\mathbb E(s_1-s)_+/\sqrt{s_1}`;
* above: :math:`g(M,\sqrt{s_0})+(V_m+\mathbb E(s-s_0)_+)/(2\sqrt{2\pi s_0})`, the same with m replaced by a Gaussian,
  :math:`g(M,\sqrt{s_0+V_m})+\text{error}+\mathbb E(s-s_0)_+/(2\sqrt{2\pi s_0})`, and Scarf's bound for any law.

Every bound is a convex increasing function of M with all else fixed over the box, so below a tangent and above the
chord over the range of M are affine bounds; of several the tightest in the middle of the range is kept.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.bounds import Interval
from bnndp.maths.normal import cdf, pdf
from bnndp.maths.rectified import expected_relu, moments, ratio
from bnndp.maths.replacement import TO_SECOND_MOMENT
from bnndp.maths.rounding import ELEMENTARY, TINY
from bnndp.maths.tails import HALF_PEAK, PEAK, excess, relu_scarf, shortfall
from bnndp.moment.records import Latent, PreActivation, Relaxation

__all__ = ["DELTAS", "Enclosure", "relax"]

DELTAS = (0.0, 0.5, 1.5)
"""Levels s0 = S + delta sqrt(Vs) tried for the upper bounds."""

_ROUND = 8 * ELEMENTARY


@dataclass(frozen=True, slots=True)
class Enclosure:
    """``g(M, rho) - loss <= E ReLU(X)`` and ``E ReLU(X) <= above(M)`` for every M of the range; (batch, n) each."""

    rho: Tensor
    loss: Tensor
    low_end: Tensor  # value of the upper bound at the lower end of M
    high_end: Tensor  # and at the upper end


def relax(
    before: PreActivation, mean: Interval, tangent: Tensor | None = None, deltas: tuple[float, ...] = DELTAS
) -> tuple[Relaxation, Latent]:
    """Affine bounds of E z in M for M in ``mean``, and the moments of z; ``tangent`` (batch, n) are points u* or None."""
    enclosure = _enclose(before, mean, deltas)
    middle = 0.5 * (mean.lower + mean.upper)
    u = ratio(middle, enclosure.rho) if tangent is None else tangent
    scale = mean.magnitude + enclosure.rho + enclosure.loss
    lower_slope = cdf(u)
    # g is convex and of degree one: its tangent plane at u is Phi(u) M + phi(u) rho.
    lower_offset = pdf(u) * enclosure.rho - enclosure.loss - _ROUND * scale
    top = mean.magnitude + enclosure.high_end
    upper_slope = (enclosure.high_end - enclosure.low_end) / (mean.upper - mean.lower).clamp_min(TINY)
    upper_slope = upper_slope.clamp(0, 1)
    upper_offset = torch.maximum(
        enclosure.low_end - upper_slope * mean.lower, enclosure.high_end - upper_slope * mean.upper
    )
    upper_offset = upper_offset + _ROUND * top
    size = mean.magnitude + torch.maximum(lower_offset.abs(), upper_offset.abs())
    relaxation = Relaxation(lower_slope, lower_offset, upper_slope, upper_offset, size)
    return relaxation, _latent(before, mean, enclosure)


def _enclose(before: PreActivation, mean: Interval, deltas: tuple[float, ...]) -> Enclosure:
    rho, loss = _lower(before, mean)
    best = _ends(lambda m: relu_scarf(m, before.spread.upper + before.mean_variance.upper), mean)
    for delta in deltas:
        s0 = (before.spread.upper + delta * before.spread_variance.sqrt()).clamp_min(TINY)
        over = excess(before.spread.upper, before.spread_variance, s0)
        curved = HALF_PEAK * (before.mean_variance.upper + over) / s0.sqrt()
        gaussian = before.replacement + HALF_PEAK * over / s0.sqrt()
        for level, add in ((s0, curved), (s0 + before.mean_variance.upper, gaussian)):
            root = level.sqrt()
            best = _better(best, _ends(lambda m, root=root, add=add: expected_relu(m, root) + add, mean))
    slack = _ROUND * (mean.magnitude + best[2])
    return Enclosure(rho, loss, best[0] + slack, best[2] + slack)


def _lower(before: PreActivation, mean: Interval) -> tuple[Tensor, Tensor]:
    """The better at the middle of M of Jensen's bound and of the nearly Gaussian one, as ``g(M, rho) - loss``."""
    s1 = before.spread.lower
    below = shortfall(s1, before.spread_variance, s1)
    loss = before.replacement_low + PEAK * below / s1.clamp_min(TINY).sqrt()
    rho = (s1 + before.mean_variance.lower).sqrt() * (1 - ELEMENTARY)
    middle = 0.5 * (mean.lower + mean.upper)
    gain = expected_relu(middle, rho) - loss > expected_relu(middle, before.jensen)  # false where loss is infinite
    return torch.where(gain, rho, before.jensen), torch.where(gain, loss * (1 + ELEMENTARY), 0.0)


def _ends(above: Callable[[Tensor], Tensor], mean: Interval) -> tuple[Tensor, Tensor, Tensor]:
    """Values of a convex increasing bound at the lower end, middle and upper end of the range of M."""
    return above(mean.lower), above(0.5 * (mean.lower + mean.upper)), above(mean.upper)


def _better(a: tuple[Tensor, Tensor, Tensor], b: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Of two bounds the one that is lower in the middle, element by element; NaN and infinity never win."""
    take = b[1] < a[1]
    return torch.where(take, b[0], a[0]), torch.where(take, b[1], a[1]), torch.where(take, b[2], a[2])


def _latent(before: PreActivation, mean: Interval, enclosure: Enclosure) -> Latent:
    low = (expected_relu(mean.lower, enclosure.rho) - enclosure.loss - _ROUND * mean.magnitude).clamp_min(0)
    second = _second(before, mean)
    total = before.spread.upper + before.mean_variance.upper
    variance = torch.minimum(total, (second - low * low).clamp_min(0)) * (1 + _ROUND)
    jensen = moments(mean.lower, before.jensen).second  # z -> E ReLU(w z + b)^2 is convex, so Jensen holds too
    scale = mean.lower.clamp_min(0) + before.jensen
    least = torch.maximum(jensen - _ROUND * scale.square(), low * low * (1 - _ROUND))
    return Latent(Interval(low, enclosure.high_end), Interval(least.clamp_min(0), second), variance, _fourth(before, mean))


def _second(before: PreActivation, mean: Interval) -> Tensor:
    """Upper bound of E ReLU(X)^2: by curvature (at most 2), by the nearly Gaussian m, or from the variance of X."""
    s0 = before.spread.upper
    vm = before.mean_variance.upper
    over = excess(s0, before.spread_variance, s0)
    curved = moments(mean.upper, s0.sqrt()).second + vm + over
    gaussian = moments(mean.upper, (s0 + vm).sqrt()).second + over
    gaussian = gaussian + TO_SECOND_MOMENT * (s0 + vm).sqrt() * before.replacement
    any_law = mean.upper.clamp_min(0).square() + s0 + vm  # E X_+^2 <= Var X + M^2, and <= Var X where M <= 0
    scale = mean.upper.clamp_min(0).square() + s0
    return torch.minimum(torch.minimum(curved, gaussian.nan_to_num(torch.inf)), any_law) + _ROUND * scale


def _fourth(before: PreActivation, mean: Interval) -> Tensor:
    r"""Upper bound of :math:`\mathbb E z^4\le\mathbb E(m'+\sqrt s\,\xi)^4` with :math:`m'=m-\min(M,0)`.

    :math:`\mathbb E m'^4\le(M_++\|m-M\|_4)^4` and :math:`6\,\mathbb E m'^2s\le6\sqrt{\mathbb E m'^4\,\mathbb E s^2}`.
    """
    m4 = (mean.upper.clamp_min(0) + before.fourth.sqrt().sqrt()) ** 4
    s2 = before.spread.upper.square() + before.spread_variance
    return (m4 + 6 * torch.sqrt(m4 * s2) + 3 * s2) * (1 + _ROUND)
