r"""The mean of a hidden layer given the layer before it, taken apart (docs/theory.md, section 4.12).

:math:`h_i=g(m_i,\sqrt{s_i})` is written with constants :math:`p_i,\psi_i,\kappa_i,s_{0,i}` and the centre :math:`M_i`
of the range of the mean as

.. math:: h_i=\text{const}+p_im_i+\psi_is_i+\tfrac12\kappa_i(m_i-\mathbb Em_i)^2+\text{slope rest}+\text{spread rest},

so that the variance of a combination of the :math:`h_i` is a variance of linear and quadratic forms of the layer
before, plus rests.

*Slope rest*, of the function :math:`g(m,\sqrt{s_0})`. First order (:math:`\kappa=0`): its derivative differs from p
by :math:`\delta=\Phi(m/\sqrt{s_0})-p`. Second order (second layer only): p and :math:`\kappa` are the derivatives at
M, and the rest is at most :math:`\varphi(1)|m-M|^3/(6s_0)`. Each neuron takes what is smaller.

*Spread rest*. First order: :math:`|g(m,\sqrt s)-g(m,\sqrt{s_0})-\psi(s-s_0)|\le\psi|s-s_0|` for
:math:`\psi=\varphi(0)/(2\sqrt{s_0})`. Second order: for :math:`\psi=\partial_sg(M,\sqrt{s_0})` it is at most
:math:`\varphi(1)|m-M||s-s_0|/(2s_0)+K(s-s_0)^2/s_0^{3/2}`.

A neuron that is hardly ever active goes whole into the spread rest, with :math:`\sqrt{\mathbb Ez^2}` as its deviation.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bnndp.engine.chunks import by_chunks, indices_of
from bnndp.engine.dense.rare_neurons import Stability, slope_square, stability
from bnndp.engine.dense.records import Energy, Latent, PreActivation, Sources
from bnndp.engine.dense.slope import Slope, slope
from bnndp.errors import UnsupportedLayerError
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import apply_rows
from bnndp.maths.normal import cdf, pdf
from bnndp.maths.rectified import ratio, standard_variance
from bnndp.maths.rounding import ELEMENTARY, TINY, UP
from bnndp.maths.tails import HALF_PEAK, MEAN_BELOW, MEAN_MIXED, excess, shortfall

__all__ = ["Beyond", "Conditional", "Gradients", "Layers", "Through", "conditional"]

_VARIANCE_CURVATURE = 0.1439  # half of sup |d^2/dm^2 Var ReLU(N(m, s))|
_VARIANCE_SLOPE = 0.4347  # sup |d/dm Var ReLU(N(m, s))| / sqrt(s)
_THIRD = MEAN_MIXED / 3  # sup |d^3 g / dm^3| s / 6
_SLOPE_IN_S = 0.51  # sup |Phi(m / sqrt s) - Phi(m / sqrt s0)| s0 / |s - s0|
_LIPSCHITZ_8 = 2 * math.factorial(4) * 2**4  # E (F - E F)^8 <= this L^8, from the Gaussian tails of a Lipschitz F
_SHARES, _TIMES = (0.3, 0.5, 0.7), (1.0, 2.0, 4.0)  # reaches tried: of the distance to zero, of the L8 norm


@dataclass(frozen=True, slots=True)
class Through:
    """How the sources of the first layer reach the second: what the Poincare inequality and quadratic forms need."""

    top: Tensor  # (batch, 1): largest eigenvalue of A scaled to a unit diagonal, at most; of the neurons it is for
    rare: Tensor  # (batch, sources): r_j^2 P(active) of the rare sources, 0 for the others
    curved: Tensor  # (batch, k) of integers: the neurons with a curvature, and perhaps some without
    gram: Tensor  # (batch, k, k): Cov(m_i, m_k) of these squared, an upper bound of each entry of a PSD matrix
    kurtosis: Tensor  # (batch, sources): fourth central moment less three squared variances, at most, at least 0


@dataclass(frozen=True, slots=True)
class Gradients:
    """How E[z_i | before] and E[z_i^2 | before] of the second layer move with the sources; (batch, n) each."""

    square_usual: Tensor  # sd of E[z_i^2 | before] through its slope, without rare sources
    square_extra: Tensor  # what rare sources and the spread add to it
    centre: Tensor  # a constant p_i
    delta: Tensor  # the L8 norm of Phi(m_i / sqrt(s_i)) - p_i, at most
    widest: Tensor  # |Phi - p_i| is at most this
    density: Tensor  # the L8 norm of phi(m_i / sqrt(s_i)), at most
    active_spread: Tensor  # the L4 norm of s_i 1[X_i > 0], at most


@dataclass(frozen=True, slots=True)
class Beyond:
    """What only a further hidden layer asks for; (batch, n) each."""

    noise_deviation: Tensor  # standard deviation of Var(z_i | before), at most
    cube: Tensor  # sqrt(E Var(z_i | before) E s_i^2) or 2 E z_i^3: the mean third central moment is below 0.5777 of it
    gradients: Gradients | None  # only for the second layer


@dataclass(frozen=True, slots=True)
class Conditional:
    """The parts of the module docstring; (batch, n) each."""

    noise: Interval  # E Var(z_i | before)
    slope: Tensor  # p_i
    psi: Tensor  # psi_i
    curvature: Tensor  # kappa_i, zero where the slope rest is of first order
    slope_rest: Tensor  # first order in the second layer: sqrt(A_ii E delta_i^2), zero where of second order
    largest: Tensor  # sup |delta_i| of first order; zero where of second order
    plain_rest: Tensor  # standard deviations that can only be added: spread rest, slope rest otherwise
    through: Through | None  # only for the second layer
    further: Beyond | None = None  # only if asked for

    @property
    def beyond(self) -> Beyond:
        """What a further hidden layer asks for."""
        if self.further is None:
            raise UnsupportedLayerError(
                "a layer above was not told that it has one above it; a bug of the moment method."
            )
        return self.further


Layers = list[tuple[PreActivation, Conditional]]


def conditional(
    before: PreActivation,
    mean: Interval,
    latent: Latent,
    below: Latent,
    sources: Sources | None,  # only if ``before`` is the second hidden layer
    *,
    last: bool = False,  # no hidden layer follows
) -> Conditional:
    """Take the layer ``before`` apart."""
    noise, at = _noise(before, mean, latent), slope(before, mean)
    parts = _deep_parts(before, mean, at) if sources is None else _second_layer_parts(before, mean, latent, at)
    p, curvature, slope_rest, largest, plain = parts
    psi, spread_rest = _spread_rest(before, mean)
    plain = plain + spread_rest
    gradients = None
    if sources is not None and not last:
        latent = replace(latent, activity=_activity(before, mean, latent, at))
        sd = (
            p * before.mean_variance.sqrt()
            + psi * before.spread_variance.sqrt()
            + 0.5 * curvature * before.fourth.sqrt()
        )
        sd = sd + slope_rest + largest * _rare_deviation(before) + plain  # of h_i
        square = torch.minimum(latent.mean.upper.square() + sd.square(), latent.second.upper) * UP  # E h_i^2
        gradients = _gradients(before, mean, below, sources, latent, square, at)
    whole = latent.second.upper.sqrt()  # sd of E[z_i | before], whatever its shape
    rare = whole < slope_rest + plain
    p, psi, curvature, slope_rest, largest = (
        torch.where(rare, 0.0, part) for part in (p, psi, curvature, slope_rest, largest)
    )
    return Conditional(
        noise, p, psi, curvature, slope_rest, largest, torch.where(rare, whole, plain) * UP,
        through=None if sources is None else _through(before, sources, curvature, slope_rest if last else None),
        further=None if last else _beyond(before, latent, noise, gradients),
    )  # fmt: skip


def _beyond(before: PreActivation, latent: Latent, noise: Interval, gradients: Gradients | None) -> Beyond:
    third = (latent.second.upper * latent.fourth).sqrt()  # E z^3
    cube = torch.minimum((noise.upper * (before.spread.upper.square() + before.spread_variance)).sqrt(), 2 * third)
    deviation = _noise_deviation(before, latent)
    if gradients is not None:
        deviation = torch.minimum(deviation, gradients.square_usual + gradients.square_extra)
    return Beyond(deviation, cube, gradients)


def _deep_parts(before: PreActivation, mean: Interval, at: Slope) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Slope, curvature, rest of first order, largest delta, plain rest where the sources are out of reach."""
    p = at.centre
    rest = torch.maximum(p, 1 - p) * before.mean_variance.sqrt()  # g(m) - p m is Lipschitz in m with this constant
    p, rest = _near(before, mean, p, rest)
    zero = torch.zeros_like(p)
    return p, zero, zero, zero, rest * UP


