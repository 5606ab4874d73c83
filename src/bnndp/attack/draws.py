r"""Networks drawn from the posterior: weights, kernels and masks, stacked over draws, and their outputs at any inputs.

This is the definition of the posterior, with nothing integrated out:

- dense and convolutional layers draw every weight and bias (see the records for their laws), once for all inputs and
  for all positions of an image;
- dropout draws one factor a unit or channel, once for all inputs;
- an ensemble draws its members with their weights, then each member as above.

Layers without variance are held once, whatever the number of draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from bnndp.errors import InputError, UnsupportedLayerError
from bnndp.layers import (
    DENSE,
    WEIGHTED,
    AveragePool,
    Branched,
    Conv2d,
    CorrelatedLinear,
    Dropout,
    Flatten,
    Linear,
    MatrixNormalLinear,
    MaxPool,
)
from bnndp.network import BayesianNetwork, Layer, Posterior, flat

MEMORY = 2**26
"""Bytes of intermediate tensors at a time."""

_MOST = 2**28  # numbers that may be drawn at once: 2 GB


@dataclass(frozen=True, slots=True)
class _Weights:
    layer: Layer  # one of WEIGHTED
    weight: Tensor  # (draws or 1, *shape of the weight)
    bias: Tensor  # (draws or 1, n_out)


@dataclass(frozen=True, slots=True)
class _Factor:
    factor: Tensor  # (draws, 1, *shape), the shape that of the units or (channels, 1, 1)


@dataclass(frozen=True, slots=True)
class _Block:
    layer: Branched
    branches: tuple[tuple[_Step, ...], ...]


_Step: TypeAlias = "_Weights | _Factor | _Block | Layer"


@dataclass(frozen=True, slots=True)
class Chain:
    """Draws of one network; a step holds one draw where nothing in it is random."""

    steps: tuple[_Step, ...]
    draws: int
    input_shape: tuple[int, ...]
    shift: Tensor | None  # (draws or 1, 1, n_in)
    widest: int


@dataclass(frozen=True, slots=True)
class Drawn:
    """Drawn networks: one chain, or one for each member of an ensemble that was drawn; draws go member by member."""

    chains: tuple[Chain, ...]

    @property
    def draws(self) -> int:
        """Number of networks drawn."""
        return sum(chain.draws for chain in self.chains)


def draw_networks(network: Posterior, draws: int, *, seed: int) -> Drawn:
    """Draw whole networks from the posterior, independent and determined by ``seed``."""
    if draws < 1:
        raise InputError(f"draws must be at least 1, got {draws}.")
    generator = torch.Generator().manual_seed(seed)
    counts = [draws]
    if len(network.members) > 1:
        picked = torch.multinomial(network.probabilities.cpu(), draws, replacement=True, generator=generator)
        counts = torch.bincount(picked, minlength=len(network.members)).tolist()
    pairs = zip(network.members, counts, strict=True)
    return Drawn(tuple(_chain(member, count, generator) for member, count in pairs if count))


def stacked(network: Posterior) -> Chain | None:
    """The members of an ensemble as the draws of one chain; None unless they are dense, without variance and alike."""
    members = network.members
    if len(members) == 1 or len(network.alike) > 1:
        return None
    first = members[0]
    steps = tuple(map(_joined, zip(*(member.layers for member in members), strict=True)))
    shifts = [member.shift for member in members if member.shift is not None]
    return Chain(steps, len(members), first.shapes[0], torch.stack(shifts)[:, None] if shifts else None, first.widest)


def mean_chain(network: BayesianNetwork) -> Chain:
    """The network of the mean weights, as one draw."""
    return Chain(tuple(map(_mean_step, network.layers)), 1, network.shapes[0], _shift(network), network.widest)


def cast(chain: Chain, dtype: torch.dtype) -> Chain:
    """The same with weights of another precision, in which the layers behind them then work."""
    return replace(chain, steps=tuple(_cast(step, dtype) for step in chain.steps))


def _mean_step(layer: Layer) -> _Step:
    """The layer with its mean weights; the mean of dropout is no dropout."""
    if isinstance(layer, Branched):
        return _Block(layer, tuple(tuple(map(_mean_step, branch)) for branch in layer.branches))
    return _Weights(layer, layer.weight_mean[None], layer.bias_mean[None]) if isinstance(layer, WEIGHTED) else layer


def _cast(step: _Step, dtype: torch.dtype) -> _Step:
    if isinstance(step, _Block):
        return replace(step, branches=tuple(tuple(_cast(own, dtype) for own in branch) for branch in step.branches))
    if isinstance(step, _Weights):
        return replace(step, weight=step.weight.to(dtype), bias=step.bias.to(dtype))
    return step


def _shift(network: BayesianNetwork) -> Tensor | None:
    return None if network.shift is None else network.shift[None, None]


def _joined(layers: Sequence[Layer]) -> _Step:
    """The same layer of several networks, stacked."""
    linears = [layer for layer in layers if isinstance(layer, Linear)]
    if not linears:
        return layers[0]
    weight, bias = (torch.stack([getattr(each, name) for each in linears]) for name in ("weight_mean", "bias_mean"))
    return _Weights(linears[0], weight, bias)


def evaluate(drawn: Drawn | Chain, x: Tensor, *, memory: int = MEMORY) -> Tensor:
    """Outputs of every drawn network at ``x`` (points, n_in), differentiable in x: (draws, points, n_out)."""
    if isinstance(drawn, Drawn):
        return torch.cat([evaluate(chain, x, memory=memory) for chain in drawn.chains])
    if x.ndim != 2 or x.shape[1] != math.prod(drawn.input_shape):
        raise InputError(f"x must have shape (points, {math.prod(drawn.input_shape)}), got {tuple(x.shape)}.")
    size = max(1, memory // (32 * drawn.draws * drawn.widest))
    found = torch.cat([_run(drawn, chunk) for chunk in x.split(size)], dim=1)
    return found.expand(drawn.draws, -1, -1)


def _run(chain: Chain, x: Tensor) -> Tensor:  # (points, n_in) -> (draws or 1, points, n_out)
    z = x[None] if chain.shift is None else x - chain.shift
    return _steps(chain.steps, z.reshape(*z.shape[:2], *chain.input_shape))


def _steps(steps: Sequence[_Step], z: Tensor) -> Tensor:  # (draws or 1, points, *shape)
    for step in steps:
        if isinstance(step, _Block):
            z = step.layer.joined([_steps(branch, z) for branch in step.branches])
        elif isinstance(step, _Weights):
            z = affine(step.layer, z.to(step.weight.dtype), step.weight, step.bias)
        elif isinstance(step, _Factor):
            z = z * step.factor
        else:
            z = plain_step(step, z)
    return z


def plain_step(layer: Layer, z: Tensor) -> Tensor:
    """A layer without weights and without variance: z (draws, points, *shape)."""
    if isinstance(layer, Flatten):
        return z.flatten(2)
    if isinstance(layer, AveragePool | MaxPool):
        pool = F.avg_pool2d if isinstance(layer, AveragePool) else F.max_pool2d
        found: Tensor = pool(z.flatten(0, 1), layer.size, layer.stride)
        return found.unflatten(0, z.shape[:2])
    if isinstance(layer, Dropout):
        return z  # rate zero, or its mean
    return layer(z)  # type: ignore[operator]


def affine(layer: Layer, z: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A layer with these weights (draws or 1, ...) and biases (draws or 1, n_out) on z (draws or 1, points, *shape)."""
    if isinstance(layer, Conv2d):
        return convolve(z, weight, layer.stride, layer.padding) + bias[:, None, :, None, None]
    return z @ weight.mT + bias[:, None]


