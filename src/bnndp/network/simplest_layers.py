r"""The simplest layers that are the same function with the same law, for the normal form of a network.

A rewriting is made only where the law stays the same:

* ``LeakyRelu(0)`` and a :class:`PiecewiseAffine` made of torch's ReLU become ``Relu``;
* ``Identity``, ``LeakyRelu(1)``, ``Dropout(0)``, pooling of single values, a residual block that adds zeros and a
  ``Flatten`` of a vector, or of the inputs, are left out;
* a branch that multiplies by the unit matrix is the identity, a residual block with a branch of zeros is the other one,
  a concatenation of one branch is that branch, and one of single layers of the same kind a layer with their rows;
* a convolution with one position becomes a ``Linear``, and images of one pixel become vectors;
* correlated weights become a ``Linear`` where each Gaussian belongs to one weight and each weight has at most one, and
  have rows of their own where each Gaussian belongs to one row;
* a matrix-normal law becomes a ``Linear`` where both factors are diagonal, up to the order of their columns. The
  product of two of their numbers is rounded once. That is covered: passes use the squares of standard deviations only,
  and grant twice the rounding errors of their sums, of which there are more than four (``maths/rounding.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bnndp.activations import Identity, LeakyRelu, PiecewiseAffine, Relu
from bnndp.layers import (
    AveragePool,
    Branched,
    Concatenate,
    Conv2d,
    CorrelatedLinear,
    Dropout,
    Flatten,
    Linear,
    MatrixNormalLinear,
    MaxPool,
)  # fmt: skip
from bnndp.network.magnitudes import Placed
from bnndp.network.network import Layer

__all__ = ["Shape", "are", "grows", "is_vector", "simplified"]

_RELUS = (torch.relu, torch.nn.functional.relu, torch.Tensor.relu)
_LEAST = 1e-290  # of a product of two factors that is rounded by no more than a unit

Shape = tuple[int, ...]


def simplified(placed: Sequence[Placed], shape: Shape, pixels: bool) -> list[Placed]:
    """A chain for inputs of this shape in its simplest layers; ``pixels`` says whether one pixel may be a vector."""
    found = []
    for each in placed:
        found += [Placed(each.where, layer) for layer in _simplest(each.layer, shape, pixels)]
        shape = each.layer.out_shape(shape)
    return found


def is_vector(shape: Shape, pixels: bool) -> bool:
    """Whether values of this shape are a vector, or may be one."""
    return len(shape) == 1 or (pixels and shape[1:] == (1, 1))


def grows(layers: Sequence[Layer], shape: Shape) -> bool:
    """Whether an image of one pixel becomes a larger one, by its padding: then it must stay an image."""
    for layer in layers:
        after = layer.out_shape(shape)
        if isinstance(layer, Conv2d) and shape[1:] == (1, 1) and after[1:] != (1, 1):
            return True
        if isinstance(layer, Branched) and any(grows(branch, shape) for branch in layer.branches):
            return True
        shape = after
    return False


def _simplest(layer: Layer, shape: Shape, pixels: bool) -> Sequence[Layer]:
    """What takes the place of a layer."""
    match layer:
        case Identity() | LeakyRelu(negative_slope=1.0) | Dropout(rate=0.0):
            return []
        case LeakyRelu() | PiecewiseAffine() if _is_relu(layer):
            return [Relu()]
        case CorrelatedLinear():
            return [_uncorrelated(layer)]
        case MatrixNormalLinear():
            return [_independent(layer)]
        case Branched():
            return _block(layer, shape, pixels)
    return _of_images(layer, shape, pixels)


def _is_relu(phi: LeakyRelu | PiecewiseAffine) -> bool:
    if isinstance(phi, LeakyRelu):
        return phi.negative_slope == 0
    return phi.function in _RELUS or type(phi.function) is torch.nn.ReLU  # a subclass may be another function


def _of_images(layer: Layer, shape: Shape, pixels: bool) -> Sequence[Layer]:
    """Of layers that may take an image, or give one of a single pixel."""
    vector, to_vector = (is_vector(each, pixels) for each in (shape, layer.out_shape(shape)))
    match layer:
        case Dropout(channels=True) if vector:
            return [replace(layer, channels=False)]
        case Flatten() if vector:
            return []
        case AveragePool() | MaxPool():
            alone = vector or layer.size == layer.stride == (1, 1)
            return [] if alone else [layer, Flatten()] if to_vector else [layer]
        case Conv2d() if to_vector:
            return [_dense(layer, shape)] if vector else [Flatten(), _dense(layer, shape)]
    return [layer]


def _block(block: Branched, shape: Shape, pixels: bool) -> Sequence[Layer]:
    """A block with branches in their simplest layers, or what takes its place."""
    found = []
    for branch in block.branches:
        layers = [each.layer for each in simplified([Placed("", layer) for layer in branch], shape, pixels)]
        found.append([] if len(layers) == 1 and _is_unit(layers[0]) else layers)
    if isinstance(block, Concatenate):
        wide = found[0] if len(found) == 1 else _wide(found)
    else:
        # A branch of zeros adds nothing, and a block has layers beside its shortcut.
        wide = next((found[1 - k] for k, layers in enumerate(found) if layers and _is_zero(layers[-1])), None)
        found = [found[0] or found[1] or [Identity()], found[1] if found[0] else []]
    if wide is not None:
        return wide
    return [block if all(map(are, found, block.branches)) else block.with_branches(found)]


def _is_zero(layer: Layer) -> bool:
    """Whether its outputs are zeros."""
    return isinstance(layer, Linear | Conv2d) and not any(bool(getattr(layer, name).any()) for name in layer.tensors)


def _is_unit(layer: Layer) -> bool:
    """Whether its outputs are its inputs."""
    if not isinstance(layer, Linear | Conv2d) or layer.random or bool(layer.bias_mean.any()):
        return False
    weight = layer.weight_mean
    if isinstance(layer, Conv2d):
        if weight.shape[2:] != (1, 1) or layer.stride != (1, 1) or layer.padding != (0, 0):
            return False
        weight = weight[..., 0, 0]
    square = weight.shape[0] == weight.shape[1]
    return square and torch.equal(weight, torch.eye(*weight.shape, dtype=weight.dtype, device=weight.device))


def _wide(branches: Sequence[Sequence[Layer]]) -> Sequence[Layer] | None:
    """One layer with the outputs of all, if each branch is a layer with independent weights of the same geometry."""
    layers: list[Any] = [branch[0] for branch in branches if len(branch) == 1]
    kind = type(layers[0]) if len(layers) == len(branches) else None
    if kind not in (Linear, Conv2d):
        return None
    alike = {
        (type(each), each.weight_mean.shape[1:], *(getattr(each, name) for name in each.settings)) for each in layers
    }
    if len(alike) > 1:
        return None
    return [replace(layers[0], **{name: torch.cat([getattr(each, name) for each in layers]) for name in kind.tensors})]


def _dense(layer: Conv2d, shape: Shape) -> Linear:
    """A convolution with one position: each weight of its kernel meets one value, or the padding."""
    top, left = layer.padding
    rows, columns = (
        max(0, min(n, k - pad)) for n, k, pad in zip(shape[1:], layer.weight_mean.shape[2:], layer.padding, strict=True)
    )

    def spread(kernel: Tensor) -> Tensor:  # (out, in, height, width) -> (out, inputs)
        found = kernel.new_zeros(kernel.shape[0], *shape)
        found[..., :rows, :columns] = kernel[..., top : top + rows, left : left + columns]
        return found.flatten(1)

    return Linear(spread(layer.weight_mean), spread(layer.weight_std), layer.bias_mean, layer.bias_std)


def _uncorrelated(layer: CorrelatedLinear) -> Layer:
    """Without what no two weights, or no two rows, share."""
    some = layer.factor != 0  # (n_out, n_in + 1, rank)
    if layer.shared and bool((some.any(1).sum(0) > 1).any()):
        return layer
    stds = torch.cat([layer.weight_std, layer.bias_std[:, None]], 1)  # (n_out, n_in + 1)
    if bool((some.sum(1) <= 1).all()) and bool((some.sum(-1) + (stds > 0) <= 1).all()):
        stds = stds + layer.factor.abs().sum(-1)  # of one number and zeros: exact
        return Linear(layer.weight_mean, stds[:, :-1], layer.bias_mean, stds[:, -1])
    if not layer.shared:
        return layer
    own = some.any(1)  # (n_out, rank): the Gaussians of each row
    order = own.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, : int(own.sum(1).max())]
    factor = layer.factor.gather(2, order[:, None].expand(-1, layer.factor.shape[1], -1))
    return replace(layer, factor=factor, shared=False)


def _independent(layer: MatrixNormalLinear) -> Layer:
    """With independent weights, where each number of a factor is alone in its row and in its column."""
    for factor in (layer.row_factor, layer.column_factor):
        some = factor != 0
        if bool((some.sum(0) > 1).any() | (some.sum(1) > 1).any()):
            return layer
    rows, columns = (factor.abs().sum(1) for factor in (layer.row_factor, layer.column_factor))
    stds = rows[:, None] * columns  # (n_out, n_in + 1)
    if not bool(((stds >= _LEAST) | (rows[:, None] == 0) | (columns == 0)).all() & stds.isfinite().all()):
        return layer
    return Linear(layer.weight_mean, stds[:, :-1], layer.bias_mean, stds[:, -1])


def are(layers: Sequence[Layer], others: Sequence[Layer]) -> bool:
    """Whether they are the same records."""
    return len(layers) == len(others) and all(a is b for a, b in zip(layers, others, strict=True))
