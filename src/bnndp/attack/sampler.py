"""What every sampled mean shares: drawing the noise, mixing the members, chunks of points, standard errors.

A network is a mixture of one. A :class:`Sampler` says what is sampled of one network, and how a mixture is made of
that: the mean output (``sampling.py``), or the logarithm of the mean softmax (``sampled_softmax.py``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from bnndp.attack.draws import Chain, device_of, evaluate, stacked
from bnndp.attack.noise import LayerPart, Noise, Part, gaussian_noise
from bnndp.attack.pathwise import breadth
from bnndp.engine.chunks import cache_size
from bnndp.errors import InputError
from bnndp.network import BayesianNetwork, Posterior

MEMORY = 2**23
"""Bytes of intermediate tensors at a time on a CPU; small, so that they stay in the cache (measured fastest)."""

_TOGETHER = 256  # draws up to which replicates are evaluated side by side
_IMAGES = 8  # times the memory for networks of images: they are wide, and a step has more to call


class Sampler(Protocol):
    """A mean over the posterior, estimated at given points."""

    @property
    def antithetic(self) -> bool:
        """Whether half of the noise is minus the other half."""
        ...

    def widths(self, network: BayesianNetwork) -> tuple[int, ...]:
        """Gaussians per draw of every sampled layer; zero where nothing is random."""
        ...

    def network(self, network: BayesianNetwork, x: Tensor, noise: LayerPart, count: int) -> Tensor:
        """The mean at ``x`` (points, n) over each of ``count`` replicates of the noise, differentiable in x.

        (count, points, n_out), or (1, points, n_out) where nothing is random.
        """
        ...

    def fixed(self, outputs: Tensor) -> Tensor:
        """The same of networks without variance from their outputs (members, points, n_out)."""
        ...

    def mix(self, means: Tensor, weights: Tensor) -> Tensor:
        """The mean (..., points, n_out) of a mixture from those of its members (members, ..., points, n_out)."""
        ...


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimated mean of every output; the standard error is zero where the mean is a closed form."""

    mean: Tensor  # (..., n_out)
    std_error: Tensor  # (..., n_out)
    replicates: Tensor  # (replicates, ..., n_out): the independent estimates behind ``mean``; one if exact


def draw(sampler: Sampler, network: Posterior, samples: int, *, seed: int, replicates: int) -> Noise:
    """At least ``samples`` draws of the noise in ``replicates`` independent scrambles, determined by ``seed``.

    Every member has a share of the samples and a seed of its own. Torch takes 32 bits of a seed. Members further apart
    than that allows share noise in the same replicate, which leaves the replicates independent.
    """
    chain = stacked(network)
    if chain is not None:
        return Noise((), chain)
    share = math.ceil(samples / len(network.members))
    return Noise(
        tuple(
            gaussian_noise(
                sampler.widths(member),
                share,
                seed=seed + (index << 16),
                replicates=replicates,
                antithetic=sampler.antithetic,
                device=device_of(member),
            )
            for index, member in enumerate(network.members)
        )
    )


def sampled_at(sampler: Sampler, network: Posterior, x: Tensor, noise: Part) -> Tensor:
    """The mean at ``x`` (points, n) over one replicate of the noise, differentiable in x: (points, n_out)."""
    return _sampled_at(sampler, network, x, noise, 1)[0]


def _sampled_at(sampler: Sampler, network: Posterior, x: Tensor, noise: Part, count: int) -> Tensor:
    """The same over each of ``count`` replicates side by side: (count, points, n_out)."""
    if isinstance(noise, Chain):
        means = sampler.fixed(evaluate(noise, x))[:, None]
    else:
        if len(noise) != len(network.members):
            raise InputError(f"this noise is of {len(noise)} networks, not of {len(network.members)}; draw it anew.")
        pairs = zip(network.members, noise, strict=True)
        means = torch.stack([sampler.network(member, x, part, count).expand(count, -1, -1) for member, part in pairs])
    return sampler.mix(means, network.probabilities.to(x.device))


def sampled(
    sampler: Sampler,
    network: Posterior,
    x: Tensor,  # (..., n)
    noise: Noise,
    *,
    memory: int = MEMORY,
) -> Tensor:
    """The mean by each replicate, in chunks that fit into ``memory`` bytes: (replicates, ..., n_out)."""
    points = x.reshape(-1, x.shape[-1])
    together = min(noise.replicates, max(1, _TOGETHER // noise.draws))  # what the first layer makes of x is the same
    size = max(1, chunk_size(network, noise, cache_size(memory, x.device), tensors=8) // together)
    parts = []
    with torch.no_grad():
        for start in range(0, noise.replicates, together):
            count = min(together, noise.replicates - start)
            part = noise.parts(start, count)
            chunks = [_sampled_at(sampler, network, chunk, part, count) for chunk in points.split(size)]
            parts.append(torch.cat(chunks, dim=1))
    return torch.cat(parts).reshape(-1, *x.shape[:-1], network.n_out)


def gather(replicates: Tensor) -> Estimate:  # (replicates, ...)
    """Mean and standard error of independent estimates; of a single one, which stands for an exact value, zero."""
    count = replicates.shape[0]
    mean = replicates.mean(0)
    return Estimate(mean, replicates.std(0) / math.sqrt(count) if count > 1 else torch.zeros_like(mean), replicates)


def chunk_size(network: Posterior, noise: Noise, memory: int, *, tensors: int) -> int:
    """Points at a time, so that ``tensors`` activations of the widest layer fit into ``memory`` bytes.

    Draws multiply the layers only, not the inputs.
    """
    layers = [pair for member in network.examples for pair in zip(member.layers, member.shapes[:-1], strict=True)]
    widest = max(breadth(layer, shape) for layer, shape in layers)
    images = any(len(shape) > 1 for _, shape in layers)
    apart = max(1, len(noise.members))  # the graphs of all members are held together
    available = (_IMAGES if images else 1) * memory
    return max(1, available // (8 * (tensors * apart * noise.draws * widest + 4 * network.n_in)))
