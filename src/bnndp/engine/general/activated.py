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
from bnndp.engine.general.activation_planes import Planes
from bnndp.engine.general.central_range import central_range, variance_range
from bnndp.engine.general.expectation import Around, fluctuation
from bnndp.engine.general.given import Given, given_input, middle_of, noise_given_input
from bnndp.engine.general.hinge_square import hinge_square
from bnndp.engine.general.joint_activated import joint_of
from bnndp.engine.general.joint_gaussian import Near
from bnndp.engine.general.powers import Powers, hinge_slopes, powers
from bnndp.engine.general.remainders import Rests, central_rest, moved_by_spread, rests, rests_on_signal
from bnndp.engine.general.second_moment import second_moment, variance_of
from bnndp.engine.general.signal import CENTRED, GAUSSIAN, Kernel, Pre, Signal, SquareNoise
from bnndp.geometry.bounds import Interval
from bnndp.maths.rounding import TINY, UP

__all__ = ["Linearised", "Outline", "activated", "activated_signal", "outline"]

_SLOPE = 1e-9  # error granted to a slope
_ROOT3, _ROOT15 = math.sqrt(3) * (1 + 1e-15), math.sqrt(15) * (1 + 1e-15)


_APART = math.sqrt(2) * (1 + 1e-15)  # of the deviation: how far independent variables are


@dataclass(frozen=True, slots=True)
class SquareLine:
    """E[z_i^2 | y] = p_i m_i + rest: what sums of squares need; (batch, n) each."""

    slope: Tensor  # p
    rest: Tensor  # standard deviation of the rest
    given: Tensor  # root of E Var(z_i^2 | y)
    norms: Tensor  # (batch, n, 2): ||E[z_i^2 | y] - E z_i^2||_q for q = 4, 8
    given_norms: Tensor  # (batch, n, 2): ||z_i^2 - E[z_i^2 | y]||_q
    deviations: Tensor  # (batch, n, 2): the norm in Lq of the standard deviation of z_i^2 given y
    rest_norms: Tensor | None  # (batch, n, 2): norms of the rest for q = 4, 8, where they may be less than all


@dataclass(frozen=True, slots=True)
class Linearised:
    """z_i = p_i X_i + rest: what the variance of rows needs; (batch, n) each."""

    steepest: float  # Lipschitz constant of the activation
    slope: Tensor  # p
    noise: Tensor  # E Var(z_i | Y), at most
    rest: Rests
    square: SquareLine | None


@dataclass(frozen=True, slots=True)
class Line:
    """E[z_i | y] = p_i m_i + rest; (batch, n) each."""

    slope: Tensor  # p
    rest: Tensor  # standard deviation of the rest


@dataclass(frozen=True, slots=True)
class Outline:
    """The second moments of z that a variance of outputs needs, and no more: (batch, n) each."""

    mean: Interval
    variance: Tensor  # Var z, at most
    noise: Tensor  # E Var(z | y), at most
    fixed: bool = False
    line: Line | None = None  # unless the slopes of E[z | y] say more


def outline(phi: Activation, x: Pre, near: Around, found: Planes, *, by_slopes: bool) -> Outline:
    """For outputs that are independent given y; a fraction of the cost of :func:`activated`.

    ``by_slopes`` if rows of E[z | y] are bounded by ``efron_stein.py``.
    """
    if x.fixed:
        most = variance_range(phi, x.mean, Interval(x.spread.lower.sqrt(), x.spread.upper.sqrt() * UP)).upper * UP
        most = torch.minimum(most, phi.shape.steepest**2 * x.spread.upper * UP)
        return Outline(found.range, most, most)
    total, noise = variance_of(phi, x, near).upper, noise_given_input(phi, x)
    variance, noise = torch.fmin(total, phi.shape.steepest**2 * x.variance * UP), torch.fmin(noise, total)
    if by_slopes:
        return Outline(found.range, variance, noise)
    _, s0 = middle_of(x)
    slope = _slope(phi, x.mean, (s0 + x.mean_variance).sqrt())
    rest = central_rest(phi, x, slope)
    deviation = _central_deviation(phi, x, slope, rest, s0.sqrt())
    variance = torch.fmin(variance, (noise + deviation.square()) * UP)
    return Outline(found.range, variance, noise, line=Line(slope, rest))


