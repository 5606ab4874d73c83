"""Means, central moments and bounds of derivatives of every activation, against closed forms or integrals in Arb.

Closed forms are those of rectified and clipped Gaussians, of exponentials cut at zero, of the Gaussian error linear
unit and of sines (for piecewise affine surrogates). The other activations are integrated: on the side of the Gaussian
for standard deviations below 2 (support/activation_truths.py), on the side of the logistic density for larger ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from flint import acb, arb, ctx
from support.activation_truths import TRUTHS, Truth
from support.oracles import PRECISION, Rectified, cdf, pdf, rectified
from torch import Tensor

from benchmarks.fuzz.formulas.draws import Draw
from benchmarks.fuzz.formulas.judge import Judge
from benchmarks.fuzz.formulas.maths import clipped_truth, rows
from bnndp.activations import (
    Elu,
    Gelu,
    HardTanh,
    Identity,
    LeakyRelu,
    PiecewiseAffine,
    Relu,
    Sigmoid,
    Silu,
    Softplus,
    Tanh,
)
from bnndp.activations.activation import Activation
from bnndp.activations.moments import fields

__all__ = ["CLOSED", "INTEGRATED", "SMOOTH", "Closed", "Smooth", "swapped"]

_BALL = arb(0, 1)
_SLACK = arb(1e-60)  # radius of balls of numbers that reach their bounds, such as P = 1
_SLOPE = 1e-9  # promised of ``slope`` where the shape says that it is known
_MILLS = (
    1e4  # standard deviations beyond which a tail over its density is enclosed by its series, whose terms alternate
)

Powers = Callable[[arb, arb], list[arb]]  # of m and r > 0


def _central(raw: list[arb]) -> list[arb]:
    """Second to fourth central moment from raw ones."""
    y1, y2, y3, y4 = raw
    a = y1 * y1
    return [y2 - a, y3 - 3 * y1 * y2 + 2 * a * y1, y4 - 4 * y1 * y3 + 6 * a * y2 - 3 * a * a]


def _judge_central(
    judge: Judge, at: tuple[float, ...], values: list[float], truth: list[arb], scale: arb | None
) -> None:
    low2, high2, low3, high3, low4, high4, *_ = values
    s, c, q = (None,) * 3 if scale is None else (scale * scale, scale * scale * scale, scale * scale * scale * scale)
    judge.below("variance, lower", at, low2 if low2 > 0 else -math.inf, truth[0], s)  # zero says nothing
    judge.above("variance, upper", at, high2, truth[0], s)
    judge.below("third, lower", at, low3, truth[1], c)
    judge.above("third, upper", at, high3, truth[1], c)
    judge.below("fourth, lower", at, low4 if low4 > 0 else -math.inf, truth[2], q)
    judge.above("fourth, upper", at, high4, truth[2], q)


def _judge_shape(judge: Judge, phi: Activation, m: Tensor, r: Tensor, truths: Iterable[list[arb]]) -> None:
    """First to fourth derivatives in m of the mean within what the shape says; the slope as promised."""
    shape = phi.shape
    bounds = (*shape.curvature(r), shape.derivative(3, r), shape.derivative(4, r), phi.slope(m, r))
    for (a, b, below, above, third, fourth, slope), truth in zip(rows(m, r, *bounds), truths, strict=True):
        judge.above("slope, upper", (a, b), shape.slopes[1] + _SLACK, truth[0])
        judge.below("slope, lower", (a, b), shape.slopes[0] - _SLACK, truth[0])
        judge.above("curvature, upper", (a, b), above + _SLACK, truth[1])
        judge.below("curvature, lower", (a, b), -below - _SLACK, truth[1])
        judge.above("third derivative", (a, b), third + _SLACK, abs(truth[2]))
        judge.above("fourth derivative", (a, b), fourth + _SLACK, abs(truth[3]))
        if shape.slope_known:
            judge.near("slope, computed", (a, b), slope, _SLOPE, truth[0], None)


# Closed forms


@dataclass(frozen=True)
class Closed:
    """An activation whose moments and derivatives of the mean are known in closed form."""

    name: str
    phi: Activation
    value: Callable[[arb], arb]
    derivatives: Powers  # first to fourth in m of the mean
    raw: Powers | None = None  # first to fourth moment
    central: Powers | None = None  # second to fourth, where they do not follow from the raw ones: exact zeros
    mean: Callable[[arb, arb], arb] | None = None  # where only the mean is known
    tight: float = math.inf  # largest r up to which only rounding parts central moments from the truth
    homogeneous: bool = False  # errors are relative to |m| + r, not to 1 + |m| + r
    exact: bool = True  # rounding is all there is in the error of the mean
    largest: float = 30.0  # exponent of the largest numbers
    share: float = 1.0  # of the points, where there are several settings of one activation

    def closed(self, judge: Judge, draw: Draw, n: int) -> None:
        """Everything that the activation says of n points."""
        m, r = draw.gaussians(n, self.largest)
        value, error = self.phi.mean(m, r), self.phi.error(m, r)
        central = fields(self.phi.central(m, r)) if self.raw else [torch.zeros_like(m)] * 8
        derivatives, steepest = [], arb(self.phi.shape.steepest)
        for a, b, x, e, *moments in rows(m, r, value, error, *central):
            with ctx.workprec(_bits(a, b)):
                mean, truth = self._truth(arb(a), arb(b))
                scale = abs(arb(a)) + arb(b) + (0 if self.homogeneous else 1)
                judge.near("mean", (a, b), x, e, mean, scale if self.exact else None)
                if truth is not None:
                    _judge_central(judge, (a, b), moments, truth, steepest * arb(b) if b <= self.tight else None)
            if b > 0:
                with ctx.workprec(_bits(1.0, max(b, 1.0))):
                    derivatives.append(self.derivatives(arb(a), arb(b)))
        _judge_shape(judge, self.phi, m[r > 0], r[r > 0], derivatives)

    def _truth(self, m: arb, r: arb) -> tuple[arb, list[arb] | None]:
        if r == 0:
            return self.value(m), None if self.raw is None else [arb(0)] * 3
        if self.raw is None:
            return self.mean(m, r) if self.mean else self.value(m), None
        raw = self.raw(m, r)
        return raw[0], _central(raw) if self.central is None else self.central(m, r)


def _bits(m: float, r: float) -> int:
    """Enough for fourth central moments where the mean, the standard deviation and one are of different sizes."""
    if r == 0:
        return PRECISION
    return PRECISION + 5 * (math.frexp(max(abs(m), r, 1.0))[1] - math.frexp(min(r, 1.0))[1])


def _powers(z: Rectified) -> list[arb]:
    return [z.mean, z.second, z.third, z.fourth]


def _hinge(name: str, phi: Activation, a: float, share: float = 1.0) -> Closed:
    """Slope a below zero, one above."""
    slope = arb(a)

    def raw(m: arb, r: arb) -> list[arb]:
        right = _powers(rectified(m, r))
        if a == 0:
            return right
        left = _powers(rectified(-m, r))
        return [p + (-slope) ** k * q for k, (p, q) in enumerate(zip(right, left, strict=True), 1)]

    def derivatives(m: arb, r: arb) -> list[arb]:
        u = m / r
        kink = [cdf(u), pdf(u) / r, -u * pdf(u) / (r * r), (u * u - 1) * pdf(u) / (r * r * r)]
        return [slope + (1 - slope) * kink[0], *((1 - slope) * k for k in kink[1:])]

    return Closed(name, phi, lambda x: x if x > 0 else slope * x, derivatives, raw, homogeneous=True, share=share)


def _hard_tanh() -> Closed:
    def raw(m: arb, r: arb) -> list[arb]:
        y = clipped_truth((-1 - m) / r, (1 - m) / r, arb(0))
        return [
            m + r * y[0],
            m * m + 2 * m * r * y[0] + r * r * y[1],
            m**3 + 3 * m * m * r * y[0] + 3 * m * r * r * y[1] + r**3 * y[2],
            m**4 + 4 * m**3 * r * y[0] + 6 * m * m * r * r * y[1] + 4 * m * r**3 * y[2] + r**4 * y[3],
        ]

    def derivatives(m: arb, r: arb) -> list[arb]:
        up, down = (_hinge("", Relu(), 0.0).derivatives(m - kink, r) for kink in (-1, 1))
        return [a - b for a, b in zip(up, down, strict=True)]

    return Closed("hard_tanh", HardTanh(), lambda x: min(max(x, arb(-1)), arb(1)), derivatives, raw)


def _identity() -> Closed:
    def raw(m: arb, r: arb) -> list[arb]:
        s, square = r * r, m * m
        return [m, square + s, m * square + 3 * m * s, square * square + 6 * square * s + 3 * s * s]

    def central(_: arb, r: arb) -> list[arb]:
        return [r * r, arb(0), 3 * r * r * r * r]

    def derivatives(_: arb, __: arb) -> list[arb]:
        return [arb(1), arb(0), arb(0), arb(0)]

    return Closed("identity", Identity(), lambda x: x, derivatives, raw, central, homogeneous=True)


def _cut_exponential(m: arb, r: arb, j: int) -> arb:
    """E exp(j X) 1{X < 0}."""
    w = m / r + j * r
    if w > _MILLS:
        x = 1 / (w * w)
        return pdf(m / r) / w * (1 - x + 3 * x * x - 15 * x * x * x + 105 * x * x * x * x * _BALL)
    return (j * m + j * j * r * r / 2).exp() * cdf(-w)


def _elu(alpha: float, share: float) -> Closed:
    a = arb(alpha)

    def raw(m: arb, r: arb) -> list[arb]:
        parts = [cdf(-m / r), *(_cut_exponential(m, r, j) for j in range(1, 5))]
        return [
            p + a**k * sum((math.comb(k, j) * (-1) ** (k - j) * parts[j] for j in range(k + 1)), arb(0))
            for k, p in enumerate(_powers(rectified(m, r)), 1)
        ]

    def derivatives(m: arb, r: arb) -> list[arb]:
        u, e = m / r, _cut_exponential(m, r, 1)
        kink, complement = pdf(u) / r, 1 - a
        return [
            cdf(u) + a * e,
            complement * kink + a * e,
            -complement * u * kink / r + a * (e - kink),
            complement * (u * u - 1) * kink / (r * r) + a * (e - kink + u * kink / r),
        ]

    def value(x: arb) -> arb:
        return x if x > 0 else a * x.expm1()

    return Closed(f"elu {alpha:g}", Elu(alpha), value, derivatives, raw, tight=1.0, share=share)


def _gelu() -> Closed:
    def derivatives(m: arb, r: arb) -> list[arb]:
        q = (1 + r * r).sqrt()
        v = m / q
        phi, s = pdf(v), q * q
        return [
            cdf(v) + v * phi / s,
            phi / q + (1 - v * v) * phi / (s * q),
            -v * phi / s + (v * v * v - 3 * v) * phi / (s * s),
            (v * v - 1) * phi / (s * q) + (6 * v * v - v * v * v * v - 3) * phi / (s * s * q),
        ]

    def mean(m: arb, r: arb) -> arb:
        q = (1 + r * r).sqrt()
        return m * cdf(m / q) + r * r / q * pdf(m / q)

    return Closed("gelu", Gelu(), lambda x: x * cdf(x), derivatives, mean=mean)


def _sine() -> Closed:
    """A surrogate of the sine with 401 knots on [-20, 20]."""

    def waves(m: arb, r: arb, j: int) -> tuple[arb, arb]:
        damped = (-j * j * r * r / 2).exp()
        return damped * (j * m).sin(), damped * (j * m).cos()

    def raw(m: arb, r: arb) -> list[arb]:
        (s1, _), (_, c2), (s3, _), (_, c4) = (waves(m, r, j) for j in range(1, 5))
        return [s1, (1 - c2) / 2, (3 * s1 - s3) / 4, (3 - 4 * c2 + c4) / 8]

    def derivatives(m: arb, r: arb) -> list[arb]:
        s, c = waves(m, r, 1)
        return [c, -s, -c, s]

    phi = PiecewiseAffine.of(torch.sin, 1.0, curvature=1.0, pieces=400)
    return Closed("piecewise_affine", phi, lambda x: x.sin(), derivatives, raw, tight=0.0, exact=False, largest=6.0)


CLOSED = (
    _hinge("relu", Relu(), 0.0),
    *(_hinge(f"leaky_relu {a:g}", LeakyRelu(a), a, 1 / 3) for a in (0.01, -0.5, 2.0)),
    _identity(),
    _hard_tanh(),
    *(_elu(a, 1 / 3) for a in (1.0, 0.5, 2.5)),
    _gelu(),
    _sine(),
)


# Integrals


def swapped(kernel: Callable[[acb, acb], acb], m: arb, r: arb) -> arb:
    """The integral of sigma'(t) kernel(m - t, r) over t; the kernel is at most |m| + |t| + r + 1 in size."""
    parts = []
    for a, b in pairwise((-120, -20, 0, 20, 120)):
        parts.append(acb.integral(lambda t, _: _logistic(t) * kernel(acb(m) - t, acb(r)), a, b).real)
    return sum(parts, arb(0)) + _BALL * (abs(m) + r + 130) * 2 * arb(-120).exp()


