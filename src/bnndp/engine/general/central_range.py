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
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bnndp.activations.activation import Activation, Central
from bnndp.engine.general.signal import GAUSSIAN
from bnndp.geometry.bounds import Interval
from bnndp.maths.rounding import TINY, UP

__all__ = ["BENDS", "central_range", "variance_range"]

_AT_ONCE = 2**16  # moments that are computed together
BENDS = ((4.0, 6.6), (17.2, 23.4), (51.5, 81.9))  # second derivatives in m and r over L^n r^(n-2), n = 2, 3, 4
_SLOPES = (2.0, 5.1962, 15.492)  # first derivatives over (L r)^(n-1) times min(w, cr) or L: 2, 3 sqrt 3, 4 sqrt 15


def central_range(phi: Activation, m: Interval, r: Interval) -> Central:  # (batch, n) each
    """Ranges of the central moments."""
    counts = _steps((m.upper - m.lower) * UP, r.upper)
    kinds = sorted(set(counts.tolist()))
    if len(kinds) <= 1:
        return _in_steps(phi, m, r, kinds[0] if kinds else 1)
    places = [(counts == count).nonzero()[:, 0] for count in kinds]
    parts = [_in_steps(phi, _at(m, at), _at(r, at), count) for count, at in zip(kinds, places, strict=True)]
    order = torch.cat(places).argsort()

    def joined(name: str) -> Interval:
        found: list[Interval] = [getattr(part, name) for part in parts]
        return _at(Interval(torch.cat([x.lower for x in found]), torch.cat([x.upper for x in found])), order)

    norm8, norm16 = (torch.cat([getattr(part, name) for part in parts])[order] for name in ("norm8", "norm16"))
    return Central(joined("variance"), joined("third"), joined("fourth"), norm8, norm16)


def variance_range(phi: Activation, m: Interval, r: Interval) -> Interval:  # (batch, n) each
    """The range of the variance alone: if it is monotone in m, its ends are enough."""
    found = _in_steps(phi, m, r, 1) if _monotone(phi) else central_range(phi, m, r)
    return found.variance


def _at(x: Interval, index: Tensor) -> Interval:
    return Interval(x.lower[index], x.upper[index])


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
    steep, most = phi.shape.steepest, r.upper
    bend = max(phi.shape.bend_up, phi.shape.bend_down)
    change = torch.full_like(most, phi.shape.swing) if bend == math.inf else (bend * most).clamp_max(phi.shape.swing)
    intervals = []
    for n, name in ((2, "variance"), (3, "third"), (4, "fourth")):
        bend_m, bend_r = BENDS[n - 2]
        wide = torch.zeros_like(wide_m) if n == 2 and _monotone(phi) else wide_m
        second = steep**n * most ** (n - 2) * (bend_m * wide.square() + bend_r * wide_r.square()) / 8
        first = _SLOPES[n - 2] * (steep * most) ** (n - 1) * (change * wide + steep * wide_r) / 2
        off = torch.minimum(first, second) * UP
        parts = [getattr(central, name) for central in found]
        low = torch.cat([part.lower for part in parts]).amin(0) - off
        intervals.append(Interval(low, torch.cat([part.upper for part in parts]).amax(0) + off))
    intervals[0], intervals[2] = (Interval(i.lower.clamp_min(0), i.upper) for i in (intervals[0], intervals[2]))
    norms = []
    for k, name in ((1, "norm8"), (2, "norm16")):
        moved = steep * (wide_m + GAUSSIAN[k] * wide_r)  # half the widths, and centring at most doubles
        value = torch.cat([getattr(central, name) for central in found]).amax(0) + moved
        norms.append(torch.minimum(value, steep * GAUSSIAN[k] * most) * UP)
    return Central(intervals[0], intervals[1], intervals[2], *norms)


def _steps(wide: Tensor, r: Tensor) -> Tensor:  # (batch, n) each -> (batch,)
    """Into how many steps to cut the ranges of m of each box: 1, 2, 4 or 8, of about an eighth of r for wide ranges.

    Moments vary on the scale of r. A box has its own number, whatever the others of the batch.
    """
    ratio = torch.where(wide > 0, wide / r.clamp_min(TINY), 0.0).nan_to_num(0.0).clamp(0, 1)  # no number: no bound
    share = ratio.mean(-1)
    return 1 + (share > 0.06).long() + 2 * (share > 0.13).long() + 4 * (share > 0.27).long()


def _monotone(phi: Activation) -> bool:
    """Whether the variance is monotone in m: 2 Cov(phi, phi') has the sign of association if both are monotone."""
    shape = phi.shape
    return (shape.fall == 0 or shape.rise == 0) and (shape.slopes[0] >= 0 or shape.slopes[1] <= 0)