def convolve(z: Tensor, weight: Tensor, stride: tuple[int, int], padding: tuple[int, int]) -> Tensor:
    """Images z (draws or 1, points, channels, height, width) with kernels (draws or 1, out, channels, h, w)."""
    draws, count = z.shape[0], weight.shape[0]
    if count == 1:  # one kernel for all
        y = F.conv2d(z.flatten(0, 1), weight[0], stride=stride, padding=padding)
        return y.unflatten(0, z.shape[:2])
    if draws == 1:  # all kernels on the same images
        y = F.conv2d(z[0], weight.flatten(0, 1), stride=stride, padding=padding)
        return y.unflatten(1, (count, -1)).transpose(0, 1)
    pairs = zip(z, weight, strict=True)
    return torch.stack([F.conv2d(images, kernel, stride=stride, padding=padding) for images, kernel in pairs])


def _chain(network: BayesianNetwork, draws: int, generator: torch.Generator) -> Chain:
    source = _Source(draws, generator, device_of(network))
    pairs = zip(network.layers, network.shapes[:-1], strict=True)
    steps = tuple(_drawn(layer, shape, source) for layer, shape in pairs)
    return Chain(steps, draws, network.shapes[0], _shift(network), network.widest)


def device_of(network: BayesianNetwork) -> torch.device:
    """The device of its tensors."""
    layer = next(layer for layer in flat(network.layers) if layer.tensors)
    return getattr(layer, layer.tensors[0]).device


