r"""Affine bounds of :math:`G(m,\rho)` in m on an interval, and of :math:`G(m,\sqrt s)` in (m, s) on a rectangle.

Any slope will do; the constant comes from a grid and the curvature between its points: where
:math:`G_{mm}\ge-c`, :math:`G-km` exceeds its values at the ends of a step h by at most :math:`ch^2/8`, and never by
more than the range of its slope times h/2. On a rectangle the corrections of both directions add up. For a convex G
the ends suffice above, and below the tangent.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.activations.activation import Activation
from bnndp.engine.general.expectation import Around
from bnndp.engine.general.signal import Pre
from bnndp.geometry.bounds import Interval
from bnndp.maths.rounding import ELEMENTARY, TINY, UP

__all__ = ["Planes", "planes", "planes_of_exact", "planes_of_fixed"]

_STEPS = 8  # steps of the grid in m
_STEPS_S = 2  # and in s
_FEW = 4  # kinks up to which their points are the grid
_CLEAR = 1e-12  # by which a line must be better to be taken for another
_SLOPE = 1e-9  # error granted to the slope of a convex activation


@dataclass(frozen=True, slots=True)
class Planes:
    """``alpha M + beta s + offset`` below and above E phi(X) on the box, and its range: (batch, n) each.

    ``beta`` is zero but for a layer whose input is a function of x.
    """

    lower_alpha: Tensor
    lower_beta: Tensor
    lower_offset: Tensor
    upper_alpha: Tensor
    upper_beta: Tensor
    upper_offset: Tensor
    range: Interval  # of E phi(X)
    size: Tensor  # |alpha M| + |beta s| + |offset| is at most this: the scale of rounding errors


def planes(phi: Activation, x: Pre, near: Around) -> Planes:
    """Planes in M alone."""
    low = _line_below(phi, x.mean, near.lower_rho)
    high = _line_above(phi, x.mean, near.upper_rho)
    zero = torch.zeros_like(low[0])
    least, most = low[2] - near.lower_error, high[2] + near.upper_error
    offset_low, offset_high = low[1] - near.lower_error, high[1] + near.upper_error
    return _made(x, (low[0], zero, offset_low), (high[0], zero, offset_high), Interval(least, most))


def planes_of_exact(phi: Activation, x: Pre) -> Planes:
    """Planes in m for an X that is the function m(x), without any spread.

    What is affine between few kinks, less any line, is extreme at a kink or at an end: no grid and no slope has to be
    trusted.
    """
    zero, affine = torch.zeros_like(x.mean.lower), phi.shape.kinks or phi.shape.slopes[0] == phi.shape.slopes[1]
    if affine and len(phi.shape.kinks) <= _FEW:
        low, high = (_kinked_line(phi, x.mean, sign) for sign in (-1, 1))
    else:
        low, high = _line_below(phi, x.mean, zero), _line_above(phi, x.mean, zero)
    return _made(x, (low[0], zero, low[1]), (high[0], zero, high[1]), Interval(low[2], high[2]))


def planes_of_fixed(phi: Activation, x: Pre, near: Around) -> Planes:
    """Planes in (m, s) for a Gaussian X of mean m(x) and variance s(x); in m alone where that is not worse."""
    flat = planes(phi, x, near)
    width = x.spread.upper - x.spread.lower
    if not bool((width > 0).any()):
        return flat
    tilted = _tilted(phi, x)
    m = 0.5 * (x.mean.lower + x.mean.upper)
    s = 0.5 * (x.spread.lower + x.spread.upper)

    def better(side: str, sign: int) -> tuple[Tensor, Tensor, Tensor]:
        a, b = (tuple(getattr(p, f"{side}_{part}") for part in ("alpha", "beta", "offset")) for p in (flat, tilted))
        clear = _CLEAR * ((a[0] * m).abs() + (a[1] * s).abs() + a[2].abs())
        take = sign * (b[0] * m + b[1] * s + b[2]) < sign * (a[0] * m + a[1] * s + a[2]) - clear  # false for NaN
        return tuple(torch.where(take, q, p) for p, q in zip(a, b, strict=True))  # type: ignore[return-value]

    return _made(x, better("lower", -1), better("upper", 1), flat.range)


def _made(x: Pre, low: tuple[Tensor, Tensor, Tensor], high: tuple[Tensor, Tensor, Tensor], ends: Interval) -> Planes:
    size = torch.maximum(*(a.abs() * x.mean.magnitude + b.abs() * x.spread.upper + c.abs() for a, b, c in (low, high)))
    slack = ELEMENTARY * (size * UP) + TINY
    return Planes(low[0], low[1], low[2] - slack, high[0], high[1], high[2] + slack, ends, size * UP)


def _mean(phi: Activation, m: Tensor, rho: Tensor) -> Tensor:
    """G(m, rho): the activation itself where nothing spreads, at a fraction of the cost of a rule."""
    at_rest = not phi.tensors and bool((rho == 0).all())
    return phi(m) if at_rest else phi.mean(m, rho)


def _line_above(phi: Activation, m: Interval, rho: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Slope and offset of a line above G(., rho) on the interval, and the largest value of G there."""
    a, b = m.lower, m.upper
    if phi.shape.fall == 0:  # convex: the chord
        ends = [_mean(phi, t, rho) + phi.error(t, rho) for t in (a, b)]
        slope = ((ends[1] - ends[0]) / (b - a).clamp_min(TINY)).clamp(*phi.shape.slopes)
        offset = torch.maximum(ends[0] - slope * a, ends[1] - slope * b)
        return slope, offset, torch.maximum(*ends)
    return _grid_line(phi, m, rho, 1)


