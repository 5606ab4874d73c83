r"""Exponential moments of margins with two hidden layers (docs/theory-exponential.md, sections 3 and 4).

Given the first hidden layer z, :math:`\mathbb E[e^{-\lambda D}|z]=\exp\sum_iL(m_i(z),r_i(z);a_i,c_i)`. On the event
that no variance :math:`s_i(z)` exceeds a level, that exponent is at most

.. math:: A+v\cdot z+q\cdot z^2+\tfrac12(z-z_0)^TS(z-z_0),\qquad q\ge0,\ S\succeq0,

for any expansion point :math:`z_0`. The first three terms have an exact mean under the independent z, and the law of z
tilted by them has sub-Gaussian coordinates, for which the mean of the last factor is at most a determinant.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bnndp.engine.tails.first_layer import Ranges
from bnndp.engine.tails.one_layer import Rows, margin_exponents
from bnndp.engine.tails.quadratic_forms import Base, Form, base_at, log_mean_of_form, worst_base
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.maths.exponential import chernoff_constant, log_moment, tilted
from bnndp.maths.exponential_majorants import harmful_parabola, square_majorant
from bnndp.maths.rounding import ELEMENTARY, TINY, UP, gamma
from bnndp.maths.tails import PEAK

__all__ = ["TRIALS", "two_layers"]

TRIALS = 3
"""How many values of lambda are tried."""

_ESCAPE = 1e-3  # probability that some variance of the second layer exceeds its level
_RATES = (0.08, 0.15, 0.25, 0.35, 0.45, 0.55, 0.7)  # of the largest rate for which the moment of s exists
_LAMBDA, _RANGE = 0.35, (0.03, 1.0)  # the first lambda, its range
_CAUTION = 0.9  # the exponent grows faster than a parabola
_STEPS = 1  # of the iteration for the expansion point, after the first
_FEW = 16  # inputs
_FACTOR = 6.0  # theta >= _FACTOR c s keeps 2 c s / theta below 1/3, where theta may be that large
_MOST = 0.98
_TOUCH = 1.5  # where the parabolas of harmful neurons touch, in units of the usual size of m - m0
_PRICE = 0.9  # of a source kept in S, relative to its share of the trace
_EASE = 1e-9  # added to curvatures, for the rounding of slopes: delta |t| <= ease t^2 / 2 + delta^2 / (2 ease)


@dataclass(frozen=True, slots=True)
class _Point:
    """Where the exponent is expanded: tilted moments of z, and the sources that count in S for harmful neurons."""

    z: Tensor  # (batch, rows, sources)
    square: Tensor  # (batch, rows, sources)
    kept: Tensor  # (batch, rows, sources)


@dataclass(frozen=True, slots=True)
class _Neuron:
    """``constant + slope (m - m0) + in_std r + in_variance s + curvature (m - m0)^2 / 2``; (batch, rows, n) each."""

    constant: Tensor
    slope: Tensor
    in_std: Tensor
    in_variance: Tensor
    curvature: Tensor


@dataclass(frozen=True, slots=True)
class _Exponent:
    """``constant + linear . z + square . z^2`` and the curvatures of the neurons that make up S."""

    constant: Tensor  # (batch, rows)
    linear: Tensor  # (batch, rows, sources)
    other: Tensor  # (batch, rows, sources): linear if every source were kept or left out, the other way round
    square: Tensor  # (batch, rows, sources)
    kept_curvature: Tensor  # (batch, rows, n): of the sources that are kept
    full_curvature: Tensor  # (batch, rows, n): of all


def two_layers(  # noqa: PLR0913 (a pair of classes, a box, and how hard to try)
    layers: tuple[Linear, Linear, Linear],
    box: Box,
    ranges: Ranges,
    label: Tensor,
    rival: Tensor,
    mean: Tensor,
    trials: int = TRIALS,
) -> Tensor:
    """Bounds u >= E sigma(-D) for every x of each box, 1 where there is none; ``label``, ``rival``, u: (batch, rows).

    ``mean`` (batch, rows) is about the mean of the margins; it serves only to choose lambda.
    """
    top = _levels(layers[1], ranges)[:, None]
    best = torch.ones_like(mean)
    lams = [torch.full_like(mean, _LAMBDA)]
    totals: list[Tensor] = []
    for _ in range(trials):
        lam = lams[-1]
        rows = margin_exponents(layers[2], label, rival, lam)
        total = _log_mean((layers[0], layers[1]), box, ranges, rows, top)
        found = chernoff_constant(lam) * torch.exp(total + ELEMENTARY * total.abs()) + _ESCAPE
        best = torch.minimum(best, found.nan_to_num(1.0))
        totals.append(total)
        lams.append(_next(lams, totals, mean))
    return best


def _next(lams: list[Tensor], totals: list[Tensor], mean: Tensor) -> Tensor:
    """The next lambda to try: the lowest point of a parabola through zero and what is known; smaller if that is not."""
    if len(lams) == 1:
        bend = ((totals[0] + lams[0] * mean) / lams[0].square()).clamp_min(TINY)
        guess, known = _CAUTION * mean / (2 * bend), torch.isfinite(totals[0])
        return torch.where(known, guess, 0.5 * lams[0]).clamp(*_RANGE)
    (a, b), (x, y) = (lams[-2], lams[-1]), (totals[-2] / lams[-2], totals[-1] / lams[-1])
    bend = (y - x) / torch.where(a == b, torch.inf, b - a)
    guess = torch.where(bend > 0, (a * bend - x) / (2 * bend).clamp_min(TINY), 1.5 * b)
    between = torch.where(torch.isfinite(x) | torch.isfinite(y), (a * b).sqrt(), 0.5 * b)
    return torch.where(torch.isfinite(guess), guess, between).clamp(*_RANGE)


def _levels(layer: Linear, ranges: Ranges) -> Tensor:
    r"""Levels of s_i that are exceeded by any i with probability at most _ESCAPE: (batch, n).

    Chernoff: :math:`P(s\ge\sigma_b^2+(\tau+\sum_jL(m_j,r_j;0,t\sigma_j^2))/t)\le e^{-\tau}`; L increases in m and r.
    """
    m, r = ranges.m.upper[:, None], ranges.r.upper[:, None]
    variance = layer.weight_std.square()
    tau = math.log(layer.n_out / _ESCAPE) * UP
    most = 1 / (2 * (variance * r * r).amax(-1)).clamp_min(TINY)
    zero = torch.zeros_like(variance)
    found = [
        (tau + log_moment(m, r, zero, (rate * most)[..., None] * variance).sum(-1)) / (rate * most) for rate in _RATES
    ]
    return (torch.stack(found).amin(0) + layer.bias_std.square()) * UP + TINY


def _log_mean(layers: tuple[Linear, Linear], box: Box, ranges: Ranges, rows: Rows, top: Tensor) -> Tensor:
    """Upper bound of log E[e^(-lam D); no level exceeded] over each box: (batch, rows); infinite if there is none."""
    first, second = layers
    centre = base_at(first, box.centre[:, None].expand(-1, rows.constant.shape[1], -1))
    point = _start(ranges, rows)
    exponent = _exponent(second, rows, top, point)
    kept = _worth_keeping(second, centre, exponent)
    linear = torch.where(kept, exponent.linear, exponent.other)
    worst = worst_base(first, box, centre, _form(second, exponent, replace(point, kept=kept), linear))
    bases = (worst, centre) if box.n <= _FEW else (worst,)  # with few inputs and wide boxes the centre may do better
    found = []
    for base in bases:
        at = tilted(base.m, base.r, linear, exponent.square)
        found.append(_expanded(layers, box, ranges, rows, top, base, _Point(at.mean, at.second, kept)))
    return torch.stack(found).amin(0)


def _expanded(  # noqa: PLR0913 (those of _log_mean, and where to expand)
    layers: tuple[Linear, Linear], box: Box, ranges: Ranges, rows: Rows, top: Tensor, base: Base, point: _Point
) -> Tensor:
    """The same with functions of x expanded about ``base``, and those of z about a point near ``point``."""
    first, second = layers
    for _ in range(_STEPS):
        exponent = _exponent(second, rows, top, point)
        at = tilted(base.m, base.r, exponent.linear, exponent.square)
        point = replace(point, z=at.mean, square=at.second)
    exponent = _exponent(second, rows, top, point)
    mean = log_mean_of_form(first, box, ranges, _form(second, exponent, point, exponent.linear), base)
    return (exponent.constant + rows.constant + mean).nan_to_num(torch.inf, posinf=torch.inf)


def _form(layer: Linear, exponent: _Exponent, point: _Point, linear: Tensor) -> Form:
    mu = layer.weight_mean
    kept = torch.where(point.kept[..., None, :], mu, 0.0)
    s = kept.mT @ (kept * exponent.kept_curvature[..., None]) + mu.mT @ (mu * exponent.full_curvature[..., None])
    return Form(linear, exponent.square, point.z, s)


def _start(ranges: Ranges, rows: Rows) -> _Point:
    zero = torch.zeros_like(ranges.m_centre)
    at = tilted(ranges.m_centre, ranges.r_centre, zero, zero)
    shape = (*rows.constant.shape, zero.shape[-1])
    kept = torch.ones(shape, dtype=torch.bool, device=zero.device)
    return _Point(at.mean[:, None].expand(shape), at.second[:, None].expand(shape), kept)


def _worth_keeping(layer: Linear, base: Base, exponent: _Exponent) -> Tensor:
    """Sources whose share of S costs less than the steeper slope that stands in for it; any choice is sound."""
    m, r = base.m, base.r
    steeper = log_moment(m, r, exponent.other, exponent.square) - log_moment(m, r, exponent.linear, exponent.square)
    share = exponent.kept_curvature @ layer.weight_mean.square()
    return steeper > _PRICE * share * r * r / (1 - 2 * exponent.square * r * r)


def _exponent(layer: Linear, rows: Rows, top: Tensor, point: _Point) -> _Exponent:
    """The exponent of the module docstring at an expansion point: v, q, A and the curvatures."""
    mu, variance = layer.weight_mean, layer.weight_std.square()
    bias, bias_variance = layer.bias_mean, layer.bias_std.square()
    n = layer.n_in + layer.n_out
    m_all = point.z @ mu.mT + bias
    m_kept = torch.where(point.kept, point.z, 0.0) @ mu.mT + bias
    root = torch.minimum(point.square @ variance.mT + bias_variance, top).sqrt().clamp_min(1e-8)  # any level is sound
    norm = (point.z.square() @ variance.mT + bias_variance).sqrt()  # r(z0)
    spread = ((point.square - point.z.square()).clamp_min(0) @ mu.mT.square()).sqrt()
    spread = torch.maximum(spread, 0.02 * root)  # the usual size of m - m0, any number is sound
    share = _shares(rows, m_all, root, top)
    a, c = rows.linear / (1 - share), rows.square / share
    harmful = a > 0
    m0 = torch.where(harmful, m_kept, m_all)
    part = _choose(harmful, _harmful(m0, root, norm, top, a, spread), _helpful(m0, root, a))
    square = square_majorant(m_all, root.square(), top.expand_as(m_all), c, spread)
    # r(z) >= (z0 . sigma^2 z + sigma_b^2) / r(z0) where it helps, r <= (s + s0) / (2 r0) where it hurts.
    rise, fall = part.in_std.clamp_min(0), part.in_std.clamp_max(0)
    tangent = torch.where(norm > 0, fall / norm.clamp_min(TINY), 0.0) * (1 - share)
    in_variance = (1 - share) * (part.in_variance + 0.5 * rise / root) + share * square.in_variance
    slope, flat = (1 - share) * part.slope, share * square.slope
    constant = (1 - share) * (part.constant + 0.5 * rise * root) + share * square.constant
    terms = (constant, (tangent + in_variance) * bias_variance, slope * (bias - m0), flat * (bias - m_all))
    size = sum(term.abs() for term in terms) + slope.abs() * m0.abs() + flat * m_all.abs() + part.slope.abs() + 1
    total = (terms[0] + terms[1] + terms[2] + terms[3] + 64 * (ELEMENTARY + gamma(n)) * size).sum(-1)
    common = _product(torch.where(harmful, 0.0, slope) + flat, mu, n) + point.z * (tangent @ variance)
    common = common + gamma(2 * n) * point.z * (tangent.abs() @ variance)
    kept = common + _product(torch.where(harmful, slope, 0.0), mu, n)
    left = common + _product(torch.where(harmful, rows.linear, 0.0), mu.clamp_min(0), n)
    return _Exponent(
        constant=total,
        linear=torch.where(point.kept, kept, left),
        other=torch.where(point.kept, left, kept),
        square=_product(in_variance, variance, n),
        kept_curvature=torch.where(harmful, (1 - share) * part.curvature, 0.0),
        full_curvature=share * square.curvature + _EASE,
    )


def _product(x: Tensor, matrix: Tensor, n: int) -> Tensor:
    """``x @ matrix``, rounded up: coefficients of numbers z >= 0."""
    return x @ matrix + gamma(2 * n) * (x.abs() @ matrix.abs())


def _shares(rows: Rows, m: Tensor, r: Tensor, top: Tensor) -> Tensor:
    r"""Weights theta of Hoelder's inequality :math:`L(a,c)\le(1-\theta)L(a/(1-\theta),0)+\theta L(0,c/\theta)`.

    The loss is about :math:`\theta a^2\operatorname{Var}Z/2+c^2\operatorname{Var}Z^2/(2\theta)`.
    """
    x = 4 * rows.square * (m.clamp_min(0) + r) / rows.linear.abs().clamp_min(1e-12)
    return torch.maximum(x / (1 + x), _FACTOR * rows.square * top).clamp(1e-6, _MOST)


def _helpful(m0: Tensor, r0: Tensor, a: Tensor) -> _Neuron:
    r"""For a <= 0: :math:`L-a^2r^2/2` is concave in (m, r), so its tangent plane at (m0, r0) lies above it."""
    at = tilted(m0, r0, a, torch.zeros_like(a))
    slope = torch.maximum(at.in_mean, a).clamp_max(0)
    half = 0.5 * a.square() + _EASE
    in_std = at.in_std - 2 * half * r0
    constant = at.log - at.in_std * r0 + half * r0.square()
    return _Neuron(constant, slope, in_std, half, torch.zeros_like(a))


def _harmful(m0: Tensor, r0: Tensor, norm: Tensor, top: Tensor, a: Tensor, spread: Tensor) -> _Neuron:
    r"""For a > 0: the better of two ways to deal with r, then a parabola in m.

    Either :math:`L(m,r)\le L(m,\sqrt{\text{top}})`, or with :math:`y=r-r_0`
    :math:`L(m,r)\le L(m,r_0)+By_++a^2y^2/2`, :math:`B=a\varphi(0)+a^2r_0`, and :math:`y_+\le(y+t)^2/(4t)`.
    """
    zero = torch.zeros_like(a)
    gap = (2 * r0 * (r0 - norm)).clamp_min(0)  # mean of the bound of y^2
    t = torch.maximum(1.5 * gap.sqrt(), 1e-3 * r0)
    b = a * PEAK + a.square() * r0
    y1, y2 = 0.5 * b, 0.25 * b / t + 0.5 * a.square() + _EASE  # of y and y^2 = s - 2 r0 r + r0^2
    high = top.sqrt().expand_as(a)
    near, far = tilted(m0, r0, a, zero), tilted(m0, high, a, zero)
    bends = [harmful_parabola(m0, r, a, _TOUCH * spread) for r in (r0, high)]
    costs = [near.log + 0.25 * b * t + y2 * gap, far.log]
    costs = [c + x.constant + 0.5 * x.curvature * spread.square() for c, x in zip(costs, bends, strict=True)]
    simple = costs[1] < costs[0]
    one, two = bends
    constant = near.log + 0.25 * b * t - y1 * r0 + y2 * r0.square() + one.constant
    bent = _Neuron(constant, near.in_mean + one.slope, y1 - 2 * r0 * y2, y2, one.curvature + _EASE)
    flat = _Neuron(far.log + two.constant, far.in_mean + two.slope, zero, zero, two.curvature + _EASE)
    return _choose(simple, flat, bent)


def _choose(condition: Tensor, yes: _Neuron, no: _Neuron) -> _Neuron:
    names = ("constant", "slope", "in_std", "in_variance", "curvature")
    return _Neuron(*(torch.where(condition, getattr(yes, name), getattr(no, name)) for name in names))
