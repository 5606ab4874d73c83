r"""Central moments of :math:`\varphi(m+r\xi)` for every (m, r) of a rectangle.

Within a rectangle a function lies between its values at the corners, up to an eighth of its second derivative times the
square of the width, for each of both directions (multilinear interpolation); and up to its first derivative times half
the width. The range of m is cut into steps. With L the Lipschitz constant, :math:`A=\varphi-\mathbb E\varphi`,
:math:`\eta=1` in the direction of m and :math:`\eta=\xi` in that of r (b = 0 and 1), integration by parts of the
terms with :math:`\varphi''` gives

.. math:: \partial^2\mathbb EA^n=n(n-1)\mathbb EA^{n-2}\bigl((\varphi'\eta-\partial h)^2-\varphi'^2\eta^2\bigr)
          +\tfrac nr\mathbb E\varphi'(A^{n-1}-\mathbb EA^{n-1})(\eta^2\xi-2b\eta),\qquad h=\mathbb E\varphi,

and :math:`\lVert A\rVert_q\le L r\lVert\xi\rVert_q` (``activations/moments.py``) bounds each term: with L = r = 1,

* n = 2: :math:`2(\partial h)^2` and :math:`2\lVert\eta^2\xi-2b\eta\rVert_2`, where :math:`|\partial h|\le1` in m and
  :math:`\le\sqrt{2/\pi}` in r, and the norm is 1 and :math:`\sqrt7`;
* n = 3: :math:`12|\partial h|` and :math:`3\sqrt3` times the norm;
* n = 4: :math:`24|\partial h|\,\mathbb E|A^2\eta|+12(\partial h)^2`, the mean at most 1 in m and :math:`\sqrt3` in r,
  and :math:`4\sqrt{15}` times the norm.

The first derivative is :math:`n\operatorname{Cov}(A^{n-1},\varphi'\eta)`, at most
:math:`n\lVert\xi\rVert_{2n-2}^{n-1}(Lr)^{n-1}` times the deviation of :math:`\varphi'\eta`: at most L in the direction
of r; in that of m at most :math:`\min(w,cr)`, w half the range of the slope and c the curvature (Poincare).

A function with one kink, at zero, is of degree one: its moments are :math:`r^nF_n(m/r)`, and m / r is the only
direction. For slopes a and 1, :math:`0\le a\le1`, :math:`|F_3'|` and :math:`|F_3''|` are at most ``HINGE``: the worst
is the rectifier, a = 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from bnndp.activations.activation import Activation, Central
from bnndp.engine.moments.signal import GAUSSIAN
from bnndp.geometry.bounds import Interval
from bnndp.maths.rounding import TINY, UP, power_of

__all__ = ["BENDS", "HINGE", "central_range", "variance_range"]

_WIDE = 16.0  # times r: ranges of m that are wider are not cut
HINGE = (0.299, 0.577)  # first and second derivative of F_3, tested against ball arithmetic
_FAR = 12.0  # standard deviations from a kink beyond which nothing is on its other side, up to 1e-32
_ROUNDED = 1e-13  # covers the rounding of a ratio of at most ``_FAR``, and what is beyond it
_AT_ONCE = 2**16  # moments that are computed together
BENDS = ((4.0, 6.6), (17.2, 23.4), (51.5, 81.9))  # second derivatives in m and r over L^n r^(n-2), n = 2, 3, 4
_SLOPES = (2.0, 5.1962, 15.492)  # first derivatives over (L r)^(n-1) times min(w, cr) or L: 2, 3 sqrt 3, 4 sqrt 15


def central_range(phi: Activation, m: Interval, r: Interval) -> Central:  # (batch, n) each
    """Ranges of the central moments."""
    homogeneous = _homogeneous(phi)
    way, wide = (_of_degree_one, _ratio(m, r)) if homogeneous else (_in_steps, m)
    counts = _steps((wide.upper - wide.lower) * UP, torch.ones_like(r.upper) if homogeneous else r.upper)
    kinds = sorted(set(counts.tolist()))
    if len(kinds) <= 1:
        return way(phi, m, r, kinds[0] if kinds else 1)
    places = [(counts == count).nonzero()[:, 0] for count in kinds]
    parts = [way(phi, _at(m, at), _at(r, at), count) for count, at in zip(kinds, places, strict=True)]
    order = torch.cat(places).argsort()

    def joined(name: str) -> Interval:
        found: list[Interval] = [getattr(part, name) for part in parts]
        return _at(Interval(torch.cat([x.lower for x in found]), torch.cat([x.upper for x in found])), order)

    def norms() -> tuple[Tensor, Tensor]:
        norm8, norm16 = (torch.cat([getattr(part, name) for part in parts])[order] for name in ("norm8", "norm16"))
        return norm8, norm16

    return Central(joined("variance"), joined("third"), joined("fourth"), norms)


def variance_range(phi: Activation, m: Interval, r: Interval) -> Interval:  # (batch, n) each
    """The range of the variance alone: if it is monotone in m, its ends are enough."""
    if not _monotone(phi):
        return central_range(phi, m, r).variance
    if _homogeneous(phi):
        return _hinge_variance(phi, m, r)
    found, wide_r = (
        phi.variance(*_corners(m, r)),
        torch.zeros_like(r.upper) if _hinge(phi) else (r.upper - r.lower) * UP,
    )
    off = _between(phi, 2, torch.zeros_like(wide_r), wide_r, r.upper)
    return Interval((found.lower.amin(0) - off).clamp_min(0), found.upper.amax(0) + off)


def _at(x: Interval, index: Tensor) -> Interval:
    return Interval(x.lower[index], x.upper[index])


def _corners(m: Interval, r: Interval) -> tuple[Tensor, Tensor]:  # (points, batch, n) each
    """The ends of m with those of r, each once if there is only one."""
    ends = [r.lower, r.upper] if bool((r.upper > r.lower).any()) else [r.lower]
    means = [m.lower, m.upper] if bool((m.upper > m.lower).any()) else [m.lower]
    return torch.stack(means * len(ends)), torch.stack([end for end in ends for _ in means])


def _between(phi: Activation, n: int, wide_m: Tensor, wide_r: Tensor, most: Tensor) -> Tensor:  # (batch, n) each
    """How far the n-th moment may be off its values at the corners of a rectangle with these widths and r <= most."""
    steep, bend = phi.shape.steepest, max(phi.shape.bend_up, phi.shape.bend_down)
    change = torch.full_like(most, phi.shape.swing) if bend == math.inf else (bend * most).clamp_max(phi.shape.swing)
    bend_m, bend_r = BENDS[n - 2]
    size = torch.ones_like(most) if n == 2 else power_of(most, n - 2)
    second = steep**n * size * (bend_m * wide_m.square() + bend_r * wide_r.square()) / 8
    first = _SLOPES[n - 2] * power_of(steep * most, n - 1) * (change * wide_m + steep * wide_r) / 2
    return torch.minimum(first, second) * UP


def _norms(
    phi: Activation, m: Interval, r: Interval, count: int, found: Sequence[Central], wide_m: Tensor
) -> tuple[Tensor, Tensor]:
    """Norms in L8 and L16, at most, from those at the points ``found`` of ``count`` steps ``wide_m`` of m."""
    wide_r, steep = (r.upper - r.lower) * UP, phi.shape.steepest
    if _monotone(phi):
        found = found if count == 1 else [phi.central(*_corners(m, r))]
        wide_m = torch.zeros_like(wide_m)
    norms = []
    for k, name in ((1, "norm8"), (2, "norm16")):
        moved = steep * (wide_m + GAUSSIAN[k] * wide_r)  # half the widths, and centring at most doubles
        value = torch.cat([getattr(central, name) for central in found]).amax(0) + moved
        norms.append(torch.minimum(value, steep * GAUSSIAN[k] * r.upper) * UP)
    return norms[0], norms[1]


def _in_steps(phi: Activation, m: Interval, r: Interval, count: int) -> Central:
    """With the range of m cut into ``count`` steps."""
    corners = (m.lower[None], r.lower[None])
    wide_m, wide_r = (m.upper - m.lower) * UP, (r.upper - r.lower) * UP
    if bool((wide_m > 0).any()) or bool((wide_r > 0).any()):
        points = torch.stack(
            [m.lower + (m.upper - m.lower) * (i / count) for i in range(count)] + [m.upper]
        )  # (points, batch, n)
        wide_m = points.diff(dim=0).amax(0) * UP  # of one step
        ends = [r.lower, r.upper] if bool((wide_r > 0).any()) else [r.lower]
        corners = (points.repeat(len(ends), 1, 1), torch.stack(ends).repeat_interleave(len(points), 0))
    step = max(1, _AT_ONCE // m.lower.numel())
    found = [phi.central(a, b) for a, b in zip(*(part.split(step) for part in corners), strict=True)]
    intervals = []
    for n, name in ((2, "variance"), (3, "third"), (4, "fourth")):
        wide = torch.zeros_like(wide_m) if n % 2 == 0 and _monotone(phi) else wide_m
        high = torch.zeros_like(wide_r) if n == 2 and _hinge(phi) else wide_r
        off = _between(phi, n, wide, high, r.upper)
        parts = [getattr(central, name) for central in found]
        low = torch.cat([part.lower for part in parts]).amin(0) - off
        intervals.append(Interval(low, torch.cat([part.upper for part in parts]).amax(0) + off))
    intervals[0], intervals[2] = (Interval(i.lower.clamp_min(0), i.upper) for i in (intervals[0], intervals[2]))
    return Central(intervals[0], intervals[1], intervals[2], lambda: _norms(phi, m, r, count, found, wide_m))


def _of_degree_one(phi: Activation, m: Interval, r: Interval, count: int) -> Central:
    """For a monotone function with one kink, at zero: with the range of m / r cut into ``count`` steps.

    The third moment needs the steps; even ones and norms are largest and least at the ends.
    """
    u, steep, low, high = _ratio(m, r), phi.shape.steepest, r.lower / UP, r.upper * UP
    inner = [u.lower + (u.upper - u.lower) * (i / count) for i in range(1, count)]
    points = torch.stack([u.lower, u.upper, *inner])  # (points, batch, n)
    chunks = points.split(max(2, _AT_ONCE // m.lower.numel()))
    found = [phi.central(part, torch.ones_like(part)) for part in chunks]
    wide = (u.upper - u.lower) / count * UP
    slope, bend = HINGE
    bump = steep**3 * (torch.minimum(0.5 * slope * wide, bend * wide.square() / 8) + _ROUNDED)
    least = torch.stack([part.third.lower.amin(0) for part in found]).amin(0) - bump
    most = torch.stack([part.third.upper.amax(0) for part in found]).amax(0) + bump
    third = Interval(
        torch.minimum(least * power_of(low, 3), least * power_of(high, 3)) - TINY,
        torch.maximum(most * power_of(low, 3), most * power_of(high, 3)) + TINY,
    )
    fourth, off = found[0].fourth, _ROUNDED * steep**4
    fourth = Interval(
        (fourth.lower[:2].amin(0) - off).clamp_min(0) * power_of(low, 4) / UP,
        (fourth.upper[:2].amax(0) + off) * power_of(high, 4) * UP,
    )

    def norms() -> tuple[Tensor, Tensor]:
        end = phi.central(u.upper if _rising(phi) else u.lower, torch.ones_like(high))
        norm8, norm16 = (
            (norm + _ROUNDED * steep).clamp_max(steep * GAUSSIAN[k]) * high * UP
            for k, norm in ((1, end.norm8), (2, end.norm16))
        )
        return norm8, norm16

    return Central(_hinge_variance(phi, m, r), third, fourth, norms)


def _hinge_variance(phi: Activation, m: Interval, r: Interval) -> Interval:  # (batch, n) each
    """Of a monotone function with one kink, at zero: it is monotone in m and in r, so at two corners."""
    shape = phi.shape
    first, last = (m.lower, m.upper) if _rising(phi) else (m.upper, m.lower)
    points = torch.stack([_over(first, r.lower), _over(last, r.upper)])
    found, off = phi.variance(points, torch.ones_like(points)), _ROUNDED * shape.steepest**2
    low, high = (r.lower / UP).square(), (r.upper * UP).square()
    return Interval((low * (found.lower[0] - off)).clamp_min(0) / UP, high * (found.upper[1] + off) * UP)


def _rising(phi: Activation) -> bool:
    """Whether even moments and norms of a monotone function with one kink rise with m: it is steeper on the right."""
    shape = phi.shape
    return abs(shape.slopes[0] if shape.fall > 0 else shape.slopes[1]) == shape.steepest


def _ratio(m: Interval, r: Interval) -> Interval:
    """The range of m / r."""
    low, high = ((end[0], end[1]) for end in ((r.lower, r.upper), (r.upper, r.lower)))
    return Interval(_over(m.lower, torch.where(m.lower < 0, *low)), _over(m.upper, torch.where(m.upper < 0, *high)))


def _over(m: Tensor, r: Tensor) -> Tensor:
    """The ratio m / r, within what makes a difference: beyond it moments are those of a line, up to ``_ROUNDED``."""
    return (m / r.clamp_min(TINY)).clamp(-_FAR, _FAR)


def _steps(wide: Tensor, r: Tensor) -> Tensor:  # (batch, n) each -> (batch,)
    """Into how many steps to cut the ranges of m of each box: 1, 2, 4 or 8, of about an eighth of r for wide ranges.

    Moments vary on the scale of r: on ranges many times as wide a few steps say nothing. A box has its own number,
    whatever the others of the batch.
    """
    ratio = torch.where(wide > 0, wide / r.clamp_min(TINY), 0.0).nan_to_num(0.0)  # no number: no bound
    share = torch.where(ratio > _WIDE, 0.0, ratio).clamp(0, 1).mean(-1)
    return 1 + (share > 0.06).long() + 2 * (share > 0.13).long() + 4 * (share > 0.27).long()


def _monotone(phi: Activation) -> bool:
    r"""Whether even central moments and norms are monotone in m: so for a phi that is monotone, and convex or concave.

    For m < m' the difference of :math:`\varphi(m'+r\xi)` and :math:`\varphi(m+r\xi)` is monotone in :math:`\xi`, as
    both are. So the centred values are a comonotone sum for one order of the two: larger in convex order.
    """
    shape = phi.shape
    return (shape.fall == 0 or shape.rise == 0) and (shape.slopes[0] >= 0 or shape.slopes[1] <= 0)


def _homogeneous(phi: Activation) -> bool:
    """Whether it is of degree one: monotone, with its only kink at zero."""
    return _hinge(phi) and phi.shape.kinks[0][0] == 0


def _hinge(phi: Activation) -> bool:
    r"""Whether the variance is monotone in m and in r: of a monotone function with one kink.

    Up to signs and a reflection it is :math:`ax+b(x-k)_+` with a, b >= 0. Its variance is
    :math:`a^2s+2abs\,\Phi(u)+b^2\operatorname{Var}(X-k)_+`, s = r^2, u = (m - k) / r, and each term increases in s:
    :math:`\partial_s(s\Phi)=\Phi-\tfrac12u\varphi>0`, and docs/theory.md, section 4.9, for the last one.
    """
    return len(phi.shape.kinks) == 1 and _monotone(phi)
