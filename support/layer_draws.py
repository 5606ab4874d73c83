"""Draws of networks of any layers, written a second time and with nothing of the package but the records."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bnndp.layers import (
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
from bnndp.network import BayesianNetwork

__all__ = ["draw_layers"]


def draw_layers(network: BayesianNetwork, x: Tensor, draws: int, generator: torch.Generator) -> list[Tensor]:
    """Values after every layer, (draws, points, *shape) each, for points x (points, n_in); one draw, all points."""
    z = x.reshape(1, len(x), *(network.input_shape or ())).expand(draws, -1, *(network.input_shape or ()))
    found = []
    for layer in network.layers:
        z = _forward(layer, z, generator)
        found.append(z)
    return found


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
    if isinstance(layer, Residual):
        inner = z
        for part in layer.layers:
            inner = _forward(part, inner, generator)
        return z + inner
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
