r"""Moments of :math:`z=\varphi(X)` given the signal y below, averaged over y.

Given y, X is Gaussian with mean m and variance s. Let v, :math:`\kappa_3` and :math:`c_4` be the central moments of z
then, h its mean. With L the Lipschitz constant of the activation, w half the range of its slope, c its largest
curvature, :math:`r=\sqrt s` and (m_0, s_0) the middle of the ranges of (E m, E s):

* in s, v moves by at most :math:`L^2|s-s_0|`: with one noise for both the deviation moves by at most :math:`L|r-r_0|`
  and is at most Lr; :math:`\kappa_3` by :math:`\sqrt3L^3|s^{3/2}-s_0^{3/2}|\le\tfrac32\sqrt3L^3(r_0|s-s_0|+
  |s-s_0|^{3/2})`; and :math:`c_4^{1/4}` by ``CENTRED`` times :math:`L\lVert\xi\rVert_4|r-r_0|`;
* in m, :math:`|\partial_mv|=2|\operatorname{Cov}(z,\varphi')|\le2Lr\min(w,cr)` (Poincare for both factors). In the
  same way :math:`|\partial_m\kappa_3|\le3\sqrt3L^2r^2\min(w,cr)`, and :math:`|\partial_mc_4|\le4\lVert z-\mathbb E
  z\rVert_6^3\min(w,cr)\le4\sqrt{15}L^3r^3\min(w,cr)`; norms of z - h move by at most :math:`w|m-m_0|` and
  :math:`L\lVert\xi\rVert_q|r-r_0|`, times ``CENTRED``.
* For a hinge with its kink at zero the changes of v and :math:`\kappa_3` are known to second order
  (``hinge_drift.py``), for a smooth function those of v, :math:`\kappa_3` and :math:`c_4` (``smooth_drift.py``).
* What is affine but for kinks is a line :math:`pX` plus B, small where the kinks are far (``remainders.past_kinks``):
  the moments are those of a Gaussian up to :math:`\lVert B\rVert_2` and :math:`\lVert B\rVert_4` (Minkowski).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor

from bnndp.activations.activation import Activation, Central
from bnndp.engine.inequalities.hinge_drift import Drift, hinge_drift
from bnndp.engine.inequalities.remainders import past_kinks
from bnndp.engine.inequalities.smooth_drift import SmoothDrift, smooth_drift
from bnndp.engine.moments.pre_activation import PreActivation
from bnndp.engine.moments.signal import CENTRED, GAUSSIAN
from bnndp.geometry.bounds import Interval
from bnndp.maths.replacement import ABSOLUTE_THIRD
from bnndp.maths.rounding import TINY, UP

__all__ = ["Given", "given_input", "middle_of", "noise_given_input"]

_SLOPE = 1e-9  # error granted to a slope
_ROOT3, _ROOT15 = math.sqrt(3) * (1 + 1e-15), math.sqrt(15) * (1 + 1e-15)


@dataclass(frozen=True, slots=True)
class Given:
    """Averages over y: (batch, n) each, upper bounds but for the interval."""

    noise: Interval  # E Var(z | y)
    noise_deviation: Tensor  # standard deviation of Var(z | y)
    third: Interval  # E of the third central moment
    third_deviation: Tensor  # standard deviation of it
    fourth_mean: Tensor  # E of the fourth central moment
    fourth: Tensor  # root of the mean square of it
    norms: Tensor  # (batch, n, q): ||z - E[z | y]||_q
    deviations: Tensor  # (batch, n, q): norms in Lq of the standard deviation of z given y
    fourths: Tensor  # (batch, n, 2): norms in L8 and L16 of the fourth root of the fourth central moment given y
    fourth_least: Tensor | None = None  # E of the fourth central moment, at least
    excess: Tensor | None = None  # root of the mean square of it less three squared variances


def given_input(phi: Activation, x: PreActivation) -> Given:
    """By the moments at the middle of the box; and where kinks are far, by those of a line."""
    middle, s0 = middle_of(x)
    at = phi.central(middle, s0.sqrt())
    near = _near(phi, x, at, middle, s0)
    near = _lesser(near, _far(phi, x)) if phi.shape.kinks else near
    drift = hinge_drift(phi, x)
    if drift is not None:
        return _drifted(near, at, drift)
    smooth = smooth_drift(phi, x, at)
    return near if smooth is None else _drifted_smoothly(near, at, smooth)


def _drifted_smoothly(found: Given, at: Central, drift: SmoothDrift) -> Given:
    """With how far the moments of a smooth function are off those at the middle."""
    (v, k, c), (dv, dk, dc), (v4, *_) = drift.mean, drift.deviation, drift.norm4
    found = _drifted(found, at, Drift(v, dv, lambda: (k, dk)))
    fourth = at.fourth.upper
    # Of mu_4 - 3 v^2: v^2 - v_0^2 = (v - v_0) (v + v_0)
    middle = torch.maximum(
        fourth - 3 * at.variance.lower.square() / UP, 3 * at.variance.upper.square() - at.fourth.lower
    )
    excess = middle.clamp_min(0) + dc + 3 * v4 * (2 * at.variance.upper + v4)
    return replace(
        found,
        fourth_mean=torch.fmin(found.fourth_mean, (fourth + c) * UP),
        fourth_least=(at.fourth.lower - c * UP).clamp_min(0) / UP,
        fourth=torch.fmin(found.fourth, (fourth + dc) * UP),
        excess=excess * UP,
    )


def noise_given_input(phi: Activation, x: PreActivation) -> Tensor:  # (batch, n)
    """E Var(z | y), at most: that of :func:`given_input` alone."""
    middle, s0 = middle_of(x)
    most = phi.variance(middle, s0.sqrt()).upper
    drifts = [_variance_drift(phi, x, s0)]
    drift = hinge_drift(phi, x)
    drifts += [] if drift is None else [drift.variance]
    found = torch.fmin((most + reduce(torch.fmin, drifts)) * UP, phi.shape.steepest**2 * x.spread.upper * UP)
    return torch.fmin(found, _noise_of_line(phi, x)[1]) if phi.shape.kinks else found


def middle_of(x: PreActivation) -> tuple[Tensor, Tensor]:
    """Of the ranges of E m and E s."""
    mean, spread = x.mean, x.spread
    s0 = (0.5 * (spread.lower + spread.upper)).clamp(spread.lower, spread.upper)
    return (0.5 * mean.lower + 0.5 * mean.upper).clamp(mean.lower, mean.upper), s0


def _drifted(found: Given, at: Central, drift: Drift) -> Given:
    """With how far the moments of a hinge are off those at the middle."""
    third_off, third_deviation = drift.thirds()
    noise, third = (
        Interval(torch.fmax(known.lower, value.lower - off), torch.fmin(known.upper, (value.upper + off) * UP))
        for known, value, off in ((found.noise, at.variance, drift.variance), (found.third, at.third, third_off))
    )
    return replace(
        found,
        noise=noise,
        noise_deviation=torch.fmin(found.noise_deviation, drift.variance_deviation),
        third=third,
        third_deviation=torch.fmin(found.third_deviation, third_deviation),
    )


def _turned(phi: Activation, root: Tensor) -> Tensor:
    """The standard deviation of phi'(m + r xi) for any m, at most."""
    bend, swing = max(phi.shape.bend_up, phi.shape.bend_down), phi.shape.swing
    return torch.full_like(root, swing) if bend == math.inf else (bend * root).clamp_max(swing)


