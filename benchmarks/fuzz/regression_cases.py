"""Random networks and boxes that try to break a bound: every case is determined by (seed, index) alone.

Each family aims at one weak spot of a certifier; the index walks through the families in turn, so that any prefix of a
campaign has all of them. Posterior scales are log-uniform in [1e-6, 3] (3 to 30 in the family ``huge``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from support.dice import Dice
from torch import Tensor

from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork

__all__ = ["FAMILIES", "Case", "boxes_of", "make_case"]


@dataclass(frozen=True, slots=True)
class Case:
    """A network, its boxes, and a point of every box that deserves a look (where a maximum was planted, else zero)."""

    index: int
    family: str
    network: BayesianNetwork
    box: Box
    planted: Tensor  # (1, batch, n)


def make_case(seed: int, index: int, boxes: int = 5) -> Case:
    """Case ``index`` of the campaign ``seed``: one network and ``boxes`` boxes."""
    dice = Dice(seed * 1_000_003 + index)
    family = tuple(FAMILIES)[index % len(FAMILIES)]
    network = FAMILIES[family](dice)
    box = boxes_of(dice, network.n_in, boxes, far=family == "far")
    planted = torch.zeros(boxes, box.n, dtype=torch.float64)
    if family == "planted":
        planted[:, 0] = network.linears[0].bias_mean[1] / -network.linears[0].weight_mean[1, 0]
    return Case(index, family, network, box, box.project(planted[None]))


def boxes_of(dice: Dice, n: int, count: int, *, far: bool) -> Box:
    """Points, tiny, partly degenerate and wide boxes, on both sides of zero; one time in five l1 or l2 balls."""
    scale = 100.0 if far else 1.5
    centre = dice.uniform(-scale, scale, (count, n))
    if dice.chance(0.2):
        return Box.ball(centre, dice.log_uniform(1e-4, 1.0, (count,)), norm=1 if dice.chance(0.5) else 2)
    half = dice.uniform(0, 1, (count, n))
    kinds = torch.tensor([dice.integer(0, 5) for _ in range(count)])[:, None]
    half = torch.where(kinds == 0, 0.0, half)  # a single point
    half = torch.where(kinds == 1, dice.log_uniform(1e-9, 1.0, (count, 1)), half)
    half = torch.where((kinds == 2) & (dice.uniform(shape=(count, n)) < 0.5), 0.0, half)  # flat in some inputs
    centre = torch.where(kinds == 3, 0.0, centre)  # symmetric around zero
    centre = torch.where(kinds == 4, -half, centre)  # all inputs negative, touching zero
    return Box(centre - half, centre + half)


def _network(
    dice: Dice,
    *,
    depth: tuple[int, int] = (1, 4),
    widths: tuple[int, int] = (1, 64),
    scale: tuple[float, float] = (1e-6, 3.0),
    narrow: list[int] | None = None,
) -> list[Linear]:
    """Layers of a random network with a posterior scale of its own or one of each layer."""
    sizes = [dice.width(1, 16), *(dice.width(*widths) for _ in range(dice.integer(*depth))), dice.integer(1, 3)]
    if narrow is not None:
        sizes[1 : 1 + len(narrow)] = narrow
    per_layer = dice.chance(0.5)
    spread, normalised = dice.chance(0.5), dice.chance(0.7)
    gain = float(dice.log_uniform(0.3, 2.0))
    std = dice.log_uniform(*scale)
    layers = []
    for n_in, n_out in pairwise(sizes):
        std = dice.log_uniform(*scale) if per_layer else std
        weight_std = std * (dice.normal(n_out, n_in).exp() if spread else torch.ones(n_out, n_in))
        layers.append(
            Linear(
                gain * dice.normal(n_out, n_in) / math.sqrt(n_in),
                (weight_std / math.sqrt(n_in) if normalised else weight_std).clamp_max(scale[1]),
                0.5 * dice.normal(n_out),
                std * (dice.uniform(0, 2, (n_out,)) if spread else torch.ones(n_out)),
            )
        )
    return layers


def _plain(dice: Dice) -> BayesianNetwork:
    """Nothing special."""
    return BayesianNetwork.from_linears(_network(dice))


def _small(dice: Dice) -> BayesianNetwork:
    """One or two neurons per layer, where nothing averages out."""
    return BayesianNetwork.from_linears(_network(dice, widths=(1, 2)))


def _narrow(dice: Dice) -> BayesianNetwork:
    """Two hidden layers of which the first has one or two neurons (or three with 1 and 1): quadrature is the judge."""
    narrow = [[1], [2], [2], [1, 1]][dice.integer(0, 3)]
    depth = len(narrow) + 1
    return BayesianNetwork.from_linears(_network(dice, depth=(depth, depth), scale=(1e-3, 3.0), narrow=narrow))


def _dead(dice: Dice) -> BayesianNetwork:
    """Many neurons with a very negative bias: far tails."""
    layers = _network(dice)
    for k, layer in enumerate(layers[:-1]):
        dead = dice.uniform(shape=(layer.n_out,)) < 0.6
        bias = torch.where(dead, -dice.log_uniform(1, 50, (layer.n_out,)), layer.bias_mean)
        layers[k] = Linear(layer.weight_mean, layer.weight_std, bias, layer.bias_std)
    return BayesianNetwork.from_linears(layers)


def _stable(dice: Dice) -> BayesianNetwork:
    """All neurons nearly always active: upper and lower bounds almost meet."""
    layers = _network(dice, scale=(1e-6, 0.1))
    for k, layer in enumerate(layers[:-1]):
        bias = 3 + dice.log_uniform(0.1, 10, (layer.n_out,))
        layers[k] = Linear(layer.weight_mean, layer.weight_std, bias, layer.bias_std)
    return BayesianNetwork.from_linears(layers)


def _zero_layers(dice: Dice) -> BayesianNetwork:
    """Some layers, or only their weights, or only their biases, or single entries, without any variance."""
    layers = _network(dice)
    for k, layer in enumerate(layers):
        weight, bias = torch.ones_like(layer.weight_std), torch.ones_like(layer.bias_std)
        kind = dice.integer(0, 4)
        weight = weight * 0 if kind in (0, 1) else weight
        bias = bias * 0 if kind in (0, 2) else bias
        if kind == 3:
            weight = (dice.uniform(shape=tuple(weight.shape)) < 0.3).to(weight)
            bias = (dice.uniform(shape=tuple(bias.shape)) < 0.3).to(bias)
        layers[k] = Linear(layer.weight_mean, layer.weight_std * weight, layer.bias_mean, layer.bias_std * bias)
    return BayesianNetwork.from_linears(layers)


def _deterministic(dice: Dice) -> BayesianNetwork:
    """No variance at all: an ordinary network."""
    return BayesianNetwork.from_linears(
        Linear(layer.weight_mean, 0 * layer.weight_std, layer.bias_mean, 0 * layer.bias_std) for layer in _network(dice)
    )


def _huge(dice: Dice) -> BayesianNetwork:
    """Standard deviations of 3 to 30 in some layers."""
    layers = _network(dice, depth=(1, 3), widths=(1, 32))
    loud = dice.integer(0, len(layers) - 1)
    layer = layers[loud]
    factor = dice.log_uniform(3, 30)
    layers[loud] = Linear(
        layer.weight_mean, factor * dice.uniform(0.3, 1, tuple(layer.weight_std.shape)), layer.bias_mean, layer.bias_std
    )
    return BayesianNetwork.from_linears(layers)


def _aligned(dice: Dice) -> BayesianNetwork:
    """Weights of one sign after the first layer: neurons as correlated as can be; the output may be negative."""
    first, *rest = _network(dice, scale=(1e-2, 3.0))
    sign = -1.0 if dice.chance(0.5) else 1.0
    same = [Linear(layer.weight_mean.abs(), layer.weight_std, layer.bias_mean, layer.bias_std) for layer in rest]
    last = same[-1]
    same[-1] = Linear(sign * last.weight_mean, last.weight_std, last.bias_mean, last.bias_std)
    return BayesianNetwork.from_linears([first, *same])


def _repeated(dice: Dice) -> BayesianNetwork:
    """Every hidden layer repeats one row of means up to sign and size, the output cancels pairs."""
    layers = _network(dice, scale=(1e-3, 3.0))
    for k, layer in enumerate(layers):
        factor = torch.where(dice.uniform(shape=(layer.n_out, 1)) < 0.3, -1.0, 1.0) * dice.uniform(
            0.5, 2, (layer.n_out, 1)
        )
        row = dice.normal(1, layer.n_in) / math.sqrt(layer.n_in)
        layers[k] = Linear(factor * row, layer.weight_std, layer.bias_mean, layer.bias_std)
    return BayesianNetwork.from_linears(layers)


def _pure_noise(dice: Dice) -> BayesianNetwork:
    """Zero means nearly everywhere: only the standard deviation depends on the input, with its kink at zero."""
    layers = _network(dice, scale=(1e-3, 3.0))
    silent = dice.chance(0.5)
    for k, layer in enumerate(layers[:-1]):
        std = 0 * layer.bias_std if silent else layer.bias_std
        layers[k] = Linear(0 * layer.weight_mean, layer.weight_std, 0.1 * layer.bias_mean, std)
    return BayesianNetwork.from_linears(layers)


def _planted(dice: Dice) -> BayesianNetwork:
    """A tent of height about one and small width at a random place of the first input, hidden in a flat function."""
    base = _network(dice, depth=(1, 2), widths=(4, 32), scale=(1e-6, 1e-3))
    peak, h = float(dice.uniform(-1, 1)), float(dice.log_uniform(0.005, 0.2))
    first = base[0]
    weight, bias = 0.05 * first.weight_mean, 0.05 * first.bias_mean
    weight[:3] = 0
    weight[:3, 0] = 1
    bias[:3] = torch.tensor([h - peak, -peak, -h - peak])
    base[0] = Linear(weight, first.weight_std, bias, first.bias_std)
    second = base[1]
    weight = 0.05 * second.weight_mean
    weight[0, :3] = torch.tensor([1.0, -2.0, 1.0]) / h
    base[1] = Linear(weight, second.weight_std, second.bias_mean, second.bias_std)
    if len(base) == 3:
        weight = 0.05 * base[2].weight_mean
        weight[:, 0] = 1
        base[2] = Linear(weight, base[2].weight_std, base[2].bias_mean, base[2].bias_std)
    return BayesianNetwork.from_linears(base)


FAMILIES: dict[str, Callable[[Dice], BayesianNetwork]] = {
    "plain": _plain,
    "small": _small,
    "narrow": _narrow,
    "dead": _dead,
    "stable": _stable,
    "zero_layers": _zero_layers,
    "deterministic": _deterministic,
    "huge": _huge,
    "aligned": _aligned,
    "repeated": _repeated,
    "pure_noise": _pure_noise,
    "planted": _planted,
    "far": _plain,
}
