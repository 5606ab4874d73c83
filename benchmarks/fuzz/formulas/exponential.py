r"""Exponential moments of a rectified Gaussian, the constants of its tilted law, and majorants, against Arb.

All truths come from :math:`L(m,r;a,c)=\log(\Phi(-u)+\sqrt w\,e^{w(am+cm^2+a^2r^2/2)}\Phi(\tilde u))` and its
derivatives, with bits for what cancels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from flint import arb, ctx
from support.oracles import PRECISION, cdf, expected_relu, pdf
from torch import Tensor

from benchmarks.fuzz.formulas.draws import Draw
from benchmarks.fuzz.formulas.judge import Judge
from benchmarks.fuzz.formulas.maths import rows
from bnndp.maths import exponential as subject
from bnndp.maths import exponential_majorants as majorants

__all__ = ["chernoff", "lipschitz", "log_moments", "parabolas", "squares", "sub_gaussian"]

_BITS = 2 * PRECISION
_EASE = arb(1e-9)  # added to curvatures by the caller (engine/tails/two_layers.py), for the rounding of slopes


@dataclass(frozen=True, slots=True)
class _Tilted:
    """L and its derivatives in a and m."""

    log: arb
    mean: arb
    in_mean: arb


def _tilted(m: arb, r: arb, a: arb, c: arb) -> _Tilted:
    if r == 0:
        z = m if m > 0 else arb(0)
        return _Tilted(a * z + c * z * z, z, a + 2 * c * z if m > 0 else arb(0))
    w = 1 / (1 - 2 * c * r * r)
    v = (m + a * r * r) * w.sqrt() / r
    off = cdf(-m / r)
    on = w.sqrt() * (w * (a * m + c * m * m + a * a * r * r / 2)).exp() * cdf(v)
    active = on / (off + on)
    mean = active * w.sqrt() * r * (v + pdf(v) / cdf(v))
    return _Tilted((off + on).log(), mean, a * active + 2 * c * mean)


def log_moments(judge: Judge, draw: Draw, n: int) -> None:
    """L rounded up; the loss is relative to the size of its terms."""
    r = draw.mixed(draw.log_uniform(n, -3, 3), draw.log_uniform(n, -100, 30))
    m = draw.mixed(draw.uniform(n, -40, 40), draw.normal(n, 2), draw.signed(n, -16, 3)) * r
    m = torch.where(draw.uniform(n) < 0.05, 0.0, m)
    a = draw.mixed(draw.signed(n, -12, 3), draw.normal(n), draw.uniform(n, -40, 40), torch.zeros(n).double()) / r
    share = draw.mixed(draw.uniform(n, 0, 0.985), -draw.log_uniform(n, -9, 3), torch.zeros(n).double())
    c = 0.5 * share / (r * r)
    for x, y, tilt, square, value in rows(m, r, a, c, subject.log_moment(m, r, a, c)):
        with ctx.workprec(_BITS):
            truth = _tilted(arb(x), arb(y), arb(tilt), arb(square)).log
            w = 1 / (1 - 2 * arb(square) * arb(y) * arb(y))
            terms = abs(arb(tilt) * x) + abs(arb(square)) * x * x + arb(tilt) * arb(tilt) * y * y
            judge.above("log_moment", (x, y, tilt, square), value, truth, 1 + w * terms + abs(truth))


def chernoff(judge: Judge, draw: Draw, n: int) -> None:
    """The largest sigma(-D) exp(lam D)."""
    lam = draw.mixed(draw.log_uniform(n, -300, 0), 1 - draw.log_uniform(n, -16, 0), draw.uniform(n, 1e-3, 1))
    for x, value in rows(lam, subject.chernoff_constant(lam)):
        complement = 1 - arb(x)
        with ctx.workprec(4 * _BITS):
            complement = 1 - arb(x)
            truth = arb(x) * arb(x).log() + (complement * complement.log() if complement > 0 else 0)
            judge.above("chernoff_constant", (x,), value, truth.exp(), truth.exp())


def _ranges(draw: Draw, n: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], Tensor, Tensor]:
    """Ranges of m and r, half of them points; tilts; squares >= 0."""
    r = draw.log_uniform(n, -6, 3)
    wider = torch.where(draw.uniform(n) < 0.5, 0.0, draw.log_uniform(n, -6, 0))
    m = draw.mixed(draw.uniform(n, -40, 40), draw.uniform(n, -4, 4), draw.signed(n, -9, 1)) * r
    longer = torch.where(draw.uniform(n) < 0.5, 0.0, r * draw.log_uniform(n, -4, 1))
    ends = (m, m + longer), (r, r * (1 + wider))
    a = draw.mixed(draw.signed(n, -3, 1.5), draw.normal(n)) / ends[1][1]
    c = draw.mixed(torch.zeros(n).double(), draw.uniform(n, 0, 0.49)) / ends[1][1].square()
    return *ends, a, c


def _within(draw: Draw, ends: tuple[Tensor, Tensor]) -> Tensor:
    """Points of ranges, many of them at the ends."""
    share = draw.uniform(len(ends[0]), -0.5, 1.5).clamp(0, 1)
    return torch.minimum(torch.maximum(ends[0] + share * (ends[1] - ends[0]), ends[0]), ends[1])


def _cumulant(m: float, r: float, a: float, c: float, delta: float) -> arb:
    """The logarithm of E exp(delta (Z - E Z)) under the tilted law."""
    at, tilt = (arb(m), arb(r)), arb(a)
    here = _tilted(*at, tilt, arb(c))
    return _tilted(*at, tilt + arb(delta), arb(c)).log - here.log - arb(delta) * here.mean


def lipschitz(judge: Judge, draw: Draw, n: int) -> None:
    """The square of the Lipschitz constant is a sub-Gaussian constant for every delta."""
    m, r, a, c = _ranges(draw, n)
    delta = draw.signed(n, -4, 2) / r[1]
    found = subject.lipschitz(m, r, a, c, cells=int(draw.integers(1, 1, 8)))
    for x, y, tilt, square, step, ell in rows(_within(draw, m), _within(draw, r), a, c, delta, found):
        with ctx.workprec(_BITS):
            bound = (arb(ell) * arb(step)) * (arb(ell) * arb(step)) / 2
            judge.above("lipschitz", (x, y, tilt, square, step), bound, _cumulant(x, y, tilt, square, step))


def sub_gaussian(judge: Judge, draw: Draw, n: int) -> None:
    """The constant near zero, for every delta within its reach."""
    m, r, a, c = _ranges(draw, n)
    reach = draw.log_uniform(n, -3, 1.7) / r[1]
    delta = reach * draw.uniform(n, -1.5, 1.5).clamp(-1, 1)
    found = subject.sub_gaussian(m, r, a, c, reach, cells=int(draw.integers(1, 1, 8)))
    for x, y, tilt, square, step, constant in rows(_within(draw, m), _within(draw, r), a, c, delta, found):
        with ctx.workprec(_BITS):
            bound = arb(constant) * arb(step) * arb(step) / 2
            judge.above("sub_gaussian", (x, y, tilt, square, step), bound, _cumulant(x, y, tilt, square, step))


def parabolas(judge: Judge, draw: Draw, n: int) -> None:
    """Parabolas above g(., 1) and above L(., r; a, 0), a > 0, everywhere, also where they touch."""
    r, zero = draw.log_uniform(n, -4, 2), arb(0)
    u0 = draw.mixed(draw.uniform(n, -12, 12), draw.normal(n), draw.signed(n, -12, 1))
    a, spread = draw.log_uniform(n, -3, 1.3) / r, draw.log_uniform(n, -3, 1) * r
    m0 = u0 * r
    to = draw.mixed(draw.uniform(n, -40, 40) * r, -m0, m0 + draw.signed(n, -4, 2) * r, m0 + spread)
    bend = majorants.relu_curvature(u0)
    curvature = majorants.harmful_curvature(m0, r, a)
    found = majorants.harmful_parabola(m0, r, a, spread)
    parts = (found.constant, found.slope, found.curvature)
    for u, m, dev, tilt, x, flat, steep, constant, slope, k in rows(u0, m0, r, a, to, bend, curvature, *parts):
        with ctx.workprec(_BITS):
            there = arb(x) / arb(dev)
            d = there - arb(u)
            parabola = expected_relu(u, 1.0) + cdf(u) * d + arb(flat) * d * d / 2
            judge.above("relu_curvature", (u, x, dev), parabola, expected_relu(there, 1.0))
            at, b = _tilted(arb(m), arb(dev), arb(tilt), zero), arb(x) - arb(m)
            remainder = _tilted(arb(x), arb(dev), arb(tilt), zero).log - at.log - at.in_mean * b
            half = b * b / 2
            judge.above("harmful_curvature", (m, dev, tilt, x), arb(steep) * half, remainder)
            above = arb(constant) + arb(slope) * b + (arb(k) + _EASE) * half
            judge.above("harmful_parabola", (m, dev, tilt, x), above, remainder)


def squares(judge: Judge, draw: Draw, n: int) -> None:
    """The majorant of log E exp(c Z^2) in mean and variance."""
    top = draw.log_uniform(n, -4, 4)
    level, share = draw.uniform(n, 1e-3, 1), draw.mixed(draw.uniform(n, 1e-3, 0.95), draw.log_uniform(n, -6, -1))
    c, s0 = 0.5 * share / top, level * top
    m0 = draw.mixed(draw.normal(n, 2), draw.uniform(n, -10, 10)) * top.sqrt()
    spread = draw.log_uniform(n, -2, 1) * top.sqrt()
    to = m0 + draw.mixed(draw.normal(n), draw.signed(n, -3, 1.5), torch.zeros(n).double()) * spread
    s = top * draw.uniform(n, -0.2, 1.2).clamp(0, 1)
    found = majorants.square_majorant(m0, s0, top, c, spread)
    parts = (found.constant, found.slope, found.in_variance, found.curvature)
    for start, x, y, square, constant, slope, rise, bend in rows(m0, to, s, c, *parts):
        with ctx.workprec(_BITS):
            truth = _tilted(arb(x), arb(y).sqrt(), arb(0), arb(square)).log
            d = arb(x) - arb(start)
            bound = arb(constant) + arb(slope) * d + arb(rise) * arb(y) + (arb(bend) + _EASE) * d * d / 2
            if constant == math.inf and not math.isnan(slope + rise + bend):
                bound = arb(constant)  # with d = 0 an infinite curvature would make NaN of it
            judge.above("square_majorant", (start, x, y, square), bound, truth)
