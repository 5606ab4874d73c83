r"""The mean of a network's output at given points, from inside: exact where a closed form exists, sampled otherwise.

Given the layer below, pre-activations are independent Gaussians :math:`N(m(z), r(z)^2)`. Hence the mean is exact for
at most one hidden layer, and for any depth when all hidden layers but the last have no variance:

.. math:: \mathbb E f(x)=\bar W_{K+1}\,\mathbb E\,g\big(m_K(z_{K-1}),r_K(z_{K-1})\big)+\bar b_{K+1},
          \qquad z_k=[m_k(z_{k-1})+r_k(z_{k-1})\,\varepsilon_k]_+ .

Only :math:`\varepsilon_1,\dots,\varepsilon_{K-1}` are sampled (the last hidden layer and the output layer are
integrated out). The noise is the same for every x: each point sees the right law, and the estimate is a smooth
function of x that can be ascended. The draws are scrambled Sobol points in independent replicates, so the standard
error is honest, but for events rarer than one in all draws: what only they add is seen neither in the mean nor in its
error. Nothing here proves a bound: estimates and, up to rounding, exact values of :math:`\mathbb E f`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bnndp.errors import InputError
from bnndp.maths.normal import cdf, pdf
from bnndp.maths.rectified import expected_relu
from bnndp.network import BayesianNetwork, Linear

__all__ = [
    "Estimate",
    "Noise",
    "ascent_direction",
    "draw_noise",
    "estimate",
    "expected_output",
    "gather",
    "gaussian_noise",
    "is_exact",
    "piece_size",
    "pre_activation",
]

REPLICATES = 32
"""Independent scrambles of the Sobol points; the standard error has ``REPLICATES - 1`` degrees of freedom."""

MEMORY = 2**23
"""Bytes of intermediate tensors at a time; small, so that they stay in the cache (measured fastest)."""

_CELL = 2.0**-30  # torch's Sobol points lie on this grid; they are jittered inside their cell to be exactly uniform
_NO_VARIANCE = 1e-300  # stands for zero under a square root, whose slope at zero would make NaN of 0 * inf


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimated mean of every output; the standard error is zero where the mean is a closed form."""

    mean: Tensor  # (..., n_out)
    std_error: Tensor  # (..., n_out)
    replicates: Tensor  # (replicates, ..., n_out): the independent estimates behind ``mean``; one if exact


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


def is_exact(network: BayesianNetwork) -> bool:
    """Whether the mean has a closed form: no hidden layer but the last one has any variance."""
    return not any(_is_random(layer) for layer in network.linears[:-2])


def draw_noise(network: BayesianNetwork, samples: int, *, seed: int, replicates: int = REPLICATES) -> Noise:
    """At least ``samples`` draws of the noise in ``replicates`` independent scrambles, determined by ``seed``."""
    return gaussian_noise(network.linears[:-2], samples, seed=seed, replicates=replicates)


def gaussian_noise(
    layers: Sequence[Linear], samples: int, *, seed: int, replicates: int = REPLICATES, antithetic: bool = False
) -> Noise:
    """Noise of these layers, at least ``samples`` draws in all; ``antithetic`` makes half of each part minus the rest.

    The halves of an antithetic part depend on each other, its mean stays unbiased and the parts independent.
    """
    if samples < 1 or replicates < 1:
        raise InputError(f"samples and replicates must be at least 1, got {samples} and {replicates}.")
    widths = [layer.n_out if _is_random(layer) else 0 for layer in layers]
    dimension = sum(widths)
    if dimension == 0:
        return Noise((None,) * len(widths))
    draws = math.ceil(samples / replicates / (2 if antithetic else 1))
    parts = torch.stack([_gaussian(dimension, draws, seed * REPLICATES + index) for index in range(replicates)])
    noise = (torch.cat([parts, -parts], dim=1) if antithetic else parts).to(layers[0].weight_mean.device)
    return Noise(tuple(part if part.shape[-1] else None for part in noise.split(widths, dim=-1)))


def expected_output(network: BayesianNetwork, x: Tensor, noise: Sequence[Tensor | None]) -> Tensor:
    """Mean output at ``x`` (points, n) over one replicate of the noise, differentiable in x: (points, n_out)."""
    *below, last = network.linears
    z = network.centred(x)[:, None]  # (points, draws, n), one draw until a layer is random
    for layer, eps in zip(below[:-1], noise, strict=True):
        mean, std = pre_activation(layer, z)
        z = (mean if eps is None else mean + std * eps).clamp_min(0)
    if below:
        mean, std = pre_activation(below[-1], z)
        z = _climbable_relu(mean, std) if mean.requires_grad else expected_relu(mean, std)
    return z.mean(1) @ last.weight_mean.T + last.bias_mean


