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


def _forward(layer: Any, z: Tensor, generator: torch.Generator) -> Tensor:  # noqa: ANN401 (a record of any kind)
    draws = z.shape[0]

    def xi(*shape: int) -> Tensor:
        return torch.randn(draws, *shape, generator=generator, dtype=torch.float64)

    if isinstance(layer, Linear | CorrelatedLinear):
        weight = layer.weight_mean + layer.weight_std * xi(*layer.weight_std.shape)
        bias = layer.bias_mean + layer.bias_std * xi(*layer.bias_std.shape)
        if isinstance(layer, CorrelatedLinear):
            noise = xi(1 if layer.shared else layer.n_out, 1, layer.rank)
            more = (layer.factor * noise).sum(-1)
            weight, bias = weight + more[..., :-1], bias + more[..., -1]
        return z @ weight.mT + bias[:, None]
    if isinstance(layer, MatrixNormalLinear):
        noise = xi(layer.row_factor.shape[1], layer.column_factor.shape[1])
        more = layer.row_factor @ noise @ layer.column_factor.mT
        return z @ (layer.weight_mean + more[..., :-1]).mT + (layer.bias_mean + more[..., -1])[:, None]
    if isinstance(layer, Conv2d):
        weight = layer.weight_mean + layer.weight_std * xi(*layer.weight_std.shape)
        bias = layer.bias_mean + layer.bias_std * xi(*layer.bias_std.shape)
        side_by_side = z.transpose(0, 1).flatten(1, 2)  # (points, draws * channels, height, width)
        found = functional.conv2d(
            side_by_side, weight.flatten(0, 1), bias.flatten(), layer.stride, layer.padding, groups=draws
        )
        return found.unflatten(1, (draws, -1)).transpose(0, 1)
    if isinstance(layer, Dropout):
        shape = (z.shape[2], 1, 1) if layer.channels else tuple(z.shape[2:])
        if layer.law == "bernoulli":
            kept = torch.rand(draws, 1, *shape, generator=generator, dtype=torch.float64) >= layer.rate
            return z * kept / (1 - layer.rate)
        return z * (1 + (layer.rate / (1 - layer.rate)) ** 0.5 * xi(1, *shape))
    if isinstance(layer, Flatten):
        return z.flatten(2)
    if isinstance(layer, AveragePool | MaxPool):
        pool = functional.avg_pool2d if isinstance(layer, AveragePool) else functional.max_pool2d
        found = pool(z.flatten(0, 1), layer.size, layer.stride)
        return found.unflatten(0, z.shape[:2])
    value: Tensor = layer(z)
    return value
