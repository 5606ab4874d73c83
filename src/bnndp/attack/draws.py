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
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from bnndp.errors import InputError, UnsupportedLayerError
from bnndp.layers import (
    DENSE,
    WEIGHTED,
    AveragePool,
    Conv2d,
    CorrelatedLinear,
    Dropout,
    Flatten,
    Linear,
    MatrixNormalLinear,
    MaxPool,
    Residual,
)
from bnndp.network import BayesianNetwork, Ensemble, Layer, flat

__all__ = ["Chain", "Drawn", "convolve", "draw_networks", "evaluate", "plain_step", "stacked"]

MEMORY = 2**26
"""Bytes of intermediate tensors at a time."""

_MOST = 2**28  # numbers that may be drawn at once: 2 GB


@dataclass(frozen=True, slots=True)
class _Dense:
    weight: Tensor  # (draws or 1, n_out, n_in)
    bias: Tensor  # (draws or 1, n_out)


@dataclass(frozen=True, slots=True)
class _Convolution:
    weight: Tensor  # (draws or 1, channels out, channels in, height, width)
    bias: Tensor  # (draws or 1, channels out)
    stride: tuple[int, int]
    padding: tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Factor:
    factor: Tensor  # (draws, 1, *shape), the shape that of the units or (channels, 1, 1)


@dataclass(frozen=True, slots=True)
class _Block:
    steps: tuple[_Step, ...]  # of a residual block


_Step: TypeAlias = "_Dense | _Convolution | _Factor | _Block | Layer"


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


def draw_networks(network: BayesianNetwork | Ensemble, draws: int, *, seed: int) -> Drawn:
    """Draw whole networks from the posterior, independent and determined by ``seed``."""
    if draws < 1:
        raise InputError(f"draws must be at least 1, got {draws}.")
    generator = torch.Generator().manual_seed(seed)
    if isinstance(network, BayesianNetwork):
        return Drawn((_chain(network, draws, generator),))
    picked = torch.multinomial(network.probabilities.cpu(), draws, replacement=True, generator=generator)
    counts = torch.bincount(picked, minlength=len(network.members)).tolist()
    pairs = zip(network.members, counts, strict=True)
    return Drawn(tuple(_chain(member, count, generator) for member, count in pairs if count))


def stacked(members: Sequence[BayesianNetwork]) -> Chain | None:
    """Networks without variance and of one structure as the draws of one chain; None if they are not such."""
    first = members[0]
    alike = all(not member.random and _structure(member) == _structure(first) for member in members)
    if not alike:
        return None
    chains = [_chain(member, 1, torch.Generator()) for member in members]
    steps = tuple(_joined(parts) for parts in zip(*(chain.steps for chain in chains), strict=True))
    shifts = [chain.shift for chain in chains if chain.shift is not None]
    shift = torch.cat(shifts) if shifts else None
    return Chain(steps, len(members), first.shapes[0], shift, first.widest)


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
            z = z + _steps(step.steps, z)
        elif isinstance(step, _Dense):
            z = z @ step.weight.mT + step.bias[:, None]
        elif isinstance(step, _Convolution):
            z = convolve(z, step.weight, step.stride, step.padding) + step.bias[:, None, :, None, None]
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
    source = _Source(draws, generator, next(layer for layer in flat(network.layers) if layer.tensors))
    pairs = zip(network.layers, network.shapes[:-1], strict=True)
    steps = tuple(_drawn(layer, shape, source) for layer, shape in pairs)
    shift = None if network.shift is None else network.shift[None, None]
    return Chain(steps, draws, network.shapes[0], shift, network.widest)


@dataclass(frozen=True, slots=True)
class _Source:
    """Where random numbers come from, and on which device they go."""

    draws: int
    generator: torch.Generator
    beside: Layer  # a layer with tensors

    def normal(self, *sizes: int) -> Tensor:
        """Standard Gaussians (draws, *sizes)."""
        return self._placed(torch.randn(self._checked(sizes), generator=self.generator, dtype=torch.float64))

    def uniform(self, *sizes: int) -> Tensor:
        """Uniform numbers in [0, 1): (draws, *sizes)."""
        return self._placed(torch.rand(self._checked(sizes), generator=self.generator, dtype=torch.float64))

    def _checked(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        if self.draws * math.prod(sizes) > _MOST:
            raise InputError(f"{self.draws} draws of {math.prod(sizes)} numbers do not fit; draw fewer at a time.")
        return (self.draws, *sizes)

    def _placed(self, numbers: Tensor) -> Tensor:
        return numbers.to(getattr(self.beside, self.beside.tensors[0]).device)


def _drawn(layer: Layer, shape: tuple[int, ...], source: _Source) -> _Step:  # noqa: PLR0911 (one for each kind)
    """The layer with its weights drawn; ``shape`` is that of its inputs."""
    if isinstance(layer, Residual):
        pairs = zip(layer.layers, layer.shapes(shape)[:-1], strict=True)
        return _Block(tuple(_drawn(inner, each, source) for inner, each in pairs))
    if isinstance(layer, DENSE):
        if not layer.random:
            return _Dense(layer.weight_mean[None], layer.bias_mean[None])
        noise = _noise_of_weights(layer, source)
        return _Dense(layer.weight_mean + noise[..., :-1], layer.bias_mean + noise[..., -1])
    if isinstance(layer, Conv2d):
        weight, bias = layer.weight_mean[None], layer.bias_mean[None]
        if layer.random:
            weight = weight + layer.weight_std * source.normal(*layer.weight_std.shape)
            bias = bias + layer.bias_std * source.normal(*layer.bias_std.shape)
        return _Convolution(weight, bias, layer.stride, layer.padding)
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


def _joined(parts: Sequence[_Step]) -> _Step:
    """The same step of several chains with one draw each, stacked."""
    first = parts[0]
    if isinstance(first, _Block):
        blocks = [part.steps for part in parts if isinstance(part, _Block)]
        return _Block(tuple(_joined(inner) for inner in zip(*blocks, strict=True)))
    if isinstance(first, _Dense):
        dense = [part for part in parts if isinstance(part, _Dense)]
        return _Dense(torch.cat([part.weight for part in dense]), torch.cat([part.bias for part in dense]))
    if isinstance(first, _Convolution):
        kernels = [part for part in parts if isinstance(part, _Convolution)]
        weight, bias = (torch.cat([getattr(part, name) for part in kernels]) for name in ("weight", "bias"))
        return _Convolution(weight, bias, first.stride, first.padding)
    return first


def _structure(network: BayesianNetwork) -> list[object]:
    """What must agree for networks to be stacked; an activation with tensors only with itself."""
    own: list[object] = [network.shift is None, network.shapes]
    for layer in flat(network.layers):
        own += [layer.kind, [getattr(layer, name) for name in layer.settings]]
        own += [id(layer)] if layer.tensors and not isinstance(layer, WEIGHTED) else []
    return own
