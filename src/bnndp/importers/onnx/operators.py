"""What each operation of ONNX does to a value: one rule for each, in one table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from bnndp.importers.onnx.activations import ACTIVATIONS, gated
from bnndp.importers.onnx.arguments import (
    Argument,
    Rule,
    axes_of,
    constant_of,
    expect_no_growth,
    numbers,
    value_of,
)
from bnndp.importers.onnx.convolutions import average_pool, convolution, global_pool, max_pool
from bnndp.importers.onnx.graph import Node
from bnndp.importers.onnx.shapes import concatenated, flattened, reshaped, squeezed, transposed, unsqueezed
from bnndp.importers.onnx.values import Constant, Value, joined
from bnndp.layers import Linear

__all__ = ["RULES"]


def _dense(node: Node, value: Value, weight: np.ndarray[Any, Any], std: np.ndarray[Any, Any] | None) -> Value:
    """``weight (n_out, n_in)`` on a vector."""
    if weight.ndim != 2 or not value.shape or value.shape[-1] != value.size or weight.shape[1] != value.size:
        raise node.fault(
            f"a value of the shape {value.shape} is multiplied by a matrix for {weight.shape[-1]} inputs; only "
            "products of a matrix and a single vector are supported"
        )
    layer = Linear.fixed(torch.from_numpy(weight.copy()))
    if std is not None:
        zero = torch.zeros(len(weight), dtype=torch.float64)
        layer = Linear(layer.weight_mean, torch.from_numpy(std.copy()), zero, zero)
    return value.flat().then(layer, (*value.shape[:-1], len(weight)), (len(weight),))


def _gemm(node: Node, arguments: Sequence[Argument]) -> Value:
    node.expect(transA=0)
    value, weight = value_of(node, arguments), constant_of(node, arguments, 1, random=True)
    if weight is None:
        raise node.fault("it has no matrix")
    alpha, beta = node.settings.get("alpha", 1.0), node.settings.get("beta", 1.0)
    mean, std = (m if m is None or node.settings.get("transB", 0) else m.T for m in (weight.value, weight.std))
    if mean is None:
        raise node.fault("it has no matrix")
    found = _dense(node, value, alpha * mean, None if std is None else abs(alpha) * std)
    bias = constant_of(node, arguments, 2, random=True)
    if bias is None:
        return found
    return found.scaled(1.0, beta * bias.value, 0.0 if bias.std is None else abs(beta) * bias.std)


def _matmul(node: Node, arguments: Sequence[Argument]) -> Value:
    value, weight = value_of(node, arguments), constant_of(node, arguments, 1, random=True)
    if weight is None:
        raise node.fault("it has no matrix")
    return _dense(node, value, weight.value.T, None if weight.std is None else weight.std.T)


def _sum_of(sign: float) -> Rule:
    """Add and Sub."""

    def rule(node: Node, arguments: Sequence[Argument]) -> Value:
        first, second = arguments
        if isinstance(first, Value) and isinstance(second, Value):
            if first.shape != second.shape or first.layout != second.layout:
                raise node.fault(f"values of the shapes {first.shape} and {second.shape} cannot be added")
            second = second if sign > 0 else second.scaled(-1.0, 0.0)
            return joined([first, second], added=True, shape=first.shape, layout=first.layout)
        at = 0 if isinstance(first, Value) else 1
        value, constant = value_of(node, arguments, at), constant_of(node, arguments, 1 - at, random=True)
        if constant is None:
            raise node.fault("it has one argument only")
        expect_no_growth(node, value, constant)
        std = 0.0 if constant.std is None else constant.std
        if at == 1:
            return value.scaled(sign, constant.value, std)
        return value.scaled(1.0, sign * constant.value, std)

    return rule


def _mul(node: Node, arguments: Sequence[Argument]) -> Value:
    first, second = arguments
    if isinstance(first, Value) and isinstance(second, Value):
        return gated(node, first, second)
    at = 0 if isinstance(first, Value) else 1
    value, constant = value_of(node, arguments, at), constant_of(node, arguments, 1 - at)
    if constant is None:
        raise node.fault("it has one argument only")
    expect_no_growth(node, value, constant)
    return value.scaled(constant.value, 0.0)


def _div(node: Node, arguments: Sequence[Argument]) -> Value:
    value, constant = value_of(node, arguments), numbers(node, arguments, 1)
    if constant is None or not np.all(constant != 0):
        raise node.fault("it divides by zero, or by nothing")
    expect_no_growth(node, value, Constant(constant))
    return value.scaled(1.0 / constant, 0.0)


def _dropout(node: Node, arguments: Sequence[Argument]) -> Value:
    training = numbers(node, arguments, 2)
    if len([name for name in node.outputs if name]) > 1 or (training is not None and bool(training)):
        raise node.fault("it is for training; export the model for inference")
    return value_of(node, arguments)


def _cast(node: Node, arguments: Sequence[Argument]) -> Value:
    node.expect(to=(1, 11))
    return value_of(node, arguments)


def _batch_norm(node: Node, arguments: Sequence[Argument]) -> Value:
    node.expect(training_mode=0, spatial=1)
    value = value_of(node, arguments)
    found = [numbers(node, arguments, at) for at in range(1, 5)]
    channels = value.shape[1] if len(value.shape) > 1 else 0
    arrays = [each for each in found if each is not None and each.shape == (channels,)]
    if len(arrays) != 4:
        raise node.fault(f"it needs scale, bias, mean and variance of {channels} channels each")
    scale, bias, mean, variance = arrays
    epsilon = node.settings.get("epsilon", 1e-5)
    if not np.all(variance + epsilon > 0):
        raise node.fault("its variances are not positive")
    factor = scale / np.sqrt(variance + epsilon)
    axes = (channels, *(1,) * (len(value.shape) - 2))
    return value.scaled(factor.reshape(axes), (bias - mean * factor).reshape(axes))


def _reduce_mean(node: Node, arguments: Sequence[Argument]) -> Value:
    value = value_of(node, arguments)
    if sorted(axes_of(node, arguments, len(value.shape)) or []) != [2, 3]:
        raise node.fault("only means over height and width are supported")
    found = global_pool(node, value)
    return found if node.settings.get("keepdims", 1) else found.reshaped(found.shape[:2])


def _convolved(node: Node, arguments: Sequence[Argument]) -> Value:
    kernel = constant_of(node, arguments, 1, random=True)
    if kernel is None:
        raise node.fault("it has no kernels")
    found = convolution(node, value_of(node, arguments), kernel)
    bias = constant_of(node, arguments, 2, random=True)
    if bias is None:
        return found
    return found.scaled(1.0, bias.value[:, None, None], 0.0 if bias.std is None else bias.std[:, None, None])


RULES: dict[str, Rule] = ACTIVATIONS | {
    "Add": _sum_of(1.0),
    "AveragePool": lambda node, arguments: average_pool(node, value_of(node, arguments)),
    "BatchNormalization": _batch_norm,
    "Cast": _cast,
    "Concat": concatenated,
    "Conv": _convolved,
    "Div": _div,
    "Dropout": _dropout,
    "Flatten": flattened,
    "Gemm": _gemm,
    "GlobalAveragePool": lambda node, arguments: global_pool(node, value_of(node, arguments)),
    "Identity": value_of,
    "MatMul": _matmul,
    "MaxPool": lambda node, arguments: max_pool(node, value_of(node, arguments)),
    "Mul": _mul,
    "Neg": lambda node, arguments: value_of(node, arguments).scaled(-1.0, 0.0),
    "ReduceMean": _reduce_mean,
    "Reshape": reshaped,
    "Squeeze": squeezed,
    "Sub": _sum_of(-1.0),
    "Transpose": transposed,
    "Unsqueeze": unsqueezed,
}
"""The rules by the kind of the operation."""
