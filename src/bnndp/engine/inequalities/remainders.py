r"""What a line leaves of an activation: norms of :math:`\rho=\varphi(X)-pX`, of its mean given y and of the rest.

Let T = X - E X (or m - E m for the mean given y), :math:`w_p=\sup|\varphi'-p|`, c the largest curvature, and `half` be
half the width of the range of the mean over the box. Centring multiplies a norm by ``CENTRED`` at most.

* :math:`\lVert\rho\rVert_q\le w_p\lVert T\rVert_q`;
* :math:`\lVert\rho\rVert_q\le\tfrac12c\lVert T\rVert_{2q}^2+c\,\text{half}\,\lVert T\rVert_q` (Taylor at the middle);
* if the slope stays within :math:`\delta` of p where :math:`|T|\le t`:
  :math:`\delta\lVert T\rVert_q+w_p\lVert T1_{|T|>t}\rVert_q`, and
  :math:`\lVert T1_{|T|>t}\rVert_q\le t(\lVert T\rVert_{q'}/t)^{q'/q}` for q' > q; for a Gaussian T,
  :math:`\lVert\xi\rVert_{2q}(2Q(t/r))^{1/2q}r`, and for q = 2 exactly :math:`r\sqrt{2(u\varphi(u)+Q(u))}`, u = t/r.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.activations.activation import Activation
from bnndp.engine.inequalities.expectation import fluctuation
from bnndp.engine.inequalities.hinge_remainder import remainder_norms
from bnndp.engine.inequalities.smoothed import second
from bnndp.engine.moments.intervals import product
from bnndp.engine.moments.pre_activation import PreActivation
from bnndp.engine.moments.signal import CENTRED, GAUSSIAN, POWERS
from bnndp.maths.hinge import root_of
from bnndp.maths.normal import cdf, pdf
from bnndp.maths.rectified import ratio
from bnndp.maths.rounding import ELEMENTARY, TINY, UP

__all__ = ["Remainders", "central_remainder", "moved_by_spread", "past_kinks", "remainders", "remainders_on_signal"]

_SLOPE = 2e-9  # error granted to two slopes
_SLOPE_ROOT = 5e-5  # root of twice the error 1e-9 granted to a slope of at most one
_SHARES = (0.25, 0.5, 0.75, 0.95)  # reaches tried: of the distance to a kink
_TIMES = (1.0, 2.0, 4.0)  # and, for smooth activations, of ||T||_4
_DOUBLE = (105**0.125 * UP, 2027025**0.0625 * UP, 191898783962510625 ** (1 / 32) * UP)  # ||xi||_2q


@dataclass(frozen=True, slots=True)
class Remainders:
    """Bounds of the remainders of a line; (batch, n), norms (batch, n, q)."""

    given: Tensor  # root of E Var(rho | y)
    central: Tensor  # standard deviation of E[rho | y]
    norms: Tensor  # ||rho - E rho||_q
    central_norms: Tensor  # ||E[rho | y] - E rho||_q


def remainders(phi: Activation, x: PreActivation, p: Tensor, variance: Tensor, *, closely: bool = False) -> Remainders:
    """Of an activation after weights; ``variance`` (batch, n) is at least that of phi at the middle of the box.

    ``closely`` if norms for a Gaussian X are worth more work.
    """
    half = 0.5 * (x.mean.upper - x.mean.lower) * UP
    s0 = 0.5 * (x.spread.lower + x.spread.upper)
    root = s0.clamp(x.spread.lower, x.spread.upper).sqrt()
    if x.fixed:
        zero = torch.zeros_like(root)
        given, norms = _gaussian(phi, x, p, variance, half)
        if closely and phi.shape.kinks:
            norms = torch.fmin(norms, remainder_norms(phi.shape, x, p))
        return Remainders(given, zero, norms, torch.zeros_like(norms))
    centred = x.norms.new_tensor(CENTRED)
    norms = centred * _norms(phi, x, p, x.total_norms, half, _kink_delta(phi, x, p)) * UP
    central_norms = _norms(phi, x, p, x.norms, half, _mean_delta(phi, x, p, root), root)
    central_norms = central_norms + moved_by_spread(phi, x, root, norms=True)
    if phi.shape.kinks:  # E[rho | y] is at most rho in norm
        tilt = _tilt(phi, x, p, None)
        far = [tilt * x.norms[..., i] + past_kinks(phi, x, x.total_norms, q) for i, q in enumerate(POWERS[:-1])]
        central_norms = torch.fmin(central_norms, torch.stack([*far, torch.full_like(tilt, torch.inf)], -1))
    return Remainders(_given(phi, x, p, half), central_remainder(phi, x, p), norms, centred * central_norms * UP)


def central_remainder(phi: Activation, x: PreActivation, p: Tensor) -> Tensor:  # (batch, n)
    """The standard deviation of E[rho | y], of an activation after weights on a random y."""
    half, sd = 0.5 * (x.mean.upper - x.mean.lower) * UP, x.mean_variance.sqrt()
    root = (0.5 * (x.spread.lower + x.spread.upper)).clamp(x.spread.lower, x.spread.upper).sqrt()
    found = _deviation(phi, x, p, sd, x.norms, half, _mean_delta(phi, x, p, root), root)
    found = found + moved_by_spread(phi, x, root)
    if phi.shape.kinks:  # E[rho | y] is at most rho in norm
        found = torch.fmin(found, _tilt(phi, x, p, None) * sd + past_kinks(phi, x, x.total_norms, 2))
    return found * UP


def remainders_on_signal(phi: Activation, x: PreActivation, p: Tensor) -> Remainders:
    """Of an activation on a signal: everything is central."""
    half = 0.5 * (x.mean.upper - x.mean.lower) * UP
    delta = _kink_delta(phi, x, p)
    norms = x.norms.new_tensor(CENTRED) * _norms(phi, x, p, x.norms, half, delta) * UP
    sd = _deviation(phi, x, p, x.mean_variance.sqrt(), x.norms, half, delta)
    zero = torch.zeros_like(sd)
    return Remainders(zero, sd, norms, norms)


def moved_by_spread(phi: Activation, x: PreActivation, root: Tensor, *, norms: bool = False) -> Tensor:
    r"""Norm of G(m, sqrt(s)) - G(m, sqrt(s0)): the deviation (batch, n), or the norms (batch, n, q).

    By half the curvature times |s - s0|, or by the Lipschitz constant less a line times E |xi| |sqrt(s) - sqrt(s0)|.
    With :math:`\tau=m-m_0` and :math:`\delta=s-s_0`, half the curvature at the middle times :math:`|\delta|`, and
    :math:`\tfrac12|G_{mmm}\tau\delta|` and what ``fluctuation`` says of :math:`\delta^2`.
    """
    shape, wide = phi.shape, 0.5 * (x.spread.upper - x.spread.lower) * UP
    bend, swing = max(shape.bend_up, shape.bend_down), shape.swing
    middle, half = 0.5 * (x.mean.lower + x.mean.upper), 0.5 * (x.mean.upper - x.mean.lower) * UP
    least, (four, eight) = x.spread.lower, (wide + delta for delta in x.spread_deltas.unbind(-1))
    at, third = 0.5 * second(phi, middle, root), 0.5 * shape.derivative(3, least.sqrt())
    if norms:
        fine = at * four + third * (half + x.norms[..., 1]) * eight + fluctuation(shape, least, eight)
        found = 0.7979 * swing * x.spread_away
        return torch.cat([torch.fmin(found[..., :1], fine[..., None]), found[..., 1:]], -1) * UP
    away = wide + x.spread_deviation
    fine = at * away + third * (half + x.norms[..., 0]) * four + fluctuation(shape, least, four)
    lipschitz = 0.7979 * swing * away / root.clamp_min(TINY)
    smooth = torch.full_like(away, math.inf) if bend == math.inf else 0.5 * bend * away
    return torch.where(away > 0, torch.fmin(torch.minimum(lipschitz, smooth), fine), 0.0) * UP


_Delta = Callable[[Tensor], Tensor]
"""From a reach (..., batch, n): how far the slope strays from p within it around the range of the mean."""


def _slope_delta(phi: Activation, x: PreActivation, p: Tensor, root: Tensor) -> _Delta:
    """For convex activations: the slope of G(., root) increases, so its ends bound it."""

    def delta(reach: Tensor) -> Tensor:
        ends = [phi.slope(end, root.expand_as(end)) for end in (x.mean.lower - reach, x.mean.upper + reach)]
        return torch.maximum((ends[1] - p).abs(), (ends[0] - p).abs()) + _SLOPE

    return delta


def _kink_delta(phi: Activation, x: PreActivation, p: Tensor) -> _Delta | None:
    """The same for the activation itself: convex, or affine between kinks."""
    zero = torch.zeros_like(p)
    if phi.shape.fall == 0:
        return _slope_delta(phi, x, p, zero)
    if not phi.shape.kinks:
        return None
    distance = _distance(phi, x)
    middle = 0.5 * (x.mean.lower + x.mean.upper)
    off = (phi.slope(middle, zero) - p).abs() + _SLOPE
    return lambda reach: torch.where(reach < distance, off, torch.inf)


def _distance(phi: Activation, x: PreActivation) -> Tensor:
    """From the range of the mean to the nearest kink, or to zero if there is none."""
    kinks = [where for where, _ in phi.shape.kinks] or [0.0]
    return torch.stack([torch.maximum(x.mean.lower - k, k - x.mean.upper) for k in kinks]).amin(0).clamp_min(0)


def _reaches(phi: Activation, x: PreActivation, norm4: Tensor) -> list[Tensor]:
    found = [share * _distance(phi, x) for share in _SHARES]
    return found if phi.shape.kinks else found + [times * norm4 for times in _TIMES]


def _widest(phi: Activation, p: Tensor) -> Tensor:
    low, high = phi.shape.slopes
    return torch.maximum(high - p, p - low)


def _mean_delta(phi: Activation, x: PreActivation, p: Tensor, root: Tensor) -> _Delta | None:
    """Of G(m, root) - p m."""
    return _slope_delta(phi, x, p, root) if phi.shape.fall == 0 else None


def _tilt(phi: Activation, x: PreActivation, p: Tensor, root: Tensor | None) -> Tensor:
    """How far p is from the slope at the middle of the box, where the Taylor expansions start."""
    middle = 0.5 * (x.mean.lower + x.mean.upper)
    return (phi.slope(middle, torch.zeros_like(p) if root is None else root) - p).abs() + _SLOPE


def _curvature(phi: Activation, root: Tensor | None, like: Tensor) -> Tensor:
    r = torch.zeros_like(like) if root is None else root
    return torch.maximum(*phi.shape.curvature(r)) if phi.shape.slope_known else torch.full_like(r, math.inf)


def _bend(phi: Activation) -> float:
    """The largest curvature, for expansions around the slope p: infinite where that is not known."""
    return max(phi.shape.bend_up, phi.shape.bend_down) if phi.shape.slope_known else math.inf


def _deviation(  # noqa: PLR0913 (the parts of one formula)
    phi: Activation,
    x: PreActivation,
    p: Tensor,
    sd: Tensor,
    norms: Tensor,
    half: Tensor,
    delta: _Delta | None,
    root: Tensor | None = None,
) -> Tensor:
    """Standard deviation of the rest, by all routes."""
    widest = _widest(phi, p)
    best = widest * sd
    smooth = product(_curvature(phi, root, sd), 0.5 * norms[..., 0].square() + half * sd)
    tilt = _tilt(phi, x, p, root)
    best = torch.minimum(best, smooth + tilt * sd)
    if root is not None and phi.shape.slope_known:  # and the third derivative
        third = phi.shape.derivative(3, x.spread.lower.sqrt())
        square = (norms[..., 0] ** 4 - x.noise.lower.square() / UP).clamp_min(0).sqrt()  # deviation of T^2
        local = second(phi, 0.5 * (x.mean.lower + x.mean.upper), root) * (0.5 * square + half * sd)
        local = local + third * (half + norms[..., 0]) * (half + norms[..., 1]).square() / 6
        best = torch.fmin(best, local + tilt * sd)
    if root is None and phi.shape.kinks:
        best = torch.fmin(best, _tilt(phi, x, p, None) * sd + past_kinks(phi, x, norms, 2))
    if delta is not None:
        for reach in _reaches(phi, x, norms[..., 0]):
            beyond = torch.minimum(sd, _beyond(norms, reach, 2, range(3)))
            found = delta(reach) * sd + widest * beyond
            best = torch.where(found < best, found, best)  # false for NaN
    return best * UP


def _norms(  # noqa: PLR0913
    phi: Activation,
    x: PreActivation,
    p: Tensor,
    norms: Tensor,
    half: Tensor,
    delta: _Delta | None,
    root: Tensor | None = None,
) -> Tensor:
    """Norms of the rest, not centred: (batch, n, q)."""
    widest = _widest(phi, p)
    best = [widest * norms[..., i] for i in range(len(POWERS))]
    curvature, tilt = _curvature(phi, root, half), _tilt(phi, x, p, root)
    for i in range(len(POWERS) - 1):
        smooth = product(curvature, 0.5 * norms[..., i + 1].square() + half * norms[..., i])
        best[i] = torch.minimum(best[i], smooth + tilt * norms[..., i])
    if phi.shape.slope_known and root is not None:  # for q = 4 also with the third derivative
        third = phi.shape.derivative(3, x.spread.lower.sqrt())
        square = 0.5 * norms[..., 1].square() + half * norms[..., 0]
        local = second(phi, 0.5 * (x.mean.lower + x.mean.upper), root) * square + tilt * norms[..., 0]
        local = local + third * (half + norms[..., 1]) * (half + norms[..., 2]).square() / 6
        best[0] = torch.fmin(best[0], local)
    if root is None and phi.shape.kinks:
        for i, q in enumerate(POWERS[:-1]):
            best[i] = torch.fmin(best[i], tilt * norms[..., i] + past_kinks(phi, x, norms, q))
    if delta is not None:
        for reach in _reaches(phi, x, norms[..., 0]):
            stray = delta(reach)
            for i, q in enumerate(POWERS[:-1]):
                beyond = torch.minimum(norms[..., i], _beyond(norms, reach, q, range(i + 1, len(POWERS))))
                found = stray * norms[..., i] + widest * beyond
                best[i] = torch.where(found < best[i], found, best[i])
    return torch.stack(best, -1) * UP


def past_kinks(phi: Activation, x: PreActivation, norms: Tensor, p: int) -> Tensor:  # norms (batch, n, q) -> (batch, n)
    r"""The norm in Lp of what is left of phi(X) by the line through the middle of the means, from those of X.

    It is the sum of the jumps times the distances beyond the kinks, and for q > p
    :math:`(t-d)_+^p\le c\,t^qd^{p-q}` with :math:`c=(\tfrac p{q-p})^p(\tfrac{q-p}q)^q`, with equality at
    :math:`t=dq/(q-p)`.
    """
    total = torch.zeros_like(norms[..., 0])
    for where, jump in phi.shape.kinks:
        distance = torch.maximum(x.mean.lower - where, where - x.mean.upper).clamp_min(TINY)
        found = [
            (p / (q - p)) * ((q - p) / q) ** (q / p) * distance * (norms[..., i] / distance) ** (q / p)
            for i, q in enumerate(POWERS)
            if q > p
        ]
        total = total + abs(jump) * torch.stack(found).amin(0).nan_to_num(torch.inf)
    return total * UP


def _beyond(norms: Tensor, reach: Tensor, q: int, which: range) -> Tensor:
    """||T 1[|T| > reach]||_q from higher norms: the least over those at the indices ``which``."""
    t = reach.clamp_min(TINY)
    found = [t * (norms[..., i] / t) ** (POWERS[i] / q) for i in which]
    return torch.stack(found).amin(0).nan_to_num(torch.inf)


def _chance(norms: Tensor, reach: Tensor) -> Tensor:
    """P(|T| > reach), at most, from norms of T: (batch, n)."""
    t = reach.clamp_min(TINY)[..., None]
    powers = norms.new_tensor([float(q) for q in POWERS])
    return ((norms / t).clamp_max(1.0) ** powers).amin(-1)


def _given(phi: Activation, x: PreActivation, p: Tensor, half: Tensor) -> Tensor:
    r"""Root of :math:`\mathbb E\operatorname{Var}(\rho\mid y)\le\mathbb E\,s\,(\varphi'(X)-p)^2` (Poincare).

    Within a reach the slope strays by delta only; the rest by Cauchy and Schwarz with P(|T| > reach).
    """
    widest = _widest(phi, p)
    best = widest * x.spread.upper.sqrt()
    bend = _bend(phi)
    total = x.total_norms
    if bend < math.inf:  # |phi'(X) - p| <= bend (|T| + half) + |phi'(middle) - p|
        away = bend * (total[..., 0] + half) + _tilt(phi, x, p, None)
        best = torch.minimum(best, x.spread_square.sqrt().sqrt() * away)
    delta = _kink_delta(phi, x, p)
    if delta is not None:
        size = x.spread_square.sqrt()
        for reach in _reaches(phi, x, total[..., 0]):
            t = reach.clamp_min(TINY)
            chance = _chance(total, t).sqrt()
            found = (delta(reach).square() * x.spread.upper + widest.square() * size * chance).sqrt()
            best = torch.where(found < best, found, best)
    return best * UP


def _gaussian(phi: Activation, x: PreActivation, p: Tensor, variance: Tensor, half: Tensor) -> tuple[Tensor, Tensor]:
    r"""Deviation and norms of rho for a Gaussian X, whose mean and variance are functions of the input.

    The norms of smooth activations, already centred: docs/theory.md, section 4.10.

    At the middle (m, r) of the box the deviation is at most :math:`\sqrt{v-p_0^2s}+|p-p_0|r`, :math:`p_0` being E phi'
    there (Stein); moving (m, r) costs at most :math:`r\min(2w,c\,\text{half})+2w|r-r_0|`.
    """
    shape = phi.shape
    widest, top = _widest(phi, p), x.spread.upper.sqrt()
    s0 = 0.5 * (x.spread.lower + x.spread.upper)
    root = s0.sqrt()
    bend = _bend(phi)  # infinite: the exact deviation is not used either
    at = p if bend == math.inf else phi.slope(0.5 * (x.mean.lower + x.mean.upper), root)
    exact = (variance - at.square() * s0 / UP).clamp_min(0).sqrt() + (at - p).abs() * root
    exact = exact + _SLOPE_ROOT * math.sqrt(max(1.0, shape.steepest)) * root
    turned = 2 * shape.swing * root if bend == math.inf else (bend * half).clamp_max(2 * shape.swing) * root
    best = torch.minimum(widest * top, exact + turned + 2 * shape.swing * (top - x.spread.lower.sqrt()))
    norms = [widest * top * g for g in GAUSSIAN]
    if bend < math.inf:
        off = min(_SLOPE, 2 * shape.swing) * top  # p is computed: for a tiny r that is more than the rest itself
        best = torch.minimum(best, bend * (0.5 * math.sqrt(3) * top.square() + half * top) + off)
        norms = [
            torch.minimum(n, bend * (0.5 * (d * top).square() + half * g * top) + off * g)
            for n, d, g in zip(norms, _DOUBLE, GAUSSIAN, strict=True)
        ]
    delta = _kink_delta(phi, x, p)
    if delta is not None:
        reach = torch.stack(_reaches(phi, x, GAUSSIAN[0] * top))  # (reaches, batch, n)
        stray, t = delta(reach), ratio(reach, top)
        tail = cdf(-t) * (1 + 1e-9) + TINY
        beyond = (2 * (t * pdf(t) + tail) + ELEMENTARY * tail).sqrt()
        best = torch.fmin(best, ((stray + widest * beyond) * top).nan_to_num(math.inf, posinf=math.inf).amin(0))
        for i, (d, g) in enumerate(zip(_DOUBLE, GAUSSIAN, strict=True)):
            found = (stray * g + widest * d * root_of(2 * tail, 2 * POWERS[i])) * top
            norms[i] = torch.fmin(norms[i], found.nan_to_num(math.inf, posinf=math.inf).amin(0))
    return best * UP, top.new_tensor(CENTRED) * torch.stack(norms, -1) * UP