def _variance_drift(phi: Activation, x: PreActivation, s0: Tensor) -> Tensor:
    """How far Var(z | y) is off that at the middle, in L2 over y."""
    steep, root, turned = phi.shape.steepest, s0.sqrt(), _turned(phi, s0.sqrt())
    half, wide = (0.5 * (end.upper - end.lower) * UP for end in (x.mean, x.spread))
    away, away_s = half + x.mean_variance.sqrt(), wide + x.spread_deviation  # ||m - m_0||_2, ||s - s_0||_2
    return (2 * steep * root * turned * away + steep**2 * away_s) * UP


def _near(phi: Activation, x: PreActivation, at: Central, middle: Tensor, s0: Tensor) -> Given:
    shape, half = phi.shape, 0.5 * (x.mean.upper - x.mean.lower) * UP
    root, wide = s0.sqrt(), 0.5 * (x.spread.upper - x.spread.lower) * UP
    steep, turned = shape.steepest, _turned(phi, root)
    away, away_s = half + x.mean_variance.sqrt(), wide + x.spread_deviation  # ||m - m_0||_2, ||s - s_0||_2
    drift = _variance_drift(phi, x, s0)
    gaussian = x.norms.new_tensor(GAUSSIAN)
    top, square = steep**2 * x.spread.upper * UP, x.spread_square
    delta = wide + x.spread_deltas[..., 0]  # ||s - s_0||_4
    third = 3 * _ROOT3 * steep**2 * s0 * turned * away + 1.5 * _ROOT3 * steep**3 * (root * away_s + delta**1.5)
    most = torch.minimum(third * UP, ABSOLUTE_THIRD * steep**3 * (x.spread_norms[..., 1] ** 3) + at.third.magnitude)
    size4 = at.fourth.upper.sqrt().sqrt()
    rise = 4 * _ROOT15 * steep**3 * s0 * root * turned * away
    moved = shape.swing * (half[..., None] + x.norms)
    spread = steep * (x.spread_away + (wide / root.clamp_min(TINY))[..., None])
    fourths = size4[..., None] + CENTRED[0] * (moved + GAUSSIAN[0] * spread)[..., 1:]
    grown = (at.fourth.upper + rise).sqrt().sqrt()[..., None] + CENTRED[0] * GAUSSIAN[0] * spread[..., :2]
    fourths[..., 0] = torch.fmin(fourths[..., 0], grown[..., 1])
    deviations = at.variance.upper.sqrt()[..., None] + moved + spread
    return Given(
        noise=Interval(
            (at.variance.lower - drift).clamp_min(0).minimum(top), torch.minimum(at.variance.upper + drift, top) * UP
        ),
        noise_deviation=torch.minimum(drift, steep**2 * square.sqrt()) * UP,
        third=Interval(at.third.lower - most, at.third.upper + most),
        third_deviation=most,
        fourth_mean=torch.fmin(grown[..., 0], GAUSSIAN[0] * steep * x.spread_norms[..., 0]) ** 4 * UP,
        fourth=torch.fmin(fourths[..., 0], GAUSSIAN[0] * steep * x.spread_norms[..., 1]) ** 4 * UP,
        norms=torch.fmin(_moved_norms(at, x, moved, spread), steep * gaussian * x.spread_norms) * UP,
        deviations=torch.fmin(deviations, steep * x.spread_norms) * UP,
        fourths=torch.fmin(fourths, GAUSSIAN[0] * steep * x.spread_norms[..., 1:]) * UP,
    )