def _near(before: PreActivation, mean: Interval, p: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
    r"""Slope and rest, the best of those given and of :math:`\delta\sqrt{V_m}+L\|T\|_8^4/\rho^3`.

    Where :math:`|T|=|m-M|\le\rho` the slope of :math:`g(m,\sqrt{s_0})` stays between its values at the ends of the
    range of M, moved out by :math:`\rho`, so it is within :math:`\delta` of their middle p; elsewhere
    :math:`T^2\le T^8/\rho^6` and the slope is within L = max(p, 1 - p).
    """
    root = before.spread.upper.clamp_min(TINY).sqrt()
    sd = before.mean_variance.sqrt()
    distance = torch.maximum(mean.lower, -mean.upper).clamp_min(0)
    for reach in (*(share * distance for share in _SHARES), *(times * before.norm8 for times in _TIMES)):
        low, high = cdf(ratio(mean.lower - reach, root)), cdf(ratio(mean.upper + reach, root))
        middle = 0.5 * (low + high)
        outside = torch.maximum(middle, 1 - middle) * before.norm8 * (before.norm8 / reach.clamp_min(TINY)) ** 3
        found = (0.5 * (high - low) + 2 * ELEMENTARY) * sd + outside
        take = found < rest  # false where anything is not a number
        p, rest = torch.where(take, middle, p), torch.where(take, found, rest)
    return p, rest


def _second_layer_parts(
    before: PreActivation, mean: Interval, latent: Latent, at: Slope
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The same for the second hidden layer: of first or of second order, whichever rest is smaller."""
    energy = _energy(before)
    s0 = before.spread.upper.clamp_min(TINY)
    centre, square = at.centre, torch.minimum(at.square, latent.activity + at.centre.square())
    if before.tail is not None:
        p, found = slope_square(before.tail, mean, s0)
        take = found < square  # false where anything is not a number
        centre, square = torch.where(take, p, centre), torch.where(take, found, square)
    largest = torch.maximum(centre, 1 - centre)
    first = (energy.usual * square).sqrt()
    half = 0.5 * (mean.upper - mean.lower)
    # ||T||_6^6 <= ||T||_4^2 ||T||_8^4; T = m - E m, and E m is within half of the centre.
    sixth = before.fourth.sqrt() * math.sqrt(_LIPSCHITZ_8) * (energy.usual + energy.unlikely).square()
    u = ratio(0.5 * (mean.lower + mean.upper), s0.sqrt())
    curvature = pdf(u) / s0.sqrt()
    second = _THIRD * (sixth ** (1 / 6) + half) ** 3 / s0 + curvature * half * before.mean_variance.sqrt()
    take = second < first
    zero = torch.zeros_like(first)
    return (
        torch.where(take, cdf(u), centre),
        torch.where(take, curvature, zero),
        torch.where(take, zero, first),
        torch.where(take, zero, largest),
        torch.where(take, second * UP, zero),
    )


def _spread_rest(before: PreActivation, mean: Interval) -> tuple[Tensor, Tensor]:
    """Psi and the deviation of the spread rest, of first or of second order, whichever is smaller."""
    s0 = before.spread.upper.clamp_min(TINY)
    root, range_s = s0.sqrt(), before.spread.upper - before.spread.lower
    first = HALF_PEAK * (range_s.square() + before.spread_variance).sqrt() / root
    half = 0.5 * (mean.upper - mean.lower)
    s4 = before.spread_fourth.sqrt().sqrt() + range_s  # ||s - s0||_4
    m4 = before.fourth.sqrt().sqrt() + half  # ||m - centre||_4
    second = MEAN_MIXED * m4 * s4 / s0 + MEAN_BELOW * s4.square() / (s0 * root)
    take = second < first
    local = 0.5 * pdf(ratio(0.5 * (mean.lower + mean.upper), root)) / root
    return torch.where(take, local, HALF_PEAK / root), torch.where(take, second, first) * UP


def _noise(before: PreActivation, mean: Interval, latent: Latent) -> Interval:
    r"""Bounds of E v(m, s), :math:`v(m,s)=\operatorname{Var}\mathrm{ReLU}(N(m,s))`, at the ends of M and S.

    v increases in m and s; :math:`|\partial_m^2v|\le0.2877`, :math:`0\le\partial_sv\le1` (docs/theory.md, section 4.9).
    """
    curved = _VARIANCE_CURVATURE * before.mean_variance
    s0, s1 = before.spread.upper.clamp_min(TINY), before.spread.lower.clamp_min(TINY)
    over = excess(before.spread.upper, before.spread_variance, s0)
    under = shortfall(before.spread.lower, before.spread_variance, s1)
    high = s0 * (standard_variance(ratio(mean.upper, s0.sqrt())) + ELEMENTARY) + curved
    if before.tail is None:
        high = torch.minimum(high, _noise_of_the_dead(before, mean, s0))
    high = high + over
    low = before.spread.lower * (standard_variance(ratio(mean.lower, s1.sqrt())) - ELEMENTARY) - curved - under
    high = torch.minimum(torch.minimum(high, before.spread.upper), torch.minimum(latent.variance, latent.second.upper))
    return Interval(low.clamp_min(0), high)


def _noise_of_the_dead(before: PreActivation, mean: Interval, s0: Tensor) -> Tensor:
    r"""For M < 0: :math:`v(m,s_0)\le v(M+\rho,s_0)` where :math:`T\le\rho`, and :math:`v\le s_0` elsewhere."""
    best = s0
    for share in _SHARES:
        reach = share * (-mean.upper).clamp_min(TINY)
        within = s0 * (standard_variance(ratio(mean.upper + reach, s0.sqrt())) + ELEMENTARY)
        found = within + s0 * (before.norm8 / reach) ** 8
        best = torch.where(found < best, found, best)
    return best


def _noise_deviation(before: PreActivation, latent: Latent) -> Tensor:
    """Deviation of v(m, s): its slopes are at most 0.4347 sqrt(s0) in m and 1 in s; or that of z^2 as a whole."""
    centred = ((before.spread.upper - before.spread.lower).square() + before.spread_variance).sqrt()  # ||s - s0||
    lipschitz = _VARIANCE_SLOPE * before.spread.upper.sqrt() * before.mean_variance.sqrt() + centred
    return torch.minimum(lipschitz, latent.fourth.sqrt()) * UP


def _activity(before: PreActivation, mean: Interval, latent: Latent, at: Slope) -> Tensor:
    r"""Upper bound of sqrt(E Phi(m / sqrt(s))^4) in the second layer.

    For m < 0 the slope at s exceeds that at s0 by at most :math:`\varphi(1)(s-s_0)_+/(2s_0)`; for m >= 0, which has a
    probability of at most :math:`e^{-M^2/(2D)}` if M < 0, by at most a half.
    """
    energy = before.energy
    if energy is None:
        return latent.activity
    s0 = before.spread.upper.clamp_min(TINY)
    s4 = before.spread_fourth.sqrt().sqrt() + before.spread.upper - before.spread.lower
    energy_all = (energy.usual + energy.unlikely).clamp_min(TINY)
    positive = torch.exp(-mean.upper.clamp_max(0).square() / (8 * energy_all))  # P(m >= 0)^(1/4)
    norm4 = at.norm4 + MEAN_MIXED * s4 / s0 + 0.5 * positive
    return torch.minimum(latent.activity, norm4.square() * UP)


def _rare_deviation(before: PreActivation) -> Tensor:
    return torch.zeros_like(before.jensen) if before.energy is None else before.energy.rare.sqrt()


def _through(before: PreActivation, sources: Sources, curvature: Tensor, slope_rest: Tensor | None) -> Through:
    """Spectral bound of A, of neurons with a slope rest (None: of all), and Gram matrix of those with a curvature."""
    mu, energy = before.layer.weight_mean, _energy(before)

    def largest_eigenvalue(row: Tensor, kept: Tensor, scale: Tensor) -> Tensor:  # at most, scaled to a unit diagonal
        factor = (mu[row] * kept[:, None]).mul_(scale[..., None])
        power = torch.linalg.matrix_power(factor @ factor.mT, 4)
        return torch.linalg.matrix_norm(power).sqrt().sqrt()

    def squared(row: Tensor, variance: Tensor) -> Tensor:
        return ((mu[row] * variance[:, None]) @ mu[row].mT).square_()

    needed = torch.ones_like(curvature, dtype=torch.bool) if slope_rest is None else slope_rest != 0
    rest, count = indices_of(needed), needed.sum(-1, keepdim=True).clamp_min(1)
    scale = torch.where(needed, 1 / energy.usual.clamp_min(TINY).sqrt(), 0.0).gather(1, rest)  # none of other neurons
    top = by_chunks(largest_eigenvalue, rest.shape[1] * max(mu.shape), rest, energy.kept.sqrt(), scale)
    curved = indices_of(curvature != 0)
    return Through(
        top=top[:, None].clamp_min(1).minimum(count) * UP,
        rare=energy.left * sources.active,
        curved=curved,
        gram=by_chunks(squared, curved.shape[1] * max(mu.shape), curved, sources.variance.upper),
        kurtosis=(sources.fourth - 3 * sources.variance.lower.square()).clamp_min(0),
    )


def _gradients(  # noqa: PLR0913 (one argument for each thing known of the layer)
    before: PreActivation,
    mean: Interval,
    below: Latent,
    sources: Sources,
    latent: Latent,
    mean_square: Tensor,  # E h_i^2, at most
    at: Slope,
) -> Gradients:
    """The gradient of E[z_i^2 | before] is 2 h mu + 2 Phi sigma^2 z."""
    mu, v4, energy = before.layer.weight_mean, before.layer.weight_std.square().square(), _energy(before)
    fourth = latent.fourth
    spread = torch.minimum(  # E Phi^2 z_j^2: Phi <= 1, or Cauchy and Schwarz
        apply_rows(v4, sources.noise * below.second.upper),
        latent.activity * apply_rows(v4, sources.noise * below.fourth.sqrt()),
    )
    rare = apply_rows(mu.square(), energy.left * sources.active.sqrt())
    usual = 2 * (mean_square * energy.usual).sqrt()
    extra = 2 * (fourth.sqrt() * rare).sqrt() + 2 * spread.sqrt()
    whole = fourth.sqrt() < usual + extra  # then E[z_i^2 | before] as a whole is smaller
    centre, delta, widest, stable = _actual_slope(before, mean, at)
    return Gradients(
        square_usual=torch.where(whole, 0.0, usual) * UP,
        square_extra=torch.where(whole, fourth.sqrt(), extra) * UP,
        centre=centre,
        delta=delta,
        widest=widest,
        density=stable.density,
        active_spread=stable.active_spread,
    )


def _energy(before: PreActivation) -> Energy:
    if before.energy is None:
        raise UnsupportedLayerError("the second hidden layer has no Poincare constants; a bug of the moment method.")
    return before.energy


def _actual_slope(before: PreActivation, mean: Interval, at: Slope) -> tuple[Tensor, Tensor, Tensor, Stability]:
    r"""Constants p, and bounds of the L8 norm and of sup of :math:`\delta=\Phi(m/\sqrt s)-p`, s not replaced.

    :math:`|\Phi(m/\sqrt s)-\Phi(m/\sqrt{s_0})|\le0.51\,|s-s_0|/s_0`: it is at most a half and at most
    :math:`\tfrac12\varphi(1)|\log(s/s_0)|`; and :math:`\|f\|_8\le\sup|f|^{1/2}\|f\|_4^{1/2}`.
    """
    if before.tail is None:
        raise UnsupportedLayerError("the second hidden layer has no tails; a bug of the moment method.")
    stable, p = stability(before.tail, mean), at.centre
    widest = torch.maximum(p, 1 - p)
    s4 = before.spread_fourth.sqrt().sqrt() + before.spread.upper - before.spread.lower  # ||s - s0||_4
    norm = (widest**3 * at.square.sqrt()).sqrt().sqrt()  # E f^8 <= sup^6 E f^2
    norm = norm + (0.5 * _SLOPE_IN_S * s4 / before.spread.upper.clamp_min(TINY)).sqrt()
    norm = torch.minimum(norm, widest)
    take = stable.delta < norm
    p, norm = torch.where(take, stable.centre, p), torch.where(take, stable.delta, norm)
    return p, norm * UP, torch.maximum(p, 1 - p), stable
