r"""Variances through layers whose coordinates are correlated (docs/theory.md, section 4).

For rows u, by the law of total variance over the layer before,
:math:`\operatorname{Var}(u\cdot z_k)=\sum_iu_i^2\,\mathbb E\operatorname{Var}(z_{k,i}\mid z_{k-1})+\operatorname{Var}(u\cdot h)`,
:math:`h_i=g(m_i,\sqrt{s_i})`. With constants :math:`p_i,\psi_i,s_{0,i}` write :math:`h_i=p_im_i+\psi_is_i+\text{slope rest}+\text{spread
rest}`: the linear part is a variance of the layer before with rows :math:`(u\circ p)\mu` (recursion; exact at the first
layer), the rests are bounded, and the standard deviations are added.

Slope rest (second layer): :math:`\sum_iu_i(g(m_i,\sqrt{s_{0,i}})-p_im_i)` has gradient :math:`\sum_iu_i\delta_i\mu_{ij}` in the
independent sources, :math:`\delta_i=\Phi(m_i/\sqrt{s_{0,i}})-p_i`. By the Gaussian Poincare inequality its variance is at most
:math:`\mathbb E(u\circ\delta)^TA(u\circ\delta)`, :math:`A=\mu\,\mathrm{diag}(r^2)\mu^T`, and that at most
:math:`\lambda\sum_iu_i^2A_{ii}\mathbb E\delta_i^2`, :math:`\lambda=\lambda_{\max}` of A scaled to a unit diagonal. Sources that are hardly ever
active are kept out of A and added with absolute values and their probability.

Spread rest: :math:`|g(m,\sqrt s)-g(m,\sqrt{s_0})-\psi(s-s_0)|\le\psi|s-s_0|` for :math:`\psi=\varphi(0)/(2\sqrt{s_0})`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.bounds import Interval
from bnndp.errors import UnsupportedLayerError
from bnndp.maths.rectified import ratio, standard_variance
from bnndp.maths.rounding import ELEMENTARY, TINY
from bnndp.maths.tails import HALF_PEAK, excess, shortfall
from bnndp.moment.records import Latent, PreActivation, Sources
from bnndp.moment.slope import slope
from bnndp.regions import apply_rows

__all__ = ["Conditional", "Layers", "central_variance", "conditional", "linear_variance", "square_sum_variance"]

_VARIANCE_CURVATURE = 0.1439  # half of sup |d^2/dm^2 Var ReLU(N(m, s))|
_VARIANCE_SLOPE = 0.4347  # sup |d/dm Var ReLU(N(m, s))| / sqrt(s)
_UP = 1 + 1e-10  # covers the rounding of the sums of squares below


@dataclass(frozen=True, slots=True)
class Through:
    """How the sources of the first layer reach the second: what the Poincare inequality needs."""

    weight: Tensor  # |mu| (n, sources)
    top: Tensor  # (batch, 1): largest eigenvalue of A scaled to a unit diagonal, at most
    rare: Tensor  # (batch, sources): r_j^2 P(active) of the rare sources, 0 for the others
    square_usual: Tensor  # (batch, n): sd of E[z_i^2 | before] through its slope, without rare sources
    square_extra: Tensor  # (batch, n): what rare sources and the spread add to it


@dataclass(frozen=True, slots=True)
class Conditional:
    """The mean of a hidden layer given the layer before: linear part and rests; (batch, n) each."""

    noise: Interval  # E Var(z_i | before)
    noise_deviation: Tensor  # standard deviation of Var(z_i | before), at most
    cube: Tensor  # E |z_i - E[z_i | before]|^3 and E Var(z_i | before)^1.5 are at most sqrt(3) and 1 times this
    slope: Tensor  # p_i
    psi: Tensor  # psi_i
    slope_rest: Tensor  # second layer: sqrt(A_ii E delta_i^2); deeper: standard deviation of the slope rest
    largest: Tensor  # sup |delta_i|; zero where the whole neuron is in the spread rest
    spread_rest: Tensor  # standard deviation of the spread rest
    through: Through | None  # only for the second layer


Layers = list[tuple[PreActivation, Conditional]]


def conditional(
    before: PreActivation, mean: Interval, latent: Latent, below: Latent, sources: Sources | None
) -> Conditional:
    """Decompose the conditional mean of the layer ``before``; ``sources`` only if it is the second layer."""
    s0 = before.spread.upper.clamp_min(TINY)
    root, sd_m = s0.sqrt(), before.mean_variance.sqrt()
    centred = ((before.spread.upper - before.spread.lower).square() + before.spread_variance).sqrt()  # ||s - s0||
    noise = _noise(before, mean, latent)
    deviation = torch.minimum(_VARIANCE_SLOPE * root * sd_m + centred, latent.fourth.sqrt())
    third = (latent.second.upper * latent.fourth).sqrt()  # E z^3
    cube = torch.minimum((noise.upper * (before.spread.upper.square() + before.spread_variance)).sqrt(), 2 * third)
    at = slope(before, mean)
    largest = torch.maximum(at.centre, 1 - at.centre)
    if sources is None or before.energy is None:
        rest, through = largest * sd_m, None
    else:
        through = _through(before, below, sources, latent)
        rest = (before.energy.usual * torch.minimum(at.square, latent.activity + at.centre.square())).sqrt()
        deviation = torch.minimum(deviation, through.square_usual + through.square_extra)
    spread_rest = HALF_PEAK * centred / root
    whole = latent.second.upper.sqrt()  # sd of E[z_i | before], whatever its shape
    rare = whole < rest + spread_rest
    return Conditional(
        noise=noise,
        noise_deviation=deviation,
        cube=cube,
        slope=torch.where(rare, 0.0, at.centre),
        psi=torch.where(rare, 0.0, HALF_PEAK / root),
        slope_rest=torch.where(rare, 0.0, rest),
        largest=torch.where(rare, 0.0, largest),
        spread_rest=torch.where(rare, whole, spread_rest),
        through=through,
    )


def _noise(before: PreActivation, mean: Interval, latent: Latent) -> Interval:
    r"""Bounds of :math:`\mathbb E\,v(m,s)`, :math:`v(m,s)=\operatorname{Var}\mathrm{ReLU}(N(m,s))`, at the ends of M and S.

    v increases in m and s; :math:`|\partial_m^2v|\le0.2877`, :math:`0\le\partial_sv\le1` (docs/theory.md, section 4).
    """
    curved = _VARIANCE_CURVATURE * before.mean_variance
    s0, s1 = before.spread.upper.clamp_min(TINY), before.spread.lower.clamp_min(TINY)
    over = excess(before.spread.upper, before.spread_variance, s0)
    under = shortfall(before.spread.lower, before.spread_variance, s1)
    high = s0 * (standard_variance(ratio(mean.upper, s0.sqrt())) + ELEMENTARY) + curved + over
    low = s1 * (standard_variance(ratio(mean.lower, s1.sqrt())) - ELEMENTARY) - curved - under
    high = torch.minimum(torch.minimum(high, before.spread.upper), torch.minimum(latent.variance, latent.second.upper))
    return Interval(low.clamp_min(0), high)


def linear_variance(
    rows: Tensor, layers: Layers, latents: list[Latent], sources: Sources
) -> Tensor:
    """Upper bound of Var(rows @ z) for the outputs z of the last of ``layers``: (batch, rows).

    ``layers`` are the hidden layers from the second on, ``latents`` the moments of all hidden layers from the first on.
    """
    if not layers:
        return apply_rows(rows.square(), sources.variance.upper) * _UP
    _, given = layers[-1]
    sd = apply_rows(rows.abs(), latents[-1].variance.sqrt())
    total = apply_rows(rows.square(), given.noise.upper) + central_variance(rows, layers, latents, sources)
    return torch.minimum(total, sd.square()) * _UP


def central_variance(rows: Tensor, layers: Layers, latents: list[Latent], sources: Sources) -> Tensor:
    """Upper bound of Var(rows @ E[z | before]) for the outputs z of the last of ``layers``: (batch, rows)."""
    before, given = layers[-1]
    linear = linear_variance((rows * given.slope[:, None]) @ before.layer.weight_mean, layers[:-1], latents[:-1], sources)
    squares = (rows * given.psi[:, None]) @ before.layer.weight_std.square()
    curved = square_sum_variance(squares, layers[:-1], latents[:-1], sources)
    part = linear.sqrt() + curved.sqrt() + _slope_rest(rows, given) + apply_rows(rows.abs(), given.spread_rest)
    return part.square() * _UP


def square_sum_variance(
    rows: Tensor, layers: Layers, latents: list[Latent], sources: Sources
) -> Tensor:
    """Upper bound of Var(rows @ z^2) for the outputs z of the last of ``layers``: (batch, rows)."""
    if not layers:
        return apply_rows(rows.square(), sources.square_variance) * _UP
    before, given = layers[-1]
    latent = latents[-1]
    sd = (latent.fourth - latent.second.lower.square()).clamp_min(0).sqrt()  # Var z^2 = E z^4 - (E z^2)^2
    plain = apply_rows(rows.abs(), sd)
    through = given.through
    if through is None:
        return plain.square() * _UP
    usual, extra = through.square_usual, through.square_extra
    noise = 4 * (before.spread.upper * latent.second.upper + before.spread_variance.sqrt() * (usual + extra))
    spectral = (through.top * apply_rows(rows.square(), usual.square())).sqrt()
    part = torch.minimum(apply_rows(rows.abs(), usual), spectral) + apply_rows(rows.abs(), extra)
    total = apply_rows(rows.square(), torch.minimum(noise, sd.square())) + part.square()
    return torch.minimum(total, plain.square()) * _UP


def _slope_rest(rows: Tensor, given: Conditional) -> Tensor:
    """Standard deviation of the slope rest of each row: (batch, rows)."""
    absolute = apply_rows(rows.abs(), given.slope_rest)
    through = given.through
    if through is None:
        return absolute
    spectral = (through.top * apply_rows(rows.square(), given.slope_rest.square())).sqrt()
    reach = (rows.abs() * given.largest[:, None]) @ through.weight  # (batch, rows, sources)
    rare = apply_rows(reach.square(), through.rare)
    return (torch.minimum(absolute, spectral).square() + rare).sqrt()


def _through(before: PreActivation, below: Latent, sources: Sources, latent: Latent) -> Through:
    """Spectral bound of the Gram matrix A, and the deviation of E[z_i^2 | before], whose gradient is 2 h mu + 2 Phi sigma^2 z."""
    mu, v4, energy = before.layer.weight_mean, before.layer.weight_std.square().square(), before.energy
    if energy is None:
        raise UnsupportedLayerError("the second hidden layer has no Poincare constants; this is a bug in the moment method.")
    factor = mu * energy.kept.sqrt()[:, None] / energy.usual.clamp_min(TINY).sqrt()[..., None]
    power = torch.linalg.matrix_power(factor @ factor.mT, 4)
    top = torch.linalg.matrix_norm(power).sqrt().sqrt().clamp(1, float(mu.shape[0]))[:, None] * _UP  # >= lambda_max
    second, fourth = latent.second.upper, latent.fourth
    spread = torch.minimum(  # E Phi^2 z_j^2: Phi <= 1, or Cauchy and Schwarz
        apply_rows(v4, sources.noise * below.second.upper),
        latent.activity * apply_rows(v4, sources.noise * below.fourth.sqrt()),
    )
    rare = apply_rows(mu.square(), energy.left * sources.active.sqrt())
    usual = 2 * (second * energy.usual).sqrt()
    extra = 2 * (fourth.sqrt() * rare).sqrt() + 2 * spread.sqrt()
    whole = fourth.sqrt() < usual + extra  # then E[z_i^2 | before] as a whole is smaller
    return Through(
        weight=mu.abs(),
        top=top,
        rare=energy.left * sources.active,
        square_usual=torch.where(whole, 0.0, usual) * _UP,
        square_extra=torch.where(whole, fourth.sqrt(), extra) * _UP,
    )
