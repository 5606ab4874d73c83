"""Gaussian noise of the layers that are sampled, the same for all points, in independent replicates.

Scrambled Sobol points where they are quick to make, pseudo-random numbers elsewhere; each replicate has a seed of its
own, so that the standard error of a mean over replicates is honest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bnndp.attack.draws import Chain, stacked
from bnndp.errors import InputError
from bnndp.layers import Linear
from bnndp.maths.sobol import MOST_DIMENSIONS, sobol_points
from bnndp.network import BayesianNetwork, Ensemble

__all__ = ["REPLICATES", "AnyNoise", "Mixture", "Noise", "Part", "Seeded", "gaussian_noise", "layer_noise", "mixed"]

REPLICATES = 32
"""Independent scrambles of the Sobol points; the standard error has ``REPLICATES - 1`` degrees of freedom."""

_SOBOL = 1024  # Gaussians a draw up to which networks that are not plain use Sobol points: more are slow to make
_HELD = 2**23  # numbers of noise that are held; more are made again for each replicate
_CELL = 2.0**-30  # torch's Sobol points lie on this grid; they are jittered inside their cell to be exactly uniform


@dataclass(frozen=True, slots=True)
class Noise:
    """Standardised Gaussian noise of the sampled layers, shared by all points; None where nothing is random.

    For the mean output these are the hidden layers 1 to K-1, for the mean softmax all linear layers.
    """

    layers: tuple[Tensor | None, ...]  # each (replicates, draws, n_out of the layer)

    @property
    def replicates(self) -> int:
        """Number of independent parts; 1 where the mean is exact."""
        return next((layer.shape[0] for layer in self.layers if layer is not None), 1)

    @property
    def draws(self) -> int:
        """Draws in each part."""
        return next((layer.shape[1] for layer in self.layers if layer is not None), 1)

    def part(self, index: int) -> tuple[Tensor | None, ...]:
        """The noise of one replicate: (draws, n_out) a layer."""
        return tuple(None if layer is None else layer[index] for layer in self.layers)


@dataclass(frozen=True, slots=True)
class Seeded:
    """The same as :class:`Noise`, too large to be held: every replicate is made when it is asked for."""

    widths: tuple[int, ...]  # of the layers; zero where nothing is random
    replicates: int
    draws: int
    seed: int
    antithetic: bool
    device: torch.device

    def part(self, index: int) -> tuple[Tensor | None, ...]:
        """The noise of one replicate: (draws, width) a layer."""
        count = self.draws // 2 if self.antithetic else self.draws
        noise = _gaussian(sum(self.widths), count, self.seed * REPLICATES + index, _SOBOL).to(self.device)
        noise = torch.cat([noise, -noise]) if self.antithetic else noise
        return tuple(part if part.shape[-1] else None for part in noise.split(self.widths, dim=-1))


@dataclass(frozen=True, slots=True)
class Mixture:
    """Noise of the members of an ensemble; members without variance and of one structure are one chain instead."""

    members: tuple[AnyNoise, ...]
    chain: Chain | None = None

    @property
    def replicates(self) -> int:
        """Number of independent parts; 1 where the mean is exact."""
        return max((member.replicates for member in self.members), default=1)

    @property
    def draws(self) -> int:
        """Draws in each part, of the member with the most."""
        return max((member.draws for member in self.members), default=1) if self.chain is None else self.chain.draws

    def part(self, index: int) -> Part:
        """The noise of one replicate, a member; a member whose mean is exact has the same in all."""
        if self.chain is not None:
            return self.chain
        return tuple(member.part(index if member.replicates > 1 else 0) for member in self.members)


AnyNoise = Noise | Seeded | Mixture
Part = tuple[Any, ...] | Chain
"""One replicate: noise of every sampled layer, of every member, or members without variance."""


def gaussian_noise(
    layers: Sequence[Linear], samples: int, *, seed: int, replicates: int = REPLICATES, antithetic: bool = False
) -> Noise:
    """Noise of these layers, at least ``samples`` draws in all; ``antithetic`` makes half of each part minus the rest.

    The halves of an antithetic part depend on each other, its mean stays unbiased and the parts independent.
    """
    if samples < 1 or replicates < 1:
        raise InputError(f"samples and replicates must be at least 1, got {samples} and {replicates}.")
    widths = [layer.n_out if layer.random else 0 for layer in layers]
    dimension = sum(widths)
    if dimension == 0:
        return Noise((None,) * len(widths))
    draws = math.ceil(samples / replicates / (2 if antithetic else 1))
    parts = torch.stack([_gaussian(dimension, draws, seed * REPLICATES + index) for index in range(replicates)])
    noise = (torch.cat([parts, -parts], dim=1) if antithetic else parts).to(layers[0].weight_mean.device)
    return Noise(tuple(part if part.shape[-1] else None for part in noise.split(widths, dim=-1)))


def layer_noise(
    network: BayesianNetwork,
    widths: tuple[int, ...],
    samples: int,
    *,
    seed: int,
    replicates: int,
    antithetic: bool = False,
) -> Noise | Seeded:
    """Noise of any network, with the given number of Gaussians per draw and layer (``pathwise.noise_width``)."""
    if samples < 1 or replicates < 1:
        raise InputError(f"samples and replicates must be at least 1, got {samples} and {replicates}.")
    if sum(widths) == 0:
        return Noise((None,) * len(widths))
    draws = math.ceil(samples / replicates / (2 if antithetic else 1)) * (2 if antithetic else 1)
    source = Seeded(widths, replicates, draws, seed, antithetic, _device(network))
    if replicates * draws * sum(widths) > _HELD:
        return source
    parts = zip(*(source.part(index) for index in range(replicates)), strict=True)
    return Noise(tuple(None if layers[0] is None else torch.stack(layers) for layers in parts))


def mixed(network: Ensemble, samples: int, seed: int, draw: Callable[[BayesianNetwork, int, int], AnyNoise]) -> Mixture:
    """Noise for every member by ``draw(member, samples, seed)``, with a share of the samples and a seed of its own.

    Torch takes 32 bits of a seed. Members further apart than that allows share noise in the same replicate, which
    leaves the replicates independent.
    """
    chain = None if network.random else stacked(network.members)
    if chain is not None:
        return Mixture((), chain)
    share = math.ceil(samples / len(network.members))
    return Mixture(tuple(draw(member, share, seed + (i << 16)) for i, member in enumerate(network.members)))


def _gaussian(dimension: int, draws: int, seed: int, limit: int = MOST_DIMENSIONS) -> Tensor:
    """Standard Gaussian noise (draws, dimension) from one scrambled Sobol sequence; pseudo-random beyond its limit."""
    generator = torch.Generator().manual_seed(seed)
    jitter = torch.rand(draws, dimension, generator=generator, dtype=torch.float64)
    if dimension > limit:
        return torch.randn(draws, dimension, generator=generator, dtype=torch.float64)
    uniform = sobol_points(dimension, draws, seed) + _CELL * jitter
    return torch.special.ndtri(uniform.clamp(2.0**-60, 1 - 2.0**-53))


def _device(network: BayesianNetwork) -> torch.device:
    layer = next(layer for layer in network.layers if layer.tensors)
    return getattr(layer, layer.tensors[0]).device
