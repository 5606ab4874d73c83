"""Activations of ONNX as ours; some of them between two scalings."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bnndp.activations import Elu, Gelu, HardTanh, LeakyRelu, Relu, Sigmoid, Silu, Softplus, Tanh
from bnndp.importers.onnx.arguments import Argument, Rule, numbers, value_of
from bnndp.importers.onnx.graph import Node
from bnndp.importers.onnx.values import Value

__all__ = ["ACTIVATIONS", "gated"]


def _applied(make: Callable[[Node], Any]) -> Rule:
    """An activation."""

    def rule(node: Node, arguments: Sequence[Argument]) -> Value:
        value = value_of(node, arguments)
        return value.then(make(node), value.shape, value.layout)

    return rule


def _gelu(node: Node) -> Gelu:
    node.expect(approximate="none")
    return Gelu()


def _prelu(node: Node, arguments: Sequence[Argument]) -> Value:
    value, slope = value_of(node, arguments), numbers(node, arguments, 1)
    if slope is None or not np.all(slope == slope.flat[0]):
        raise node.fault("its slopes differ; only one slope for all values is supported")
    return value.then(LeakyRelu(float(slope.flat[0])), value.shape, value.layout)


def _between(node: Node, value: Value, low: float, high: float) -> Value:
    """``min(max(z, low), high)`` as HardTanh between two scalings, and Relu where there is no upper end."""
    if low == 0 and high == math.inf:
        return value.then(Relu(), value.shape, value.layout)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise node.fault(f"clips to [{low}, {high}]; both ends must be finite, or 0 and none")
    middle, half = 0.5 * (low + high), 0.5 * (high - low)
    if (middle, half) == (0.0, 1.0):
        return value.then(HardTanh(), value.shape, value.layout)
    inner = value.scaled(1 / half, -middle / half)
    return inner.then(HardTanh(), value.shape, value.layout).scaled(half, middle)


def _clip(node: Node, arguments: Sequence[Argument]) -> Value:
    ends = []
    for at, name, usual in ((1, "min", -math.inf), (2, "max", math.inf)):
        found = numbers(node, arguments, at)
        ends.append(float(node.settings.get(name, usual)) if found is None else float(found.reshape(())))
    low, high = (end if abs(end) < 3e38 else math.copysign(math.inf, end) for end in ends)
    return _between(node, value_of(node, arguments), low, high)


def _hard_sigmoid(node: Node, arguments: Sequence[Argument]) -> Value:
    alpha, beta = node.settings.get("alpha", 0.2), node.settings.get("beta", 0.5)
    return _between(node, value_of(node, arguments).scaled(alpha, beta), 0.0, 1.0)


def gated(node: Node, first: Value, second: Value) -> Value:
    """``z * sigmoid(z)`` is Silu; no other product of values is known."""
    short, long = sorted((first, second), key=lambda value: len(value.steps))
    alike = first.shape == second.shape and all(a is b for a, b in zip(short.steps, long.steps, strict=False))
    if not (alike and len(long.steps) == len(short.steps) + 1 and isinstance(long.steps[-1].does, Sigmoid)):
        raise node.fault("products of two values are not supported, but for z * sigmoid(z)")
    return short.then(Silu(), short.shape, short.layout)


ACTIVATIONS: dict[str, Rule] = {
    "Clip": _clip,
    "Elu": _applied(lambda node: Elu(float(node.settings.get("alpha", 1.0)))),
    "Gelu": _applied(_gelu),
    "HardSigmoid": _hard_sigmoid,
    "LeakyRelu": _applied(lambda node: LeakyRelu(float(node.settings.get("alpha", 0.01)))),
    "PRelu": _prelu,
    "Relu": _applied(lambda _: Relu()),
    "Sigmoid": _applied(lambda _: Sigmoid()),
    "Softplus": _applied(lambda _: Softplus()),
    "Tanh": _applied(lambda _: Tanh()),
}
"""The rules by the kind of the operation."""
