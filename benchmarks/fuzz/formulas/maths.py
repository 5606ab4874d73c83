"""The normal law, rectified Gaussians, hinges and rounding: what ``bnndp.maths`` promises of each, against Arb.

Every function here draws arguments, evaluates a module of the package on all of them at once, and has each value
judged.
"""

from __future__ import annotations

import math

import torch
from flint import arb, ctx
from support.oracles import PRECISION, cdf, pdf, rectified, tail
from torch import Tensor

from benchmarks.fuzz.formulas.draws import Draw
from benchmarks.fuzz.formulas.judge import Judge
from bnndp.maths import hinge, normal, normal_difference, rounding
from bnndp.maths import rectified as subject
from bnndp.maths.rounding import ELEMENTARY, TINY, UNIT

__all__ = [
    "clipped",
    "clipped_truth",
    "cut_moments",
    "differences",
    "hinges",
    "intervals",
    "normal_law",
    "probabilities",
    "quantiles",
    "raw_moments",
    "rectified_moments",
    "rows",
    "sums",
]

_UNDERFLOW = arb(2) ** -1020  # below it a tail is not a normal float64 number
_ABSOLUTE = arb(2) ** -51  # of maths/normal.py
_DEEPEST = 40.0  # standard deviations up to which tails are compared relative to themselves
_ONE = arb(1)


def rows(*tensors: Tensor) -> zip[tuple[float, ...]]:
    """Numbers of tensors (n,), place by place."""
    return zip(*(t.tolist() for t in tensors), strict=True)


def normal_law(judge: Judge, draw: Draw, n: int) -> None:
    """Density, distribution function and tail, absolutely and relative to themselves; the hazard rate."""
    t = draw.standard(n)
    values = [getattr(normal, name)(t) for name in ("pdf", "cdf", "tail", "hazard")]
    for x, density, low, high, hazard in rows(t, *values):
        phi, p, q = pdf(x), cdf(x), tail(x)
        square = 1 + arb(x) * arb(x)
        for name, value, truth, outward in (("pdf", density, phi, abs(x)), ("cdf", low, p, -x), ("tail", high, q, x)):
            judge.near(name, (x,), value, _ABSOLUTE, truth, _ONE)
            if 0 <= outward <= _DEEPEST:
                judge.near(f"{name}, relative", (x,), value, square * _ABSOLUTE * truth + _UNDERFLOW, truth, truth)
        if x < 1e4:  # beyond, Arb's erfc is only a bound of the tail
            truth = phi / q
            judge.near("hazard", (x,), hazard, 16 * ELEMENTARY * truth + TINY, truth, truth)


def probabilities(judge: Judge, draw: Draw, n: int) -> None:
    """P(X > 0) with the rounding of m / r in it."""
    m, r = draw.gaussians(n)
    m = torch.where((m == 0) & (r == 0), 1.0, m)  # no limit there
    for a, b, value in rows(m, r, subject.relu_probability(m, r)):
        with ctx.workprec(PRECISION):
            truth = cdf(arb(a) / arb(b)) if b > 0 else arb(int(a > 0))
        judge.near("P(X > 0)", (a, b), value, 2 * _ABSOLUTE, truth, _ONE)
        if 0 < -a <= _DEEPEST * b:
            granted = 2 * (1 + (arb(a) / arb(b)) ** 2) * _ABSOLUTE * truth + _UNDERFLOW
            judge.near("P(X > 0), relative", (a, b), value, granted, truth, truth)


