"""Draws of networks of any layers, written a second time and with nothing of the package but the records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bnndp.activations import Identity
from bnndp.layers import (
    WEIGHTED,
    AveragePool,
    Concatenate,
    Conv2d,
    CorrelatedLinear,
    Dropout,
    Flatten,
    Linear,
    MatrixNormalLinear,
    MaxPool,
    Residual,
)
from bnndp.network import BayesianNetwork, is_activation

__all__ = ["draw_layers", "draw_nodes", "node_values"]


def draw_layers(network: BayesianNetwork, x: Tensor, draws: int, generator: torch.Generator) -> list[Tensor]:
    """Values after every layer, (draws, points, *shape) each, for points x (points, n_in); one draw, all points."""
    z = x.reshape(1, len(x), *(network.input_shape or ())).expand(draws, -1, *(network.input_shape or ()))
    found = []
    for layer in network.layers:
        z = _forward(layer, z, generator)
        found.append(z)
    return found


def draw_nodes(network: BayesianNetwork, x: Tensor, draws: int, generator: torch.Generator) -> list[tuple[str, Tensor]]:
    """The values (draws, points, n) at every node of the pass but the input, in its order, and the outputs last."""
    return node_values(network, x, draws, lambda layer, z: _forward(layer, z, generator))


def node_values(
    network: BayesianNetwork, x: Tensor, draws: int, forward: Callable[[Any, Tensor], Tensor]
) -> list[tuple[str, Tensor]]:
    """The same with any values of layers without branches, by ``forward``."""
    shape, nodes = network.input_shape or (), _Nodes(forward)
    last = max(i for i, layer in enumerate(network.layers) if isinstance(layer, WEIGHTED))  # only a Flatten may follow
    z, _ = nodes.walk(network.layers[: last + 1], x.reshape(1, len(x), *shape).expand(draws, -1, *shape), "layer ")
    return [(name, values.flatten(2)) for name, values in [*nodes.found, ("output", z)]]


class _Nodes:
    """Values of what the pass makes a node of: weights with the activation after them, sums with it, and so on."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor]) -> None:
        self.forward = forward
        self.found: list[tuple[str, Tensor]] = []

    def walk(self, layers: tuple[Any, ...], z: Tensor, where: str) -> tuple[Tensor, tuple[Any, Tensor] | None]:
        """The values after the layers; if they end in weights, also these and what they were applied to."""
        weights: tuple[Any, Tensor] | None = None
        for index, layer in enumerate(layers):
            if weights is not None and not is_activation(layer):
                self.found.append((f"{where}{index - 1}", z))
            after, weights = weights, None
            if isinstance(layer, WEIGHTED):
                weights = (layer, z)
                z = self.forward(layer, z)
            elif isinstance(layer, Residual):
                z, below = self._sum(layer, z, f"{where}{index}")
                weights = (layer, below)
            elif isinstance(layer, Concatenate):
                parts = [
                    self._end(branch, z, f"{where}{index}, branch {k}, ") for k, branch in enumerate(layer.branches)
                ]
                z = torch.cat(parts, 2)
                self.found.append((f"{where}{index}", z))
            else:
                z = self.forward(layer, z)
                nothing = isinstance(layer, Flatten) or (isinstance(layer, Dropout) and not layer.random)
                if not nothing and not (isinstance(layer, Identity) and after is None):
                    self.found.append((f"{where}{index}", z))
        return z, weights

    def _end(self, branch: tuple[Any, ...], z: Tensor, where: str) -> Tensor:
        z, weights = self.walk(branch, z, where)
        if weights is not None:
            self.found.append((f"{where}end", z))
        return z

    def _sum(self, block: Residual, z: Tensor, where: str) -> tuple[Tensor, Tensor]:
        """The sum, and what it is a linear map of: values of which the pass makes a node unless they are z alone."""
        total, below, dense = torch.zeros(()), list[Tensor](), True
        for k, branch in enumerate(block.branches):
            found, weights = self.walk(branch, z, f"{where}, branch {k}, ")
            total = total + found
            below.append(found if weights is None else weights[1])
            dense &= found.ndim == 3 and (weights is None or isinstance(weights[0], Linear | Residual))
        if dense and below[0] is below[1]:
            below = below[:1]
        if len(below) > 1:
            self.found.append((f"{where}, inputs of the sum", torch.cat([each.flatten(2) for each in below], 2)))
        return total, torch.cat([each.flatten(2) for each in below], 2)


