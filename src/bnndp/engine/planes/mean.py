r"""Affine bounds of :math:`G(m,\rho)` in m on an interval, and of :math:`G(m,\sqrt s)` in (m, s) on a rectangle.

Any slope will do; the constant comes from a grid and the curvature between its points: where
:math:`G_{mm}\ge-c`, :math:`G-km` exceeds its values at the ends of a step h by at most :math:`ch^2/8`, and never by
more than the range of its slope times h/2. On a rectangle the corrections of both directions add up. For a convex G
the ends suffice above, and below the tangent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor

from bnndp.activations.activation import Activation
from bnndp.engine.chunks import cache_size
from bnndp.engine.inequalities.expectation import ExpectationBounds, scarf
from bnndp.engine.moments.pre_activation import PreActivation
from bnndp.engine.planes.hinge import Hinge
from bnndp.geometry.bounds import Interval
from bnndp.maths.rounding import ELEMENTARY, TINY, UP

__all__ = ["Plane", "Planes", "better_plane", "few_kinks", "grid_plane", "made", "planes", "planes_of_exact"]

_STEPS = 8  # steps of the grid in m
_STEPS_ABOVE = 2  # where it is only needed above a convex function, which is largest at the ends
_STEPS_S = 2  # and in s
_AT_ONCE = 2**13  # neurons whose grids are made at a time: in the caches of a CPU
_FEW = 4  # kinks up to which their points are the grid
_CLEAR = 1e-12  # by which a line must be better to be taken for another
_WORTH = 1e-3  # of the mean gap between the planes of a box: what a slope in T must gain
_SLOPE = 1e-9  # error granted to the slope of a convex activation


_Line = tuple[Tensor, Tensor, Tensor]
"""Slope, constant and the extreme value of the function: (batch, n) each."""

Plane = tuple[Tensor, Tensor, Tensor]
"""Slopes in m and in s, and the constant: (batch, n) each."""


@dataclass(frozen=True, slots=True)
class Planes:
    """``alpha M + beta T + offset`` below and above E phi(X) on the box, and its range: (batch, n) each.

    T = S + N is the mean variance that smooths the activation: s itself where the input is a function of x. If
    ``tangent``, below the tangent of s at the middle of the input is in its place (``hinge.py``), and beta >= 0.
    """

    lower_alpha: Tensor
    lower_beta: Tensor
    lower_offset: Tensor
    upper_alpha: Tensor
    upper_beta: Tensor
    upper_offset: Tensor
    range: Interval  # of E phi(X)
    size: Tensor  # |alpha M| + |beta T| + |offset| is at most this: the scale of rounding errors
    tangent: bool = False

    @property
    def tilted(self) -> bool:
        """Whether any plane has a slope in T."""
        return bool((self.lower_beta != 0).any() | (self.upper_beta != 0).any())


def planes(phi: Activation, x: PreActivation, near: ExpectationBounds, hinge: Hinge | None = None) -> Planes:
    """Planes in M alone, or in (M, T) where that is better at the middle; that of a hinge where it touches there."""
    low = _line_below(phi, x.mean, near.lower_rho)
    high = _line_above(phi, x.mean, near.upper_rho)
    zero = torch.zeros_like(low[0])
    ends = Interval(low[2] - near.lower_error, high[2] + near.upper_error)
    flat = (low[0], zero, low[1] - near.lower_error), (high[0], zero, high[1] + near.upper_error)
    if phi.shape.kinks and phi.shape.fall == 0 and not x.fixed:
        slope, offset = _scarf_line(phi, x)
        flat = flat[0], better_plane(x.mean, x.spread, flat[1], (slope, zero, offset), 1)
    pointwise = near.pointwise
    if pointwise is None or not bool((pointwise.total.upper > pointwise.total.lower).any()):
        return made(x.mean, x.spread, *flat, ends)
    m, s = x.mean, pointwise.total
    # A slope in T costs each row a product with the matrix of variances.
    worth = _WORTH * (_height(m, s, flat[1]) - _height(m, s, flat[0])).clamp_min(0).mean(-1, keepdim=True)
    centre = phi.mean(0.5 * (m.lower + m.upper), (0.5 * (s.lower + s.upper)).sqrt())
    high_plane = _sloped(phi, m, s, flat[1], centre + pointwise.upper_error, pointwise.upper_error, worth, 1)
    touching = x.spread_centre if hinge is not None and hinge.tangent else None
    if hinge is None or touching is None:
        low_plane = _sloped(phi, m, s, flat[0], centre - pointwise.lower_error, pointwise.lower_error, worth, -1)
        return made(m, s, low_plane, high_plane, ends)
    alpha, beta, offset = (part[:, 0] for part in hinge.at(hinge.start[:, None]))
    at = Interval(touching, touching)
    found = made(m, s, better_plane(m, at, flat[0], (alpha, beta, offset), -1, worth), high_plane, ends)
    return replace(found, size=torch.maximum(found.size, hinge.size), tangent=True)


def planes_of_exact(phi: Activation, x: PreActivation) -> Planes:
    """Planes in m for an X that is the function m(x), without any spread.

    What is affine between few kinks, less any line, is extreme at a kink or at an end: no grid and no slope has to be
    trusted.
    """
    zero = torch.zeros_like(x.mean.lower)
    if few_kinks(phi) is not None:
        low, high = _kinked_lines(phi, x.mean)
    else:
        low, high = _line_below(phi, x.mean, zero), _line_above(phi, x.mean, zero)
    return made(x.mean, x.spread, (low[0], zero, low[1]), (high[0], zero, high[1]), Interval(low[2], high[2]))


def few_kinks(phi: Activation) -> list[float] | None:
    """The kinks of a function that is affine between few of them; None for others."""
    shape = phi.shape
    affine = bool(shape.kinks) or shape.slopes[0] == shape.slopes[1]
    return [where for where, _ in shape.kinks] if affine and len(shape.kinks) <= _FEW else None


def better_plane(m: Interval, s: Interval, a: Plane, b: Plane, sign: int, worth: Tensor | float = 0.0) -> Plane:
    """The second of two planes above (``sign`` 1) or below (-1) where it is better in the middle of the rectangle.

    It must be better by ``worth`` (batch, n), and by more than rounding.
    """
    at_m, at_s = 0.5 * (m.lower + m.upper), 0.5 * (s.lower + s.upper)
    clear = _CLEAR * ((a[0] * at_m).abs() + (a[1] * at_s).abs() + a[2].abs()) + worth
    take = sign * _height(m, s, b) < sign * _height(m, s, a) - clear  # false for NaN
    return tuple(torch.where(take, q, p) for p, q in zip(a, b, strict=True))  # type: ignore[return-value]


def _height(m: Interval, s: Interval, plane: Plane) -> Tensor:  # (batch, n)
    """In the middle of the rectangle."""
    return plane[0] * (0.5 * (m.lower + m.upper)) + plane[1] * (0.5 * (s.lower + s.upper)) + plane[2]


def made(m: Interval, s: Interval, low: Plane, high: Plane, ends: Interval) -> Planes:
    """The planes with the rounding of their evaluation on the rectangle."""
    size = torch.maximum(*(a.abs() * m.magnitude + b.abs() * s.upper + c.abs() for a, b, c in (low, high)))
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


def _scarf_line(phi: Activation, x: PreActivation) -> tuple[Tensor, Tensor]:
    r"""Slope and offset of a line above E phi(X), by the variance V of X alone (Scarf 1958).

    :math:`\mathbb E(X-k)_+\le\tfrac12(M-k)+\tfrac12\sqrt{(M-k)^2+V}` is convex in M, so for a convex phi that is affine
    between kinks the chord of the sum over the kinks is above. It comes close to phi at ends far from the kinks.
    """
    a, b, variance = x.mean.lower, x.mean.upper, x.variance * UP
    ends = [
        sum((jump * scarf((t - k).abs(), variance) for k, jump in phi.shape.kinks), _mean(phi, t, torch.zeros_like(t)))
        for t in (a, b)
    ]
    slope = ((ends[1] - ends[0]) / (b - a).clamp_min(TINY)).clamp(*phi.shape.slopes)
    return slope, torch.maximum(ends[0] - slope * a, ends[1] - slope * b)


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
    points = _grid(m, _STEPS)
    down, up = phi.shape.curvature(rho)
    bump = _bump(phi, down if sign > 0 else up, (b - a) / _STEPS * UP)
    values = [_mean(phi, t, rho) + sign * phi.error(t, rho) for t in points]
    return _best_line(points, values, _slopes(phi, points, values, rho), bump, sign)


def _kinked_lines(phi: Activation, m: Interval) -> tuple[_Line, _Line]:
    """Lines below and above phi itself, which is affine between its kinks: they and the ends are the grid."""
    a, b = m.lower, m.upper
    kinks = [torch.full_like(a, where).clamp(a, b) for where, _ in phi.shape.kinks]
    zero = torch.zeros_like(a)
    points = [a, *kinks, b]
    values, errors = [_mean(phi, t, zero) for t in points], [phi.error(t, zero) for t in points]
    slopes = _slopes(phi, points, values, zero)
    below, above = ([v + sign * e for v, e in zip(values, errors, strict=True)] for sign in (-1, 1))
    return _best_line(points, below, slopes, zero, -1), _best_line(points, above, slopes, zero, 1)


def _slopes(phi: Activation, points: list[Tensor], values: list[Tensor], rho: Tensor) -> tuple[Tensor, Tensor]:
    """Of the chord, and in the middle."""
    a, b = points[0], points[-1]
    chord = (values[-1] - values[0]) / (b - a).clamp_min(TINY)
    return chord.clamp(*phi.shape.slopes), phi.slope((0.5 * a + 0.5 * b).clamp(a, b), rho).clamp(*phi.shape.slopes)


def _best_line(
    points: list[Tensor], values: list[Tensor], slopes: tuple[Tensor, Tensor], bump: Tensor, sign: int
) -> _Line:
    """The line of the better slope in the middle; ``sign`` 1 above and -1 below.

    Between two of the points a function of these values less any line exceeds them by at most ``bump``.
    """
    middle = (0.5 * points[0] + 0.5 * points[-1]).clamp(points[0], points[-1])
    offsets = []
    for slope in slopes:
        gaps = [torch.addcmul(v, slope, t, value=-1) for v, t in zip(values, points, strict=True)]
        offsets.append(reduce(torch.maximum if sign > 0 else torch.minimum, gaps) + sign * bump)
    heights = [torch.addcmul(offset, slope, middle) for slope, offset in zip(slopes, offsets, strict=True)]
    # Both often touch in the middle: that is no matter of rounding.
    clear = _CLEAR * ((slopes[0] * middle).abs() + offsets[0].abs())
    take = sign * heights[1] < sign * heights[0] - clear
    best = torch.where(take, slopes[1], slopes[0]), torch.where(take, offsets[1], offsets[0])
    return *best, reduce(torch.maximum if sign > 0 else torch.minimum, values) + sign * bump


def _bump(phi: Activation, curvature: Tensor, step: Tensor) -> Tensor:
    """What G less a line may exceed its values at the ends of a step."""
    smooth = torch.where((curvature == 0) | (step == 0), 0.0, curvature * step.square() / 8)
    return torch.fmin(smooth, phi.shape.swing * step)  # smooth is no number where the square of a step underflows


def _sloped(  # noqa: PLR0913 (the parts of one choice)
    phi: Activation, m: Interval, s: Interval, flat: Plane, best: Tensor, error: Tensor, worth: Tensor, sign: int
) -> Plane:
    """The plane above (``sign`` 1) or below (-1) G(m, sqrt(s)), give or take an error: with a slope in s, or ``flat``.

    It must be better by ``worth`` (batch, 1) in the middle of the rectangle. No plane is beyond ``best``, the function
    and the error there, so that most neurons need none.
    """
    hope = ~(sign * best >= sign * _height(m, s, flat) - worth)  # true for NaN
    found = [part.flatten().clone() for part in flat]
    steps = _STEPS_ABOVE if sign > 0 and phi.shape.fall == 0 else _STEPS
    numbers = [t.expand_as(best).flatten() for t in (m.lower, m.upper, s.lower, s.upper, error, worth, *flat)]
    for some in hope.flatten().nonzero()[:, 0].split(cache_size(_AT_ONCE, best.device)):
        a, b, c, d, away, gain, *own = (t[some] for t in numbers)
        alpha, beta, offset = _tilted(phi, Interval(a, b), Interval(c, d), steps, sign)
        tilted = alpha, beta, offset + sign * away
        chosen = better_plane(Interval(a, b), Interval(c, d), (own[0], own[1], own[2]), tilted, sign, gain)
        for into, part in zip(found, chosen, strict=True):
            into[some] = part
    return found[0].view_as(best), found[1].view_as(best), found[2].view_as(best)


def _tilted(phi: Activation, m: Interval, s: Interval, steps: int, sign: int) -> Plane:  # (some,) each
    """A plane below or above G(m, sqrt(s)) with a slope in s, from a grid on the rectangle with ``steps`` in m."""
    ms, ss = (torch.stack(_grid(x, count)) for x, count in ((m, steps), (s, _STEPS_S)))
    roots, least = ss.sqrt(), s.lower.sqrt()
    at = ms[:, None].expand(-1, len(ss), -1), roots.expand(len(ms), -1, -1)  # (steps in m, in s, some) each
    values, error = phi.mean(*at), phi.error(*at).flatten(0, 1).amax(0)
    middle, centre = steps // 2, _STEPS_S // 2
    beta = (values[middle, -1] - values[middle, 0]) / (s.upper - s.lower).clamp_min(TINY)
    down, up = phi.shape.curvature(least)
    beta = torch.maximum(torch.minimum(beta, 0.5 * up), -0.5 * down)  # G_s = G_mm / 2
    in_s = 0.25 * phi.shape.derivative(4, least)  # |G_ss|
    step_m, step_s = (m.upper - m.lower) / steps * UP, (s.upper - s.lower) / _STEPS_S * UP
    bump_s = torch.where(step_s == 0, 0.0, in_s * step_s.square() / 8) + error
    chord = (values[-1, centre] - values[0, centre]) / (m.upper - m.lower).clamp_min(TINY)
    slopes = [slope.clamp(*phi.shape.slopes) for slope in (chord, phi.slope(ms[middle], roots[centre]))]
    return grid_plane(ms, ss, values, slopes, beta, _bump(phi, down if sign > 0 else up, step_m) + bump_s, sign)


def _grid(x: Interval, steps: int) -> list[Tensor]:
    """Equally spaced points of the interval, its ends among them."""
    return [x.lower + (x.upper - x.lower) * (i / steps) for i in range(steps)] + [x.upper]


def grid_plane(  # noqa: PLR0913 (the parts of one formula)
    ms: Tensor,  # (points in m, ...)
    ss: Tensor,  # (points in s, ...)
    values: Tensor,  # (points in m, points in s, ...)
    slopes: list[Tensor],
    beta: Tensor,
    bump: Tensor,
    sign: int,
) -> Plane:
    """A plane above (``sign`` 1) or below (-1) a function with these values at the points of a grid.

    Between them the function less the plane exceeds its values by at most ``bump``. Of the slopes in m the best one in
    the middle is taken.
    """
    found: list[Plane] = []
    rest = sign * (values - beta * ss)
    for slope in slopes:
        gaps = rest - (sign * slope * ms)[:, None]
        found.append((slope, beta, sign * (gaps.flatten(0, 1).amax(0) + bump)))
    m, s = Interval(ms[0], ms[-1]), Interval(ss[0], ss[-1])
    return reduce(lambda a, b: better_plane(m, s, a, b, sign), found)