def intervals(judge: Judge, draw: Draw, n: int) -> None:
    """Probabilities of intervals, absolutely and relative to the tail they lie in."""
    start = draw.mixed(draw.uniform(n, -40, 40), draw.normal(n, 2))
    end = start + draw.mixed(draw.log_uniform(n, -16, 2), draw.log_uniform(n, -3, 1))
    a = torch.where(draw.uniform(n) < 0.1, -torch.inf, start)
    b = torch.where(draw.uniform(n) < 0.1, torch.inf, end)
    for x, y, value in rows(a, b, normal.interval_probability(a, b)):
        with ctx.workprec(4 * PRECISION):
            truth = cdf(y) - cdf(x) if x < 0 else tail(x) - tail(y)
        nearest = 0.0 if x <= 0 <= y else min(abs(x), abs(y))
        judge.near("interval", (x, y), value, 2 * _ABSOLUTE, truth, _ONE)
        own = tail(nearest)
        granted = 2 * (1 + arb(nearest) ** 2) * _ABSOLUTE * own + _UNDERFLOW
        judge.near("interval, relative to its tail", (x, y), value, granted, truth, own)


def quantiles(judge: Judge, draw: Draw, n: int) -> None:
    """Half widths of rectangles that hold a mass of 1 - epsilon."""
    epsilon = draw.mixed(draw.log_uniform(n, -290, -1e-3), draw.log_uniform(n, -12, 0), 1 - draw.log_uniform(n, -15, 0))
    epsilon = epsilon.clamp(1e-290, 1 - 2.0**-53)
    many = draw.log_uniform(n, 0, 6).long().clamp_min(1)
    for e, k in rows(epsilon, many):
        value = normal.rectangle_quantile(e, int(k))
        with ctx.workprec(PRECISION):
            outside = -((-arb(e)).log1p() / int(k)).expm1()
            truth = arb(2).sqrt() * outside.erfcinv()
        judge.above("quantile of a rectangle", (e, k), value, truth, 1 + truth)


def rectified_moments(judge: Judge, draw: Draw, n: int) -> None:
    """Moments of max(N(m, r^2), 0) within ELEMENTARY of their scales."""
    m, r = draw.gaussians(n)
    found = subject.moments(m, r)
    fields = (found.mean, found.second, found.fourth, found.variance, found.square_variance)
    for a, b, g, *values in rows(m, r, subject.expected_relu(m, r), *fields):
        truth = rectified(a, b)
        size, s = abs(arb(a)) + arb(b), arb(b) * arb(b)
        square = size * size
        judge.near("expected_relu", (a, b), g, ELEMENTARY * size + TINY, truth.mean, size)
        scales = {"mean": size, "second": square, "fourth": square * square, "variance": s,
                  "square_variance": s * square}  # fmt: skip
        for (name, scale), value in zip(scales.items(), values, strict=True):
            judge.near(name, (a, b), value, ELEMENTARY * scale + TINY, getattr(truth, name), scale)


def cut_moments(t: arb) -> list[arb]:
    """E xi^j 1{xi > t} for j = 0 to 4."""
    q, phi = tail(t), pdf(t)
    return [q, phi, t * phi + q, (t * t + 2) * phi, (t * t * t + 3 * t) * phi + 3 * q]


def raw_moments(judge: Judge, draw: Draw, n: int) -> None:
    """Raw moments of (xi - t)_+ and max(xi, -t)."""
    t = draw.standard(n, 1e3).abs()
    low, high = subject.standard_raw(t, t < 0), subject.standard_raw(t, t >= 0)
    granted = arb(ELEMENTARY) / 8
    for x, *values in rows(t, *low, *high):
        with ctx.workprec(2 * PRECISION):
            at = rectified(-x, 1.0)
            below = [at.mean, at.second, at.third, at.fourth]
            shifted, mass = cut_moments(-arb(x)), tail(x)
            above = [shifted[k] + (-arb(x)) ** k * mass for k in range(1, 5)]
        for k, (value, truth) in enumerate(zip(values, below + above, strict=True)):
            name = f"E {'(xi - t)_+' if k < 4 else 'max(xi, -t)'}^{k % 4 + 1}"
            judge.near(name, (x,), value, granted, truth, _ONE)


