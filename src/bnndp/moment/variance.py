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
from bnndp.maths.normal import cdf, pdf
from bnndp.maths.rectified import ratio, standard_variance
from bnndp.maths.replacement import TO_CDF, TO_DENSITY_SQUARE
from bnndp.maths.rounding import ELEMENTARY, TINY
from bnndp.maths.tails import HALF_PEAK, PEAK, excess, shortfall
from bnndp.moment.records import Latent, PreActivation, Sources
from bnndp.regions import apply_rows

__all__ = ["Conditional", "Layers", "central_variance", "conditional", "linear_variance", "square_sum_variance"]

_RARE = 0.02  # sources less often active than this are treated by their probability
_VARIANCE_CURVATURE = 0.1439  # half of sup |d^2/dm^2 Var ReLU(N(m, s))|
_VARIANCE_SLOPE = 0.4347  # sup |d/dm Var ReLU(N(m, s))| / sqrt(s)
_UP = 1 + 1e-10  # covers the rounding of the sums of squares below


@dataclass(frozen=True, slots=True)
class Through:
    """How the sources of the first layer reach the second: what the Poincare inequality needs."""

    weight: Tensor  # |mu| (n, sources)
    scaled: Tensor  # (batch, n): A_ii over the usual sources
    top: Tensor  # (batch, 1): largest eigenvalue of A scaled to a unit diagonal, at most
    rare: Tensor  # (batch, sources): r_j^2 P(active) of the rare sources, 0 for the others
    rare_root: Tensor  # (batch, sources): r_j^2 sqrt(P(active)) of the rare sources
    square: Tensor  # (batch, n): sum_j r_j^2 sigma_ij^4 E z_j^2


@dataclass(frozen=True, slots=True)
class Conditional:
    """The mean of a hidden layer given the layer before: linear part and rests; (batch, n) each."""

    noise: Interval  # E Var(z_i | before)
    noise_deviation: Tensor  # standard deviation of Var(z_i | before), at most
    cube: Tensor  # E |z_i - E[z_i | before]|^3 and E Var(z_i | before)^1.5 are at most sqrt(3) and 1 times this
    slope: Tensor  # p_i
    psi: Tensor  # psi_i
    slope_rest: Tensor  # second layer: sqrt(A_ii E delta_i^2); deeper: standard deviation of the slope rest
    largest: Tensor  # sup |delta_i|
    spread_rest: Tensor  # standard deviation of the spread rest
    through: Through | None  # only for the second layer


Layers = list[tuple[PreActivation, Conditional]]


def conditional(
    before: PreActivation, mean: Interval, latent: Latent, below: Latent, sources: Sources | None
) -> Conditional:
    """Decompose the conditional mean of the layer ``before``; ``sources`` only if it is the second layer."""
    s0 = before.spread.upper.clamp_min(TINY)
    vm, root = before.mean_variance, s0.sqrt()
    centred = (before.spread.upper - before.spread.lower).square() + before.spread_variance  # E (s - s0)^2, at most
    noise = _noise(before, mean, latent)
    deviation = _VARIANCE_SLOPE * root * vm.sqrt() + centred.sqrt()
    cube = (noise.upper * (before.spread.upper.square() + before.spread_variance)).sqrt()
    psi = HALF_PEAK / root
    low, high = _gaussian_probability(before, mean)
    p = 0.5 * (low + high)
    largest = torch.maximum(p, 1 - p)
    if sources is None:
        rest, through = largest * vm.sqrt(), None
    else:
        through = _through(before, below, sources)
        rest = (through.scaled * _delta_square(before, mean, through, (low, high))).sqrt()
    return Conditional(noise, deviation, cube, p, psi, rest, largest, psi * centred.sqrt(), through)


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
    second, fourth = latent.second.upper, latent.fourth
    rare = apply_rows(through.weight.square(), through.rare_root)
    extra = 2 * (fourth.sqrt() * rare).sqrt() + 2 * through.square.sqrt()
    single = 2 * (second * through.scaled).sqrt() + extra  # sd of E[z_i^2 | before]
    noise = 4 * (before.spread.upper * second + before.spread_variance.sqrt() * single)
    spectral = 2 * (through.top * apply_rows(rows.square(), through.scaled * second)).sqrt()
    part = torch.minimum(apply_rows(rows.abs(), single), spectral + apply_rows(rows.abs(), extra))
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


