r"""Moments of :math:`z=\varphi(X)`, and the parts of z that its variance along any direction needs.

Given the signal y below, X_i is Gaussian; :math:`h_i=\mathbb E[z_i\mid y]=G(m_i,\sqrt{s_i})`. A Lipschitz function of a
Gaussian is dominated in convex order by the constant times it. ``given.py`` has the moments given y, and
``second_moment.py`` the variance of z.

z is taken apart as :math:`p_iX_i+\rho_i` with a constant slope p; ``remainders.py`` bounds what is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bnndp.activations.activation import Activation
from bnndp.engine.inequalities.central_range import central_range
from bnndp.engine.inequalities.expectation import ExpectationBounds
from bnndp.engine.inequalities.given import Given, given_input, middle_of
from bnndp.engine.inequalities.joint.activation import joint_of
from bnndp.engine.inequalities.kernel import kernel_of
from bnndp.engine.inequalities.mean_line import central_std, slope_of
from bnndp.engine.inequalities.powers import Powers, hinge_slopes, powers
from bnndp.engine.inequalities.remainders import Remainders, moved_by_spread, remainders, remainders_on_signal
from bnndp.engine.inequalities.second_moment import variance_of
from bnndp.engine.inequalities.square_line import SquareLine, square_line, with_powers
from bnndp.engine.moments.joint_gaussian import Near
from bnndp.engine.moments.pre_activation import PreActivation
from bnndp.engine.moments.signal import CENTRED, GAUSSIAN, Signal, SquareNoise
from bnndp.engine.planes.mean import Planes
from bnndp.geometry.bounds import Interval
from bnndp.maths.rounding import UP

__all__ = ["Linearised", "activated", "activated_signal"]

_APART = math.sqrt(2) * (1 + 1e-15)  # of the deviation: how far independent variables are


@dataclass(frozen=True, slots=True)
class Linearised:
    """z_i = p_i X_i + remainder: what the variance of rows needs; (batch, n) each."""

    steepest: float  # Lipschitz constant of the activation
    slope: Tensor  # p
    noise: Tensor  # E Var(z_i | Y), at most
    remainder: Remainders
    square: SquareLine | None
    hinge: tuple[float, float] | None = None  # the slopes of a hinge with its kink at zero


def activated(
    phi: Activation,
    x: PreActivation,
    near: ExpectationBounds,
    found: Planes,
    *,
    joint: Callable[[], Near | None] | None = None,
) -> tuple[Signal, Linearised]:
    """The signal after the activation; ``joint`` gives the covariances of X given y, where it is not independent."""
    if x.fixed:
        signal, linear = _of_gaussian(phi, x, found, closely=joint is not None)
    else:
        signal, linear = _of_mixture(phi, x, near, found)
    if joint is None or signal.fixed:
        return signal, linear
    covariances, variance = joint() if x.fixed else None, Interval(signal.variance_low, signal.variance)
    signal = signal.without_history()
    if covariances is not None:
        found_jointly = joint_of(phi, x, covariances, signal.mean, variance, linear.remainder.given)
        signal = replace(signal, joint=found_jointly)
    return signal, linear


def _of_gaussian(phi: Activation, x: PreActivation, found: Planes, *, closely: bool) -> tuple[Signal, Linearised]:
    """X is Gaussian: its values after the activation are independent, with known moments."""
    steep, gaussian = phi.shape.steepest, x.spread_norms.new_tensor(GAUSSIAN)
    at = central_range(phi, x.mean, Interval(x.spread.lower.sqrt(), x.spread.upper.sqrt() * UP))
    top = steep**2 * x.spread.upper * UP
    noise = Interval(at.variance.lower.minimum(top), torch.minimum(at.variance.upper * UP, top))
    slope = slope_of(phi, x.mean, (0.5 * (x.spread.lower + x.spread.upper)).sqrt())
    remainder, zero = remainders(phi, x, slope, noise.upper, closely=closely), torch.zeros_like(top)
    noisy = x.spread_norms * gaussian
    norms = torch.minimum(steep * noisy, slope.abs()[..., None] * noisy + remainder.norms)
    norms = torch.minimum(norms, torch.stack([at.fourth.upper.sqrt().sqrt(), at.norm8, at.norm16], -1)) * UP
    signal = Signal(
        mean=found.range,
        variance=noise.upper,
        variance_low=noise.lower,
        norms=norms,
        inner=torch.zeros_like(norms),
        given=norms,
        deviations=noise.upper.sqrt()[..., None].expand_as(norms),
        roughness=torch.minimum(2 * remainder.given, _APART * noise.upper.sqrt()) * UP,
        noise=noise,
        noise_deviation=zero,
        third=at.third,
        third_deviation=zero,
        noise_fourth=Interval(at.fourth.lower, torch.minimum(at.fourth.upper, 3 * top.square() * UP)),
        fixed=bool((x.spread.upper == 0).all()),
        source=True,
        kernel=kernel_of(phi, noise, top),
        convex=phi.shape.convex,
    )
    return signal, Linearised(steep, slope, noise.upper, remainder, None)


def _of_mixture(phi: Activation, x: PreActivation, near: ExpectationBounds, found: Planes) -> tuple[Signal, Linearised]:
    """X is Gaussian given y: averages over y of its moments after the activation."""
    given, total, raw = given_input(phi, x), variance_of(phi, x, near), powers(phi, x)
    if raw is not None:
        given = _given_powers(given, raw)
    middle, s0 = middle_of(x)
    root, steep = s0.sqrt(), phi.shape.steepest
    slope = slope_of(phi, x.mean, (s0 + x.mean_variance).sqrt())  # nearly E phi'(X)
    remainder = remainders(phi, x, slope, phi.central(middle, root).variance.upper)
    deviation = central_std(phi, x, slope, remainder.central, root)
    norms, inner, noisy = _mixture_norms(phi, x, given, slope, remainder)
    noise = Interval(
        torch.fmax(given.noise.lower, (total.lower - deviation.square() * UP) / UP),
        torch.fmin(given.noise.upper, total.upper),
    )
    variance = torch.minimum(noise.upper + deviation.square(), steep**2 * x.variance) * UP
    least = noise.lower.clamp_min(0).square() / UP  # of the fourth moment
    least = least if given.fourth_least is None else torch.fmax(least, given.fourth_least)
    deviations = torch.fmin(given.deviations, noisy * UP)
    second = (noise.upper.square() + given.noise_deviation.square()).sqrt().sqrt() * UP  # ||Var(z | y)||_2^(1/2)
    deviations[..., 0] = torch.fmin(deviations[..., 0], second)
    # ||sd(z^2 | y)||_2 with A = z - h: A (2 h + A) less its mean
    square = 2 * found.range.magnitude * noise.upper.sqrt() + given.fourth_mean.sqrt()
    square = square + 2 * inner[..., 0] * second
    signal = Signal(
        mean=found.range,
        variance=torch.fmin(variance, total.upper),
        variance_low=torch.fmax(noise.lower, total.lower),
        norms=norms,
        inner=inner * UP,
        given=noisy * UP,
        deviations=deviations,
        roughness=torch.minimum(2 * remainder.given, _APART * noise.upper.sqrt()) * UP,
        noise=noise,
        noise_deviation=given.noise_deviation,
        third=given.third,
        third_deviation=given.third_deviation,
        noise_fourth=Interval(least, given.fourth),
        fixed=False,
        source=False,
        excess=given.excess,
        convex=phi.shape.convex,
    )
    line = square_line(phi, x, signal, square * UP, given.fourths)
    line = line if raw is None else with_powers(line, signal, raw)
    size, norm4 = line.deviations[..., 0].square(), line.given_norms[..., 0]
    signal = replace(signal, squares=SquareNoise(line.given.square() * UP, size * UP, norm4))
    return signal, Linearised(steep, slope, noise.upper, remainder, line, hinge_slopes(phi))


def _mixture_norms(
    phi: Activation, x: PreActivation, given: Given, slope: Tensor, remainder: Remainders
) -> tuple[Tensor, Tensor, Tensor]:  # (batch, n, q) each
    """Norms of z - E z, of h - E h and of z - h, h = E[z | y]."""
    steep, root = phi.shape.steepest, middle_of(x)[1].sqrt()
    gaussian, centred = x.spread_norms * x.norms.new_tensor(GAUSSIAN), x.norms.new_tensor(CENTRED)
    moved = centred * (steep * x.norms + moved_by_spread(phi, x, root, norms=True))
    inner = torch.minimum(slope.abs()[..., None] * x.norms + remainder.central_norms, moved)
    noisy = torch.minimum(given.norms, slope.abs()[..., None] * gaussian + remainder.norms)
    noisy[..., 0] = torch.minimum(noisy[..., 0], given.fourth_mean.sqrt().sqrt())
    norms = torch.minimum(noisy + inner, centred * steep * x.total_norms) * UP
    norms[..., 0] = torch.minimum(norms[..., 0], _fourth_root(steep, x.total_norms[..., 0], x.variance))
    return norms, inner, noisy


def _given_powers(given: Given, raw: Powers) -> Given:
    """Moments of z less its mean given y, from those of z: no larger if z is not negative, else by ``CENTRED``."""
    factor = 1.0 if raw.positive else CENTRED[0] ** 4
    norms = torch.cat([given.norms[..., :1], torch.fmin(given.norms[..., 1:], raw.centred_norms)], -1)
    return replace(
        given,
        fourth_mean=torch.fmin(given.fourth_mean, factor * raw.fourth * UP),
        fourth=torch.fmin(given.fourth, factor * raw.fourth_norms[..., 0] * UP),
        norms=norms,
    )


def _fourth_root(steep: float, norm4: Tensor, variance: Tensor) -> Tensor:
    r"""With a copy X' of X, E (phi - E phi)^4 <= E (phi(X) - phi(X'))^4 / 2 <= L^4 (E (X - E X)^4 + 3 Var^2 X)."""
    return steep * (norm4**4 + 3 * variance.square()).sqrt().sqrt() * UP


def activated_signal(phi: Activation, z: Signal, x: PreActivation, found: Planes) -> tuple[Signal, Linearised]:
    """The same for an activation on a signal: what was independent stays so, the Lipschitz constant bounds moments."""
    steep = phi.shape.steepest
    each = z.noise.upper.square() + z.noise_deviation.square()
    noise = steep**2 * z.noise.upper * UP
    noise_fourth = steep**4 * (z.noise_fourth.upper + 3 * each) * UP
    third, norms = noise.sqrt() * noise_fourth.sqrt() * UP, z.norms.new_tensor(CENTRED) * steep * z.norms * UP
    inner = torch.zeros_like(norms) if z.source else norms
    signal = Signal(
        mean=found.range,
        variance=steep**2 * z.variance * UP,
        variance_low=torch.zeros_like(noise),
        norms=norms,
        inner=inner,
        given=norms if z.source else z.norms.new_tensor(CENTRED) * steep * z.given * UP,
        deviations=steep * z.deviations * UP,
        roughness=_APART * noise.sqrt() * UP,
        noise=Interval(torch.zeros_like(noise), noise),
        noise_deviation=steep**2 * each.sqrt() * UP,
        third=Interval(-third, third),
        third_deviation=torch.zeros_like(third) if z.source else third,
        noise_fourth=Interval(torch.zeros_like(noise), noise_fourth),
        fixed=z.fixed,
        source=z.source,
    )
    slope = slope_of(phi, x.mean, x.mean_variance.sqrt())
    return signal, Linearised(steep, slope, noise, remainders_on_signal(phi, x, slope), None)
