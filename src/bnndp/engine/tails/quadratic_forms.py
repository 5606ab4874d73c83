r"""Means of exponentials of quadratic forms in the first hidden layer, for every x of a box.

Wanted is an upper bound over x of :math:`\log\mathbb E\exp(v\cdot z+q\cdot z^2+\tfrac12(z-z_0)^TS(z-z_0))` for the
independent :math:`z_j=\mathrm{ReLU}(m_j(x)+r_j(x)\xi_j)`, :math:`q\ge0`, :math:`S\succeq0`. With :math:`K_j` the
cumulant function of the tilted :math:`z_j`, :math:`d(x)=\mathbb E_tz-z_0` and a standard normal g, it is

.. math:: \sum_jL(m_j,r_j;v_j,q_j)+\log\mathbb E_g\exp\Bigl(\delta\cdot d+\sum_jK_j(\delta_j)\Bigr),\qquad
          \delta=S^{1/2}g.

Every step is in docs/theory-exponential.md, section 4.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.engine.tails.first_layer import Ranges
from bnndp.engine.tails.one_layer import bend, in_x
from bnndp.geometry.box import Box, apply_rows
from bnndp.layers import Linear
from bnndp.maths.exponential import lipschitz, log_moment, sub_gaussian, tilted
from bnndp.maths.exponential_majorants import harmful_curvature
from bnndp.maths.normal import hazard, pdf
from bnndp.maths.rectified import expected_relu
from bnndp.maths.rounding import ELEMENTARY, TINY, UP, gamma, up

__all__ = ["Base", "Form", "base_at", "log_mean_of_form", "worst_base"]

_CELLS, _PARTS = 12, 12  # of the range of m in a box: for the sub-Gaussian constants, for the tilted means
_FAR = 4.5  # standard deviations of delta within which the smaller sub-Gaussian constants hold
_EVEN = 2.0  # of the weights of the inputs: the part that follows the norms of their columns
_USUAL = 0.25  # d^T P d at the worst x, about; it only balances two errors
_FLAT = 1e-9  # relative width below which a chord's slope is not worth its rounding error
_WIDE = 1e-6  # ranges of m below which one cell will do


Ends = tuple[Tensor, Tensor]  # of a range


@dataclass(frozen=True, slots=True)
class Form:
    """``v . z + q . z^2 + (z - z0)^T S (z - z0) / 2``."""

    linear: Tensor  # v: (batch, rows, sources)
    square: Tensor  # q >= 0: (batch, rows, sources)
    centre: Tensor  # z0: (batch, rows, sources)
    matrix: Tensor  # S: (batch, rows, sources, sources)


@dataclass(frozen=True, slots=True)
class Base:
    """A point of the box for each row, about which functions of x are expanded, and what the sources are there."""

    x: Tensor  # (batch, rows, n_in)
    m: Tensor  # (batch, rows, sources)
    r: Tensor  # (batch, rows, sources)


@dataclass(frozen=True, slots=True)
class _Shift:
    """``d_j = gain_j (m_j - m0_j) + middle_j +- remainder_j`` on the box; (batch, rows, sources) each."""

    gain: Tensor
    middle: Tensor
    remainder: Tensor


@dataclass(frozen=True, slots=True)
class _Weights:
    """Weights of the inputs, omega, and a root C of ``W diag(1/omega) W^T`` (rounded up), W the mean weights."""

    omega: Tensor  # (batch, rows, n_in); 0 for inputs that the box leaves no choice
    root: Tensor  # (batch, rows, sources, sources); not a number where there is none


@dataclass(frozen=True, slots=True)
class _Above:
    """``matrix . x + offset + sum of curvature_j (m_j(x) - m_j(base))^2 / 2``: above the sum of the L on the box."""

    matrix: Tensor  # (batch, rows, n_in)
    offset: Tensor  # (batch, rows)
    curvature: Tensor  # (batch, rows, sources)


@dataclass(frozen=True, slots=True)
class _Problem:
    """What is to be maximised over the box, but for P."""

    layer: Linear
    box: Box
    base: Base
    above: _Above
    shift: _Shift
    weights: _Weights


def base_at(layer: Linear, x: Tensor) -> Base:  # x (batch, rows, n_in)
    """The base at given points of the boxes."""
    m = x @ layer.weight_mean.mT + layer.bias_mean
    return Base(x, m, (x.square() @ layer.weight_std.square().mT + layer.bias_std.square()).sqrt())


def worst_base(layer: Linear, box: Box, base: Base, form: Form) -> Base:
    r"""A base nearer to the x of the largest mean than the one given; any is sound.

    With the slope :math:`\ell` of the mean in x and a diagonal majorant T of its quadratic part, the largest value on
    :math:`|x_k-c_k|\le e_k` of :math:`\ell_k(x_k-c_k)+\tfrac12T_k(x_k-c_k-\theta_ke_k)^2` is least for
    :math:`\theta_k=\min(1,|\ell_k|/(T_ke_k))` in the direction of :math:`\ell_k`.
    """
    v, q = form.linear, form.square
    at = tilted(base.m, base.r, v, q)
    slope = at.in_mean @ layer.weight_mean
    slope = slope + ((at.in_std / base.r.clamp_min(TINY)) @ layer.weight_std.square()) * base.x
    weights = _weights(layer, box, slope)
    p, _ = _solved(form.matrix, (at.second - at.mean.square()).clamp_min(0).sqrt())
    bent = torch.where(v > 0, harmful_curvature(base.m, base.r.clamp_min(TINY), v.clamp_min(TINY)), 0.0)
    largest = _largest_eigenvalue(weights, at.active[..., None] * p * at.active[..., None, :], bent)
    half = 0.5 * (box.upper - box.lower)[:, None]
    share = slope.abs() / (largest[..., None] * weights.omega * half).clamp_min(TINY)
    share = share.nan_to_num(0.0, posinf=0.0).clamp(0, 1)
    x = base.x + share * half * torch.sign(slope)
    return base_at(layer, box.project(x.transpose(0, 1)).transpose(0, 1))


def log_mean_of_form(layer: Linear, box: Box, ranges: Ranges, form: Form, base: Base) -> Tensor:
    r"""Upper bound (batch, rows) of the logarithm of the module docstring for every x; infinite where there is none.

    With the constants :math:`\bar\ell_j` that hold for every :math:`\delta` the mean over g is a determinant. With the
    smaller ones that hold for :math:`|\delta_j|\le\rho_j` it is another, plus the first times the probability that some
    :math:`|\delta_j|>\rho_j` under its Gaussian law of covariance P and mean P d, :math:`|(Pd)_j|^2\le P_{jj}d^TPd`.
    """
    m, r = _spans(ranges, base)
    v, q = form.linear, form.square
    cells = _CELLS if bool((m[1] - m[0] > _WIDE).any()) else 1
    ell = lipschitz(m, r, v, q, cells=cells)
    above, shift = _parabolas(layer, box, ranges, base, form, ell), _shift(layer, box, ranges, base, form, ell)
    problem = _Problem(layer, box, base, above, shift, _weights(layer, box, above.matrix))
    p, log_det = _solved(form.matrix, ell)
    everywhere = _largest(problem, p) - log_det
    size = _largest_form(problem, (m[1] - base.m, base.m - m[0]), p)
    reach = torch.diagonal(p, dim1=-2, dim2=-1).sqrt() * (_FAR + size.sqrt()[..., None]) * UP
    near = torch.minimum(sub_gaussian(m, r, v, q, reach, cells=cells).sqrt(), ell)
    p, log_det = _solved(form.matrix, near)
    within = _largest(problem, p) - log_det
    escape = math.log(ell.shape[-1] * math.erfc(_FAR * math.sqrt(0.5))) + 1e-9
    found = torch.minimum(everywhere, torch.logaddexp(within, everywhere + escape)) + 1e-9
    return found.nan_to_num(torch.inf, posinf=torch.inf, neginf=-torch.inf)


def _spans(ranges: Ranges, base: Base) -> tuple[Ends, Ends]:
    """Ranges of m and r that include the base, where L is expanded: it may lie outside of a ball."""
    m, r = ((end.lower[:, None], end.upper[:, None]) for end in (ranges.m, ranges.r))
    m = torch.minimum(m[0], base.m), torch.maximum(m[1], base.m)
    return m, (torch.minimum(r[0], base.r), torch.maximum(r[1], base.r))


def _solved(s: Tensor, ell: Tensor) -> tuple[Tensor, Tensor]:
    r"""P and half the logarithm of det(I - M), M = diag(ell) S diag(ell); the latter NaN where M is too large."""
    scaled = s * ell[..., None, :]
    eye = torch.eye(s.shape[-1], dtype=s.dtype, device=s.device)
    factor, failed = torch.linalg.cholesky_ex((1 - 1e-9) * eye - ell[..., None] * scaled)
    log_det = torch.log(torch.diagonal(factor, dim1=-2, dim2=-1)).sum(-1)
    half = torch.linalg.solve_triangular(factor, scaled.mT, upper=False)
    return s + half.mT @ half, torch.where(failed == 0, log_det, torch.nan)


def _parabolas(layer: Linear, box: Box, ranges: Ranges, base: Base, form: Form, ell: Tensor) -> _Above:
    r"""An affine function of x and parabolas in the means, together above :math:`\sum_jL(m_j,r_j;v_j,q_j)` on the box.

    For :math:`v\ge0` L is convex in (m, r): below the chord in r, and at either end of r below its tangent in m at the
    base plus half of :math:`\sup L_{mm}\le v\varphi(u)/r+2q+(v/2+2q\ell)^2` times the square. For :math:`v<0` see
    ``exponential_first.bend``.
    """
    m, r = _spans(ranges, base)
    a, c = form.linear, form.square
    middle = 0.5 * (r[0] + r[1])
    at, low, high = (tilted(base.m, end, a, c) for end in (middle, *r))
    ends = [log_moment(base.m, end, a, c) for end in r]
    width = r[1] - r[0]
    grow = torch.where(width > _FLAT * (1 + middle), (ends[1] - ends[0]) / width.clamp_min(TINY), at.in_std)
    reach = torch.maximum(m[1] - base.m, base.m - m[0]).clamp_min(0) * (1 + ELEMENTARY)
    turn = torch.maximum((low.in_mean - at.in_mean).abs(), (high.in_mean - at.in_mean).abs())
    chord = torch.maximum(ends[0] - grow * r[0], ends[1] - grow * r[1]) - at.in_mean * base.m + turn * reach
    steepest = a * pdf(_nearest(m, r)) / r[0].clamp_min(TINY) + 2 * c + (0.5 * a + 2 * c * ell).square()
    tangent = tilted(base.m, base.r, a, c)
    slack, flattest = bend(m, r, a, c, torch.maximum(r[1] - base.r, base.r - r[0]).clamp_min(0) * (1 + ELEMENTARY))
    plane = log_moment(base.m, base.r, a, c) - tangent.in_mean * base.m - tangent.in_std * base.r + slack
    plane = torch.where(torch.isfinite(ends[1]), plane, torch.inf)  # the largest r is too near the pole
    convex = a >= 0
    alpha, beta = torch.where(convex, at.in_mean, tangent.in_mean), torch.where(convex, grow, tangent.in_std)
    size = alpha.abs() * torch.maximum(m[0].abs(), m[1].abs()) + beta.abs() * r[1] + at.log.abs() + 1
    constant = torch.where(convex, chord, plane) + 16 * ELEMENTARY * size
    matrix, offset = in_x(layer, box, ranges, alpha, beta, constant)
    return _Above(matrix, offset, torch.where(convex, steepest, flattest) * UP)


def _nearest(m: Ends, r: Ends) -> Tensor:
    """The least |m| / r of the rectangle."""
    return torch.maximum(m[0], -m[1]).clamp_min(0) / r[1].clamp_min(TINY)


def _shift(layer: Linear, box: Box, ranges: Ranges, base: Base, form: Form, ell: Tensor) -> _Shift:
    r"""What the tilted mean less z0 is on the box.

    At the middle of r it has the slope :math:`P+v(1-P)\mathbb E_tZ+2q\operatorname{Var}_tZ` in m, where P and
    :math:`\mathbb E_tZ` increase in m: between two spots it stays between two lines through its value at the first.
    """
    m, r = _spans(ranges, base)
    v, q = form.linear, form.square
    middle, width = 0.5 * (r[0] + r[1]), (m[1] - m[0]) / _PARTS
    spots = [m[0] + k * width for k in range(_PARTS)] + [m[1]]
    at = [tilted(spot, middle, v, q) for spot in spots]
    gain = ((at[-1].mean - at[0].mean) / (m[1] - m[0]).clamp_min(TINY)).clamp(0, 2)
    high, low = torch.full_like(gain, -torch.inf), torch.full_like(gain, torch.inf)
    for k in range(_PARTS):
        bent = v * (1 - at[k].active) * at[k + 1].mean
        steepest = at[k + 1].active + bent.clamp_min(0) + 2 * q * ell.square()
        flattest = at[k].active + bent.clamp_max(0)
        here = at[k].mean - gain * (spots[k] - base.m) - form.centre
        high = torch.maximum(high, here + ((steepest - gain) * width).clamp_min(0))
        low = torch.minimum(low, here + ((flattest - gain) * width).clamp_max(0))
    remainder = 0.5 * (high - low) + 0.5 * (r[1] - r[0]) * _slope_in_r(m, r, form, ell)
    size = up(apply_rows(layer.weight_mean.abs(), box.magnitude) + layer.bias_mean.abs(), box.n)[:, None]
    lost = 1e-9 * (r[1] + m[1] - m[0]) + (16 * ELEMENTARY + gamma(2 * box.n + 8)) * size
    return _Shift(gain, 0.5 * (high + low), remainder + 4 * lost)


def _slope_in_r(m: Ends, r: Ends, form: Form, ell: Tensor) -> Tensor:
    r"""Upper bound of :math:`|\partial_r\mathbb E_tZ|` on the rectangle of (m, r).

    With E, V, P of the tilted law it is the derivative in v of :math:`\partial_rL`, :math:`\varphi(u)e^{-L}(1-vE)
    +r(2vP+(2q+v^2)(1-P)E+4qE+4vqV+4q^2\mathrm{Cov}(Z,Z^2))`. Here :math:`L\ge\min(v,0)\,\mathbb EZ` and
    :math:`e^L\ge\Phi(-u)`, so that :math:`\varphi(u)e^{-L}` is at most the hazard rate, which increases in u;
    :math:`V\le\ell^2` and :math:`\mathrm{Cov}(Z,Z^2)\le2\ell^2\sqrt{E^2+\ell^2}`.
    """
    v, q = form.linear, form.square
    most = _largest_tilted_mean(m, r, v, q)
    variance = ell.square()
    density = pdf(_nearest(m, r)) * torch.exp(-v.clamp_max(0) * expected_relu(m[1], r[1])) * (1 + 16 * ELEMENTARY)
    largest = torch.maximum(m[1] / r[0].clamp_min(TINY), m[1] / r[1].clamp_min(TINY))
    density = torch.minimum(density, hazard(largest) * (1 + 16 * ELEMENTARY) + TINY)
    spread = r[1] * ((6 * q + v.square()) * most + 8 * q.square() * variance * (most.square() + variance).sqrt())
    tilt = r[1] * v.abs() * (2 + 4 * q * variance)
    up_, down_ = density + spread, density * v.abs() * most
    return torch.where(v > 0, torch.maximum(up_ + tilt, down_), torch.maximum(up_ + down_, tilt)) * UP


def _largest_tilted_mean(m: Ends, r: Ends, v: Tensor, q: Tensor) -> Tensor:
    r"""Upper bound of E_t Z on the rectangle of (m, r); it increases in m.

    For :math:`v\ge0` both :math:`\mathbb E[Ze^F]` and :math:`\mathbb E[e^F]` increase in r; for :math:`v<0` it is less
    than for :math:`v=0`.
    """
    slope = v.clamp_min(0)
    top, least = tilted(m[1], r[1], slope, q), tilted(m[1], r[0], slope, q)
    return top.mean * torch.exp(top.log - least.log) * (1 + 1e-9) + 1e-9 * r[1]


def _weights(layer: Linear, box: Box, slope: Tensor) -> _Weights:
    """Weights that follow the slopes of the mean in x, so that the quadratic part costs least; any are sound."""
    mu, half = layer.weight_mean, 0.5 * (box.upper - box.lower)[:, None] * (1 + 1e-9)
    length = torch.linalg.vector_norm(mu, dim=0)
    usual = (slope.abs() * half).sum(-1) / (length * half).sum(-1).clamp_min(TINY)
    size = (slope.abs() + _EVEN * length * usual[..., None]).clamp_min(TINY)
    omega = torch.where(half > 0, size / half.clamp_min(TINY), 0.0)
    gram = (mu * (half / size)[..., None, :]) @ mu.mT
    trace = torch.diagonal(gram, dim1=-2, dim2=-1).sum(-1)[..., None, None]
    eye = torch.eye(mu.shape[0], dtype=mu.dtype, device=mu.device)
    root, failed = torch.linalg.cholesky_ex(gram + (1e-9 * trace + TINY) * eye)
    return _Weights(omega, torch.where((failed == 0)[..., None, None], root, torch.nan))


def _largest_eigenvalue(weights: _Weights, core: Tensor, curvature: Tensor) -> Tensor:
    r"""A multiple of omega above :math:`W^TAW`, :math:`A=\text{core}+\operatorname{diag}k`: (batch, rows).

    The least is the largest eigenvalue of :math:`C^TAC`, the fourth power of which is at most the norm of its fourth.
    """
    root = weights.root
    a = root.mT @ (core @ root + curvature[..., None] * root)
    unit = torch.linalg.matrix_norm(a).clamp_min(TINY)[..., None, None]
    square = (a / unit) @ (a / unit)
    return unit[..., 0, 0] * torch.linalg.matrix_norm(square @ square).sqrt().sqrt() * (1 + 1e-9)


def _largest(problem: _Problem, p: Tensor) -> Tensor:
    r"""Largest value on the box of ``above`` plus :math:`\tfrac12d^TPd`: (batch, rows).

    With :math:`d=y+b+\rho`, y linear in :math:`x-x_0`, b the middle and :math:`|\rho|` at most the remainder, and any
    :math:`\eta>0`, :math:`d^TPd\le(1+\eta)(y+b)^TP(y+b)+(1+1/\eta)\rho^TP\rho`. The quadratic parts in x lie below a
    diagonal one, so that every coordinate of x takes its largest value at an end of its range.
    """
    layer, box, base = problem.layer, problem.box, problem.base
    above, shift, weights = problem.above, problem.shift, problem.weights
    remainder = _form(p.abs(), shift.remainder)
    eta = (remainder / _USUAL).sqrt().clamp(1e-3, 2)
    moved = (p @ shift.middle[..., None])[..., 0]
    fixed = 0.5 * (1 + eta) * (shift.middle * moved).sum(-1) + 0.5 * (1 + 1 / eta) * remainder
    slope = (1 + eta)[..., None] * shift.gain * moved
    extra = slope @ layer.weight_mean
    core = (1 + eta)[..., None, None] * shift.gain[..., None] * p * shift.gain[..., None, :]
    quadratic = 0.5 * _largest_eigenvalue(weights, core, above.curvature)[..., None] * weights.omega
    steps = [end[:, None] - base.x for end in (box.lower, box.upper)]
    ends = [
        above.matrix * end[:, None] + (extra + quadratic * step) * step
        for end, step in zip((box.lower, box.upper), steps, strict=True)
    ]
    total = torch.maximum(*ends).sum(-1) + above.offset + fixed
    width = (box.upper - box.lower)[:, None]
    terms = (p.abs() @ shift.middle.abs()[..., None])[..., 0]  # of ``moved``, which may cancel
    size = (
        apply_rows(above.matrix.abs(), box.magnitude)
        + above.offset.abs()
        + _form(p.abs(), shift.middle.abs())
        + fixed.abs()
    )
    steep = ((1 + eta)[..., None] * shift.gain * terms) @ layer.weight_mean.abs()
    size = size + ((steep + quadratic * width) * width).sum(-1)
    if box.within is not None:  # the ball inside the box: its own largest value of the affine part
        flat = box.maximum(above.matrix + extra, above.offset - (extra * base.x).sum(-1))
        bent = (quadratic * torch.maximum(steps[0].square(), steps[1].square())).sum(-1)
        size = size + apply_rows(steep, box.magnitude)
        total = torch.minimum(total, flat + bent + fixed)
    return total + gamma(8 * (layer.n_in + layer.n_out) + 64) * size


def _largest_form(problem: _Problem, reach: Ends, p: Tensor) -> Tensor:
    r"""Upper bound over the box of :math:`d^TPd`: (batch, rows); ``reach`` bounds m - m(base) on either side."""
    box, base, shift, weights = problem.box, problem.base, problem.shift, problem.weights
    fixed = shift.middle.abs() + shift.remainder
    plain = _form(p.abs(), shift.gain * torch.maximum(*reach).clamp_min(0) + fixed)
    core = shift.gain[..., None] * p * shift.gain[..., None, :]
    far = torch.maximum((box.upper[:, None] - base.x).square(), (box.lower[:, None] - base.x).square())
    linear = _largest_eigenvalue(weights, core, torch.zeros_like(fixed)) * (weights.omega * far).sum(-1)
    joint = (linear.sqrt() + _form(p.abs(), fixed).sqrt()).square()
    return torch.minimum(plain, joint.nan_to_num(torch.inf, posinf=torch.inf)) * UP


def _form(p: Tensor, d: Tensor) -> Tensor:
    return (d * (p @ d[..., None])[..., 0]).sum(-1)