def estimate(
    network: BayesianNetwork,
    x: Tensor,  # (..., n)
    noise: Noise,
    *,
    memory: int = MEMORY,
) -> Estimate:
    """Mean and standard error of the outputs at any number of points, in pieces that fit into ``memory`` bytes."""
    points = x.reshape(-1, x.shape[-1])
    size = piece_size(network, noise, memory, tensors=8)
    with torch.no_grad():
        parts = [
            torch.cat([expected_output(network, piece, noise.part(index)) for piece in points.split(size)])
            for index in range(noise.replicates)
        ]
    return gather(torch.stack(parts).reshape(len(parts), *x.shape[:-1], network.n_out))


def gather(replicates: Tensor) -> Estimate:  # (replicates, ...)
    """Mean and standard error of independent estimates; of a single one, which stands for an exact value, zero."""
    count = replicates.shape[0]
    mean = replicates.mean(0)
    return Estimate(mean, replicates.std(0) / math.sqrt(count) if count > 1 else torch.zeros_like(mean), replicates)


def ascent_direction(
    network: BayesianNetwork,
    x: Tensor,  # (points, n)
    rows: Tensor,  # (points, n_out)
    noise: Noise,
    *,
    memory: int = MEMORY,
) -> tuple[Tensor, Tensor]:
    """Value (points,) and gradient (points, n) of ``rows . E f(x)``, estimated with all replicates of the noise."""
    size = piece_size(network, noise, memory, tensors=8 * max(1, network.depth))
    values, gradients = [], []
    for points, weights in zip(x.split(size), rows.split(size), strict=True):
        total, slope = torch.zeros_like(points[:, 0]), torch.zeros_like(points)
        for index in range(noise.replicates):
            with torch.enable_grad():
                leaf = points.detach().requires_grad_()
                value = (expected_output(network, leaf, noise.part(index)) * weights).sum(-1)
                slope += torch.autograd.grad(value.sum(), leaf)[0]
            total += value.detach()
        values.append(total / noise.replicates)
        gradients.append(slope / noise.replicates)
    return torch.cat(values), torch.cat(gradients)


class _ExpectedRelu(torch.autograd.Function):
    """``g(m, r)`` with its derivatives dg/dm = Phi(m/r), dg/dr = phi(m/r); its left tail is good enough to climb on."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, std: Tensor) -> Tensor:
        u = mean / std
        active, density = cdf(u), pdf(u)
        ctx.save_for_backward(active, density)
        return (mean * active).addcmul_(std, density).clamp_min_(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        active, density = ctx.saved_tensors
        return gradients[0] * active, gradients[0] * density


def _climbable_relu(mean: Tensor, std: Tensor) -> Tensor:
    result: Tensor = _ExpectedRelu.apply(mean, std)  # type: ignore[no-untyped-call]
    return result


def pre_activation(layer: Linear, z: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of ``W z + b`` given z (points, draws, n_in): each (points, draws, n_out)."""
    mean = z @ layer.weight_mean.T + layer.bias_mean
    variance = (z * z) @ (layer.weight_std**2).T + layer.bias_std**2
    return mean, variance.clamp_min(_NO_VARIANCE).sqrt()


def _gaussian(dimension: int, draws: int, seed: int) -> Tensor:
    """Standard Gaussian noise (draws, dimension) from one scrambled Sobol sequence; pseudo-random beyond its limit."""
    generator = torch.Generator().manual_seed(seed)
    jitter = torch.rand(draws, dimension, generator=generator, dtype=torch.float64)
    if dimension > torch.quasirandom.SobolEngine.MAXDIM:
        return torch.randn(draws, dimension, generator=generator, dtype=torch.float64)
    engine = torch.quasirandom.SobolEngine(dimension, scramble=True, seed=seed)
    uniform = engine.draw(draws, dtype=torch.float64) + _CELL * jitter
    return torch.special.ndtri(uniform.clamp(2.0**-60, 1 - 2.0**-53))


def _is_random(layer: Linear) -> bool:
    return bool((layer.weight_std > 0).any() | (layer.bias_std > 0).any())


def piece_size(network: BayesianNetwork, noise: Noise, memory: int, *, tensors: int) -> int:
    """Points at a time, so that ``tensors`` activations of the widest layer fit into ``memory`` bytes.

    Draws multiply the layers only, not the inputs.
    """
    n_in, *widths = network.sizes
    return max(1, memory // (8 * (tensors * noise.draws * max(widths) + 4 * n_in)))
