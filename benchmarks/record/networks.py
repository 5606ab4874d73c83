"""The networks and regions of ``benchmarks.record``: small, of every kind, drawn from a seed and from nothing else."""

from __future__ import annotations

import math
import zlib
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from benchmarks.record import engine

__all__ = ["ACTS", "DENSE", "ENSEMBLES", "IMAGES", "VECTORS", "Dice", "balls", "losses", "model", "points"]

ACTS = (
    "relu", "leaky_relu", "identity", "hard_tanh", "tanh", "sigmoid", "softplus", "elu", "elu_bent", "gelu", "silu",
    "piecewise_affine",
)  # fmt: skip
DENSE = ("mean_field", "fixed", "bias", "rows", "whole", "low_rank", "matrix_normal")
VECTORS = (*DENSE, "dropout_bernoulli", "dropout_gaussian", "residual", "batch_norm", "units")
IMAGES = (
    "conv", "conv_fixed", "conv_bias", "conv_dropout_bernoulli", "conv_dropout_gaussian", "conv_channels_bernoulli",
    "conv_channels_gaussian", "conv_average_pool", "conv_max_pool", "conv_batch_norm", "conv_residual",
)  # fmt: skip
ENSEMBLES = ("ensemble_samples", "ensemble_samples_shift", "ensemble_gaussians", "ensemble_different")
_FACTORS = {"fixed": (0.0, 0.0), "bias": (0.0, 1.0)}  # of the standard deviations of weights and of biases


class Dice:
    """Seeded draws in float64; ``checksum`` is a checksum of all of them."""

    def __init__(self, name: str) -> None:
        self.generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        self.checksum = 0

    def normal(self, *shape: int) -> Tensor:
        """Standard Gaussians."""
        return self._kept(torch.randn(shape, generator=self.generator, dtype=torch.float64))

    def uniform(self, *shape: int) -> Tensor:
        """Between 0 and 1."""
        return self._kept(torch.rand(shape, generator=self.generator, dtype=torch.float64))

    def pick(self, *values: Any) -> Any:
        """One of the values."""
        return values[int(self.uniform() * len(values))]

    def _kept(self, drawn: Tensor) -> Tensor:
        self.checksum = zlib.crc32(drawn.numpy().tobytes(), self.checksum)
        return drawn


def model(dice: Dice, kind: str, act: str = "relu", depth: int | None = None, task: str = "regression") -> Any:
    """A network or an ensemble; the depth (of those of vectors), the shift and all sizes are drawn where not given."""
    if kind.startswith("ensemble"):
        return _ensemble(dice, kind, act, task)
    n_out = dice.pick(1, 2) if task == "regression" else dice.pick(2, 3)
    shape: tuple[int, ...] = (2, 4, 5)
    if kind.startswith("conv"):
        layers = _image(dice, kind, act, n_out)
    else:
        shape = (dice.pick(1, 3, 10),)
        layers = _chain(dice, kind, act, (shape[0], depth if depth is not None else dice.pick(1, 1, 2, 3), n_out))
    shift = dice.pick(False, False, True) and kind != "units"
    network = engine.BayesianNetwork(
        tuple(layers), task=task, shift=0.2 * dice.normal(math.prod(shape)) if shift else None, input_shape=shape
    )
    if kind != "units":
        return network
    inputs, outputs = ((0.3 * dice.normal(n), 0.5 + dice.uniform(n)) for n in (shape[0], n_out))
    return engine.standardised(network, inputs, outputs)


def points(dice: Dice, n: int, count: int = 3) -> Tensor:
    """Inputs in the unit box."""
    return dice.uniform(count, n)


def balls(dice: Dice, x: Tensor, norm: float | None = None, scale: float = 1.0) -> Any:
    """A point, a small and a large ball of any norm, or boxes that are flat in some inputs; some cut to a domain."""
    eps = scale * torch.tensor([0.0, 0.01, 0.2], dtype=torch.float64)[: x.shape[0]]
    norm = norm or dice.pick(math.inf, math.inf, 2, 1, None)
    if norm is None:
        half = eps[:, None] * dice.uniform(*x.shape) * (dice.uniform(*x.shape) < 0.7)
        return engine.Box(x - half, x + half)
    return engine.Box.ball(x, eps, norm=norm, domain=dice.pick(None, (0.0, 1.0)))


def losses(dice: Dice, classes: int) -> Tensor:
    """Of the decision k where the class is i: (classes, classes), zero on the diagonal."""
    return (0.5 + dice.uniform(classes, classes)) * (1 - torch.eye(classes, dtype=torch.float64))


def _dense(dice: Dice, kind: str, n_out: int, n_in: int, std: float) -> Any:
    """A layer of one of DENSE; any other kind is of independent weights."""
    mean, bias = dice.normal(n_out, n_in) / math.sqrt(n_in), 0.5 * dice.normal(n_out)
    if kind == "matrix_normal":
        columns = std * dice.normal(n_in + 1, n_in + 1) / n_in
        return engine.MatrixNormalLinear(mean, bias, dice.normal(n_out, n_out) / math.sqrt(n_out), columns)
    w_std, b_std = std * dice.uniform(n_out, n_in) / math.sqrt(n_in), std * dice.uniform(n_out)
    if kind == "low_rank":
        return engine.CorrelatedLinear.low_rank(
            mean, w_std, bias, b_std, std * dice.normal(n_out, n_in + 1, 2) / math.sqrt(2 * n_in)
        )
    if kind in ("rows", "whole"):
        shape, n = ((n_out,), n_in + 1) if kind == "rows" else ((), n_out * (n_in + 1))
        factor = std * dice.normal(*shape, n, 3) / math.sqrt(3 * n_in)
        return getattr(engine.CorrelatedLinear, kind)(mean, bias, factor @ factor.mT)
    weights, biases = _FACTORS.get(kind, (1.0, 1.0))
    return engine.Linear(mean, weights * w_std, bias, biases * b_std)