@dataclass(frozen=True, slots=True)
class _Source:
    """Where random numbers come from, and on which device they go."""

    draws: int
    generator: torch.Generator
    device: torch.device

    def normal(self, *sizes: int) -> Tensor:
        """Standard Gaussians (draws, *sizes)."""
        return torch.randn(self._shape(sizes), generator=self.generator, dtype=torch.float64).to(self.device)

    def uniform(self, *sizes: int) -> Tensor:
        """Uniform numbers in [0, 1): (draws, *sizes)."""
        return torch.rand(self._shape(sizes), generator=self.generator, dtype=torch.float64).to(self.device)

    def _shape(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        if self.draws * math.prod(sizes) > _MOST:
            raise InputError(f"{self.draws} draws of {math.prod(sizes)} numbers do not fit; draw fewer at a time.")
        return (self.draws, *sizes)


def _drawn(layer: Layer, shape: tuple[int, ...], source: _Source) -> _Step:  # noqa: PLR0911 (one for each kind)
    """The layer with its weights drawn; ``shape`` is that of its inputs."""
    if isinstance(layer, Branched):
        pairs = zip(layer.branches, layer.shapes(shape), strict=True)
        return _Block(layer, tuple(tuple(map(_drawn, own, shapes, repeat(source))) for own, shapes in pairs))
    if isinstance(layer, WEIGHTED) and not layer.random:
        return _Weights(layer, layer.weight_mean[None], layer.bias_mean[None])
    if isinstance(layer, Conv2d):
        weight = layer.weight_mean + layer.weight_std * source.normal(*layer.weight_std.shape)
        return _Weights(layer, weight, layer.bias_mean + layer.bias_std * source.normal(*layer.bias_std.shape))
    if isinstance(layer, DENSE):
        noise = _noise_of_weights(layer, source)
        return _Weights(layer, layer.weight_mean + noise[..., :-1], layer.bias_mean + noise[..., -1])
    if isinstance(layer, Dropout) and layer.random:
        units = (shape[0], 1, 1) if layer.channels else shape
        if layer.law == "gaussian":
            return _Factor(1 + math.sqrt(layer.rate / (1 - layer.rate)) * source.normal(1, *units))
        return _Factor((source.uniform(1, *units) >= layer.rate).to(torch.float64) / (1 - layer.rate))
    return layer


def _noise_of_weights(layer: Layer, source: _Source) -> Tensor:
    """What is added to the means of a dense layer, biases last: (draws, n_out, n_in + 1)."""
    if isinstance(layer, MatrixNormalLinear):
        noise = source.normal(layer.row_factor.shape[1], layer.column_factor.shape[1])
        return layer.row_factor @ noise @ layer.column_factor.T
    if not isinstance(layer, Linear | CorrelatedLinear):
        raise UnsupportedLayerError(f"{layer.kind} cannot be sampled here; this is a bug in bnndp.")
    std = torch.cat([layer.weight_std, layer.bias_std[:, None]], dim=1)
    own = std * source.normal(*std.shape)
    if isinstance(layer, Linear):
        return own
    if layer.shared:
        return own + torch.einsum("ojq,dq->doj", layer.factor, source.normal(layer.rank))
    return own + torch.einsum("ojq,doq->doj", layer.factor, source.normal(layer.n_out, layer.rank))
