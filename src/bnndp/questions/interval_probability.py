r"""The probability that an output lies in an interval, for every x of a box and over the whole posterior.

From mean and variance alone by Cantelli's inequality and by parabolas; exact, over the ranges of mean and variance,
where nothing is random before the last layer, for then the outputs are Gaussian. A mixture has the weighted sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.engine.mixture import Mixture, weighted_interval
from bnndp.errors import InputError
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box
from bnndp.maths import normal
from bnndp.maths.rounding import ELEMENTARY, TINY, gamma
from bnndp.network import Posterior
from bnndp.options import Options
from bnndp.questions.quantity import Law, laws, quantity_bounds

_TINY_ROOT = 1e-150  # squares of less underflow


@dataclass(frozen=True, slots=True)
class Between:
    """The interval [lower, upper] of outputs that is asked about; infinite ends are allowed."""

    lower: float
    upper: float

    def __post_init__(self) -> None:
        if not self.lower <= self.upper or math.inf in (self.lower, -self.upper):
            raise InputError(
                f"an interval [a, b] needs a <= b, a below infinity and b above minus infinity; got "
                f"a={self.lower!r}, b={self.upper!r}."
            )


def interval_probability(network: Posterior, box: Box, options: Options, between: Between) -> Interval:
    """Bounds (batch, outputs) of P(a <= f(x) <= b) for every x of each box."""

    def found(passes: Mixture) -> Interval:
        each = [(weights, _probability(law, between)) for weights, law in laws(passes)]
        if not passes.several:
            return each[0][1]
        ends = weighted_interval(each)
        return Interval(ends.lower.clamp(0, 1), ends.upper.clamp(0, 1))

    return quantity_bounds(network, box, options, found, most=1.0)


def _probability(law: Law, between: Between) -> Interval:
    low, high = _by_moments(law.mean, law.variance.upper, between)
    if law.gaussian:
        least, most = _gaussian(law.mean, law.variance, between)
        low, high = torch.fmax(low, least), torch.fmin(high, most)
    low, high = low.nan_to_num(0.0).clamp(0, 1), high.nan_to_num(1.0).clamp(0, 1)
    return Interval(torch.minimum(low, high), high)


def _by_moments(mean: Interval, most: Tensor, between: Between) -> tuple[Tensor, Tensor]:
    r"""From means in an interval and variances of at most V.

    Cantelli: :math:`P(f-\mathbb Ef\ge t)\le V/(V+t^2)`. Parabolas: for any c within (a, b), at a distance
    :math:`\rho` from the nearer end, :math:`P(f\notin(a,b))\le\mathbb E(f-c)^2/\rho^2=(V+(M-c)^2)/\rho^2`; c in the
    middle, or where the parabola of Cantelli's inequality for the nearer end has its zero (Selberg 1940).
    """
    a, b = between.lower, between.upper
    above, below = _cantelli(b - mean.upper, most), _cantelli(mean.lower - a, most)  # P(f > b), P(f < a)
    outside = above + below
    if math.isfinite(a) and math.isfinite(b):
        middle = torch.full_like(most, 0.5 * a + 0.5 * b)
        nearer = torch.minimum(mean.lower - a, b - mean.upper).clamp_min(TINY)
        zero = torch.where(mean.lower - a < b - mean.upper, mean.lower + most / nearer, mean.upper - most / nearer)
        for c in (middle, zero):
            reach = torch.minimum(c - a, b - c).clamp_max(1e150) * (1 - gamma(8)) - gamma(8) * (abs(a) + abs(b))
            away = torch.maximum((mean.lower - c).abs(), (mean.upper - c).abs())
            away = away + gamma(8) * (mean.magnitude + c.abs())
            ratio = (most + away.square()) / reach.square()
            outside = torch.where((reach > _TINY_ROOT) & (ratio < outside), ratio, outside)  # false for NaN
    inside = torch.fmin(_cantelli(a - mean.upper, most), _cantelli(mean.lower - b, most))
    return 1 - outside * (1 + ELEMENTARY) - ELEMENTARY, inside * (1 + ELEMENTARY) + ELEMENTARY


def _cantelli(distance: Tensor, most: Tensor) -> Tensor:
    """Bound of the probability of straying from the mean by more than this to one side; 1 where it is not positive."""
    t = (distance - gamma(4) * distance.abs()).clamp_max(1e100)
    square = t.square()
    found = torch.where((t > _TINY_ROOT) & most.isfinite(), most / (most + square), 1.0)
    return torch.where(distance == torch.inf, 0.0, found)


def _gaussian(mean: Interval, spread: Interval, between: Between) -> tuple[Tensor, Tensor]:
    r"""The least and the largest :math:`P(a\le N(m,r^2)\le b)` over a rectangle of means and standard deviations.

    In m it rises up to the middle of [a, b] and falls after it, for every r: the least is at an end, the largest at the
    middle cut to the means. In r it falls if m is within [a, b], and else rises up to
    :math:`r^2=(d_2^2-d_1^2)/(2\log(d_2/d_1))`, the distances to both ends, and falls after it: the least is at an end.
    """
    a, b = between.lower, between.upper
    low, high = (spread.lower * (1 - gamma(4))).sqrt(), (spread.upper * (1 + gamma(4))).sqrt().clamp_min(TINY)
    low = torch.where(low < TINY, 0.0, low)
    least = torch.stack([_chance(m, r, a, b) for m in (mean.lower, mean.upper) for r in (low, high)]).amin(0)
    blur = 0.0
    if math.isfinite(a) and math.isfinite(b):
        blur = gamma(4) * (abs(a) + abs(b))  # of the middle, by rounding
        m = torch.full_like(mean.lower, 0.5 * a + 0.5 * b).clamp(mean.lower, mean.upper)
    else:
        m = mean.lower if a == -math.inf else mean.upper
    within = (m >= a) & (m <= b)
    near, far = (torch.where(within, 1.0, torch.maximum(*ends)) for ends in ((a - m, m - b), (b - m, m - a)))
    gap = far - near
    peak = (gap / (2 * torch.log1p(gap / near))).sqrt() * (far + near).sqrt()  # a square of the distances may underflow
    peak = torch.where(within, 0.0, peak.nan_to_num(torch.inf, posinf=torch.inf)).clamp(low, high)
    inner = torch.where(low == 0, 1.0, _chance(m, low, a - blur, b + blur))
    most = torch.where(within, inner, _chance(m, peak, a, b))
    fine = high.isfinite() & mean.lower.isfinite() & mean.upper.isfinite()
    return torch.where(fine, least - ELEMENTARY, 0.0), torch.where(fine, most + ELEMENTARY, 1.0)


def _chance(m: Tensor, r: Tensor, a: float, b: float) -> Tensor:
    """P(a <= N(m, r^2) <= b); for r = 0 the limit of small r."""
    half = m.new_tensor(0.5)
    limit = torch.heaviside(b - m, half) - torch.heaviside(a - m, half)
    scale = torch.where(r > 0, r, 1.0)
    return torch.where(r > 0, normal.interval_probability((a - m) / scale, (b - m) / scale), limit)