def _std(dice: Dice) -> float:
    return dice.pick(1e-3, 0.03, 0.1, 0.4)


def _chain(dice: Dice, kind: str, act: str, sizes: tuple[int, int, int]) -> list[Any]:
    """A network of vectors: with these numbers of inputs, hidden layers and outputs."""
    n, depth, n_out = sizes
    std, phi, layers = _std(dice), engine.activation(act), []
    head = "mean_field" if kind == "head" else kind
    own = "fixed" if kind == "head" else kind  # only the last layer is random
    for _ in range(depth):
        width = dice.pick(3, 6, 12)
        layer = _dense(dice, dice.pick(*DENSE) if kind == "batch_norm" else own, width, n, std)
        layers += [_norm(dice, width).after(layer) if kind == "batch_norm" else layer, phi]
        n = width
        if kind == "residual":
            inner = _dense(dice, dice.pick(*DENSE), 4, n, std), phi, _dense(dice, dice.pick(*DENSE), n, 4, std)
            layers.append(engine.Residual(inner))
        if kind.startswith("dropout"):
            layers.append(engine.Dropout(dice.pick(0.1, 0.5), kind.removeprefix("dropout_")))
    return [*layers, _dense(dice, head, n_out, n, std)]


def _norm(dice: Dice, n: int) -> Any:
    return engine.BatchNorm(0.3 * dice.normal(n), 0.5 + dice.uniform(n), 1 + 0.3 * dice.normal(n), 0.3 * dice.normal(n))


def _image(dice: Dice, kind: str, act: str, n_out: int) -> list[Any]:
    """A network of images (2, 4, 5)."""
    std, phi, wanted = _std(dice), engine.activation(act), kind.removeprefix("conv").removeprefix("_")
    law = wanted.rpartition("_")[2]
    layers = [_conv(dice, wanted, (3, 2, 3, 2), std), phi]
    if wanted == "batch_norm":
        layers[0] = _norm(dice, 3).after(layers[0])
    if law in ("bernoulli", "gaussian"):
        layers.append(engine.Dropout(dice.pick(0.1, 0.5), law, wanted.startswith("channels")))
    if wanted == "residual":
        layers.append(engine.Residual((_conv(dice, wanted, (3, 3, 3, 3), std), phi)))
    if wanted.endswith("pool"):
        pool = engine.MaxPool if wanted == "max_pool" else engine.AveragePool
        layers.append(pool(2, dice.pick(1, 2)))
    if dice.pick(True, False) and wanted != "residual":
        layers += [_conv(dice, wanted, (2, 3, 2, 2), std), phi]
    shape: tuple[int, ...] = (2, 4, 5)
    for layer in (*layers, engine.Flatten()):
        shape = layer.out_shape(shape)
    return [*layers, engine.Flatten(), _dense(dice, dice.pick(*DENSE), n_out, shape[0], std)]


def _conv(dice: Dice, wanted: str, shape: tuple[int, int, int, int], std: float) -> Any:
    weights, biases = _FACTORS.get(wanted, (1.0, 1.0))
    fan = math.prod(shape[1:])
    kernel = dice.normal(*shape) / math.sqrt(fan), weights * std * dice.uniform(*shape) / math.sqrt(fan)
    stride, padding = (1, 1) if wanted == "residual" else (dice.pick(1, 2), 1)
    return engine.Conv2d(*kernel, 0.3 * dice.normal(shape[0]), biases * std * dice.uniform(shape[0]), stride, padding)


def _ensemble(dice: Dice, kind: str, act: str, task: str) -> Any:
    """Members alike (without variance, or with it) or different, with weights that are equal or not."""
    n, n_out, count, depth = dice.pick(1, 3, 10), dice.pick(2, 3), dice.pick(3, 4), dice.pick(1, 2)
    shift = 0.2 * dice.normal(n) if kind.endswith("shift") else None
    if kind.startswith("ensemble_samples"):
        sizes = (n, *([5] * depth), n_out)
        stacks = [(dice.normal(count, b, a) / math.sqrt(a), 0.4 * dice.normal(count, b)) for a, b in pairwise(sizes)]
        parts = [[layer for w, b in stacks for layer in (engine.Linear.fixed(w[k], b[k]), engine.activation(act))][:-1]
                 for k in range(count)]  # fmt: skip
    else:
        kinds = ("mean_field",) * count if kind == "ensemble_gaussians" else ("mean_field", "whole", "residual", "bias")
        parts = [_chain(dice, each, act, (n, depth, n_out)) for each in kinds[:count]]
    members = tuple(engine.BayesianNetwork(tuple(layers), task=task, shift=shift) for layers in parts)
    weights = 0.2 + dice.uniform(count)
    return engine.Ensemble(members, dice.pick(None, weights / weights.sum()))
