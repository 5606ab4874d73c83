"""Operations that move numbers, or give them another shape: in the order of torch nothing happens in most of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from bnndp.importers.onnx.arguments import Argument, axes_of, numbers, value_of
from bnndp.importers.onnx.graph import Node
from bnndp.importers.onnx.values import Permuted, Value, joined

__all__ = ["concatenated", "flattened", "reshaped", "squeezed", "transposed", "unsqueezed"]


def flattened(node: Node, arguments: Sequence[Argument]) -> Value:
    """Flatten: two axes."""
    value = value_of(node, arguments)
    axis = node.settings.get("axis", 1)
    first = math.prod(value.shape[:axis])
    return value.reshaped((first, value.size // first))


def reshaped(node: Node, arguments: Sequence[Argument]) -> Value:
    """Reshape to a constant shape, of a batch of one."""
    value, sizes = value_of(node, arguments), numbers(node, arguments, 1)
    wanted = node.settings.get("shape") if sizes is None else sizes.tolist()
    if wanted is None:
        raise node.fault("its shape is not constant; simplify the model first, at its export or by onnxsim")
    if not node.settings.get("allowzero", 0):
        wanted = [value.shape[i] if n == 0 and i < len(value.shape) else n for i, n in enumerate(wanted)]
    known = math.prod(n for n in wanted if n != -1)
    if -1 in wanted and known > 0:
        wanted = [value.size // known if n == -1 else n for n in wanted]
    if any(n < 1 for n in wanted) or math.prod(wanted) != value.size:
        raise node.fault(f"a value of the shape {value.shape} cannot have the shape {tuple(wanted)} for a batch of one")
    return value.reshaped(tuple(wanted))


def squeezed(node: Node, arguments: Sequence[Argument]) -> Value:
    """Squeeze: without some axes of size 1."""
    value = value_of(node, arguments)
    axes = axes_of(node, arguments, len(value.shape))
    gone = [i for i, n in enumerate(value.shape) if n == 1] if axes is None else axes
    if any(value.shape[i] != 1 for i in gone):
        raise node.fault(f"axes {gone} of a value of the shape {value.shape} are not all of size 1")
    return value.reshaped(tuple(n for i, n in enumerate(value.shape) if i not in gone))


def unsqueezed(node: Node, arguments: Sequence[Argument]) -> Value:
    """Unsqueeze: with more axes of size 1."""
    value = value_of(node, arguments)
    added = len(numbers(node, arguments, 1) if len(arguments) > 1 else node.settings.get("axes", ()))  # type: ignore[arg-type]
    axes = axes_of(node, arguments, len(value.shape) + added) or []
    sizes = iter(value.shape)
    return value.reshaped(tuple(1 if i in axes else next(sizes) for i in range(len(value.shape) + added)))


def transposed(node: Node, arguments: Sequence[Argument]) -> Value:
    """Harmless if only axes of size 1 move; otherwise a permutation, for the dense layer after it."""
    value = value_of(node, arguments)
    order = node.settings.get("perm") or list(range(len(value.shape)))[::-1]
    shape = tuple(value.shape[axis] for axis in order)
    moving = [axis for axis in order if value.shape[axis] > 1]
    if moving == sorted(moving):
        return value.reshaped(shape)
    index = np.arange(value.size).reshape(value.shape).transpose(order).ravel()
    return value.flat().then(Permuted(torch.from_numpy(index.copy())), shape, (value.size,))


def concatenated(node: Node, arguments: Sequence[Argument]) -> Value:
    """Concat: channels of images, or entries of vectors."""
    values = [value_of(node, arguments, at) for at in range(len(arguments))]
    axis = node.settings.get("axis", 1) % len(values[0].shape)
    images = len(values[0].layout) == 3
    moving = [i for i, n in enumerate(values[0].shape) if n > 1 and i < axis]
    fits = all(v.layout[1:] == values[0].layout[1:] and (not images or v.shape[1:] == v.layout) for v in values)
    if moving or not fits or len({len(v.shape) for v in values}) > 1 or (images and axis != 1):
        raise node.fault(f"values of the shapes {', '.join(str(v.shape) for v in values)} cannot be put side by side")
    total = sum(value.shape[axis] for value in values)
    shape = tuple(total if i == axis else n for i, n in enumerate(values[0].shape))
    layout = (sum(value.layout[0] for value in values), *values[0].layout[1:])
    return joined(values, added=False, shape=shape, layout=layout)
