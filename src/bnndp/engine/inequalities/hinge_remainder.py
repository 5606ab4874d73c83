r"""Norms of what a line leaves of an activation that is affine between kinks, of a Gaussian X.

A kink at k with the jump J of the slope leaves J times :math:`R=(X-k)_+-\mathbb E(X-k)_+-P(X-m)`, :math:`P=\mathbb
P(X>k)`. With :math:`t=|m-k|/r` it has the law of r times :math:`(\xi-t)_+-\mathbb E(\xi-t)_+-Q(t)\xi`, Q the upper tail
of the normal law: as :math:`x_+=x+(-x)_+` both sides of the kink are alike. So :math:`\lVert R\rVert_q` is at most r
times :math:`\lVert(\xi-t)_+-\mathbb E(\xi-t)_+\rVert_q+Q(t)g_q`, which falls in t: a smaller t adds an increasing
function of :math:`\xi` to an increasing one. For q = 4 it is also known in closed form at the middle of the box, from
where it moves by at most 1.6 times the change of m and 2.1 times that of r (the norms of the derivatives of R:
:math:`1_{X>k}-P-P'(X-m)` in m, and :math:`\xi1_{X>k}-\mathbb E\xi1_{X>k}-P\xi-\partial_rP\,r\xi` in r, with
:math:`r|\partial_mP|\le0.3990`, :math:`r|\partial_rP|\le0.2420`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from bnndp.activations.activation import Shape
from bnndp.engine.moments.pre_activation import PreActivation
from bnndp.engine.moments.signal import GAUSSIAN, POWERS
from bnndp.maths.hinge import hinge_raw, tail_norms
from bnndp.maths.normal import cdf
from bnndp.maths.rectified import ratio
from bnndp.maths.rounding import ELEMENTARY, TINY, UP

__all__ = ["remainder_norms"]

_IN_MEAN, _IN_ROOT = 1.6, 2.1


def remainder_norms(shape: Shape, x: PreActivation, p: Tensor) -> Tensor:  # (batch, n) -> (batch, n, q)
    """Of the centred values less ``p (X - E X)`` on the box, at most."""
    least, most = x.spread.lower.sqrt(), x.spread.upper.sqrt() * UP
    middle, half = 0.5 * (x.mean.lower + x.mean.upper), 0.5 * (x.mean.upper - x.mean.lower) * UP
    root = 0.5 * (least + most)
    found, slope, stray = torch.zeros_like(x.norms), torch.full_like(p, _first_slope(shape)), torch.zeros_like(p)
    for where, jump in shape.kinks:
        apart = torch.maximum(x.mean.lower - where, where - x.mean.upper).clamp_min(0)
        t = ratio(apart, most)
        each = most[..., None] * _far(t)
        near = root * _fourth(ratio((middle - where).abs(), root)) + _IN_MEAN * half + _IN_ROOT * (most - root)
        each[..., 0] = torch.fmin(each[..., 0], near)
        found = found + abs(jump) * each
        ends = torch.stack([cdf(ratio(m - where, r)) for m in (x.mean.lower, x.mean.upper) for r in (least, most)])
        low, high = ends.amin(0), ends.amax(0)
        slope, stray = slope + jump * 0.5 * (low + high), stray + abs(jump) * 0.5 * (high - low)
    off = (slope - p).abs() + stray + ELEMENTARY * (1 + slope.abs() + p.abs())
    return (found + (off * most)[..., None] * found.new_tensor(GAUSSIAN)) * UP


def _first_slope(shape: Shape) -> float:
    """The slope before the first kink: the least or the largest one is that of some piece."""
    steps = [0.0]
    for _, jump in sorted(shape.kinks):
        steps.append(steps[-1] + jump)
    return shape.slopes[0] - min(steps)


def _far(t: Tensor) -> Tensor:  # (batch, n) -> (batch, n, q)
    """Norms of the hinge beyond t >= 0, centred, and of its line."""
    _, norms = tail_norms(POWERS, t)  # centring makes no positive variable larger
    line = cdf(-t) * (1 + 1e-9) + TINY
    return torch.stack([norm + line * g for norm, g in zip(norms, GAUSSIAN, strict=True)], -1) * UP


def _fourth(t: Tensor) -> Tensor:
    """The norm in L4 of both together, at most."""
    one, two, three, four = hinge_raw(-cdf(-t), 1.0, t)
    square = one * one
    value = four - 4 * one * three + 6 * square * two - 3 * square * square
    return (value.clamp_min(0) + 64 * ELEMENTARY).sqrt().sqrt() * UP
