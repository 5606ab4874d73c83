r"""Probabilities and means of a layer inside and outside rectangles, as bounds over all z of a region.

All functions see z only through the intervals of :math:`m_i(z)` and :math:`r_i(z)` (:class:`Ranges`), because given z
the coordinates are independent Gaussians. ``a`` and ``b`` are the ends of a rectangle in one coordinate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.maths.normal import cdf, interval_probability, tail
from bnndp.maths.rectified import expected_relu, ratio
from bnndp.maths.rounding import ELEMENTARY, TINY, up
from bnndp.paper.layers import SLACK, Ranges

_SURE = 1e-3  # below this probability a conditional mean is only bounded by the ends of its interval


@dataclass(frozen=True, slots=True)
class Outside:
    """Upper bounds, over a region, of what happens outside the main rectangle R."""

    probability: Tensor  # (batch, cells, 1), of {zeta not in R}
    mean: Tensor  # (batch, cells, n), of ReLU(zeta_i) 1{zeta not in R}
    above: Tensor  # (batch, cells, n), of (z_i - max R_i)_+
    below: Tensor  # (batch, cells, n), of (min R_i - z_i)_+


def truncated_mean(m: Tensor, r: Tensor, a: Tensor, b: Tensor) -> Tensor:
    r""":math:`\mathbb E[\mathrm{ReLU}(\zeta)1\{a\le\zeta\le b\}]`, :math:`\zeta\sim N(m,r^2)` (``prop:nnCondExpect``).

    .. math:: g(m-a_+,r)-g(m-b_+,r)+a_+P(\zeta\ge a_+)-b_+P(\zeta\ge b_+)

    (errata item 1). Absolute error at most ``16 ELEMENTARY (|m| + r + a_+ + b_+)``: the terms cancel.
    """
    a, b = a.clamp_min(0), b.clamp_min(0)
    ends = a * tail(ratio(a - m, r)) - b * tail(ratio(b - m, r))
    return (expected_relu(m - a, r) - expected_relu(m - b, r) + ends).clamp_min(0)


def excess(ranges: Ranges, b: Tensor) -> Tensor:
    r"""At least :math:`\mathbb E(\zeta_i-b)_+=g(m_i-b,r_i)` for every z: g increases in both arguments."""
    return expected_relu(ranges.mean_upper - b, ranges.std_upper) * (1 + SLACK) + TINY


def outside(ranges: Ranges, a: Tensor, b: Tensor) -> Outside:  # a, b (batch, 1, n): the main rectangle
    r"""Bounds on the complement of a rectangle, from the identity of errata item 2 in a form without cancellation.

    .. math:: \mathbb E[z_i1\{\zeta\notin R\}]=g_i-e_i\prod_{l\ne i}P_l=(g_i-e_i)+e_i\Bigl(1-\prod_{l\ne i}P_l\Bigr)

    where :math:`g_i-e_i=\mathbb E[z_i1\{\zeta_i\notin R_i\}]` is a sum of two tails, :math:`e_i\le g_i`, and the last
    bracket is at most the sum of the tail probabilities (union bound).
    """
    a_plus, b_plus = a.clamp_min(0), b.clamp_min(0)
    tails = _upper_tail(ranges, b) + _lower_tail(ranges, a)
    total = up(tails.sum(-1, keepdim=True), a.shape[-1] + 4)  # also covers the rounding of the difference below
    probability, others = total.clamp_max(1), (total - tails).clamp(0, 1)
    whole = excess(ranges, torch.zeros_like(b))
    over = excess(ranges, b_plus)
    own = over + b_plus * _upper_tail(ranges, b_plus) + a_plus * _lower_tail(ranges, a_plus)
    mean = torch.minimum(up(own + whole * others, 8), whole)
    # (a_+ - z)_+ <= (a - zeta)_+ where a > 0: the mirrored Gaussian.
    under = expected_relu(a_plus - ranges.mean_lower, ranges.std_upper) * (1 + SLACK) + TINY
    under = torch.where(a > 0, torch.minimum(under, a_plus), 0.0)
    return Outside(probability, mean, over, under)


def inside_probability(ranges: Ranges, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    r"""Smallest and largest :math:`P(\zeta_i\in I)` over the region, where I has the ends a and b, open or closed.

    One coordinate of Lemma ``lemma:closedFormProbRect``. The probability is quasi-concave in m (largest at the middle
    of I) and in r, so its minimum over a rectangle of (m, r) is at a corner. For the maximum m is as near to the
    middle as it can be, and each of the two terms then takes its own worst r.
    """
    least = torch.ones_like(torch.maximum(ranges.mean_lower, a))
    for m in (ranges.mean_lower, ranges.mean_upper):
        for r in (ranges.std_lower, ranges.std_upper):
            hit = (r == 0) & ((m == a) | (m == b))  # an atom on the end may belong to the neighbour
            value = interval_probability(ratio(a - m, r), ratio(b - m, r)) - 4 * ELEMENTARY
            least = torch.minimum(least, torch.where(hit, 0.0, value))
    m = torch.minimum(torch.maximum(0.5 * a + 0.5 * b, ranges.mean_lower), ranges.mean_upper)
    left = ratio(a - m, torch.where(a > m, ranges.std_upper, ranges.std_lower))
    right = ratio(b - m, torch.where(b > m, ranges.std_lower, ranges.std_upper))
    hit = (ranges.std_lower == 0) & ((m == a) | (m == b))
    most = torch.where(hit, 1.0, interval_probability(left, right) + 4 * ELEMENTARY)
    return least.clamp_min(0), most.clamp_max(1)


def conditional_mean(ranges: Ranges, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    r"""Bounds of :math:`\mathbb E[\mathrm{ReLU}(\zeta_i)\mid a\le\zeta_i\le b]` for every z of the region.

    On [a, b] the density is proportional to :math:`\exp(\theta y-y^2/2r^2)` with :math:`y=\zeta-a\ge0` and
    :math:`\theta=(m-a)/r^2`. Both statistics increase with :math:`\zeta`, so the mean of an increasing function
    increases in :math:`\theta` and in r separately (covariance of increasing functions). Hence the largest value is at
    most the one at the largest :math:`\theta` and the largest r, which is again a truncated Gaussian, of mean
    :math:`a+r^2\theta`. The same with :math:`y=b-\zeta` gives a second bound, the ends of the interval a third.
    """
    lower, upper = a.clamp_min(0), b.clamp_min(0)
    small, large = ranges.std_lower, ranges.std_upper
    up_left, down_left = _natural(ranges.mean_upper - a, small, large), _natural(ranges.mean_lower - a, large, small)
    up_right, down_right = _natural(b - ranges.mean_lower, small, large), _natural(b - ranges.mean_upper, large, small)
    for mean, std in ((a + large**2 * up_left, large), (b - small**2 * down_right, small)):
        upper = _tighter(upper, _mean_at(mean, std, a, b)[1], torch.minimum)
    for mean, std in ((a + small**2 * down_left, small), (b - large**2 * up_right, large)):
        lower = _tighter(lower, _mean_at(mean, std, a, b)[0], torch.maximum)
    return lower, upper


def _natural(gap: Tensor, r: Tensor, other: Tensor) -> Tensor:
    """``gap / r^2`` where the gap is positive, ``gap / other^2`` where it is negative: the extreme over both."""
    r = torch.where(gap > 0, r, other)
    return gap / (r * r)


def _mean_at(m: Tensor, r: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds of the conditional mean at one (m, r); NaN where the event is too rare to divide by."""
    error = 32 * ELEMENTARY * (m.abs() + r + a.abs() + b.abs())
    value = truncated_mean(m, r, a, b)
    chance = interval_probability(ratio(a - m, r), ratio(b - m, r))
    sure = (chance > _SURE) & (r > 0)
    chance = torch.where(sure, chance, torch.nan)
    return (value - error) / (chance + 4 * ELEMENTARY), (value + error) / (chance - 4 * ELEMENTARY)


def _tighter(known: Tensor, new: Tensor, better: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    return torch.where(torch.isfinite(new), better(known, new), known)


def _upper_tail(ranges: Ranges, b: Tensor) -> Tensor:
    """At least P(zeta > b) for every z."""
    gap = b - ranges.mean_upper
    value = tail(ratio(gap, torch.where(gap >= 0, ranges.std_upper, ranges.std_lower)))
    return (value * (1 + SLACK) + TINY).clamp_max(1)


def _lower_tail(ranges: Ranges, a: Tensor) -> Tensor:
    """At least P(zeta < a) for every z."""
    gap = a - ranges.mean_lower
    value = cdf(ratio(gap, torch.where(gap <= 0, ranges.std_upper, ranges.std_lower)))
    return (value * (1 + SLACK) + TINY).clamp_max(1)
