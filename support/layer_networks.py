"""Random networks of every kind of posterior and layer, with boxes.

A case is determined by (seed, kind, index): the index walks through the activations and through the twists, each of
which aims at one weak spot (perfect correlation, cancellation, a kink at the mean, huge variances, dead neurons).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bnndp.activations import ACTIVATIONS, PiecewiseAffine
from bnndp.geometry.box import Box
from bnndp.layers import (
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
from bnndp.network import BayesianNetwork
from support.dice import Dice

__all__ = ["ACTS", "DENSE_KINDS", "KINDS", "TWISTS", "Case", "activation", "dense", "make_case"]

DENSE_KINDS = ("mean_field", "fixed", "bias", "rows", "whole", "low_rank", "matrix_normal")
IMAGE_KINDS = ("conv", "conv_fixed", "conv_dropout", "dropout_channels", "average_pool", "max_pool", "conv_blocks")
BLOCK_KINDS = ("residual", "projection", "concatenate")
KINDS = (*DENSE_KINDS, "dropout_bernoulli", "dropout_gaussian", *IMAGE_KINDS, *BLOCK_KINDS)
ACTS = tuple(ACTIVATIONS)
TWISTS = ("plain", "tied", "kink", "huge", "cancel", "dead")


@dataclass(frozen=True, slots=True)
class Case:
    """A network and its boxes."""

    kind: str
    act: str
    twist: str
    index: int
    network: BayesianNetwork
    box: Box


def activation(act: str) -> Any:
    """A record of this kind; the sine stands for a function given by its user."""
    if act == "piecewise_affine":
        return PiecewiseAffine.of(torch.sin, 1.0, reach=12.0, pieces=240, curvature=1.0)
    return ACTIVATIONS[act]()


def dense(dice: Dice, kind: str, n_out: int, n_in: int, std: float, twist: str = "plain") -> Any:
    """A dense layer of one of DENSE_KINDS."""
    mean, bias = _twisted(dice.normal(n_out, n_in) / math.sqrt(n_in), 0.5 * dice.normal(n_out), twist)
    w_std, b_std = std * dice.uniform(shape=(n_out, n_in)) / math.sqrt(n_in), std * dice.uniform(shape=(n_out,))
    if kind in _INDEPENDENT:
        weights, biases = _INDEPENDENT[kind]
        return Linear(mean, weights * w_std, bias, biases * b_std)
    if kind == "matrix_normal":
        row, column = dice.normal(n_out, n_out) / math.sqrt(n_out), std * dice.normal(n_in + 1, n_in + 1) / n_in
        return MatrixNormalLinear(mean, bias, _shared(row, twist), column)
    rank = {"rows": 3, "whole": 6, "low_rank": 1}[kind]
    factor = std * dice.normal(n_out, n_in + 1, rank) / math.sqrt(rank * n_in)
    if kind == "low_rank":
        return CorrelatedLinear.low_rank(mean, w_std, bias, b_std, _shared(factor, twist))
    none, shared = torch.zeros_like(w_std), kind == "whole"
    return CorrelatedLinear(mean, none, bias, none[:, 0], _shared(factor, twist) if shared else factor, shared)


_INDEPENDENT = {"mean_field": (1.0, 1.0), "fixed": (0.0, 0.0), "bias": (0.0, 1.0)}  # of weights and of biases


def _twisted(mean: Tensor, bias: Tensor, twist: str) -> tuple[Tensor, Tensor]:  # (n_out, n_in), (n_out,)
    if twist == "tied":  # every neuron is the same function
        return mean[:1].expand_as(mean).clone(), bias[:1].expand_as(bias).clone()
    if twist == "cancel" and mean.shape[1] > 1:  # large terms that nearly cancel
        mean[:, ::2] += 30.0
        mean[:, 1::2] -= 30.0
    return mean, _moved(bias, twist)


def _moved(bias: Tensor, twist: str) -> Tensor:
    return torch.zeros_like(bias) if twist == "kink" else bias - 4.0 if twist == "dead" else bias


def _shared(factor: Tensor, twist: str) -> Tensor:
    """With ``tied`` one noise moves all rows alike."""
    return factor[:1].expand_as(factor).clone() if twist == "tied" else factor


def make_case(seed: int, kind: str, index: int, boxes: int = 3) -> Case:
    """The case with this index."""
    dice = Dice(zlib.crc32(f"{seed} {kind} {index}".encode()))
    act = ACTS[index % len(ACTS)]
    twist = TWISTS[index // len(ACTS) % len(TWISTS)]
    std = float(dice.log_uniform(0.01, 1.0)) * (10.0 if twist == "huge" else 1.0)
    phi = activation(act)
    build = _image if kind in IMAGE_KINDS else _vector
    layers, shape = build(dice, kind, phi, std, twist)
    network = BayesianNetwork(tuple(layers), input_shape=shape)
    centre = dice.normal(boxes, network.n_in)
    if twist == "kink":
        centre[0] = 0.0
    radius = torch.tensor([0.0, 0.02, 0.4], dtype=torch.float64)[:boxes, None] * dice.uniform(0.2, 1.0, (boxes, 1))
    return Case(kind, act, twist, index, network, Box(centre - radius, centre + radius))


def _pick(dice: Dice, values: list[Any]) -> Any:
    return values[dice.integer(0, len(values) - 1)]


def _vector(dice: Dice, kind: str, phi: Any, std: float, twist: str) -> tuple[list[Any], tuple[int, ...]]:
    n = _pick(dice, [1, 2, 5])
    shape, layers = (n,), []
    own = kind if kind in DENSE_KINDS else _pick(dice, list(DENSE_KINDS))
    rate = _pick(dice, [0.1, 0.5, 0.9])
    if kind.startswith("dropout") and dice.chance(0.3):
        layers.append(Dropout(rate, kind.removeprefix("dropout_")))  # on the input itself
    for _ in range(_pick(dice, [1, 1, 2, 3])):
        width = _pick(dice, [2, 5, 16])
        layers += [dense(dice, own, width, n, std, twist), phi]
        n = width
        if kind in BLOCK_KINDS:
            layers += _blocks(dice, kind, phi, own, n, std)
            n = _after(layers, shape)[0]
        if kind.startswith("dropout"):
            layers.append(Dropout(rate, kind.removeprefix("dropout_")))
            if dice.chance(0.3):
                layers.append(phi)  # an activation on a signal
    last = own if dice.chance(0.5) else _pick(dice, list(DENSE_KINDS))
    return [*layers, dense(dice, last, _pick(dice, [1, 3]), n, std, twist if twist == "tied" else "plain")], shape


def _blocks(dice: Dice, kind: str, phi: Any, own: str, n: int, std: float, depth: int = 0) -> list[Any]:
    """A block of branches of one or two layers, with or without an activation, dropout or a block at their ends."""

    def branch(out: int) -> tuple[Any, ...]:
        layers = [dense(dice, own, 3, n, std), phi, dense(dice, own, out, 3, std)]
        if dice.chance(0.5):
            layers = [dense(dice, own, out, n, std), *([phi] if dice.chance(0.7) else [])]
        if depth == 0 and dice.chance(0.2):
            layers += _blocks(dice, _pick(dice, list(BLOCK_KINDS)), phi, own, out, std, 1)
            if _after(layers, (n,)) != (out,):
                layers.append(dense(dice, own, out, _after(layers, (n,))[0], std))
        return (phi, *layers) if dice.chance(0.2) else (*layers, Dropout(0.3)) if dice.chance(0.2) else tuple(layers)

    if kind == "residual":
        block: Any = Residual(branch(n))
    elif kind == "projection":
        out = _pick(dice, [2, 5])
        short = (dense(dice, _pick(dice, [own, "fixed"]), out, n, std), *([phi] if dice.chance(0.3) else []))
        block = Residual(branch(out), short)
    else:
        others: list[tuple[Any, ...]] = [(), (phi,), branch(3)]
        block = Concatenate((branch(_pick(dice, [1, 4])), *others[: dice.integer(0, 3)]))
    return [block, phi] if dice.chance(0.5) else [block]


def _image_block(dice: Dice, phi: Any, channels: int, scale: float, twist: str) -> Any:
    """A block of convolutions: the shortcut is the identity or a projection, strided as the other branch."""
    stride, out = _pick(dice, [1, 2]), _pick(dice, [channels, 3])
    inner = _convolution(dice, _Window((3, 3), stride, 1), 2, channels, scale, twist)
    branch: tuple[Any, ...] = (inner, phi, _convolution(dice, _Window((3, 3), 1, 1), out, 2, scale, "plain"))
    branch = (
        branch if dice.chance(0.7) else (_convolution(dice, _Window((3, 3), stride, 1), out, channels, scale, twist),)
    )
    shortcut: tuple[Any, ...] = (_convolution(dice, _Window((1, 1), stride, 0), out, channels, scale, "plain"),)
    if stride == 1 and dice.chance(0.4):
        return Concatenate((branch, ()))
    if dice.chance(0.3):
        return Concatenate((branch, shortcut))
    return Residual(branch, () if stride == 1 and out == channels and dice.chance(0.7) else shortcut)


def _image(dice: Dice, kind: str, phi: Any, std: float, twist: str) -> tuple[list[Any], tuple[int, ...]]:
    shape: tuple[int, ...] = (_pick(dice, [1, 2]), 5, 6)
    window = _Window((_pick(dice, [2, 3]), _pick(dice, [2, 3])), _pick(dice, [1, 2]), _pick(dice, [0, 1]))
    random = kind == "conv" or (kind not in {"conv_fixed", "conv_dropout"} and dice.chance(0.8))
    scale = std if random else 0.0
    law = _pick(dice, ["bernoulli", "gaussian"])
    layers: list[Any] = [_convolution(dice, window, _pick(dice, [2, 3]), shape[0], scale, twist), phi]
    if kind in {"conv_dropout", "dropout_channels"}:
        layers.append(Dropout(_pick(dice, [0.1, 0.5, 0.9]), law, kind == "dropout_channels"))
    pools: dict[str, Callable[..., Any]] = {"average_pool": AveragePool, "max_pool": MaxPool}
    pool = pools.get(kind) or _pick(dice, [AveragePool, MaxPool, None, None])
    if pool is not None and min(_after(layers, shape)[1:]) >= 2:
        layers.append(pool(2, _pick(dice, [1, 2])))
    if kind == "conv_blocks":
        for _ in range(_pick(dice, [1, 1, 2])):
            layers += [
                _image_block(dice, phi, _after(layers, shape)[0], scale, twist),
                *([phi] if dice.chance(0.5) else []),
            ]
    channels, *sides = _after(layers, shape)
    if dice.chance(0.5) and all(n + 2 * window.padding >= k for n, k in zip(sides, window.kernel, strict=True)):
        layers += [_convolution(dice, window, 2, channels, scale, twist), phi]
    layers.append(Flatten())
    own = _pick(dice, list(DENSE_KINDS))
    if dice.chance(0.4):
        layers += [dense(dice, own, 5, _after(layers, shape)[0], std), phi]
    return [*layers, dense(dice, own, _pick(dice, [1, 3]), _after(layers, shape)[0], std)], shape


@dataclass(frozen=True, slots=True)
class _Window:
    kernel: tuple[int, int]
    stride: int
    padding: int


def _after(layers: list[Any], shape: tuple[int, ...]) -> tuple[int, ...]:
    for layer in layers:
        shape = layer.out_shape(shape)
    return shape


def _convolution(dice: Dice, window: _Window, out: int, into: int, scale: float, twist: str) -> Conv2d:
    n = into * math.prod(window.kernel)
    mean, bias = dice.normal(out, into, *window.kernel) / math.sqrt(n), _moved(0.5 * dice.normal(out), twist)
    if twist == "tied":
        mean = mean[:1].expand_as(mean).clone()
    if twist == "cancel":  # one kernel at all positions, with alternating signs
        mean = mean.abs() * torch.tensor([(-1.0) ** i for i in range(window.kernel[1])], dtype=torch.float64) * 3
    std = scale * dice.uniform(shape=tuple(mean.shape)) / math.sqrt(n)
    return Conv2d(mean, std, bias, scale * dice.uniform(shape=(out,)), window.stride, window.padding)