def _through(before: PreActivation, below: Latent, sources: Sources) -> Through:
    mu = before.layer.weight_mean
    usual = sources.active > _RARE
    noise = torch.where(usual, sources.noise, 0.0)
    scaled = apply_rows(mu.square(), noise) * _UP
    factor = mu * noise.sqrt()[:, None] / scaled.clamp_min(TINY).sqrt()[..., None]
    gram = factor @ factor.mT
    fourth_power = torch.linalg.matrix_power(gram, 4)
    top = torch.linalg.matrix_norm(fourth_power).sqrt().sqrt().clamp_min(1)[:, None] * _UP  # at least lambda_max
    rare = torch.where(usual, 0.0, sources.noise)
    square = apply_rows(before.layer.weight_std.square().square(), sources.noise * below.second.upper)
    return Through(
        weight=mu.abs(),
        scaled=scaled,
        top=top.clamp_max(float(mu.shape[0])),
        rare=rare * sources.active,
        rare_root=rare * sources.active.sqrt(),
        square=square * _UP,
    )


def _gaussian_probability(before: PreActivation, mean: Interval) -> tuple[Tensor, Tensor]:
    """Range over the box of Phi(M / sqrt(s0 + Vm)): the mean slope if m were Gaussian."""
    s0, v = before.spread.upper, before.noise
    wide, narrow = (s0 + v.upper).sqrt(), (s0 + v.lower).sqrt()
    low = torch.minimum(ratio(mean.lower, wide), ratio(mean.lower, narrow))
    high = torch.maximum(ratio(mean.upper, wide), ratio(mean.upper, narrow))
    return cdf(low), cdf(high)


def _delta_square(
    before: PreActivation, mean: Interval, through: Through, probability: tuple[Tensor, Tensor]
) -> Tensor:
    r"""Upper bound of :math:`\mathbb E(\Phi(m/\sqrt{s_0})-p)^2`, p the middle of ``probability``, in the second layer.

    Variance plus squared distance of the mean from p. The variance is at most :math:`\varphi(0)^2V_m/s_0` (Lipschitz), at
    most :math:`q(1-q)` for a mean q, and at most :math:`\mathbb E\varphi(m/\sqrt{s_0})^2A_{ii}/s_0` (Poincare), where for a Gaussian
    m :math:`\mathbb E\varphi^2=\varphi(M/\sqrt{s_0/2+V_m})\sqrt{s_0/(s_0+2V_m)}/(2\sqrt\pi)`.
    """
    s0 = before.spread.upper.clamp_min(TINY)
    v, (low, high) = before.noise, probability
    error = before.replacement.upper / s0.sqrt()
    distance = 0.5 * (high - low) + TO_CDF * error + ELEMENTARY
    middle = 0.5 * (low + high)
    toward = torch.where(middle > 0.5, (middle - distance).clamp_min(0.5), (middle + distance).clamp_max(0.5))
    bernoulli = toward * (1 - toward)
    lipschitz = PEAK * PEAK * v.upper / s0
    nearest = torch.where((mean.lower <= 0) & (mean.upper >= 0), 0.0, torch.minimum(mean.lower.abs(), mean.upper.abs()))
    density = pdf(ratio(nearest, (0.5 * s0 + v.upper).sqrt())) * (s0 / (s0 + 2 * v.lower)).sqrt() * (PEAK / 2**0.5)
    density = (density + TO_DENSITY_SQUARE * error + ELEMENTARY).nan_to_num(torch.inf).clamp_max(PEAK * PEAK)
    rare = apply_rows(through.weight.square(), through.rare)
    poincare = (density * through.scaled + PEAK * PEAK * rare) / s0
    variance = torch.minimum(torch.minimum(bernoulli, lipschitz), poincare)
    return (variance + distance.clamp_max(1).square()).clamp_max(1) * _UP