class _Noise:
    """Standard Gaussians with one axis of draws in front."""

    def __init__(self, draws: int, generator: torch.Generator) -> None:
        self.draws, self.generator = draws, generator

    def __call__(self, *shape: int) -> Tensor:
        return torch.randn(self.draws, *shape, generator=self.generator, dtype=torch.float64)


def _forward(layer: Any, z: Tensor, generator: torch.Generator) -> Tensor:
    xi = _Noise(z.shape[0], generator)
    if isinstance(layer, Linear | CorrelatedLinear | MatrixNormalLinear):
        weight, bias = _dense(layer, xi)
        return z @ weight.mT + bias[:, None]
    if isinstance(layer, Conv2d):
        return _convolved(layer, z, xi)
    if isinstance(layer, Dropout):
        return z * _factors(layer, z, xi)
    if isinstance(layer, AveragePool | MaxPool):
        pool = functional.avg_pool2d if isinstance(layer, AveragePool) else functional.max_pool2d
        return pool(z.flatten(0, 1), layer.size, layer.stride).unflatten(0, z.shape[:2])
    if isinstance(layer, Residual | Concatenate):
        ends = []
        for branch in layer.branches:
            inner = z
            for part in branch:
                inner = _forward(part, inner, generator)
            ends.append(inner)
        return ends[0] + ends[1] if isinstance(layer, Residual) else torch.cat(ends, 2)
    value: Tensor = z.flatten(2) if isinstance(layer, Flatten) else layer(z)
    return value


def _dense(layer: Any, xi: _Noise) -> tuple[Tensor, Tensor]:
    """Weights (draws, n_out, n_in) and biases (draws, n_out)."""
    if isinstance(layer, MatrixNormalLinear):
        noise = xi(layer.row_factor.shape[1], layer.column_factor.shape[1])
        more = layer.row_factor @ noise @ layer.column_factor.mT
        return layer.weight_mean + more[..., :-1], layer.bias_mean + more[..., -1]
    weight = layer.weight_mean + layer.weight_std * xi(*layer.weight_std.shape)
    bias = layer.bias_mean + layer.bias_std * xi(*layer.bias_std.shape)
    if isinstance(layer, CorrelatedLinear):
        more = (layer.factor * xi(1 if layer.shared else layer.n_out, 1, layer.rank)).sum(-1)
        weight, bias = weight + more[..., :-1], bias + more[..., -1]
    return weight, bias


def _convolved(layer: Conv2d, z: Tensor, xi: _Noise) -> Tensor:
    weight = layer.weight_mean + layer.weight_std * xi(*layer.weight_std.shape)
    bias = layer.bias_mean + layer.bias_std * xi(*layer.bias_std.shape)
    side_by_side = z.transpose(0, 1).flatten(1, 2)  # (points, draws * channels, height, width)
    found = functional.conv2d(
        side_by_side, weight.flatten(0, 1), bias.flatten(), layer.stride, layer.padding, groups=xi.draws
    )
    return found.unflatten(1, (xi.draws, -1)).transpose(0, 1)


def _factors(layer: Dropout, z: Tensor, xi: _Noise) -> Tensor:
    shape = (1, z.shape[2], 1, 1) if layer.channels else (1, *z.shape[2:])
    if layer.law == "gaussian":
        return 1 + (layer.rate / (1 - layer.rate)) ** 0.5 * xi(*shape)
    kept = torch.rand(xi.draws, *shape, generator=xi.generator, dtype=torch.float64) >= layer.rate
    return kept / (1 - layer.rate)
