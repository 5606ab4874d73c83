"""Convolutions and pooling of ONNX as layers: what ours cannot say is written into the kernels, exactly.

Dilated kernels get zeros between their entries, kernels of groups zeros for the channels of other groups, and uneven
padding zeros at the shorter side, so that the padding becomes even.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from bnndp.errors import InputError
from bnndp.importers.onnx.graph import Node
from bnndp.importers.onnx.values import Constant, Value
from bnndp.layers import AveragePool, Conv2d, MaxPool
from bnndp.layers.record import Record

__all__ = ["average_pool", "convolution", "global_pool", "max_pool"]


def convolution(node: Node, value: Value, kernel: Constant) -> Value:
    """The convolution without its bias."""
    image = _image(node, value)
    groups, strides = node.settings.get("group", 1), _pair(node, "strides")
    if kernel.value.ndim != 4 or image[0] != groups * kernel.value.shape[1] or kernel.value.shape[0] % groups:
        raise node.fault(f"kernels of the shape {kernel.value.shape} do not fit an image of {image} in {groups} groups")
    dilations = _pair(node, "dilations")
    tensors = [
        _spread(torch.from_numpy(k.copy()), groups, dilations) for k in (kernel.value, kernel.std) if k is not None
    ]
    size = tuple(tensors[0].shape[2:])
    begin, end = _pads(node, image, size, strides)
    uneven = [(b - a, 0) if b > a else (0, a - b) for a, b in zip(begin, end, strict=True)]
    tensors = [torch.nn.functional.pad(k, (*uneven[1], *uneven[0])) for k in tensors]
    zero = torch.zeros(len(tensors[0]), dtype=torch.float64)
    std = tensors[1] if len(tensors) > 1 else torch.zeros_like(tensors[0])
    padding = (max(begin[0], end[0]), max(begin[1], end[1]))
    return _then(node, value, Conv2d(tensors[0], std, zero, zero, strides, padding))


def average_pool(node: Node, value: Value) -> Value:
    """The means of windows without padding."""
    return _pooled(node, value, AveragePool)


def max_pool(node: Node, value: Value) -> Value:
    """The largest values of windows without padding."""
    if len([name for name in node.outputs if name]) > 1:
        raise node.fault("its second output, the places of the largest values, is not supported")
    return _pooled(node, value, MaxPool)


def global_pool(node: Node, value: Value) -> Value:
    """The mean of each channel."""
    return _then(node, value, AveragePool(_image(node, value)[1:]))  # type: ignore[arg-type]


def _pooled(node: Node, value: Value, kind: type[AveragePool | MaxPool]) -> Value:
    image, size, strides = _image(node, value), _pair(node, "kernel_shape"), _pair(node, "strides")
    node.expect(storage_order=0)
    if _pads(node, image, size, strides) != ((0, 0), (0, 0)) or _pair(node, "dilations") != (1, 1):
        raise node.fault("pooling with padding or dilation is not supported")
    whole = all((n - k) % s == 0 for n, k, s in zip(image[1:], size, strides, strict=True))
    if node.settings.get("ceil_mode", 0) and not whole:
        raise node.fault("windows that reach over the edge (ceil_mode) are not supported")
    return _then(node, value, kind(size, strides))


def _then(node: Node, value: Value, layer: Record) -> Value:
    try:
        layout = layer.out_shape(value.layout)
    except InputError as error:
        raise node.fault(str(error)) from error
    return value.then(layer, (1, *layout), layout)


def _image(node: Node, value: Value) -> tuple[int, ...]:
    if len(value.layout) != 3 or value.shape != (1, *value.layout):
        raise node.fault(
            f"it takes an image (1, channels, height, width) that no reshaping has made, got the shape {value.shape}"
        )
    return value.layout


def _pair(node: Node, name: str) -> tuple[int, int]:
    """Two settings, each 1 if they are left out."""
    found = node.settings.get(name) or [1, 1]
    if len(found) != 2:
        raise node.fault(f"{name} {list(found)} is not for images; only two dimensions are supported")
    return int(found[0]), int(found[1])


def _pads(
    node: Node, image: tuple[int, ...], size: tuple[int, ...], strides: tuple[int, int]
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Rows and columns of zeros before and after the image."""
    how = node.settings.get("auto_pad", "NOTSET")
    if how == "VALID":
        return (0, 0), (0, 0)
    if how in ("SAME_UPPER", "SAME_LOWER"):
        total = [max((-(-n // s) - 1) * s + k - n, 0) for n, k, s in zip(image[1:], size, strides, strict=True)]
        less = (total[0] // 2, total[1] // 2)
        more = (total[0] - less[0], total[1] - less[1])
        return (less, more) if how == "SAME_UPPER" else (more, less)
    found = node.settings.get("pads") or [0, 0, 0, 0]
    if len(found) != 4 or min(found) < 0:
        raise node.fault(f"pads {list(found)} must be four numbers that are not negative")
    return (found[0], found[1]), (found[2], found[3])


def _spread(kernel: Tensor, groups: int, dilations: tuple[int, int]) -> Tensor:
    """The kernel of a convolution without groups and dilation that does the same."""
    out, into, height, width = kernel.shape
    steps = np.array(dilations)
    full = kernel.new_zeros(out, groups * into, *((np.array([height, width]) - 1) * steps + 1).tolist())
    each = out // groups
    for group in range(groups):
        rows, columns = slice(group * each, (group + 1) * each), slice(group * into, (group + 1) * into)
        full[rows, columns, :: dilations[0], :: dilations[1]] = kernel[rows]
    return full