def activated(
    phi: Activation, x: Pre, near: Around, found: Planes, *, joint: Callable[[], Near | None] | None = None
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
        found_jointly = joint_of(phi, x, covariances, signal.mean, variance, linear.rest.given)
        signal = replace(signal, joint=found_jointly)
    return signal, linear


def _of_gaussian(phi: Activation, x: Pre, found: Planes, *, closely: bool) -> tuple[Signal, Linearised]:
    """X is Gaussian: its values after the activation are independent, with known moments."""
    steep, gaussian = phi.shape.steepest, x.spread_norms.new_tensor(GAUSSIAN)
    at = central_range(phi, x.mean, Interval(x.spread.lower.sqrt(), x.spread.upper.sqrt() * UP))
    top = steep**2 * x.spread.upper * UP
    noise = Interval(at.variance.lower.minimum(top), torch.minimum(at.variance.upper * UP, top))
    slope = _slope(phi, x.mean, (0.5 * (x.spread.lower + x.spread.upper)).sqrt())
    rest, zero = rests(phi, x, slope, noise.upper, closely=closely), torch.zeros_like(top)
    noisy = x.spread_norms * gaussian
    norms = torch.minimum(steep * noisy, slope.abs()[..., None] * noisy + rest.norms)
    norms = torch.minimum(norms, torch.stack([at.fourth.upper.sqrt().sqrt(), at.norm8, at.norm16], -1)) * UP
    signal = Signal(
        mean=found.range,
        variance=noise.upper,
        variance_low=noise.lower,
        norms=norms,
        inner=torch.zeros_like(norms),
        given=norms,
        deviations=noise.upper.sqrt()[..., None].expand_as(norms),
        roughness=torch.minimum(2 * rest.given, _APART * noise.upper.sqrt()) * UP,
        noise=noise,
        noise_deviation=zero,
        third=at.third,
        third_deviation=zero,
        noise_fourth=Interval(at.fourth.lower, torch.minimum(at.fourth.upper, 3 * top.square() * UP)),
        fixed=bool((x.spread.upper == 0).all()),
        source=True,
        kernel=_kernel(phi, noise, top),
        convex=phi.shape.convex,
    )
    return signal, Linearised(steep, slope, noise.upper, rest, None)


def _slope(phi: Activation, mean: Interval, root: Tensor) -> Tensor:
    """The middle of the slopes at the ends of the range of the mean."""
    return (0.5 * (phi.slope(mean.lower, root) + phi.slope(mean.upper, root))).clamp(*phi.shape.slopes)


def _kernel(phi: Activation, variance: Interval, top: Tensor) -> Kernel:
    r"""Of :math:`z=\varphi(\zeta)`, :math:`\zeta` Gaussian with density p and variance r^2; ``top`` >= L^2 r^2.

    For an increasing :math:`\varphi` with :math:`\varphi(z_0)=\mu=\mathbb Ez`, by Cauchy and Schwarz
    :math:`(f(\varphi(t))-f(\mu))^2\le(\varphi(t)-\mu)\int_{z_0}^tf'(\varphi)^2\varphi'`, so that
    :math:`\operatorname{Var}f(z)\le\mathbb E\tau f'(z)^2` with :math:`\tau=\varphi'H/p`,
    :math:`H(s)=\operatorname{Cov}(\varphi(\zeta),1_{\zeta>s})` (Klaassen 1985).
    :math:`\mathbb E\tau=\operatorname{Var}z`: take f(z) = z. As :math:`H(s)=\int\varphi'(t)\operatorname{Cov}(
    1_{\zeta>t},1_{\zeta>s})dt\le L\operatorname{Cov}(\zeta,1_{\zeta>s})=Lr^2p(s)`,
    :math:`0\le\tau\le L^2r^2`, and Var tau <= E tau (L^2 r^2 - E tau) (Bhatia and Davis 2000). For any other
    :math:`\varphi` tau is :math:`r^2\varphi'^2`, by Poincare's inequality.
    """
    low, high = phi.shape.slopes
    if low < 0 < high:
        return Kernel(top, torch.zeros_like(top))
    worst = torch.minimum(torch.maximum(0.5 * top, variance.lower), variance.upper)
    return Kernel(variance.upper, (worst * (top - worst).clamp_min(0)).sqrt() * UP)


def _of_mixture(phi: Activation, x: Pre, near: Around, found: Planes) -> tuple[Signal, Linearised]:
    """X is Gaussian given y: averages over y of its moments after the activation."""
    shape, given, total, raw = phi.shape, given_input(phi, x), variance_of(phi, x, near), powers(phi, x)
    if raw is not None:
        given = _given_powers(given, raw)
    middle, s0 = middle_of(x)
    root, steep = s0.sqrt(), shape.steepest
    slope = _slope(phi, x.mean, (s0 + x.mean_variance).sqrt())  # nearly E phi'(X)
    rest = rests(phi, x, slope, phi.central(middle, root).variance.upper)
    deviation = _central_deviation(phi, x, slope, rest.central, root)
    gaussian, centred = x.spread_norms * x.norms.new_tensor(GAUSSIAN), x.norms.new_tensor(CENTRED)
    moved = centred * (steep * x.norms + moved_by_spread(phi, x, root, norms=True))
    inner = torch.minimum(slope.abs()[..., None] * x.norms + rest.central_norms, moved)  # ||h - E h||_q
    noisy = torch.minimum(given.norms, slope.abs()[..., None] * gaussian + rest.norms)  # ||z - h||_q
    noisy[..., 0] = torch.minimum(noisy[..., 0], given.fourth_mean.sqrt().sqrt())
    norms = torch.minimum(noisy + inner, centred * steep * x.total_norms) * UP
    norms[..., 0] = torch.minimum(norms[..., 0], _fourth_root(steep, x.total_norms[..., 0], x.variance))
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
        roughness=torch.minimum(2 * rest.given, _APART * noise.upper.sqrt()) * UP,
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
    line = _square_line(phi, x, signal, square * UP, given.fourths)
    line = line if raw is None else _with_powers(line, signal, raw)
    size, norm4 = line.deviations[..., 0].square(), line.given_norms[..., 0]
    signal = replace(signal, squares=SquareNoise(line.given.square() * UP, size * UP, norm4))
    return signal, Linearised(steep, slope, noise.upper, rest, line)


def _central_deviation(phi: Activation, x: Pre, slope: Tensor, rest: Tensor, root: Tensor) -> Tensor:
    """Standard deviation of E[z | y]: by the line and what it leaves, or by the Lipschitz constant."""
    sd = x.mean_variance.sqrt()
    return torch.minimum(slope.abs() * sd + rest, phi.shape.steepest * sd + moved_by_spread(phi, x, root)) * UP


def _square_line(phi: Activation, x: Pre, z: Signal, given: Tensor, fourths: Tensor) -> SquareLine:
    r"""A line in m for :math:`q=\mathbb E[z^2\mid y]=F(m,s)`, and the standard deviation of what it leaves.

    Taylor at the middle (m_0, s_0) of the box, with :math:`\tau=m-m_0`, :math:`\delta=s-s_0`: F_m and F_mm are central
    differences, :math:`F_s=\tfrac12F_{mm}`, and the rest is at most :math:`\tfrac16|F_{mmm}\tau^3|+
    \tfrac12|F_{mmm}\tau\delta|` and what ``fluctuation`` says of :math:`\delta^2`. Or the line is zero, and
    :math:`\lVert q\rVert_2\le\lVert z\rVert_4^2`.
    """
    shape = phi.square
    middle, half = 0.5 * (x.mean.lower + x.mean.upper), 0.5 * (x.mean.upper - x.mean.lower) * UP
    s0, sd = 0.5 * (x.spread.lower + x.spread.upper), x.mean_variance.sqrt()
    root, wide = s0.sqrt(), 0.5 * (x.spread.upper - x.spread.lower) * UP
    all_of_it = torch.minimum((z.mean.magnitude + z.norms[..., 0]).square(), z.square_deviation) * UP
    h = 0.1 * root.clamp_min(TINY)
    values = [second_moment(phi, middle + k * h, root) for k in (-1, 0, 1)]
    left, at, right = (0.5 * (value.lower + value.upper) for value in values)
    error = torch.stack([0.5 * (value.upper - value.lower) for value in values]).amax(0)
    third = shape.derivative(3, x.spread.lower.sqrt())
    slope, off = 0.5 * (right - left) / h, error / h + h.square() / 6 * third
    bend = (right - 2 * at + left).abs() / h.square() + 4 * error / h.square() + h / 3 * third  # |F_mm| at the middle
    most = max(shape.bend_up, shape.bend_down)
    bend = bend.clamp_max(most)
    tau, delta, sd_s = x.norms[..., 0], wide + x.spread_deltas[..., 0], wide + x.spread_deviation
    fine = 0.5 * bend * sd_s + 0.5 * third * (half + tau) * delta + fluctuation(shape, x.spread.lower, delta)
    plain = torch.full_like(sd, torch.inf) if most == math.inf else 0.5 * most * sd_s
    rest = off * sd + bend * half * sd + 0.5 * bend * tau.square() + torch.fmin(fine, plain)
    rest = rest + third * (half + tau) * (half + x.norms[..., 1]).square() / 6
    size = (z.mean.magnitude[..., None] + z.inner)[..., 1:]  # ||h||_2q
    centred = size.new_tensor(CENTRED[:2])
    given_norms = 2 * z.given[..., 1:] * size + centred * z.given[..., 1:].square()
    deviations = 2 * (z.mean.magnitude[..., None] * z.deviations[..., :2] + z.inner[..., 1:] * z.deviations[..., 1:])
    deviations = torch.fmin(deviations + fourths.square(), given_norms)  # A (2 h + A)
    norms = centred * (z.mean.magnitude[..., None] + z.norms[..., 1:]).square()  # ||z^2||_q
    if most < math.inf:
        wider = (half[..., None] + x.norms[..., 1:]).square() + (wide[..., None] + x.spread_deltas)
        norms = torch.fmin(
            norms, (slope.abs() + off + bend * half)[..., None] * x.norms[..., :2] + 0.5 * most * centred * wider
        )
    finer = _hinge_rests(phi, x)
    rest_norms = None
    if finer is not None:
        rest = torch.fmin(rest, off * sd + finer[0])
        rest_norms = off[..., None] * x.norms[..., :2] + torch.stack(finer[1:], -1)
        norms = torch.fmin(norms, slope.abs()[..., None] * x.norms[..., :2] + rest_norms)
    better = rest + slope.abs() * sd < all_of_it  # false for NaN
    return SquareLine(
        torch.where(better, slope, 0.0),
        torch.where(better, rest, all_of_it) * UP,
        given,
        norms * UP,
        given_norms * UP,
        deviations * UP,
        None if rest_norms is None else torch.where(better[..., None], rest_norms, norms) * UP,
    )


def _hinge_rests(phi: Activation, x: Pre) -> tuple[Tensor, ...] | None:
    r"""Norms in L2, L4 and L8 of :math:`\mathbb E[z^2\mid y]` less its line in m at the middle, for a hinge at zero.

    :math:`z^2=a^2X^2+(b^2-a^2)X_+^2` with the slopes a and b: of :math:`m^2+s` the line leaves :math:`\tau^2` and what
    s moves, of the other mean what ``hinge_square.py`` says.
    """
    slopes = hinge_slopes(phi)
    if slopes is None:
        return None
    known, (left, right) = hinge_square(x), (slope**2 for slope in slopes)
    jump, half = abs(right - left), 0.5 * (x.mean.upper - x.mean.lower) * UP
    in_s = left + max(right - left, 0.0) * known.slope
    deltas = (x.spread_deviation, *x.spread_deltas.unbind(-1))
    return tuple(
        (in_s * delta + factor * (jump * rest + left * (half + tau).square())) * UP
        for delta, rest, tau, factor in zip(deltas, known.rests, x.norms.unbind(-1), (1.0, *CENTRED[:2]), strict=True)
    )


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


def _with_powers(line: SquareLine, z: Signal, raw: Powers) -> SquareLine:
    r"""The same with raw moments of z.

    :math:`\mathbb E\operatorname{Var}(z^2\mid y)\le\mathbb Ez^4-(\mathbb Ez^2)^2`. A variable that is not negative
    has norms no smaller than those of its centred part: with mean one, :math:`|y-1|^q+y-1\le y^q` for y >= 0, q >= 2.
    """
    least = (raw.fourth - z.second.lower.square() / UP).clamp_min(0)
    return replace(
        line,
        given=torch.fmin(line.given, least.sqrt() * UP),
        given_norms=torch.fmin(line.given_norms, raw.norms.square() * UP),
        deviations=torch.fmin(line.deviations, raw.fourth_norms.sqrt() * UP),
    )


def _fourth_root(steep: float, norm4: Tensor, variance: Tensor) -> Tensor:
    r"""With a copy X' of X, E (phi - E phi)^4 <= E (phi(X) - phi(X'))^4 / 2 <= L^4 (E (X - E X)^4 + 3 Var^2 X)."""
    return steep * (norm4**4 + 3 * variance.square()).sqrt().sqrt() * UP


def activated_signal(phi: Activation, z: Signal, x: Pre, found: Planes) -> tuple[Signal, Linearised]:
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
    slope = _slope(phi, x.mean, x.mean_variance.sqrt())
    return signal, Linearised(steep, slope, noise, rests_on_signal(phi, x, slope), None)
