"""Moments of what goes into an activation, from those of the signal below.

Powers and products of small numbers underflow, which would make an upper bound zero (``network/magnitudes.py``). So
``SMALL`` is added to every standard deviation from above, and its powers to what is of higher degree; lower bounds
below them are zero. Where a value or a deviation is above ``LARGE`` nothing is a number: there is no bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bnndp.engine.laws.weights import Weights, spread_around
from bnndp.engine.moments.pre_activation import PreActivation, RowMoments, Squares
from bnndp.engine.moments.signal import POWERS, Signal
from bnndp.engine.sums.series import History
from bnndp.geometry.bounds import Interval
from bnndp.maths.rounding import LARGE, SMALL, TINY, UP

__all__ = ["pre_of_signal", "pre_of_weights"]


def pre_of_weights(weights: Weights, z: Signal, mean: Interval, through: Callable[[], RowMoments]) -> PreActivation:
    """X = W z + b, given the range of E X; ``through`` is asked where z is random and no expansion says more."""
    zero, spread = torch.zeros_like(mean.lower), _spread(weights, z)
    least = _least_deviation(z, mean.magnitude, spread.upper.sqrt())
    spread = _variances(spread, least) if weights.random else Interval(zero, zero)
    if z.fixed:
        centre = weights.spread(0.5 * (z.mean.lower + z.mean.upper)) if weights.random else None
        return replace(_gaussian(mean, spread), spread_centre=centre)
    noise = Interval(weights.power(z.noise.lower, 2).clamp_min(0) / UP, weights.power(z.noise.upper, 2) * UP)
    noise_deviation = weights.power(z.noise_deviation, 2) * UP
    norms = torch.stack([weights.power(norm, 1) for norm in z.norms.unbind(-1)], -1)
    central, squares, found, jointly = zero, None, None, None
    expansion = weights.expansion(z, None) if z.source else None
    if expansion is not None:
        norms = torch.minimum(norms, expansion.norms)
        fourth, eighth = expansion.spread_fourth.sqrt().sqrt(), expansion.spread_norm8
        known = torch.stack([fourth, eighth], -1)
        squares = Squares(expansion.spread_variance.sqrt() * UP, zero, zero, known, zero, zero)
    else:
        found = through()
        norms, squares, jointly = torch.minimum(norms, found.norms), found.spread, found.jointly
        if jointly is not None:
            noise, expansion = jointly.noise, jointly.expansion
        elif not z.source:
            central = torch.minimum(found.central, weights.power(z.variance.sqrt(), 1).square() * UP)
    if squares is not None and jointly is None and not z.source:
        history = History(
            mean=central.sqrt(),
            noise=noise_deviation,
            spread=squares.central,
            spread_norm4=squares.central_norm4,
            spread_low4=torch.minimum(squares.central_norm4, (spread.upper * squares.central).sqrt() * UP),
            whole=(noise.upper + central).sqrt(),
            deviation=squares.std,
            extra=squares.extra,
            extra_norm4=squares.extra_norm4,
            low4=squares.low4,
        )
        expansion = weights.expansion(z, history)
    spreads = _spreads(weights, z, spread, least, squares)
    each = z.noise.upper.square() + z.noise_deviation.square()  # E Var(z_j | Y)^2
    terms = (
        weights.power(z.third_size, 3) * UP,
        weights.power(z.absolute_third, 3) * UP,
        weights.power(z.noise_fourth.upper + 3 * each, 4) * UP,
    )
    third, absolute_third, quartic = terms if jointly is None else (torch.full_like(zero, torch.inf),) * 3
    pre = PreActivation(
        mean=mean,
        spread=spread,
        spread_deviation=spreads.std + least**2 if weights.random else zero,
        noise=noise,
        noise_deviation=noise_deviation,
        central=central,
        third=third,
        absolute_third=absolute_third,
        convex=z.convex,
        quartic=quartic,
        norms=norms * UP,
        spread_norms=spreads.norms * UP,
        spread_away=spreads.away * UP,
        spread_deltas=spreads.deltas * UP,
        expansion=expansion,
        fixed=False,
        source=z.source,
        central_norm4=None if found is None else found.central_norm4,
        central_least=None if found is None else found.central_least,
    )
    return _at_least(pre, least)


@dataclass(frozen=True, slots=True)
class _Spreads:
    """How s varies around its mean S: (batch, n), norms (batch, n, q)."""

    std: Tensor
    norms: Tensor  # ||sqrt(s)||_q
    away: Tensor  # ||sqrt(s) - sqrt(S)||_q for any S of its range
    deltas: Tensor  # ||s - S||_q for q = 4, 8


def _spreads(weights: Weights, z: Signal, spread: Interval, least: Tensor, squares: Squares | None) -> _Spreads:
    """Sqrt(s) is a norm of (z, 1), so it moves by at most that of z - E z; ``squares`` may say more."""
    root, deviation = spread.upper.sqrt()[..., None], weights.spread_deviation(z)
    if not weights.random:
        none = torch.zeros_like(z.norms[:, :1]).expand(*spread.upper.shape, len(POWERS))
        return _Spreads(deviation, none, none, none[..., 1:])
    away = torch.stack([weights.spread_excess(norm).sqrt() for norm in z.norms.unbind(-1)], -1) + least[..., None]
    lowest = (spread.lower - weights.spread_excess(z.variance.sqrt()) * UP).clamp_min(0)  # s(E z)
    gap = root - lowest.sqrt()[..., None]
    norms = root + away
    deltas = (away + gap)[..., 1:] * (norms + root)[..., 1:]  # s - S = (sqrt(s) - sqrt(S)) (sqrt(s) + sqrt(S))
    if squares is not None:
        deviation, deltas = torch.fmin(deviation, squares.std), torch.fmin(deltas, squares.norms)
        # ||sqrt(s)||_2q^2 = ||s||_q <= S + ||s - S||_q
        second = (spread.upper.square() + deviation.square()).sqrt()[..., None]
        norms = torch.fmin(norms, torch.cat([second, spread.upper[..., None] + deltas], -1).sqrt())
        # |sqrt(s) - sqrt(S)| is at most |s - S| / sqrt(S) and the root of |s - S|
        roots = torch.cat([deviation[..., None], deltas], -1).sqrt()
        ratios = torch.cat([deltas / spread.lower.sqrt().clamp_min(TINY)[..., None], roots[..., 2:]], -1)
        away = torch.fmin(away, torch.minimum(roots, ratios))
    return _Spreads(deviation, norms, away + gap, deltas)


def _gaussian(mean: Interval, spread: Interval) -> PreActivation:
    """X is Gaussian: m and s are functions of x."""
    zero, root = torch.zeros_like(mean.lower), spread.upper.sqrt()[..., None]
    none, norms = Interval(zero, zero), torch.zeros_like(root).expand(*zero.shape, len(POWERS))
    moments = (zero, none, zero, zero, zero, zero, False, zero)
    return PreActivation(
        mean, spread, *moments, norms, root.expand_as(norms), norms, norms[..., 1:], None, fixed=True, source=True
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


def pre_of_signal(z: Signal) -> PreActivation:
    """X = z itself, for an activation that does not follow weights: nothing is Gaussian."""
    zero = torch.zeros_like(z.variance)
    noise = z.noise.upper.square() + z.noise_deviation.square()
    found = PreActivation(
        mean=z.mean,
        spread=Interval(zero, zero),
        spread_deviation=zero,
        noise=z.noise,
        noise_deviation=z.noise_deviation,
        central=zero if z.source else z.variance,
        third=z.third_size,
        absolute_third=z.absolute_third,
        convex=z.convex,
        quartic=z.noise_fourth.upper + 3 * noise,
        norms=z.norms,
        spread_norms=torch.zeros_like(z.norms),
        spread_away=torch.zeros_like(z.norms),
        spread_deltas=torch.zeros_like(z.norms[..., 1:]),
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


def _at_least(x: PreActivation, least: Tensor) -> PreActivation:
    """With ``least`` (batch, 1), or its power, added to each moment of the mean from above."""
    return replace(
        x,
        noise=_variances(x.noise, least),
        noise_deviation=x.noise_deviation + least**2,
        central=x.central + least**2,
        third=x.third + least**3,
        absolute_third=x.absolute_third + least**3,
        quartic=x.quartic + least**4,
        norms=x.norms + least[..., None],
        central_norm4=None if x.central_norm4 is None else x.central_norm4 + least,
    )
