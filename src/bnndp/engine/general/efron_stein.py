r"""The standard deviation of :math:`\sum_iw_i\mathbb E[z_i\mid y]` for an input y with independent coordinates.

Given y, :math:`h_i=\mathbb E[\varphi(X_i)\mid y]=G(m_i,\sqrt{s_i})`. At a given x write
:math:`g_i=G(\cdot,\sqrt{S_i})`, d = y - E y, and :math:`h_i=g_i(m_i)+\beta_i(s_i-S_i)+\rho_i`. For independent weights
the second part is a sum of squares, :math:`\sum_iw_i\beta_is_i=\sum_kB_ky_k^2+` const; otherwise also a row of d,
which joins the slopes, and products of two d_k, which join the rests (``SpreadRest``). Let
:math:`f=\sum_iw_ig_i(m_i)+\sum_kB_ky_k^2`. Its slope in y_k at E y_k is
:math:`L_k=\sum_iw_i\mu_{ik}g_i'(m_i^{(k)})+2B_k\mathbb Ey_k`, y_k being E y_k in :math:`m^{(k)}`, and its second
derivative at most :math:`K_k=\sum_i|w_i|\mu_{ik}^2\sup|g_i''|+2|B_k|`. So given all others f has a deviation of
at most :math:`|L_k|\operatorname{sd}y_k+\tfrac12K_k\lVert d_k\rVert_4^2`, and by Efron and Stein (1981)

.. math:: \operatorname{sd}f\le\bigl(\sum_k\operatorname{Var}y_k\,\mathbb EL_k^2\bigr)^{1/2}
          +\tfrac12\bigl(\sum_kK_k^2\lVert d_k\rVert_4^4\bigr)^{1/2}.

:math:`\mathbb EL_k^2` is the square of its mean plus its variance, at most
:math:`(\sum_i|w_i\mu_{ik}|\operatorname{sd}g_i')^2`: what bends adds to what is linear in squares. The mean of
:math:`g_i'(m_i^{(k)})` is within :math:`\eta_i+\tfrac12\sup|g_i^{(3)}|\mu_{ik}^2\operatorname{Var}y_k` of
:math:`G_m(M_i,\sqrt{T_i})`, T = S + N, and that within :math:`\pi_i` of a constant for all x of the box. Strays
:math:`|e_i|\le\pi_i` cost at most the sum of :math:`\pi_i|w_i|\operatorname{sd}m_i`, or the root of the largest
eigenvalue of the correlations of m times the root of the sum of squares.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from bnndp.activations.activation import Activation
from bnndp.engine.chunks import device_size
from bnndp.engine.general.expectation import fluctuation
from bnndp.engine.general.remainders import past_kinks
from bnndp.engine.general.rows import DenseRows
from bnndp.engine.general.signal import Pre, Signal
from bnndp.engine.general.smoothed import second_at
from bnndp.engine.general.weights import SpreadRest, Weights
from bnndp.maths.rounding import TINY, UP, gamma

__all__ = ["MeanSlopes", "mean_slopes", "row_deviation"]

_SLOPE = 2e-9  # error granted to two slopes
_FIRST_ABSOLUTE = 0.7978845608028655  # E |xi|, rounded up
_WIDEST = 512  # neurons up to which correlations are formed
_HELD = 2**22  # numbers of them that are held at a time


@dataclass(frozen=True, slots=True)
class MeanSlopes:
    """What the deviation of rows needs of an activation; (batch, n) each, over the whole box."""

    slope: Tensor  # of h_i in m_i, a constant
    stray: Tensor  # pi: how far G_m(M, sqrt(T)) is from it, at most
    blur: Tensor  # eta: how far E g' is from G_m(M, sqrt(T)), at most
    deviation: Tensor  # sd g'
    curvature: Tensor  # sup |g''|
    third: Tensor  # sup |g^(3)|
    spread: Tensor  # beta, of s; zero if its parts are not known
    rest: Tensor  # sd rho


def mean_slopes(phi: Activation, x: Pre, *, squares: bool) -> MeanSlopes | None:
    """For coordinates below that are independent; ``squares`` if the parts of s are known."""
    if not (x.source and not x.fixed and phi.shape.slope_known):
        return None
    shape, least, variance = phi.shape, x.spread.lower.sqrt(), x.mean_variance
    middle, half = 0.5 * (x.mean.lower + x.mean.upper), 0.5 * (x.mean.upper - x.mean.lower) * UP
    third, fourth, fifth = (shape.derivative(p, least) for p in (3, 4, 5))
    slope, stray = _slope(phi, x, middle, half)
    swapped = _product(fourth, x.third) / 6  # one term after the other becomes Gaussian, as in ``expectation.py``
    if not x.convex:
        swapped = swapped + _product(fifth, x.quartic) / 24
    blur = torch.fmin(swapped, _product(third, variance)) * UP
    bend, off = second_at(phi, middle, (0.5 * (x.spread.lower + x.spread.upper)).sqrt())
    wide = 0.5 * (x.spread.upper - x.spread.lower) * UP
    moved = (off + _product(third, half) + 0.5 * _product(fourth, wide)) * UP  # of g''(M) on the box
    curvature = torch.maximum(*shape.curvature(least))
    deviation = _slope_deviation(phi, slope, stray + blur + 0.5 * _product(third, variance))
    local = (bend.abs() + moved) * variance.sqrt() + 0.5 * _product(third, x.norms[..., 0].square())
    deviation = torch.fmin(deviation, torch.fmin(_product(curvature, variance.sqrt()), local)) * UP
    spread, rest = _spread(phi, x, bend, moved, squares=squares)
    found = MeanSlopes(slope, stray, blur, deviation, curvature, third, spread, rest)
    return _far_from_kinks(phi, x, found, middle) if shape.kinks else found


def _slope_deviation(phi: Activation, slope: Tensor, away: Tensor) -> Tensor:
    """Of a slope whose mean is within ``away`` of this one, by its range alone (Bhatia and Davis 2000)."""
    low, high = phi.shape.slopes
    centre = torch.full_like(slope, 0.5 * (low + high))
    mean = torch.maximum(torch.minimum(centre, slope + away), slope - away)  # the worst: nearest to the centre
    return ((high - mean) * (mean - low)).clamp_min(0).sqrt()


def _slope(phi: Activation, x: Pre, middle: Tensor, half: Tensor) -> tuple[Tensor, Tensor]:
    """G_m(M, sqrt(T)) at the middle of the box, and how far it is from that on the box."""
    shape, total = phi.shape, x.smoothing
    wide = 0.5 * (total.upper - total.lower) * UP
    root, least, (low, high) = (0.5 * (total.lower + total.upper)).sqrt(), total.lower.sqrt(), shape.slopes
    slope = phi.slope(middle, root).clamp(low, high)
    stray = _product(torch.maximum(*shape.curvature(least)), half)
    if shape.fall == 0:  # the slope increases
        ends = [(phi.slope(end, root) - slope).abs() for end in (x.mean.lower, x.mean.upper)]
        stray = torch.fmin(stray, torch.maximum(*ends))
    stray = stray + 0.5 * _product(shape.derivative(3, least), wide) + _SLOPE
    return slope, torch.fmin(stray, torch.maximum(high - slope, slope - low) + _SLOPE) * UP


def _spread(phi: Activation, x: Pre, bend: Tensor, moved: Tensor, *, squares: bool) -> tuple[Tensor, Tensor]:
    """Beta and the deviation of rho: by Taylor in s, or all of G(m, s) - G(m, S)."""
    shape, least = phi.shape, x.spread.lower.sqrt()
    norm4, delta4, sd = x.norms[..., 0], x.spread_deltas[..., 0], x.spread_deviation
    fine = 0.5 * moved * sd + 0.5 * _product(shape.derivative(3, least), norm4 * delta4)
    fine, linear = fine + fluctuation(shape, x.spread.lower, delta4), 0.5 * bend.abs() * sd
    coarse, most = _FIRST_ABSOLUTE * shape.swing * sd / least.clamp_min(TINY), max(shape.bend_up, shape.bend_down)
    coarse = coarse if most == math.inf else torch.fmin(coarse, 0.5 * most * sd)
    if not squares:
        return torch.zeros_like(bend), torch.where(sd == 0, 0.0, torch.fmin(fine + linear, coarse)) * UP
    take = fine + 0.25 * linear < coarse  # false for NaN
    return torch.where(take, 0.5 * bend, 0.0), torch.where(sd == 0, 0.0, torch.where(take, fine, coarse)) * UP


def _far_from_kinks(phi: Activation, x: Pre, near: MeanSlopes, middle: Tensor) -> MeanSlopes:
    """Where it is better, the line at the middle, and what is beyond the kinks as a rest: its mean is no larger."""
    line, sd = phi.slope(middle, torch.zeros_like(middle)), x.mean_variance.sqrt()
    beyond = (past_kinks(phi, x, x.total_norms, 2) + _SLOPE * sd) * UP
    take = beyond < near.rest + (near.stray + near.deviation) * sd  # false for NaN
    others = {f.name: torch.where(take, 0.0, getattr(near, f.name)) for f in fields(near)}
    slope, rest = torch.where(take, line, near.slope), torch.where(take, beyond, near.rest)
    return MeanSlopes(**others | {"slope": slope, "rest": rest})


def row_deviation(
    slopes: MeanSlopes, weights: Weights, rows: DenseRows, z: Signal, sd: Tensor, coupling: SpreadRest | None = None
) -> Tensor:
    """Of ``rows . h``, at most: (batch, rows).

    ``z`` is the input, ``sd`` (batch, n) that of the m_i, and ``coupling`` what else than squares there is in s.
    """
    size, v = rows.abs(), z.variance
    middle, radius = 0.5 * (z.mean.lower + z.mean.upper), 0.5 * (z.mean.upper - z.mean.lower)
    lost = gamma(4 * (weights.n_in + weights.n_out) + 32)

    def pulled(values: Tensor, power: int) -> Tensor:  # (batch, n) -> (batch, rows, n_in)
        return weights.power_pull(size.times(values), power).dense().values

    def norm(values: Tensor, scale: Tensor) -> Tensor:  # (batch, rows, n_in), (batch, n_in) -> (batch, rows)
        return torch.linalg.vector_norm(values * scale[:, None], dim=-1)

    squares = weights.variance_pull(rows.times(slopes.spread)).dense().values  # B
    sizes = lost * weights.variance_pull(size.times(slopes.spread.abs())).dense().values
    linear = weights.pull(rows.times(slopes.slope)).dense().values + 2 * squares * middle[:, None]
    blur = lost * pulled(slopes.slope.abs(), 1) + 2 * sizes * middle.abs()[:, None]
    if coupling is not None:
        linear = linear + rows.times(slopes.spread).values @ coupling.rows
        blur = blur + size.times(slopes.spread.abs()).values @ (coupling.slack + lost * coupling.rows.abs())
    linear = linear.abs() + blur
    linear = linear + 2 * (squares.abs() + sizes) * radius[:, None]
    rest = slopes.rest
    if coupling is not None:
        rest = rest + slopes.spread.abs() * coupling.products[..., 0] * UP
    linear = linear + pulled(slopes.blur, 1) + 0.5 * pulled(slopes.third, 3) * v[:, None]
    curved = pulled(slopes.curvature, 2) + 2 * (squares.abs() + sizes)
    straight = norm(linear, v.sqrt()) + _strays(slopes, weights, rows, v, sd)
    along = torch.hypot(straight, norm(pulled(slopes.deviation, 1), v.sqrt())) * UP
    found = (along + 0.5 * norm(curved, z.norms[..., 0].square()) + size.dot(rest)) * UP
    return torch.where(found.isnan(), torch.inf, found)  # a curvature that is not known times a weight of zero


def _strays(slopes: MeanSlopes, weights: Weights, rows: DenseRows, v: Tensor, sd: Tensor) -> Tensor:  # (batch, rows)
    """Sup of the deviation of ``sum_i w_i e_i m_i`` over |e| <= pi."""
    each, n = slopes.stray * sd, weights.n_out
    found = rows.abs().dot(each)
    if n > _WIDEST:
        return found
    matrix = weights.pull(DenseRows(torch.eye(n, dtype=v.dtype, device=v.device)[None])).dense().values
    step, largest = max(1, device_size(_HELD, v.device) // (n * max(n, weights.n_in))), []
    for start in range(0, v.shape[0], step):
        part = slice(start, min(start + step, v.shape[0]))
        scaled = matrix * v[part].sqrt()[:, None] / sd[part].clamp_min(TINY)[..., None]  # rows of length 1 at most
        correlation = scaled @ scaled.mT
        largest.append(torch.linalg.matrix_norm(correlation @ correlation).sqrt())
    top = torch.cat(largest) + 64 * n * gamma(weights.n_in + n + 64)
    return torch.fmin(found, (top[:, None] * rows.square().dot(each.square())).sqrt() * UP)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Zero where either is (an unknown derivative times no width)."""
    return torch.where((a == 0) | (b == 0), 0.0, a * b)