def hinges(judge: Judge, draw: Draw, n: int) -> None:
    """E (a xi + b (xi - t)_+)^k."""
    for b in (1.0, 0.99, -0.5, 3.0, 1e-9, 1e3, -7.25, 1e-160):
        t, a = draw.standard(n // 8, 1e3).abs(), draw.mixed(draw.normal(n // 8), draw.signed(n // 8, -30, 3))
        for x, y, *values in rows(t, a, *hinge.hinge_raw(a, b, t)):
            with ctx.workprec(2 * PRECISION):
                line, both, kink = arb(y), arb(y) + arb(b), arb(b) * arb(x)
                cut = cut_moments(arb(x))
                size = abs(line) + abs(arb(b))
                for k, value in enumerate(values, 1):
                    right = sum((math.comb(k, i) * both**i * (-kink) ** (k - i) * cut[i] for i in range(k + 1)), arb(0))
                    truth = line**k * ((0, 1, 0, 3)[k - 1] - cut[k]) + right
                    judge.near(f"hinge_raw {k}", (y, b, x), value, ELEMENTARY * size**k + TINY, truth, size**k)


def clipped_truth(low: arb, high: arb, about: arb) -> list[arb]:
    """E (min(max(xi, low), high) - about)^k for k = 1 to 4."""
    at_low, at_high = cut_moments(low), cut_moments(high)
    inside = [a - b for a, b in zip(at_low, at_high, strict=True)]
    below, found = tail(-low), []
    for k in range(1, 5):
        middle = sum((math.comb(k, i) * (-about) ** (k - i) * inside[i] for i in range(k + 1)), arb(0))
        found.append((low - about) ** k * below + middle + (high - about) ** k * at_high[0])
    return found


def clipped(judge: Judge, draw: Draw, n: int) -> None:
    """Moments of a standard Gaussian cut at both sides."""
    lower = draw.standard(n, 1e3)
    upper = (lower + draw.mixed(draw.log_uniform(n, -12, 0), draw.log_uniform(n, -1, 2.5))).clamp_max(1e3)
    lower = torch.minimum(lower, upper)
    for a, b, *values in rows(lower, upper, *hinge.clipped_raw(lower, upper)):
        about = min(max(0.0, a), b)
        with ctx.workprec(2 * PRECISION):
            truths = clipped_truth(arb(a), arb(b), arb(about))
        for k, (value, truth) in enumerate(zip(values, truths, strict=True), 1):
            judge.near(f"clipped_raw {k}", (a, b), value, 4 * ELEMENTARY, truth, _ONE)


def differences(judge: Judge, draw: Draw, n: int) -> None:
    """Phi(m + delta) - Phi(m) within 64 units of delta."""
    m = draw.standard(n)
    delta = draw.mixed(draw.signed(n, -300, 30), draw.signed(n, -6, 2), draw.signed(n, -1.2, -0.8))
    for a, d, value in rows(m, delta, normal_difference.cdf_difference(m, delta)):
        with ctx.workprec(PRECISION + 4 * max(0, -math.frexp(d)[1])):
            end = arb(a) + arb(d)
            truth = cdf(end) - cdf(a) if a < 0 else tail(a) - tail(end)
            judge.near("cdf_difference", (a, d), value, 64 * UNIT * abs(arb(d)), truth, abs(arb(d)))


def sums(judge: Judge, draw: Draw, n: int) -> None:
    """Dot products of numbers that are not negative, rounded up and down, with underflow in them."""
    for length in (1, 2, 7, 64):
        count = max(1, n // 4)
        low, high = -170 * draw.uniform(count).round()[:, None], 20.0
        a, b = (10 ** (low + (high - low) * draw.uniform(count * length).reshape(count, length)) for _ in range(2))
        product = (a * b).sum(-1)
        above, below = rounding.up(product, 2 * length), rounding.down(product, 2 * length)
        for x, y, most, least in zip(a.tolist(), b.tolist(), above.tolist(), below.tolist(), strict=True):
            truth = sum((arb(p) * arb(q) for p, q in zip(x, y, strict=True)), arb(0))
            judge.above("up", (length, x[0], y[0]), most, truth, truth)
            judge.below("down", (length, x[0], y[0]), least, truth, truth)
