r"""The standard deviation of :math:`\sum_iw_i\mathbb E[z_i\mid y]` for an input y with independent coordinates.

Given y, :math:`h_i=\mathbb E[\varphi(X_i)\mid y]=G(m_i,\sqrt{s_i})`. At a given x write
:math:`g_i=G(\cdot,\sqrt{s_{0,i}})`, d = y - E y, and :math:`h_i=g_i(m_i)+\beta_i(s_i-s_{0,i})+\rho_i`, s_0 being S = E
s or, where that is better, one number for the whole box. For independent weights the second part is a sum of squares,
:math:`\sum_iw_i\beta_is_i=\sum_kB_ky_k^2+` const; otherwise also a row of d, which joins the slopes, and products of
two d_k, which join the remainders (``SpreadRemainder``). Let :math:`f=\sum_iw_ig_i(m_i)+\sum_kB_ky_k^2` and
:math:`C=\mu\,\mathrm{diag}(\operatorname{Var}y)\mu^\top` be the covariance of the m_i. :math:`\mathbb Eg_i'(m_i)` is
within :math:`\pi_i` of a constant p_i for every x of the box. There are two ways, and the better one is taken.

*By second differences* (Efron and Stein 1981). The slope of f in y_k at E y_k is
:math:`L_k=\sum_iw_i\mu_{ik}g_i'(m_i^{(k)})+2B_k\mathbb Ey_k`, y_k being E y_k in :math:`m^{(k)}`, and its second
derivative at most :math:`K_k=\sum_i|w_i|\mu_{ik}^2\sup|g_i''|+2|B_k|`. So given all others f has a deviation of at most
:math:`|L_k|\operatorname{sd}y_k+\tfrac12K_k\lVert d_k\rVert_4^2`, and

.. math:: \operatorname{sd}f\le\bigl(\sum_k\operatorname{Var}y_k\,\mathbb EL_k^2\bigr)^{1/2}
          +\tfrac12\bigl(\sum_kK_k^2\lVert d_k\rVert_4^4\bigr)^{1/2}.

With m in place of :math:`m^{(k)}`, L_k becomes some :math:`\tilde L_k`, and
:math:`\mathbb E[\tilde L_k\mid y_l,l\ne k]` is within
:math:`\tfrac12\sum_i|w_i\mu_{ik}^3|\sup|g_i^{(3)}|\operatorname{Var}y_k` of L_k; taking that mean makes a square no
larger. :math:`\sum_k\operatorname{Var}y_k\,\mathbb E\tilde L_k^2` is the sum for the means of the :math:`\tilde L_k`,
in which :math:`e_i=\mathbb Eg_i'-p_i` counts by at most
:math:`(w\circ e)^\top C(w\circ e)\le\sum_{ij}|w_iw_jC_{ij}|\pi_i\pi_j`, and the sum for their fluctuations, in the same
way with the deviations of the g_i'.

*By derivatives* (``Kernel``; Klaassen 1985). :math:`\operatorname{Var}F\le\sum_k\mathbb E\tau_k(\partial_kF)^2` for
:math:`F=\sum_iw_i(g_i(m_i)-p_im_i)` is :math:`\mathbb E(w\circ\delta)^\top A(w\circ\delta)` with
:math:`\delta_i=g_i'(m_i)-p_i`, :math:`A=\mu\,\mathrm{diag}(\tau)\mu^\top`. It is no smaller with :math:`\tau` raised by
a constant to a mean of v, an upper bound of :math:`\mathbb E\tau`; then by Hoelder

.. math:: \operatorname{Var}F\le\sum_{ij}|w_iw_j|\lVert\delta_i\rVert_4\lVert\delta_j\rVert_4\Bigl(\bigl(\sum_k\mu_{ik}
          \mu_{jk}v_k\bigr)^2+\sum_k\mu_{ik}^2\mu_{jk}^2\operatorname{Var}\tau_k\Bigr)^{1/2}.

Curvatures have no part in it. What is left of f is a sum of independent terms. Without kernels, as F moves by at most
:math:`\sum_i|w_i\mu_{ik}|\sup|\delta_i||y_k-y_k'|` if y_k becomes a copy :math:`y_k'`, by Efron and Stein
:math:`\operatorname{Var}F\le\sum_k\operatorname{Var}y_k(\sum_i|w_i\mu_{ik}|\sup|\delta_i|)^2`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from bnndp.activations.activation import Activation
from bnndp.engine.chunks import cache_size, picked
from bnndp.engine.inequalities.expectation import fluctuation
from bnndp.engine.inequalities.remainders import past_kinks
from bnndp.engine.inequalities.smoothed import second_at
from bnndp.engine.laws.weights import SpreadRemainder, Weights
from bnndp.engine.moments.intervals import product
from bnndp.engine.moments.pre_activation import PreActivation
from bnndp.engine.moments.signal import CENTRED, Signal
from bnndp.engine.rows import DenseRows
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import apply_rows
from bnndp.maths.rounding import TINY, UP, gamma

__all__ = ["MeanSlopes", "conditional_mean_std", "mean_slopes"]

_SLOPE = 2e-9  # error granted to two slopes
_FIRST_ABSOLUTE = 0.7978845608028655  # E |xi|, rounded up
_WIDEST = 512  # neurons up to which correlations are formed
_HELD = 2**19  # numbers of them that are held at a time
_PIECES = 3  # of the boxes, by the number of neurons that count


@dataclass(frozen=True, slots=True)
class MeanSlopes:
    """What the deviation of rows needs of an activation; (batch, n) each, over the whole box."""

    slope: Tensor  # p, a constant
    stray: Tensor  # pi: how far E g' is from it, at most
    std: Tensor  # sd g'
    norm4: Tensor  # ||g' - p||_4
    widest: Tensor  # sup |g' - p|
    curvature: Tensor  # sup |g''|
    third: Tensor  # sup |g^(3)|
    spread: Tensor  # beta, of s; zero if its parts are not known
    remainder: Tensor  # sd rho


def mean_slopes(phi: Activation, x: PreActivation, *, squares: bool) -> MeanSlopes | None:
    """For coordinates below that are independent; ``squares`` if the parts of s are known."""
    if not (x.source and not x.fixed and phi.shape.slope_known):
        return None
    sd = x.mean_variance.sqrt()
    found, other = (_around_spread(phi, each, squares=squares) for each in (x, _one_spread(x)))
    found = _where(
        other.remainder + other.norm4 * sd < found.remainder + found.norm4 * sd, other, found
    )  # false for NaN
    return _far_from_kinks(phi, x, found) if phi.shape.kinks else found


def _one_spread(x: PreActivation) -> PreActivation:
    """With the largest S of the box in place of S = E s."""
    high = x.spread.upper
    moved = (high - x.spread.lower) * UP
    away = torch.hypot(moved, x.spread_deviation) * UP
    return replace(
        x, spread=Interval(high, high), spread_deviation=away, spread_deltas=x.spread_deltas + moved[..., None]
    )


def _around_spread(phi: Activation, x: PreActivation, *, squares: bool) -> MeanSlopes:
    """With g = G(., sqrt(S)) for the S of x, and moments of s - S."""
    shape, least, variance = phi.shape, x.spread.lower.sqrt(), x.mean_variance
    middle, half = 0.5 * (x.mean.lower + x.mean.upper), 0.5 * (x.mean.upper - x.mean.lower) * UP
    third, fourth = (shape.derivative(p, least) for p in (3, 4))
    slope, stray = _slope(phi, x, middle, half)
    bend, off = second_at(phi, middle, (0.5 * (x.spread.lower + x.spread.upper)).sqrt())
    wide = 0.5 * (x.spread.upper - x.spread.lower) * UP
    moved = (off + product(third, half) + 0.5 * product(fourth, wide)) * UP  # of g''(M) on the box
    curvature, (low, high) = torch.maximum(*shape.curvature(least)), shape.slopes
    local = (bend.abs() + moved) * variance.sqrt() + 0.5 * product(third, x.norms[..., 0].square())
    deviation = torch.fmin(product(curvature, variance.sqrt()), local)
    deviation = torch.fmin(_slope_deviation(phi, slope, stray), deviation) * UP
    widest = torch.maximum(high - slope, slope - low) + _SLOPE
    norm4 = (widest * torch.hypot(stray, deviation).minimum(widest)).sqrt()
    norm4 = torch.fmin(norm4, stray + CENTRED[0] * product(curvature, x.norms[..., 0])) * UP
    spread, remainder = _spread(phi, x, bend, moved, squares=squares)
    return MeanSlopes(slope, stray, deviation, norm4, widest, curvature, third, spread, remainder)


def _slope_deviation(phi: Activation, slope: Tensor, away: Tensor) -> Tensor:
    """Of a slope whose mean is within ``away`` of this one, by its range alone (Bhatia and Davis 2000)."""
    low, high = phi.shape.slopes
    centre = torch.full_like(slope, 0.5 * (low + high))
    mean = torch.maximum(torch.minimum(centre, slope + away), slope - away)  # the worst: nearest to the centre
    return ((high - mean) * (mean - low)).clamp_min(0).sqrt()


def _slope(phi: Activation, x: PreActivation, middle: Tensor, half: Tensor) -> tuple[Tensor, Tensor]:
    """The middle of the range of E g' over the box, and how far it may be from that.

    It is near G_m(M, sqrt(T)), T = S + N: one term of m after the other becomes Gaussian, as in ``expectation.py``.
    """
    shape, total, least = phi.shape, x.smoothing, x.spread.lower.sqrt()
    wide = 0.5 * (total.upper - total.lower) * UP
    root, (low, high) = (0.5 * (total.lower + total.upper)).sqrt(), shape.slopes
    at, way = phi.slope(middle, root), product(torch.maximum(*shape.curvature(total.lower.sqrt())), half)
    ends = [at - way, at + way]
    if shape.fall == 0:  # the slope increases
        ends = [torch.fmax(ends[0], phi.slope(x.mean.lower, root)), torch.fmin(ends[1], phi.slope(x.mean.upper, root))]
    blur = product(shape.derivative(4, least), x.third) / 6
    if not x.convex:
        blur = blur + product(shape.derivative(5, least), x.quartic) / 24
    off = (blur + 0.5 * product(shape.derivative(3, total.lower.sqrt()), wide)) * UP + _SLOPE
    first, last = (
        torch.fmax(ends[0] - off, torch.full_like(at, low)),
        torch.fmin(ends[1] + off, torch.full_like(at, high)),
    )
    return 0.5 * (first + last), 0.5 * (last - first) * UP + _SLOPE


def _spread(phi: Activation, x: PreActivation, bend: Tensor, moved: Tensor, *, squares: bool) -> tuple[Tensor, Tensor]:
    """Beta and the deviation of rho: by Taylor in s, or all of G(m, s) - G(m, S)."""
    shape, least = phi.shape, x.spread.lower.sqrt()
    norm4, delta4, sd = x.norms[..., 0], x.spread_deltas[..., 0], x.spread_deviation
    fine = 0.5 * moved * sd + 0.5 * product(shape.derivative(3, least), norm4 * delta4)
    fine, linear = fine + fluctuation(shape, x.spread.lower, delta4), 0.5 * bend.abs() * sd
    steep, most = _FIRST_ABSOLUTE * shape.swing / least.clamp_min(TINY), max(shape.bend_up, shape.bend_down)
    coarse = steep * sd if most == math.inf else torch.fmin(steep, torch.full_like(sd, 0.5 * most)) * sd
    if not squares:
        return torch.zeros_like(bend), torch.where(sd == 0, 0.0, torch.fmin(fine + linear, coarse)) * UP
    rough = torch.zeros_like(bend)  # G increases or falls with s: within half of the most, of half of it
    if shape.fall == 0 or shape.rise == 0:
        rough, coarse = (0.5 if shape.fall == 0 else -0.5) * coarse / sd.clamp_min(TINY), 0.5 * coarse
    take = fine + 0.25 * linear < coarse  # false for NaN
    return torch.where(take, 0.5 * bend, rough), torch.where(sd == 0, 0.0, torch.where(take, fine, coarse)) * UP


def _far_from_kinks(phi: Activation, x: PreActivation, near: MeanSlopes) -> MeanSlopes:
    """Where it is better, the line at the middle, and what is beyond the kinks as remainder: its mean is no larger."""
    middle = 0.5 * (x.mean.lower + x.mean.upper)
    line, sd = phi.slope(middle, torch.zeros_like(middle)), x.mean_variance.sqrt()
    beyond = (past_kinks(phi, x, x.total_norms, 2) + _SLOPE * sd) * UP
    take = beyond < near.remainder + (near.stray + near.std) * sd  # false for NaN
    none = torch.zeros_like(line)
    return _where(take, MeanSlopes(line, *(none,) * 7, beyond), near)


def _where(take: Tensor, a: MeanSlopes, b: MeanSlopes) -> MeanSlopes:
    """Neuron by neuron."""
    return MeanSlopes(*(torch.where(take, getattr(a, f.name), getattr(b, f.name)) for f in fields(a)))


def conditional_mean_std(
    slopes: MeanSlopes,
    weights: Weights,
    rows: DenseRows,
    z: Signal,
    coupling: SpreadRemainder | None = None,
    more: DenseRows | None = None,
) -> Tensor:
    """Of ``rows . h + more . z``, at most: (batch, rows); z is the input, ``coupling`` what is no square in s."""
    size, v, norm4 = rows.abs(), z.variance, z.norms[..., 0]
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
    remainder = slopes.remainder
    if more is not None:  # it joins the slopes
        linear, blur = linear + more.values, blur + lost * more.abs().values
    if coupling is not None:
        linear = linear + rows.times(slopes.spread).values @ coupling.rows
        blur = blur + size.times(slopes.spread.abs()).values @ (coupling.slack + lost * coupling.rows.abs())
        remainder = remainder + slopes.spread.abs() * coupling.products[..., 0] * UP
    squares = squares.abs() + sizes
    linear = linear.abs() + blur + 2 * squares * radius[:, None]
    straight = norm(linear, v.sqrt())
    curved = 0.5 * norm(pulled(slopes.curvature, 2) + 2 * squares, norm4.square())
    curved = curved + 0.5 * norm(pulled(slopes.third, 3), v * v.sqrt())
    alone = torch.linalg.vector_norm(linear * v.sqrt()[:, None] + squares * norm4.square()[:, None], dim=-1)
    if weights.n_out > _WIDEST:
        forms = [norm(pulled(values, 1), v.sqrt()) for values in (slopes.stray, slopes.std, slopes.widest)]
    else:
        forms = _forms(slopes, weights, size.values, z)
        forms = forms if z.kernel is not None else [*forms, norm(pulled(slopes.widest, 1), v.sqrt())]
    found = torch.fmin(torch.hypot(straight + forms[0], forms[1]) + curved, alone + forms[2])
    found = (found + size.dot(remainder)) * UP
    return torch.where(found.isnan(), torch.inf, found)  # a curvature that is not known times a weight of zero


def _forms(slopes: MeanSlopes, weights: Weights, size: Tensor, z: Signal) -> list[Tensor]:
    """Roots (batch, rows) of the sums over pairs of neurons: of strays, of deviations, and by derivatives."""
    v, n = z.variance, weights.n_out
    matrix = weights.pull(DenseRows(torch.eye(n, dtype=v.dtype, device=v.device)[None])).dense().values
    factors = [slopes.stray, slopes.std] + ([] if z.kernel is None else [slopes.norm4])
    found = [v.new_zeros(v.shape[0], size.shape[1]) for _ in factors]
    active = torch.stack(factors).ne(0).any(0)  # true for NaN; the others add nothing
    most = cache_size(_HELD, v.device) // max(n, weights.n_in)
    for at, index in picked(active, most, _PIECES):
        own = matrix[0][index] if matrix.shape[0] == 1 else matrix[at[:, None], index]  # (some, k, n_in)
        chosen = (size if size.shape[0] == 1 else size[at]).mT
        chosen = chosen.expand(at.shape[0], -1, -1).gather(1, index[..., None].expand(-1, -1, size.shape[1]))
        pairs = ((own * v[at][:, None]) @ own.mT).abs()  # |C|
        forms = [pairs, pairs]
        if z.kernel is not None:
            squared, mean, other = own.square(), z.kernel.mean[at], z.kernel.std[at]
            form = ((own * mean[:, None]) @ own.mT).square() + (squared * other.square()[:, None]) @ squared.mT
            forms.append(form.sqrt())
        for into, values, form in zip(found, factors, forms, strict=True):
            scaled = chosen * values[at].gather(1, index)[..., None]  # (some, k, rows)
            # Entries may cancel: what rounding leaves out is covered by the sizes of their terms.
            terms = apply_rows(scaled.mT, form.diagonal(dim1=-2, dim2=-1).sqrt())
            lost = gamma(8 * (weights.n_in + n) + 64) * terms.square()
            into[at] = (((form @ scaled) * scaled).sum(1) + lost).sqrt()
    return [values * UP for values in found]
