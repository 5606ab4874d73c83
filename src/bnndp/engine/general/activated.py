r"""Moments of :math:`z=\varphi(X)`, and the parts of z that its variance along any direction needs.

Given the signal y below, X_i is Gaussian; :math:`h_i=\mathbb E[z_i\mid y]=G(m_i,\sqrt{s_i})` and
:math:`v_i=\operatorname{Var}(z_i\mid y)`. With L the Lipschitz constant of the activation, w half the range of its
slope, c its largest curvature and r = sqrt(s):

* v moves by at most :math:`L^2|s-s_0|`: with one noise for both, the deviation moves by at most :math:`L|r-r_0|` and is
  at most Lr; and :math:`|\partial_mv|=2|\operatorname{Cov}(\varphi,\varphi')|\le2Lr\min(w,cr)` (Poincare for both
  factors);
* the third central moment moves by at most :math:`3\sqrt3L^2r^2` times :math:`\min(w,cr)` in m and L in r;
* a Lipschitz function of a Gaussian is dominated in convex order by L times it.

z is taken apart as :math:`p_iX_i+\rho_i` with a constant slope p; ``rests.py`` bounds what is left.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.activations.activation import Activation
from bnndp.engine.general.activation_planes import Planes
from bnndp.engine.general.central_range import central_range
from bnndp.engine.general.remainders import Rests, moved_by_spread, rests, rests_on_signal
from bnndp.engine.general.signal import GAUSSIAN, Pre, Signal
from bnndp.geometry.bounds import Interval
from bnndp.maths.replacement import ABSOLUTE_THIRD
from bnndp.maths.rounding import TINY, UP

__all__ = ["Linearised", "activated", "activated_signal"]

_THIRD = 3 * math.sqrt(3) * (1 + 1e-15)


@dataclass(frozen=True, slots=True)
class Linearised:
    """z_i = p_i X_i + rest: what the variance of rows needs; (batch, n) each."""

    steepest: float  # Lipschitz constant of the activation
    slope: Tensor  # p
    noise: Tensor  # E Var(z_i | Y), at most
    rest: Rests
    pre: Pre


def activated(phi: Activation, x: Pre, found: Planes, *, independent: bool) -> tuple[Signal, Linearised]:
    """The signal after the activation; ``independent`` if given y the X_i are."""
    signal, linear = _of_gaussian(phi, x, found) if x.fixed else _of_mixture(phi, x, found)
    if not (independent or signal.fixed):
        signal = signal.without_history()
    return signal, linear


def _of_gaussian(phi: Activation, x: Pre, found: Planes) -> tuple[Signal, Linearised]:
    """X is Gaussian: its values after the activation are independent, with known moments."""
    steep, gaussian = phi.shape.steepest, x.spread_norms.new_tensor(GAUSSIAN)
    at = central_range(phi, x.mean, Interval(x.spread.lower.sqrt(), x.spread.upper.sqrt() * UP))
    top = steep**2 * x.spread.upper * UP
    noise = Interval(at.variance.lower.minimum(top), torch.minimum(at.variance.upper * UP, top))
    middle = (0.5 * x.mean.lower + 0.5 * x.mean.upper).clamp(x.mean.lower, x.mean.upper)
    slope = phi.slope(middle, (0.5 * (x.spread.lower + x.spread.upper)).sqrt()).clamp(*phi.shape.slopes)
    rest, zero = rests(phi, x, slope, noise.upper), torch.zeros_like(top)
    noisy = x.spread_norms * gaussian
    norms = torch.minimum(steep * noisy, slope.abs()[..., None] * noisy + rest.norms)
    norms = torch.minimum(norms, torch.stack([at.fourth.upper.sqrt().sqrt(), at.norm8, at.norm16], -1)) * UP
    signal = Signal(
        mean=found.range,
        variance=noise.upper,
        norms=norms,
        noise=noise,
        noise_deviation=zero,
        third=at.third,
        third_size=at.third.magnitude,
        noise_fourth=Interval(at.fourth.lower, torch.minimum(at.fourth.upper, 3 * top.square() * UP)),
        fixed=bool((x.spread.upper == 0).all()),
        source=True,
    )
    return signal, Linearised(steep, slope, noise.upper, rest, x)


def _of_mixture(phi: Activation, x: Pre, found: Planes) -> tuple[Signal, Linearised]:
    """X is Gaussian given y: averages over y of its moments after the activation."""
    shape = phi.shape
    middle = (0.5 * x.mean.lower + 0.5 * x.mean.upper).clamp(x.mean.lower, x.mean.upper)
    half = 0.5 * (x.mean.upper - x.mean.lower) * UP
    s0 = (0.5 * (x.spread.lower + x.spread.upper)).clamp(x.spread.lower, x.spread.upper)
    root = s0.sqrt()
    steep, swing = shape.steepest, shape.swing
    bend = max(shape.bend_up, shape.bend_down)
    change = torch.full_like(root, swing) if bend == math.inf else (bend * root).clamp_max(swing)  # sd of phi'
    at = phi.central(middle, root)
    away_m = half + x.mean_variance.sqrt()  # E |m - middle|
    away_s = 0.5 * (x.spread.upper - x.spread.lower) * UP + x.spread_deviation  # E |s - s0|
    drift = (2 * steep * root * change * away_m + steep**2 * away_s) * UP
    top = steep**2 * x.spread.upper * UP
    noise = Interval(
        (at.variance.lower - drift).clamp_min(0).minimum(top), torch.minimum((at.variance.upper + drift) * UP, top)
    )
    turn = _THIRD * steep**2 * s0 * (change * away_m + steep * away_s / root.clamp_min(TINY))
    third = torch.minimum(at.third.magnitude + turn, ABSOLUTE_THIRD * steep**3 * x.spread_square**0.75) * UP
    slope = phi.slope(middle, (s0 + x.mean_variance).sqrt()).clamp(*shape.slopes)  # nearly E phi'(X)
    rest = rests(phi, x, slope, at.variance.upper)
    sd = x.mean_variance.sqrt()
    deviation = torch.minimum(slope.abs() * sd + rest.central, steep * sd + moved_by_spread(phi, x, root))
    inner = torch.minimum(slope.abs()[..., None] * x.norms + rest.central_norms, 2 * steep * x.norms)
    inner = inner + 2 * moved_by_spread(phi, x, root, norms=True)
    gaussian = x.spread_norms * x.spread_norms.new_tensor(GAUSSIAN)
    noisy = torch.minimum(steep * gaussian, slope.abs()[..., None] * gaussian + rest.norms)  # ||z - h||_q
    norms = torch.minimum((noisy + inner) * UP, 2 * steep * x.total_norms * UP)
    norms[..., 0] = torch.minimum(norms[..., 0], _fourth_root(steep, x.total_norms[..., 0], x.variance))
    most = 3 * steep**4 * x.spread_square * UP
    signal = Signal(
        mean=found.range,
        variance=torch.minimum(noise.upper + deviation.square(), steep**2 * x.variance) * UP,
        norms=norms,
        noise=noise,
        noise_deviation=torch.minimum(drift, steep**2 * x.spread_square.sqrt()) * UP,
        third=Interval(-third, third),
        third_size=third,
        noise_fourth=Interval(torch.zeros_like(most), most),
        fixed=False,
        source=False,
    )
    return signal, Linearised(steep, slope, noise.upper, rest, x)


def _fourth_root(steep: float, norm4: Tensor, variance: Tensor) -> Tensor:
    r"""With a copy X' of X, E (phi - E phi)^4 <= E (phi(X) - phi(X'))^4 / 2 <= L^4 (E (X - E X)^4 + 3 Var^2 X)."""
    return steep * (norm4**4 + 3 * variance.square()).sqrt().sqrt() * UP


def activated_signal(phi: Activation, z: Signal, x: Pre, found: Planes) -> tuple[Signal, Linearised]:
    """The same for an activation on a signal: what was independent stays so, the Lipschitz constant bounds moments."""
    steep = phi.shape.steepest
    each = z.noise.upper.square() + z.noise_deviation.square()
    noise = steep**2 * z.noise.upper * UP
    noise_fourth = steep**4 * (z.noise_fourth.upper + 3 * each) * UP
    third = noise.sqrt() * noise_fourth.sqrt() * UP
    signal = Signal(
        mean=found.range,
        variance=steep**2 * z.variance * UP,
        norms=2 * steep * z.norms * UP,
        noise=Interval(torch.zeros_like(noise), noise),
        noise_deviation=steep**2 * each.sqrt() * UP,
        third=Interval(-third, third),
        third_size=third,
        noise_fourth=Interval(torch.zeros_like(noise), noise_fourth),
        fixed=z.fixed,
        source=z.source,
    )
    middle = (0.5 * x.mean.lower + 0.5 * x.mean.upper).clamp(x.mean.lower, x.mean.upper)
    slope = phi.slope(middle, x.mean_variance.sqrt()).clamp(*phi.shape.slopes)
    return signal, Linearised(steep, slope, noise, rests_on_signal(phi, x, slope), x)