def _moved_norms(at: Central, x: PreActivation, moved: Tensor, spread: Tensor) -> Tensor:
    """Norms of z - h from those at the middle: (batch, n, q)."""
    found = torch.stack([at.fourth.upper.sqrt().sqrt(), at.norm8, at.norm16], -1)
    return found + x.norms.new_tensor(CENTRED) * (moved + x.norms.new_tensor(GAUSSIAN) * spread)


def _noise_of_line(phi: Activation, x: PreActivation) -> tuple[Tensor, Tensor]:
    """E Var(z | y) by the line at the middle, at least and at most."""
    line, two = _line(phi, x), past_kinks(phi, x, x.total_norms, 2)
    low = ((line - _SLOPE).clamp_min(0) * x.spread.lower.sqrt() / UP - two).clamp_min(0)
    return low.square() / UP, ((line + _SLOPE) * x.spread.upper.sqrt() + two).square() * UP


def _line(phi: Activation, x: PreActivation) -> Tensor:
    """The size of the slope of phi at the middle of the means."""
    middle = 0.5 * (x.mean.lower + x.mean.upper)
    return phi.slope(middle, torch.zeros_like(middle)).abs()


def _far(phi: Activation, x: PreActivation) -> Given:
    most, total = _line(phi, x) + _SLOPE, x.total_norms
    four = CENTRED[0] * past_kinks(phi, x, total, 4)
    gaussian = most * GAUSSIAN[0] * x.spread_norms[..., 0]  # ||p (X - m)||_4
    away_s = 0.5 * (x.spread.upper - x.spread.lower) * UP + x.spread_deviation
    none = torch.full_like(x.norms, torch.inf)
    third = (3 * gaussian.square() * four + 3 * gaussian * four.square() + four**3) * UP
    gaussian8, eight = most * GAUSSIAN[1] * x.spread_norms[..., 1], CENTRED[1] * past_kinks(phi, x, total, 8)
    third2 = (3 * gaussian8.square() * eight + 3 * gaussian8 * eight.square() + eight**3) * UP
    return Given(
        noise=Interval(*_noise_of_line(phi, x)),
        noise_deviation=(most.square() * away_s + 2 * most * x.spread_norms[..., 0] * four + four.square()) * UP,
        third=Interval(-third, third),
        third_deviation=third2,
        fourth_mean=(gaussian + four) ** 4 * UP,
        fourth=(gaussian8 + eight) ** 4 * UP,
        norms=none,
        deviations=none,
        fourths=none[..., 1:],
    )


def _lesser(a: Given, b: Given) -> Given:
    """The better of two; what is no number says nothing."""
    return Given(
        Interval(torch.fmax(a.noise.lower, b.noise.lower), torch.fmin(a.noise.upper, b.noise.upper)),
        torch.fmin(a.noise_deviation, b.noise_deviation),
        Interval(torch.fmax(a.third.lower, b.third.lower), torch.fmin(a.third.upper, b.third.upper)),
        torch.fmin(a.third_deviation, b.third_deviation),
        *(
            torch.fmin(getattr(a, name), getattr(b, name))
            for name in ("fourth_mean", "fourth", "norms", "deviations", "fourths")
        ),
    )
