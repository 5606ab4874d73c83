r"""Affine bounds of :math:`\operatorname{Var}z`, :math:`z=\varphi(X)`, in the mean of X and its variance T = S + N.

For a Gaussian X it is :math:`v(m,r)=\operatorname{Var}\varphi(m+r\xi)` at :math:`r^2=T`; otherwise within the error of
``second_moment.variance_error`` of it, at the same x. On a rectangle :math:`v-\alpha m-\beta r^2` exceeds
its values at the corners by at most an eighth of its second derivatives times the squares of the widths, and
:math:`|v_{mm}|\le4L^2`, :math:`|v_{rr}|\le6.6L^2` (``central_range.py``).
"""

from __future__ import annotations

import torch

from bnndp.activations.activation import Activation
from bnndp.engine.inequalities.central_range import BENDS
from bnndp.engine.inequalities.expectation import ExpectationBounds
from bnndp.engine.inequalities.second_moment import variance_error
from bnndp.engine.moments.pre_activation import PreActivation
from bnndp.engine.planes.mean import Plane, Planes, better_plane, grid_plane, made
from bnndp.geometry.bounds import Interval
from bnndp.maths.rounding import TINY, UP

__all__ = ["variance_planes"]


def variance_planes(phi: Activation, x: PreActivation, near: ExpectationBounds, variance: Interval) -> Planes:
    """Planes in (M, T), or the range ``variance`` of Var z where that is better at the middle."""
    zero = torch.zeros_like(x.mean.lower)
    flat = (zero, zero, variance.lower), (zero, zero, variance.upper)
    pointwise = near.pointwise
    if pointwise is None:
        return made(x.mean, x.spread, *flat, variance)
    error = (zero, zero) if x.fixed else variance_error(phi, x, pointwise)
    low, high = _on_rectangle(phi, x.mean, pointwise.total)
    low, high = (*low[:2], low[2] - error[0]), (*high[:2], high[2] + error[1])
    low = better_plane(x.mean, pointwise.total, flat[0], low, -1)
    return made(x.mean, pointwise.total, low, better_plane(x.mean, pointwise.total, flat[1], high, 1), variance)


def _on_rectangle(phi: Activation, m: Interval, s: Interval) -> tuple[Plane, Plane]:
    """Planes below and above v(m, sqrt(s))."""
    steep, ms, ss, roots = phi.shape.steepest, [m.lower, m.upper], [s.lower, s.upper], [s.lower.sqrt(), s.upper.sqrt()]
    corners = phi.variance(torch.stack([t for t in ms for _ in roots]), torch.stack(roots * 2))
    low, high = (v.unflatten(0, (2, 2)) for v in (corners.lower, corners.upper))
    mean = 0.5 * (corners.lower + corners.upper)
    beta = 0.5 * (mean[1] + mean[3] - mean[0] - mean[2]) / (s.upper - s.lower).clamp_min(TINY)
    chord = 0.5 * (mean[2] + mean[3] - mean[0] - mean[1]) / (m.upper - m.lower).clamp_min(TINY)
    most = 2 * steep**2 * roots[1]  # |v_m| = 2 |Cov(phi, phi')|; the other slope, at most L^2
    beta, chord = beta.clamp(-(steep**2), steep**2), torch.minimum(torch.maximum(chord, -most), most)
    wide_m, wide_r = ((b - a).clamp_min(0) * UP for a, b in (ms, roots))
    bend_m, bend_r = BENDS[0]
    bump = (bend_m * steep**2 * wide_m.square() + (bend_r * steep**2 + 2 * beta.abs()) * wide_r.square()) / 8 * UP
    at = torch.stack(ms), torch.stack(ss)
    return grid_plane(*at, low, [chord], beta, bump, -1), grid_plane(*at, high, [chord], beta, bump, 1)
