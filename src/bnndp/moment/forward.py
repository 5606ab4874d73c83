"""The moment method: forward over the layers for moments, backward from each for the ranges of its means."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bnndp.bounds import Affine, AffineBounds, Interval
from bnndp.errors import InputError
from bnndp.maths.replacement import conditional_replacement_error, replacement_error
from bnndp.maths.rounding import LARGE, SMALL, TINY, down, up
from bnndp.moment.backward import backward
from bnndp.moment.conditional import Layers, conditional
from bnndp.moment.first import FirstLayer, first_layer
from bnndp.moment.records import Energy, Latent, PreActivation, Relaxation, Sources
from bnndp.moment.relax import DELTAS, relax
from bnndp.moment.tail import levels
from bnndp.moment.variance import central_variance, square_sum_variance
from bnndp.network import BayesianNetwork, Linear
from bnndp.regions import Box, apply_rows

__all__ = ["Parameters", "bound"]

_RARE = 1e-8  # sources less often active than this are treated by their probability


@dataclass(frozen=True, slots=True)
class Parameters:
    """What may be chosen freely in the pass without losing soundness, so that it can be optimised.

    ``tangents[k]`` are the points u* (batch, n_k) of the lower planes of hidden layer k, or None for its middle;
    ``deltas`` the levels s0 = S + delta sqrt(Vs) tried for the upper bounds.
    """

    tangents: tuple[Tensor | None, ...] = ()
    deltas: tuple[float, ...] = DELTAS

    def __post_init__(self) -> None:
        if not all(delta >= 0 for delta in self.deltas):
            raise InputError(f"deltas must be >= 0 (s0 is at least S), got {self.deltas!r}.")

    def tangent(self, k: int) -> Tensor | None:
        """The tangent points of hidden layer k, counted from zero."""
        return self.tangents[k] if k < len(self.tangents) else None


@dataclass(frozen=True, slots=True)
class _Hidden:
    """One hidden layer after the first, relaxed on the box."""

    before: PreActivation
    mean: Interval
    relaxation: Relaxation
    latent: Latent
    scale: Tensor  # |W| E z + |b|: the size of the terms of its means


def bound(network: BayesianNetwork, box: Box, parameters: Parameters | None = None) -> AffineBounds:
    """Affine functions of x below and above the mean output of ``network`` for every x of each box."""
    parameters = parameters or Parameters()
    *hidden, output = network.linears
    if not hidden:
        return _affine_layer(output, box)
    first = first_layer(hidden[0], box, parameters.tangent(0))
    chain: list[_Hidden] = []
    given: Layers = []
    for k, layer in enumerate(hidden[1:], start=1):
        before = _pre_activation(layer, first, chain, given)
        mean = _means(layer, first, chain, box)
        relaxation, latent = relax(before, mean, parameters.tangent(k), parameters.deltas)
        below = chain[-1].latent if chain else first.latent
        scale = apply_rows(layer.weight_mean.abs(), below.mean.upper) + layer.bias_mean.abs()
        if k + 1 < len(hidden):
            sources = None if chain else first.sources
            given.append((before, conditional(before, mean, latent, below, sources)))
        chain.append(_Hidden(before, mean, relaxation, latent, scale))
    return _where_bounded(_down(output, first, chain, box), first, chain)


def _where_bounded(found: AffineBounds, first: FirstLayer, chain: list[_Hidden]) -> AffineBounds:
    """Infinite bounds for the boxes on which a mean or standard deviation is too large for its powers."""
    if not chain:
        return found
    sizes = [first.latent.mean.upper, first.sources.noise.sqrt()]
    for hidden in chain:
        before = hidden.before
        sizes += [hidden.mean.magnitude, before.spread.upper.sqrt(), before.mean_variance.sqrt()]
    fine = torch.stack([(size <= LARGE).all(-1) for size in sizes]).all(0)[:, None]  # NaN is not fine
    low, high = (
        Affine(torch.where(fine[..., None], side.matrix, 0.0), torch.where(fine, side.offset, end))
        for side, end in ((found.lower, -torch.inf), (found.upper, torch.inf))
    )
    return AffineBounds(low, high, found.region)


def _affine_layer(layer: Linear, box: Box) -> AffineBounds:
    """No hidden layer: the mean is exactly ``weight_mean @ x + bias_mean``."""
    exact = Affine(
        layer.weight_mean.expand(box.batch, layer.n_out, layer.n_in), layer.bias_mean.expand(box.batch, layer.n_out)
    )
    return AffineBounds(exact, exact, box)


def _down(rows: Linear, first: FirstLayer, chain: list[_Hidden], box: Box) -> AffineBounds:
    return backward(rows, [(h.before.layer, h.relaxation, h.scale) for h in chain], first, box)


def _means(layer: Linear, first: FirstLayer, chain: list[_Hidden], box: Box) -> Interval:
    """Range of M = E X over the box: by the backward pass, and by the ranges of E z where they are tighter."""
    planes = _down(layer, first, chain, box).interval()
    below = (chain[-1].latent if chain else first.latent).mean
    positive, negative = layer.weight_mean.clamp_min(0), layer.weight_mean.clamp_max(0)
    lost = up(apply_rows(positive - negative, below.upper) + layer.bias_mean.abs(), layer.n_in) - (
        apply_rows(positive - negative, below.upper) + layer.bias_mean.abs()
    )
    low = apply_rows(positive, below.lower) + apply_rows(negative, below.upper) + layer.bias_mean - 2 * lost
    high = apply_rows(positive, below.upper) + apply_rows(negative, below.lower) + layer.bias_mean + 2 * lost
    return Interval(torch.maximum(planes.lower, low), torch.minimum(planes.upper, high))


def _pre_activation(layer: Linear, first: FirstLayer, chain: list[_Hidden], given: Layers) -> PreActivation:
    """Moments of the layer's pre-activations from those of its inputs (docs/theory.md, section 1)."""
    latents = [first.latent, *(h.latent for h in chain)]
    below, n = latents[-1], layer.n_in + 4
    variance, constant = layer.weight_std.square(), layer.bias_std.square()
    spread = Interval(
        down(apply_rows(variance, below.second.lower) + constant, n),
        up(apply_rows(variance, below.second.upper) + constant, n) + SMALL**2,
    )
    spread_variance = up(square_sum_variance(variance, given, latents, first.sources), n) + SMALL**4
    terms = (
        _first_terms(layer, first.sources, spread) if not chain else _later_terms(layer, given, latents, first, spread)
    )
    return PreActivation(
        layer=layer,
        jensen=down(down(apply_rows(variance, below.mean.lower.square()) + constant, n).sqrt(), 2),
        spread=spread,
        spread_variance=spread_variance,
        spread_fourth=_spread_fourth(layer, first, spread_variance)
        if not chain
        else torch.full_like(spread.upper, torch.inf),
        tail=None if chain else levels(layer, first.sources, below, spread),
        energy=None if chain else _energy(layer, first.sources),
        **terms,
    )


