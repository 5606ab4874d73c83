"""Moments of the pre-activations of a hidden layer after the first, from those of its inputs (docs/theory.md)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.engine.dense.conditional import Layers
from bnndp.engine.dense.first import FirstLayer
from bnndp.engine.dense.norms import mean_norm
from bnndp.engine.dense.rare_neurons import levels
from bnndp.engine.dense.records import Cross, Energy, Latent, PreActivation, Sources
from bnndp.engine.dense.variance import central_variance, square_sum_variance
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import apply_rows
from bnndp.layers import Linear
from bnndp.maths.replacement import conditional_replacement_error, replacement_error
from bnndp.maths.rounding import SMALL, TINY, down, up

__all__ = ["pre_activation"]

_RARE = 1e-8  # sources less often active than this are treated by their probability


@dataclass(frozen=True, slots=True)
class _Terms:
    """The mean m of a layer as a sum of terms that are independent given the layer y before its input."""

    noise: Interval
    noise_variance: Tensor
    central: Tensor
    fourth: Tensor
    norm8: Tensor
    replacement: Interval


def pre_activation(layer: Linear, first: FirstLayer, latents: list[Latent], given: Layers) -> PreActivation:
    """Moments of the layer after those with moments ``latents``; ``given`` takes all but the first of them apart."""
    below, n = latents[-1], layer.n_in + 4
    variance, constant = layer.weight_std.square(), layer.bias_std.square()
    spread = Interval(
        down(apply_rows(variance, below.second.lower) + constant, n),
        up(apply_rows(variance, below.second.upper) + constant, n) + SMALL**2,
    )
    spread_variance = up(square_sum_variance(variance, given, latents, first.sources), n) + SMALL**4
    second = len(latents) == 1  # the second hidden layer: its inputs are independent
    terms = _independent(layer, first.sources, spread) if second else _given(layer, first, latents, given, spread)
    unknown = torch.full_like(spread.upper, torch.inf)
    return PreActivation(
        layer=layer,
        jensen=down(down(apply_rows(variance, below.mean.lower.square()) + constant, n).sqrt(), 2),
        spread=spread,
        spread_variance=spread_variance,
        spread_fourth=_spread_fourth(layer, first, spread_variance) if second else unknown,
        noise=terms.noise,
        noise_variance=terms.noise_variance,
        central=terms.central,
        fourth=terms.fourth,
        norm8=terms.norm8,
        replacement=terms.replacement,
        tail=levels(layer, first.sources, below, spread) if second else None,
        energy=_energy(layer, first.sources) if second else None,
        cross=_cross(layer, first.sources) if second else None,
    )


def _spread_fourth(layer: Linear, first: FirstLayer, spread_variance: Tensor) -> Tensor:
    r"""E (s - E s)^4 in the second layer: a sum of independent terms, :math:`\sum c_4+3V_s^2`.

    :math:`\|f-\mathbb Ef\|_4\le\sqrt3\,r\|f'\|_4` for Gaussians (logarithmic Sobolev inequality), so
    :math:`c_4(z_j^2)\le144\,r_j^4\,\mathbb Ez_j^4`.
    """
    single = 144 * first.sources.noise.square() * first.latent.fourth
    power = layer.weight_std.square().square().square().clamp_min(TINY)  # it may underflow while z is large
    return up(apply_rows(power, single) + 3 * spread_variance.square(), layer.n_in)


def _energy(layer: Linear, sources: Sources) -> Energy:
    usual = sources.active > _RARE
    kept, left = torch.where(usual, sources.noise, 0.0), torch.where(usual, 0.0, sources.noise)
    mu2 = layer.weight_mean.square()
    usual, rare, unlikely = (up(apply_rows(mu2, part), layer.n_in) for part in (kept, left * sources.active, left))
    return Energy(usual, rare, unlikely, kept, left)


def _cross(layer: Linear, sources: Sources) -> Cross:
    """Cov(m_i, s_i) and what bounds the rests of its use.

    A sum of either sign is a difference of two sums of non-negative terms: each is moved outward by more than the
    rounding of its n_in + 2 operations and of the subtraction.
    """
    n, mu, variance = layer.n_in + 8, layer.weight_mean, layer.weight_std.square()
    plus, minus = mu.clamp_min(0) * variance, (-mu).clamp_min(0) * variance
    plus_low, plus_high = (apply_rows(plus, end) for end in (sources.cross.lower, sources.cross.upper))
    minus_low, minus_high = (apply_rows(minus, end) for end in (sources.cross.lower, sources.cross.upper))
    spread = (sources.fourth * sources.square_variance).sqrt()
    cubes = (mu.abs() * variance * mu.square()).clamp_min(TINY)  # it may underflow while z is large
    return Cross(
        covariance=Interval(down(plus_low, n) - up(minus_high, n), up(plus_high, n) - down(minus_low, n)),
        absolute=up(plus_high + minus_high, n),
        second=up(apply_rows(mu.square() * variance, spread), n),
        third=up(apply_rows(cubes, sources.variance.upper * sources.cross.upper), n),
    )


def _noise(mu: Tensor, variance: Interval, n: int) -> Interval:
    """Range of the variance of a sum of independent terms with weights ``mu``."""
    low, high = (apply_rows(mu.square(), end) for end in (variance.lower, variance.upper))
    return Interval(down(low, n), up(high, n) + SMALL**2)


def _independent(layer: Linear, sources: Sources, spread: Interval) -> _Terms:
    """For the second hidden layer: all moments are exact up to the box."""
    n, mu = layer.n_in + 20, layer.weight_mean
    noise = _noise(mu, sources.variance, n)
    ends = torch.stack([spread.lower, spread.upper]).clamp_min(TINY)
    low, high = up(replacement_error(ends, mu, sources.variance.lower, sources.third), n)
    zero = torch.zeros_like(noise.upper)
    fourth = up(apply_rows(mu**4, sources.fourth) + 3 * noise.upper.square(), n)
    unknown = torch.full_like(zero, torch.inf)  # nobody asks: there are exponential bounds
    return _Terms(noise, zero, zero, fourth, unknown, Interval(low, high))


def _given(layer: Linear, first: FirstLayer, latents: list[Latent], given: Layers, spread: Interval) -> _Terms:
    """For deeper layers: the terms have random variances."""
    n, mu, last = layer.n_in + 20, layer.weight_mean, given[-1][1]
    cube = up(apply_rows(mu.abs() ** 3, last.beyond.cube), n)
    low, high = (conditional_replacement_error(s0.clamp_min(TINY), cube) for s0 in (spread.lower, spread.upper))
    fourth = up(apply_rows(mu.abs(), latents[-1].fourth.sqrt().sqrt()), n) ** 4
    norm8 = torch.full_like(fourth, torch.inf)
    before, gradients = given[-1][0], last.beyond.gradients
    if last.through is not None and gradients is not None:
        norm8 = up(mean_norm(layer, before, last.through.top, gradients, first.sources), n) + SMALL
        norm8 = norm8.nan_to_num(torch.inf, posinf=torch.inf)  # NaN where parts overflow: no bound
        fourth = torch.minimum(fourth, norm8**4)
    return _Terms(
        noise=_noise(mu, last.noise, n),
        noise_variance=up(apply_rows(mu.square(), last.beyond.noise_deviation), n).square(),
        central=up(central_variance(mu, given, latents, first.sources), n),
        fourth=fourth,
        norm8=norm8,
        replacement=Interval(low, high),
    )
