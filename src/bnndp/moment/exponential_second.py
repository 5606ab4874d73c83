r"""Exponential moments of margins with two hidden layers (docs/theory-exponential.md, sections 3 and 4).

Given the first hidden layer z, :math:`\mathbb E[e^{-\lambda D}|z]=\exp\sum_iL(m_i(z),r_i(z);a_i,c_i)`. On the event
that no variance :math:`s_i(z)` exceeds a level, that exponent is at most

.. math:: A+v\cdot z+q\cdot z^2+\tfrac12(z-z_0)^TS(z-z_0),\qquad q\ge0,\ S\succeq0,

for any expansion point :math:`z_0`. The first three terms have an exact mean under the independent z, and the law of z
tilted by them has sub-Gaussian coordinates, for which the mean of the last factor is at most a determinant.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.maths.exponential import chernoff_constant, lipschitz, log_moment, tilted
from bnndp.maths.exponential_majorants import harmful_curvature, square_majorant
from bnndp.maths.rounding import ELEMENTARY, TINY, gamma
from bnndp.maths.tails import PEAK
from bnndp.moment.exponential_first import Rows, largest_log_moment, margin_exponents
from bnndp.moment.first import Ranges
from bnndp.network import Linear
from bnndp.regions import Box

__all__ = ["two_layers"]

_ESCAPE = 1e-4  # probability that some variance of the second layer exceeds its level
_RATES = (0.08, 0.15, 0.25, 0.35, 0.45, 0.55, 0.7)  # of the largest rate for which the moment of s exists
_LAMBDA, _RANGE, _TRIALS = 0.35, (0.03, 1.0), 3  # the first lambda, its range, how many are tried
_CAUTION = 0.9  # the exponent grows faster than a parabola
_STEPS = 2  # of the iteration for the expansion point
_ROOM = 6.0  # theta >= _ROOM c s keeps 2 c s / theta below 1/3 where theta may be so large
_MOST = 0.98
_PRICE = 0.65  # of a source kept in S, relative to its share of the trace
_EASE = 1e-9  # added to curvatures, for the rounding of slopes: delta |t| <= ease t^2 / 2 + delta^2 / (2 ease)
_CELLS, _PARTS = 12, 8  # of the range of m in a box, for the sub-Gaussian constants and for the tilted means
_UP = 1 + 1e-10


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


def two_layers(layers: tuple[Linear, Linear, Linear], box: Box, ranges: Ranges, label: Tensor, mean: Tensor) -> Tensor:
    """u_j >= E sigma(-D_j) for every x of each box: (batch, classes); 1 where there is no bound.

    ``mean`` (batch, classes) is about the mean of the margins; it serves only to choose lambda.
    """
    top = _levels(layers[1], ranges)[:, None]
    best = torch.ones_like(mean)
    lams = [torch.full_like(mean, _LAMBDA)]
    totals: list[Tensor] = []
    for _ in range(_TRIALS):
        lam = lams[-1]
        rows = margin_exponents(layers[2], label, lam)
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
    tau = math.log(layer.n_out / _ESCAPE) * _UP
    most = 1 / (2 * (variance * r * r).amax(-1)).clamp_min(TINY)
    zero = torch.zeros_like(variance)
    found = [
        (tau + log_moment(m, r, zero, (rate * most)[..., None] * variance).sum(-1)) / (rate * most) for rate in _RATES
    ]
    return (torch.stack(found).amin(0) + layer.bias_std.square()) * _UP + TINY


def _log_mean(layers: tuple[Linear, Linear], box: Box, ranges: Ranges, rows: Rows, top: Tensor) -> Tensor:
    """Upper bound of log E[e^(-lam D); no level exceeded] over each box: (batch, rows); infinite if there is none."""
    first, second = layers
    point = _start(ranges, rows)
    m, r = ranges.m_centre[:, None], ranges.r_centre[:, None]
    for step in range(_STEPS):
        exponent = _exponent(second, rows, top, point)
        kept = _worth_keeping(second, ranges, exponent) if step == 0 else point.kept
        linear = torch.where(kept == point.kept, exponent.linear, exponent.other)
        at = tilted(m, r, linear, exponent.square)
        point = _Point(at.mean, at.second, kept)
    exponent = _exponent(second, rows, top, point)
    total = exponent.constant + rows.constant
    total = total + largest_log_moment(first, box, ranges, exponent.linear, exponent.square)
    return (total + _quadratic(layers, box, ranges, exponent, point)).nan_to_num(torch.inf, posinf=torch.inf)


def _start(ranges: Ranges, rows: Rows) -> _Point:
    zero = torch.zeros_like(ranges.m_centre)
    at = tilted(ranges.m_centre, ranges.r_centre, zero, zero)
    shape = (*rows.constant.shape, zero.shape[-1])
    kept = torch.ones(shape, dtype=torch.bool, device=zero.device)
    return _Point(at.mean[:, None].expand(shape), at.second[:, None].expand(shape), kept)


def _worth_keeping(layer: Linear, ranges: Ranges, exponent: _Exponent) -> Tensor:
    """Sources whose share of S costs less than the steeper slope that stands in for it; any choice is sound."""
    m, r = ranges.m_centre[:, None], ranges.r_centre[:, None]
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
    x = 2 * rows.square * (m.clamp_min(0) + r) / rows.linear.abs().clamp_min(1e-12)
    return torch.maximum(x / (1 + x), _ROOM * rows.square * top).clamp(1e-6, _MOST)


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
    t = torch.maximum(gap.sqrt(), 1e-3 * r0)
    b = a * PEAK + a.square() * r0
    y1, y2 = 0.5 * b, 0.25 * b / t + 0.5 * a.square() + _EASE  # of y and y^2 = s - 2 r0 r + r0^2
    high = top.sqrt().expand_as(a)
    near, far = tilted(m0, r0, a, zero), tilted(m0, high, a, zero)
    bends = [harmful_curvature(m0, r, a) + _EASE for r in (r0, high)]
    costs = [near.log + 0.25 * b * t + y2 * gap, far.log]
    costs = [cost + 0.5 * bend * spread.square() for cost, bend in zip(costs, bends, strict=True)]
    simple = costs[1] < costs[0]
    bent = _Neuron(near.log + 0.25 * b * t - y1 * r0 + y2 * r0.square(), near.in_mean, y1 - 2 * r0 * y2, y2, bends[0])
    return _choose(simple, _Neuron(far.log, far.in_mean, zero, zero, bends[1]), bent)


def _choose(condition: Tensor, yes: _Neuron, no: _Neuron) -> _Neuron:
    names = ("constant", "slope", "in_std", "in_variance", "curvature")
    return _Neuron(*(torch.where(condition, getattr(yes, name), getattr(no, name)) for name in names))


def _quadratic(layers: tuple[Linear, Linear], box: Box, ranges: Ranges, exponent: _Exponent, point: _Point) -> Tensor:
    r"""Logarithm of E exp((z - z0)^T S (z - z0) / 2) under the tilted law, at most: (batch, rows).

    With :math:`\ell_j` the sub-Gaussian constants, :math:`M=\operatorname{diag}\ell\,S\operatorname{diag}\ell`
    (no bound if it is too large) and d the tilted mean less z0: :math:`-\tfrac12\log\det(I-M)+\tfrac12d^TPd`,
    :math:`P=S+S\operatorname{diag}\ell(I-M)^{-1}\operatorname{diag}\ell\,S`.
    """
    m, r = ((end.lower[:, None], end.upper[:, None]) for end in (ranges.m, ranges.r))
    mu = layers[1].weight_mean
    kept = torch.where(point.kept[..., None, :], mu, 0.0)
    s = kept.mT @ (kept * exponent.kept_curvature[..., None]) + mu.mT @ (mu * exponent.full_curvature[..., None])
    wide = bool((m[1] - m[0] > 1e-6).any())
    ell = lipschitz(m, r, exponent.linear, exponent.square, cells=_CELLS if wide else 1)
    scaled = s * ell[..., None, :]
    eye = torch.eye(mu.shape[1], dtype=mu.dtype, device=mu.device)
    factor, failed = torch.linalg.cholesky_ex((1 - 1e-9) * eye - ell[..., None] * scaled)
    log_det = torch.log(torch.diagonal(factor, dim1=-2, dim2=-1)).sum(-1)
    half = torch.linalg.solve_triangular(factor, scaled.mT, upper=False)
    p = s + half.mT @ half
    low, high = _tilted_means(m, r, exponent.linear, exponent.square)
    d = torch.maximum((high - point.z).abs(), (low - point.z).abs())
    shift = _form(p.abs(), d)
    if wide:
        shift = torch.minimum(shift, _box_form(layers[0], box, ranges, exponent, (p, point.z)))
    return torch.where(failed == 0, (0.5 * shift - log_det) * _UP + 1e-9, torch.inf)


def _form(p: Tensor, d: Tensor) -> Tensor:
    return (d * (p @ d[..., None])[..., 0]).sum(-1)


def _box_form(layer: Linear, box: Box, ranges: Ranges, exponent: _Exponent, form: tuple[Tensor, Tensor]) -> Tensor:
    r"""Upper bound over the box of :math:`d^TPd`, d the tilted mean less z0; ``form`` is (P, z0): (batch, rows).

    :math:`d_j=g_j\,(m_j(x)-m_j(x_c))+\text{rest}_j` with any g, here the slope over the range. With half widths e of
    the box and any tau > 0, :math:`\sum_k(x-x_c)_k^2\tau_k/e_k^2\le\sum\tau_k`, so that the first part has a form of at
    most :math:`\sum_k\tau_k\,\lambda_{\max}(A)`, :math:`A=C^T\operatorname{diag}g\,P\operatorname{diag}g\,C`,
    :math:`CC^T\succeq\mu\operatorname{diag}(e^2/\tau)\mu^T`, and :math:`\lambda_{\max}(A)\le\|A^4\|_F^{1/4}`. The root
    of a form is a norm, so the two parts add up.
    """
    p, z0 = form
    m, r = ((end.lower[:, None], end.upper[:, None]) for end in (ranges.m, ranges.r))
    v, q, middle = exponent.linear, exponent.square, 0.5 * (r[0] + r[1])
    width = (m[1] - m[0]) / _PARTS
    gain = tilted(m[1], middle, v, q).mean - tilted(m[0], middle, v, q).mean
    gain = (gain / (m[1] - m[0]).clamp_min(TINY)).clamp(0, 1)
    rest = torch.zeros_like(v)
    for k in range(_PARTS):
        a, b = m[0] + k * width - 1e-12 * width, m[0] + (k + 1) * width + 1e-9 * width
        low, high = _tilted_means((a, b), r, v, q)
        centre = ranges.m_centre[:, None]
        rest = torch.maximum(rest, (high - z0 - gain * (a - centre)).abs())
        rest = torch.maximum(rest, (low - z0 - gain * (b - centre)).abs())
    mu, half = layer.weight_mean, 0.5 * (box.upper - box.lower) * (1 + 1e-9)
    tau = (half * torch.linalg.vector_norm(mu, dim=0)).clamp_min(TINY)  # (batch, n_in)
    gram = (mu * (half.square() / tau)[:, None]) @ mu.mT
    size = torch.diagonal(gram, dim1=-2, dim2=-1).sum(-1)[:, None, None]
    eye = torch.eye(mu.shape[0], dtype=mu.dtype, device=mu.device)
    c = gain[..., None] * torch.linalg.cholesky_ex(gram + 1e-9 * size * eye + TINY * eye)[0][:, None]
    a1 = c.mT @ p @ c
    unit = torch.linalg.matrix_norm(a1).clamp_min(TINY)[..., None, None]
    a2 = (a1 / unit) @ (a1 / unit)
    top = unit[..., 0, 0] * torch.linalg.matrix_norm(a2 @ a2).sqrt().sqrt()
    linear = tau.sum(-1)[:, None] * top * (1 + 1e-9)
    return (linear.sqrt() + _form(p.abs(), rest).sqrt()).square().nan_to_num(torch.inf, posinf=torch.inf)


def _tilted_means(
    m: tuple[Tensor, Tensor], r: tuple[Tensor, Tensor], v: Tensor, q: Tensor
) -> tuple[Tensor, Tensor]:  # (batch, rows, n) each
    r"""Range of the tilted mean E_t Z over the rectangle of (m, r); it increases in m.

    For :math:`v>0` both :math:`\mathbb E[Ze^F]` and :math:`\mathbb E[e^F]` increase in r. For :math:`v\le0` the tilted
    law is log-concave, :math:`|\partial_r\mathbb E_tZ|=|\operatorname{Cov}_t(Z,\xi^2)|/r\le2w\sqrt{\mathbb E_t\xi^2}`
    and :math:`\mathbb E_t\xi^2\le w+r^2(|v|+2q\,\mathbb E_tZ)^2`.
    """
    zero = torch.zeros_like(q)
    w = 1 / (1 - 2 * q * r[1] * r[1])
    middle = 0.5 * (r[0] + r[1])
    top = tilted(m[1], r[1], zero, q)
    most = top.mean * torch.exp(top.log)
    slack = (r[1] - r[0]) * w * (w + (r[1] * (v.abs() + 2 * q * most)).square()).sqrt()
    concave = tilted(m[0], middle, v, q).mean - slack, tilted(m[1], middle, v, q).mean + slack
    low, low_top = tilted(m[0], r[0], v, q), tilted(m[0], r[1], v, q)
    high, high_low = tilted(m[1], r[1], v, q), tilted(m[1], r[0], v, q)
    convex = low.mean * torch.exp(low.log - low_top.log), high.mean * torch.exp(high.log - high_low.log)
    low_end, high_end = (torch.where(v > 0, convex[end], concave[end]) for end in (0, 1))
    ease = [1e-9 * r[1] + 8 * ELEMENTARY * end.abs() for end in m]
    return low_end - ease[0], high_end + ease[1]
