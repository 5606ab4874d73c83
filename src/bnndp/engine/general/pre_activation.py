"""Moments of what goes into an activation, from those of the signal below.

Powers and products of small numbers underflow, which would make an upper bound zero (``magnitudes.py``). So ``SMALL``
is added to every standard deviation from above, and its powers to what is of higher degree; lower bounds below them are
zero. Where a value or a deviation is above ``LARGE``, and powers may overflow, nothing is a number: there is no bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from bnndp.engine.general.signal import POWERS, Pre, Signal, Tails, no_tails
from bnndp.engine.general.weights import Weights, spread_around
from bnndp.geometry.bounds import Interval
from bnndp.maths.rounding import LARGE, SMALL, UP

__all__ = ["pre_of_signal", "pre_of_weights"]


def pre_of_weights(weights: Weights, z: Signal, mean: Interval, through: Callable[[], tuple[Tensor, Tails]]) -> Pre:
    """X = W z + b, given the range of E X; ``through`` gives Var E[m | Y] and the tails of m where z is random."""
    zero, spread = torch.zeros_like(mean.lower), _spread(weights, z)
    least = _least_deviation(z, mean.magnitude, spread.upper.sqrt())
    spread = _variances(spread, least) if weights.random else Interval(zero, zero)
    root = spread.upper.sqrt()[..., None]
    if z.fixed:
        return _gaussian(mean, spread)
    noise = Interval(weights.power(z.noise.lower, 2).clamp_min(0) / UP, weights.power(z.noise.upper, 2) * UP)
    each = z.noise.upper.square() + z.noise_deviation.square()  # E Var(z_j | Y)^2
    central, tails = through()
    added = torch.stack([weights.power(norm, 1) for norm in z.norms.unbind(-1)], -1)
    away, gap = torch.zeros_like(added), zero
    if weights.random:  # sqrt(s) is a norm of (z, 1): it moves by at most that of z - E z
        away = torch.stack([weights.spread_excess(norm).sqrt() for norm in z.norms.unbind(-1)], -1) + least[..., None]
        lowest = (spread.lower - weights.spread_excess(z.variance.sqrt()) * UP).clamp_min(0)  # s(E z)
        gap = spread.upper.sqrt() - lowest.sqrt()
    expansion, norms = weights.expansion(z) if z.source else None, torch.minimum(tails.norms, added)
    if expansion is not None:
        norms[..., 0] = torch.minimum(norms[..., 0], expansion.norm4)
        norms[..., 1] = torch.minimum(norms[..., 1], expansion.norm8)
    spread_norms, deviation = root + away, weights.spread_deviation(z)  # of sqrt(s), of s
    if expansion is not None:
        deviation = torch.minimum(deviation, expansion.spread_variance.sqrt() * UP)
        # ||sqrt(s)||_2q^2 = ||s||_q <= S + ||s - S||_q
        for k, left in enumerate((expansion.spread_variance.sqrt(), expansion.spread_fourth.sqrt().sqrt())):
            total = spread.upper + left if k else (spread.upper.square() + left.square()).sqrt()
            spread_norms[..., k] = torch.minimum(spread_norms[..., k], total.sqrt())
    found = Pre(
        mean=mean,
        spread=spread,
        spread_deviation=deviation + least**2 if weights.random else zero,
        noise=noise,
        noise_deviation=weights.power(z.noise_deviation, 2) * UP,
        central=zero if z.source else torch.minimum(central, weights.power(z.variance.sqrt(), 1).square() * UP),
        third=weights.power(z.third_size, 3) * UP,
        absolute_third=weights.power(z.absolute_third, 3) * UP,
        quartic=weights.power(z.noise_fourth.upper + 3 * each, 4) * UP,
        tails=Tails(norms * UP, tails.constant * UP, tails.left * UP),
        spread_norms=spread_norms * UP,
        spread_away=(away + gap[..., None]) * UP,
        expansion=expansion,
        fixed=False,
        source=z.source,
    )
    return _at_least(found, least)


def _gaussian(mean: Interval, spread: Interval) -> Pre:
    """X is Gaussian: m and s are functions of x."""
    zero, root = torch.zeros_like(mean.lower), spread.upper.sqrt()[..., None]
    none, norms = Interval(zero, zero), torch.zeros_like(root).expand(*zero.shape, len(POWERS))
    moments = (zero, none, zero, zero, zero, zero, zero)
    return Pre(
        mean, spread, *moments, no_tails(norms), root.expand_as(norms), norms, None, fixed=True, source=True
    )  # fmt: skip


def _spread(weights: Weights, z: Signal) -> Interval:
    """Range of E s(z)."""
    return _spread_of_fixed(weights, z) if z.fixed else weights.mean_spread(z)


def _spread_of_fixed(weights: Weights, z: Signal) -> Interval:
    """Range of s(z) over the range of z: a convex function, above its tangent and at most the excess above it."""
    at, reach = spread_around(weights, z.mean)
    slope, excess = 2 * at.sqrt() * reach, reach.square()  # of Cauchy and Schwarz: sqrt(s) is a norm
    coarse = weights.mean_spread(z)
    low = (at / UP - slope * UP).clamp_min(0) / UP
    return Interval(torch.maximum(low, coarse.lower), torch.minimum((at + slope + excess) * UP, coarse.upper))


def pre_of_signal(z: Signal) -> Pre:
    """X = z itself, for an activation that does not follow weights: nothing is Gaussian."""
    zero = torch.zeros_like(z.variance)
    noise = z.noise.upper.square() + z.noise_deviation.square()
    found = Pre(
        mean=z.mean,
        spread=Interval(zero, zero),
        spread_deviation=zero,
        noise=z.noise,
        noise_deviation=z.noise_deviation,
        central=zero if z.source else z.variance,
        third=z.third_size,
        absolute_third=z.absolute_third,
        quartic=z.noise_fourth.upper + 3 * noise,
        tails=no_tails(z.norms),
        spread_norms=torch.zeros_like(z.norms),
        spread_away=torch.zeros_like(z.norms),
        expansion=None,
        fixed=z.fixed,
        source=z.source,
    )
    return found if z.fixed else _at_least(found, _least_deviation(z))


def _least_deviation(z: Signal, *others: Tensor) -> Tensor:  # (batch, n) each -> (batch, 1)
    """SMALL, the least standard deviation from above; no number for boxes on which a size is above LARGE."""
    sizes = (z.mean.magnitude, z.norms[..., -1], *others)
    fine = torch.stack([(size <= LARGE).all(-1) for size in sizes]).all(0)
    return torch.where(fine, sizes[0].new_tensor(SMALL), torch.nan)[:, None]


def _variances(found: Interval, least: Tensor) -> Interval:
    """With what may be missing above, and nothing below where only rounding may be left."""
    return Interval(torch.where(found.lower >= SMALL**2, found.lower, 0.0), found.upper + least**2)


def _at_least(x: Pre, least: Tensor) -> Pre:
    """With ``least`` (batch, 1), or its power, added to each moment of the mean from above."""
    norms, constant, left = x.tails.norms, x.tails.constant, x.tails.left
    return replace(
        x,
        noise=_variances(x.noise, least),
        noise_deviation=x.noise_deviation + least**2,
        central=x.central + least**2,
        third=x.third + least**3,
        absolute_third=x.absolute_third + least**3,
        quartic=x.quartic + least**4,
        tails=Tails(norms + least[..., None], constant + least, left + least[..., None]),
    )
