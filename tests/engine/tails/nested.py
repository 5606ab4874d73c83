"""Narrow networks whose exponential moments are integrals of one or two dimensions: little is lost in their bounds."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import torch
from support.dice import Dice
from tests.engine.tails.cases import Layers
from torch import Tensor

from bnndp.geometry.box import Box
from bnndp.layers import Linear

_NODES, _WEIGHTS = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(16))


def narrow_layers(dice: Dice, sizes: tuple[int, ...]) -> Layers:
    """Weights and deviations of all sizes; at times sources that are dead or always active."""
    layers = []
    for n_in, n_out in pairwise(sizes):
        weight = dice.normal(n_out, n_in) * dice.log_uniform(0.2, 5.0)
        bias = dice.normal(n_out) * dice.log_uniform(0.3, 3.0)
        std, bias_std = dice.log_uniform(1e-3, 0.8, (n_out, n_in)), dice.log_uniform(1e-3, 0.5, (n_out,))
        layers.append(Linear(weight, std, bias, bias_std))
    if dice.chance(0.3):  # eight deviations from zero
        first = layers[0]
        r = (first.weight_std.square().sum(1) + first.bias_std.square()).sqrt()
        side = torch.where(dice.uniform(shape=(first.n_out,)) < 0.5, -8.0, 8.0)
        layers[0] = Linear(0.01 * first.weight_mean, first.weight_std, side * r, first.bias_std)
    return tuple(layers)


def narrow_box(dice: Dice, n: int, wide: bool) -> Box:
    x, radius = dice.normal(1, n), dice.log_uniform(1e-3, 0.5, (1, n)) * wide
    return Box(x - radius, x + radius)


def points(box: Box) -> list[Tensor]:
    return [box.lower[0], box.upper[0], box.centre[0]] if bool((box.upper > box.lower).any()) else [box.lower[0]]


def nodes(m: Tensor, r: Tensor, reach: float, panels: int) -> tuple[Tensor, Tensor]:  # (..., n) each
    """Values of one or two independent ReLU(N(m, r^2)) and their weights: (..., points, n) and (..., points)."""
    low = (-m / r).clamp(-reach, reach)
    half = (reach - low) / (2 * panels)
    middle = low[..., None] + half[..., None] * (2 * torch.arange(panels, dtype=torch.float64) + 1)
    xi = (middle[..., None] + half[..., None, None] * _NODES).flatten(-2)
    density = torch.exp(-0.5 * xi.square()) / math.sqrt(2 * math.pi)
    weight = (half[..., None, None] * _WEIGHTS).expand(*middle.shape, -1).flatten(-2) * density
    z = torch.cat([torch.zeros_like(m)[..., None], (m[..., None] + r[..., None] * xi).clamp_min(0)], -1)
    weight = torch.cat([torch.special.ndtr(-m / r)[..., None], weight], -1)
    if m.shape[-1] == 1:
        return z[..., 0, :, None], weight[..., 0, :]
    first, second = torch.broadcast_tensors(z[..., 0, :, None], z[..., 1, None, :])
    both = weight[..., 0, :, None] * weight[..., 1, None, :]
    return torch.stack([first, second], -1).flatten(-3, -2), both.flatten(-2)