def _logistic(t: acb) -> acb:
    power = (-t if t.real.mid() > 0 else t).exp()
    return power / ((1 + power) * (1 + power))


def _cdf_kernel(x: acb, r: acb) -> acb:
    return (-x / r / acb(2).sqrt()).erfc() / 2


def _density_kernel(x: acb, r: acb) -> acb:
    return (-(x / r) * (x / r) / 2).exp() / (2 * acb.pi()).sqrt()


def _relu_kernel(x: acb, r: acb) -> acb:
    return x * _cdf_kernel(x, r) + r * _density_kernel(x, r)


def _wide_sigmoid(m: arb, r: arb) -> arb:
    return swapped(_cdf_kernel, m, r)


def _wide_silu(m: arb, r: arb) -> arb:
    return m * swapped(_cdf_kernel, m, r) + r * swapped(_density_kernel, m, r)


@dataclass(frozen=True)
class Smooth:
    """An activation whose moments are integrated in Arb."""

    name: str
    phi: Activation
    wide: Callable[[arb, arb], arb] | None = None  # the mean for r >= 2
    limits: tuple[arb, arb] = (arb(0), arb(1))  # slopes, or where ``bounded`` values, far below and above zero
    bounded: bool = False
    truth: Truth = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "truth", TRUTHS[self.name])

    def means(self, judge: Judge, draw: Draw, n: int) -> None:
        """Means at all sizes of m and r."""
        m, r = draw.gaussians(n)
        r = torch.where(draw.uniform(n) < 0.4, draw.uniform(n, 0, 6), r)  # around the change of the rule
        for a, b, value, error in rows(m, r, self.phi.mean(m, r), self.phi.error(m, r)):
            scale = arb(1) if self.bounded else 1 + abs(arb(a)) + arb(b)
            with ctx.workprec(150):
                judge.near("mean", (a, b), value, error, self._mean(a, b), scale)

    def _mean(self, m: float, r: float) -> arb:
        if r >= 2 and self.wide is not None:
            return self.wide(arb(m), arb(r))
        if abs(m) >= 1e3:  # more than 250 standard deviations from where it bends
            limit = self.limits[m > 0]
            return (limit if self.bounded else limit * arb(m)) + _BALL * 1e-200
        if r <= 1e-17:
            return self.truth.value(m) + _BALL * arb(self.truth.steepest) * arb(r)
        return self.truth.mean(m, r)

    def centrals(self, judge: Judge, draw: Draw, n: int) -> None:
        """Central moments, where networks live and for standard deviations up to 30."""
        r = draw.mixed(draw.log_uniform(n, -9, 1.5), draw.uniform(n, 0, 10), draw.uniform(n, 0, 2))
        m = draw.mixed(draw.normal(n, 2), draw.uniform(n, -10, 10) * r, draw.uniform(n, -60, 60))
        for a, b, *values in rows(m, r, *fields(self.phi.central(m, r))):
            with ctx.workprec(150):
                truth = list(self.truth.central(a, b))
                scale = arb(self.phi.shape.steepest) * arb(b) if b <= 1 else None
                _judge_central(judge, (a, b), values, truth, scale)

    def shapes(self, judge: Judge, draw: Draw, n: int) -> None:
        """Derivatives of the mean."""
        r = draw.mixed(draw.log_uniform(n, -3, 1.5), draw.uniform(n, 0.01, 3))
        m = draw.mixed(draw.normal(n, 2), draw.uniform(n, -10, 10))
        truths = ([self.truth.derivative(a, b, k) for k in range(1, 5)] for a, b in rows(m, r))
        _judge_shape(judge, self.phi, m, r, truths)


SMOOTH = (
    Smooth("sigmoid", Sigmoid(), _wide_sigmoid, bounded=True),
    Smooth("tanh", Tanh(), lambda m, r: 2 * _wide_sigmoid(2 * m, 2 * r) - 1, (arb(-1), arb(1)), bounded=True),
    Smooth("softplus", Softplus(), lambda m, r: swapped(_relu_kernel, m, r)),
    Smooth("silu", Silu(), _wide_silu),
)

INTEGRATED = (*SMOOTH, Smooth("gelu", Gelu()))
