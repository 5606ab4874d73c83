"""The moment method: forward over the layers for moments, backward from each for the ranges of its means."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.engine.dense.backward import Ground, Relaxed, narrowed
from bnndp.engine.dense.conditional import Layers, conditional
from bnndp.engine.dense.first import FirstLayer
from bnndp.engine.dense.pre_activation import pre_activation
from bnndp.engine.dense.records import Latent, PreActivation, Relaxation
from bnndp.engine.dense.relax import relax
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box, apply_rows
from bnndp.layers import Linear
from bnndp.maths.rounding import LARGE, TINY, gamma

__all__ = [
    "Hidden",
    "HiddenLayers",
    "deeper_layers",
    "interval_means",
    "mean_ranges",
    "with_last",
]

_DEAD = 32.0  # standard deviations: means further below zero are not asked for, in the second layer, of known tails


@dataclass(frozen=True, slots=True)
class Hidden:
    """One hidden layer after the first, relaxed on the box."""

    before: PreActivation
    mean: Interval
    relaxation: Relaxation
    latent: Latent
    scale: Tensor  # |W| E z + |b|: the size of the terms of its means


@dataclass(frozen=True, slots=True)
class HiddenLayers:
    """All hidden layers on a box: the first, those after it, and what the layers above need of them."""

    chain: list[Hidden]
    given: Layers  # layers 2 to K - 1 taken apart; with the last: with_last
    ground: Ground
    signs: tuple[Tensor, ...] = ()  # of the cell, see deeper_layers

    @property
    def box(self) -> Box:
        """Where all this holds."""
        return self.ground.box

    @property
    def first(self) -> FirstLayer:
        """The first hidden layer."""
        return self.ground.first

    @property
    def relaxed(self) -> Relaxed:
        """What the backward pass needs of the layers after the first."""
        return [(h.before.layer, h.relaxation, h.scale) for h in self.chain]

    @property
    def ranges(self) -> list[Interval]:
        """Ranges of the means of all hidden layers, first to last."""
        return [self.first.ranges.m, *(h.mean for h in self.chain)]

    @property
    def empty(self) -> Tensor:
        """Cells (batch,) that provably hold no x: a mean has no value of its sign on the box."""
        return torch.stack([(m.lower > m.upper).any(-1) for m in self.ranges]).any(0)

    @property
    def latents(self) -> list[Latent]:
        """Moments of all hidden layers, first to last."""
        return [self.first.latent, *(hidden.latent for hidden in self.chain)]

    @property
    def fine(self) -> Tensor:
        """Boxes (batch, 1) on which no mean or standard deviation is too large for its powers; NaN is not fine."""
        sizes = [self.first.latent.mean.upper, self.first.sources.noise.sqrt()]
        for hidden in self.chain:
            before = hidden.before
            sizes += [hidden.mean.magnitude, before.spread.upper.sqrt(), before.mean_variance.sqrt()]
        return torch.stack([(size <= LARGE).all(-1) for size in sizes]).all(0)[:, None]


def deeper_layers(first: FirstLayer, layers: Sequence[Linear], box: Box, signs: tuple[Tensor, ...]) -> HiddenLayers:
    """The forward pass over the hidden layers, from the first of them on.

    ``signs[k]`` (batch, n_k) of -1, 0 and 1 restrict the box to the cell of those x on which the means of hidden layer
    k have these signs.
    """
    ground = Ground.of(first, box)
    chain: list[Hidden] = []
    given: Layers = []
    for k, layer in enumerate(layers[1:], start=1):
        latents = [first.latent, *(h.latent for h in chain)]
        before = pre_activation(layer, first, latents, given)
        scale = apply_rows(layer.weight_mean.abs(), latents[-1].mean.upper) + layer.bias_mean.abs()
        mean = mean_ranges(before, interval_means(layer, latents[-1].mean, scale), chain, ground)
        mean = mean.where_sign(signs[k]) if k < len(signs) else mean
        relaxation, latent = relax(before, mean)
        if k + 1 < len(layers):
            sources = None if chain else first.sources
            given.append((before, conditional(before, mean, latent, latents[-1], sources)))
        chain.append(Hidden(before, mean, relaxation, latent, scale))
    return HiddenLayers(chain, given, ground, signs)


def with_last(layers: HiddenLayers) -> Layers:
    """The layers from the second on taken apart, the last included: for what is random above it."""
    if not layers.chain:
        return []
    last, sources = layers.chain[-1], layers.first.sources if len(layers.chain) == 1 else None
    apart = conditional(last.before, last.mean, last.latent, layers.latents[-2], sources, last=True)
    return [*layers.given, (last.before, apart)]


def mean_ranges(before: PreActivation, known: Interval, chain: Sequence[Hidden], ground: Ground) -> Interval:
    """Ranges of the means of the layer after ``chain``, of which ``known`` ones are given, by its rows carried to x."""
    dead = -(torch.inf if chain else _DEAD) * before.deviation.clamp_min(TINY)
    return narrowed(before.layer, [(h.before.layer, h.relaxation, h.scale) for h in chain], ground, known, dead)


def interval_means(layer: Linear, below: Interval, scale: Tensor) -> Interval:
    """Range of M = E X from the ranges of E z alone; ``scale`` is the size of its terms, for the rounding."""
    positive, negative = layer.weight_mean.clamp_min(0), layer.weight_mean.clamp_max(0)
    lost = gamma(2 * layer.n_in + 8) * scale + TINY
    low = apply_rows(positive, below.lower) + apply_rows(negative, below.upper) + layer.bias_mean - lost
    high = apply_rows(positive, below.upper) + apply_rows(negative, below.lower) + layer.bias_mean + lost
    return Interval(low, high)
