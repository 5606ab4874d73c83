"""Gaussian noise of the layers that are sampled, the same for all points, in independent replicates.

Scrambled Sobol points where they are quick to make, pseudo-random numbers elsewhere; each replicate has a seed of its
own, so that the standard error of a mean over replicates is honest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from bnndp.attack.draws import Chain
from bnndp.errors import InputError
from bnndp.maths.sobol import sobol_points

REPLICATES = 32
"""Independent scrambles of the Sobol points; the standard error has ``REPLICATES - 1`` degrees of freedom."""

_SOBOL = 2048  # Gaussians per draw up to which Sobol points are used: more are slow to make
_HELD = 2**23  # numbers of noise that are held; more are made again for each replicate
_KEPT = 2**20  # numbers of noise up to which it is kept for the next who asks for the same
_CELL = 2.0**-30  # torch's Sobol points lie on this grid; they are jittered inside their cell to be exactly uniform

LayerPart = tuple[Tensor | None, ...]
"""The noise of one network in one replicate: (draws, width) of every sampled layer, None where nothing is random."""
Part = tuple[LayerPart, ...] | Chain
"""One replicate: the noise of every member, or members without variance stacked."""


@dataclass(frozen=True, slots=True, eq=False)
class LayerNoise:
    """Standardised Gaussian noise of the sampled layers of one network, shared by all points."""

    widths: tuple[int, ...]  # Gaussians of each layer; zero where nothing is random
    replicates: int  # 1 where nothing is random
    draws: int  # in each replicate
    seed: int
    antithetic: bool
    device: torch.device
    held: tuple[LayerPart, ...] = ()  # the replicates, unless they are too large to be held

    def part(self, index: int) -> LayerPart:
        """The noise of one replicate."""
        if self.held:
            return self.held[index]
        count = self.draws // 2 if self.antithetic else self.draws
        noise = _gaussian(sum(self.widths), count, self.seed * REPLICATES + index).to(self.device)
        noise = torch.cat([noise, -noise]) if self.antithetic else noise
        return tuple(part if part.shape[-1] else None for part in noise.split(self.widths, dim=-1))


@dataclass(frozen=True, slots=True, eq=False)
class Noise:
    """Noise of the members of a mixture; members without variance and of one structure are one chain instead."""

    members: tuple[LayerNoise, ...]
    chain: Chain | None = None

    @property
    def replicates(self) -> int:
        """Number of independent parts; 1 where the mean is exact."""
        return max((member.replicates for member in self.members), default=1)

    @property
    def draws(self) -> int:
        """Draws in each part, of the member with the most."""
        return max(member.draws for member in self.members) if self.chain is None else self.chain.draws

    def part(self, index: int) -> Part:
        """The noise of one replicate; a member whose mean is exact has the same in all."""
        if self.chain is not None:
            return self.chain
        return tuple(member.part(index if member.replicates > 1 else 0) for member in self.members)

    def parts(self, start: int, count: int) -> Part:
        """The noise of ``count`` replicates from ``start`` on, one after the other along the draws."""
        if count == 1 or self.chain is not None:
            return self.part(start)
        return tuple(_side_by_side(member, start, count) for member in self.members)


def _side_by_side(noise: LayerNoise, start: int, count: int) -> LayerPart:
    if noise.replicates == 1:
        return noise.part(0)
    layers = zip(*(noise.part(index) for index in range(start, start + count)), strict=True)
    return tuple(torch.cat(layer) if layer[0] is not None else None for layer in layers)


def gaussian_noise(
    widths: Sequence[int],
    samples: int,
    *,
    seed: int,
    replicates: int = REPLICATES,
    antithetic: bool = False,
    device: torch.device | None = None,
) -> LayerNoise:
    """Noise of layers with these numbers of Gaussians per draw, at least ``samples`` draws in all.

    ``antithetic`` makes half of each replicate minus the other half. The halves depend on each other; the mean stays
    unbiased and the replicates independent.
    """
    if samples < 1 or replicates < 1:
        raise InputError(f"samples and replicates must be at least 1, got {samples} and {replicates}.")
    place = device or torch.device("cpu")
    if sum(widths) == 0:
        return LayerNoise(tuple(widths), 1, 1, seed, False, place, ((None,) * len(widths),))
    times = 2 if antithetic else 1
    draws = math.ceil(samples / replicates / times) * times
    size = replicates * draws * sum(widths)
    if size > _HELD:
        return LayerNoise(tuple(widths), replicates, draws, seed, antithetic, place)
    return (_kept if size <= _KEPT else _held)(tuple(widths), replicates, draws, seed, antithetic, place)


def _held(
    widths: tuple[int, ...], replicates: int, draws: int, seed: int, antithetic: bool, device: torch.device
) -> LayerNoise:
    """The noise with all its replicates."""
    noise = LayerNoise(widths, replicates, draws, seed, antithetic, device)
    return replace(noise, held=tuple(map(noise.part, range(replicates))))


_kept = lru_cache(maxsize=8)(_held)  # one batch of inputs after the other asks for the same noise


def _gaussian(dimension: int, draws: int, seed: int) -> Tensor:
    """Standard Gaussian noise (draws, dimension) from one scrambled Sobol sequence; pseudo-random beyond its limit."""
    generator = torch.Generator().manual_seed(seed)
    jitter = torch.rand(draws, dimension, generator=generator, dtype=torch.float64)
    if dimension > _SOBOL:
        return torch.randn(draws, dimension, generator=generator, dtype=torch.float64)
    uniform = sobol_points(dimension, draws, seed) + _CELL * jitter
    return torch.special.ndtri(uniform.clamp(2.0**-60, 1 - 2.0**-53))