def _line_below(phi: Activation, m: Interval, rho: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Slope and offset of a line below G(., rho) on the interval, and the smallest value of G there."""
    if phi.shape.fall == 0 and phi.shape.slopes[0] >= 0:  # convex and increasing: the tangent in the middle
        at = (0.5 * m.lower + 0.5 * m.upper).clamp(m.lower, m.upper)
        slope = phi.slope(at, rho).clamp(*phi.shape.slopes)
        offset = _mean(phi, at, rho) - phi.error(at, rho) - slope * at - _SLOPE * (m.upper - m.lower)
        return slope, offset, _mean(phi, m.lower, rho) - phi.error(m.lower, rho)
    return _grid_line(phi, m, rho, -1)


def _grid_line(phi: Activation, m: Interval, rho: Tensor, sign: int) -> tuple[Tensor, Tensor, Tensor]:
    """A line above (``sign`` 1) or below (-1) G(., rho), from a grid and the curvature between its points."""
    a, b = m.lower, m.upper
    points = [a + (b - a) * (i / _STEPS) for i in range(_STEPS)] + [b]
    down, up = phi.shape.curvature(rho)
    bump = _bump(phi, down if sign > 0 else up, (b - a) / _STEPS * UP)
    return _best_line(phi, points, rho, bump, sign)


def _kinked_line(phi: Activation, m: Interval, sign: int) -> tuple[Tensor, Tensor, Tensor]:
    """The same for phi itself, which is affine between its kinks: they and the ends are the grid, and it is exact."""
    a, b = m.lower, m.upper
    kinks = [torch.full_like(a, where).clamp(a, b) for where, _ in phi.shape.kinks]
    zero = torch.zeros_like(a)
    return _best_line(phi, [a, *kinks, b], zero, zero, sign)


def _best_line(
    phi: Activation, points: list[Tensor], rho: Tensor, bump: Tensor, sign: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The better, in the middle, of the chord and of the slope there; ``sign`` 1 above and -1 below.

    Between two of the points G less any line exceeds its values there by at most ``bump``.
    """
    a, b = points[0], points[-1]
    values = [_mean(phi, t, rho) + sign * phi.error(t, rho) for t in points]
    middle = (0.5 * a + 0.5 * b).clamp(a, b)
    chord = (values[-1] - values[0]) / (b - a).clamp_min(TINY)
    slopes = [slope.clamp(*phi.shape.slopes) for slope in (chord, phi.slope(middle, rho))]
    offsets = []
    for slope in slopes:
        gaps = torch.stack([sign * (v - slope * t) for v, t in zip(values, points, strict=True)])
        offsets.append(sign * (gaps.amax(0) + bump))
    heights = [slope * middle + offset for slope, offset in zip(slopes, offsets, strict=True)]
    clear = _CLEAR * (
        (slopes[0] * middle).abs() + offsets[0].abs()
    )  # both often touch in the middle: no matter of rounding
    take = sign * heights[1] < sign * heights[0] - clear
    best = torch.where(take, slopes[1], slopes[0]), torch.where(take, offsets[1], offsets[0])
    extreme = sign * (torch.stack([sign * v for v in values]).amax(0) + bump)
    return *best, extreme


def _bump(phi: Activation, curvature: Tensor, step: Tensor) -> Tensor:
    """What G less a line may exceed its values at the ends of a step."""
    smooth = torch.where((curvature == 0) | (step == 0), 0.0, curvature * step.square() / 8)
    return torch.fmin(smooth, phi.shape.swing * step)  # smooth is no number where the square of a step underflows


def _tilted(phi: Activation, x: Pre) -> Planes:
    """Planes with a slope in s, from a grid on the rectangle of (m, s)."""
    m, s = x.mean, x.spread
    ms = [m.lower + (m.upper - m.lower) * (i / _STEPS) for i in range(_STEPS)] + [m.upper]
    ss = [s.lower + (s.upper - s.lower) * (i / _STEPS_S) for i in range(_STEPS_S)] + [s.upper]
    roots = [t.sqrt() for t in ss]
    value = [[phi.mean(t, r) for r in roots] for t in ms]
    error = torch.stack([phi.error(t, r) for t in (m.lower, m.upper) for r in (roots[0], roots[-1])]).amax(0)
    middle, centre = ms[_STEPS // 2], roots[_STEPS_S // 2]
    beta = (value[_STEPS // 2][-1] - value[_STEPS // 2][0]) / (s.upper - s.lower).clamp_min(TINY)
    least = s.lower.sqrt()
    down, up = phi.shape.curvature(least)
    in_s = 0.25 * phi.shape.derivative(4, least)  # |G_ss|
    step_m, step_s = (m.upper - m.lower) / _STEPS * UP, (s.upper - s.lower) / _STEPS_S * UP
    bump_s = torch.where(step_s == 0, 0.0, in_s * step_s.square() / 8)
    chord = (value[-1][_STEPS_S // 2] - value[0][_STEPS_S // 2]) / (m.upper - m.lower).clamp_min(TINY)
    tangent = phi.slope(middle, centre)

    def side(sign: int) -> tuple[Tensor, Tensor, Tensor]:
        bump = _bump(phi, down if sign > 0 else up, step_m) + bump_s + error
        found: list[tuple[Tensor, Tensor]] = []
        for slope in (chord.clamp(*phi.shape.slopes), tangent.clamp(*phi.shape.slopes)):
            gaps = torch.stack(
                [sign * (value[i][j] - slope * t - beta * q) for i, t in enumerate(ms) for j, q in enumerate(ss)]
            )
            found.append((slope, sign * (gaps.amax(0) + bump)))
        (a, c), (b, d) = found
        take = sign * (b * middle + d) < sign * (a * middle + c) - _CLEAR * ((a * middle).abs() + c.abs())
        return torch.where(take, b, a), beta, torch.where(take, d, c)

    zero = torch.zeros_like(beta)
    low, high = side(-1), side(1)
    return Planes(*low, *high, Interval(zero, zero), zero)