def _spread_fourth(layer: Linear, first: FirstLayer, spread_variance: Tensor) -> Tensor:
    r"""E (s - E s)^4 in the second layer: a sum of independent terms, :math:`\sum c_4+3V_s^2`.

    :math:`\|f-\mathbb Ef\|_4\le\sqrt3\,r\|f'\|_4` for Gaussians (logarithmic Sobolev inequality), so
    :math:`c_4(z_j^2)\le144\,r_j^4\,\mathbb Ez_j^4`.
    """
    single = 144 * first.sources.noise.square() * first.latent.fourth
    return up(
        apply_rows(layer.weight_std.square().square().square(), single) + 3 * spread_variance.square(), layer.n_in
    )


def _energy(layer: Linear, sources: Sources) -> Energy:
    usual = sources.active > _RARE
    kept, left = torch.where(usual, sources.noise, 0.0), torch.where(usual, 0.0, sources.noise)
    mu2 = layer.weight_mean.square()
    usual, rare, unlikely = (up(apply_rows(mu2, part), layer.n_in) for part in (kept, left * sources.active, left))
    return Energy(usual, rare, unlikely, kept, left)


def _noise(mu: Tensor, variance: Interval, n: int) -> Interval:
    """Range of the variance of a sum of independent terms with weights ``mu``."""
    low, high = (apply_rows(mu.square(), end) for end in (variance.lower, variance.upper))
    return Interval(down(low, n), up(high, n) + SMALL**2)


def _first_terms(layer: Linear, sources: Sources, spread: Interval) -> dict[str, Any]:
    """M as a sum of independent terms, for the second hidden layer: all moments are exact up to the box."""
    n, mu = layer.n_in + 20, layer.weight_mean
    noise = _noise(mu, sources.variance, n)
    low, high = (
        up(
            replacement_error(
                s0.clamp_min(TINY), mu, sources.variance.lower, sources.variance.upper, sources.third, sources.fourth
            ),
            n,
        )
        for s0 in (spread.lower, spread.upper)
    )
    zero = torch.zeros_like(noise.upper)
    fourth = up(apply_rows(mu**4, sources.fourth) + 3 * noise.upper.square(), n)
    return {
        "noise": noise, "noise_variance": zero, "central": zero, "fourth": fourth, "replacement": Interval(low, high),
    }  # fmt: skip


def _later_terms(
    layer: Linear, given: Layers, latents: list[Latent], first: FirstLayer, spread: Interval
) -> dict[str, Any]:
    """M given the layer y before z, for deeper layers: independent terms with random variances."""
    n, mu, last = layer.n_in + 20, layer.weight_mean, given[-1][1]
    noise = _noise(mu, last.noise, n)
    cube = up(apply_rows(mu.abs() ** 3, last.cube), n)
    fourth = up(apply_rows(mu.abs(), latents[-1].fourth.sqrt().sqrt()), n) ** 4
    low, high = (conditional_replacement_error(s0.clamp_min(TINY), cube) for s0 in (spread.lower, spread.upper))
    return {
        "noise": noise,
        "noise_variance": up(apply_rows(mu.square(), last.noise_deviation), n).square(),
        "central": up(central_variance(mu, given, latents, first.sources), n),
        "fourth": fourth,
        "replacement": Interval(low, high),
    }
