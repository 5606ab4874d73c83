"""Arguments of operations: values that depend on the input, constants, or nothing where one is left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from bnndp.importers.onnx.graph import Node
from bnndp.importers.onnx.values import Constant, Value

__all__ = ["Argument", "Rule", "axes_of", "constant_of", "expect_no_growth", "numbers", "value_of"]

Argument: TypeAlias = "Value | Constant | None"
Rule: TypeAlias = Callable[[Node, Sequence[Argument]], Value]
"""What an operation does to its arguments."""


def value_of(node: Node, arguments: Sequence[Argument], at: int = 0) -> Value:
    """The argument that depends on the input."""
    found = arguments[at] if at < len(arguments) else None
    if not isinstance(found, Value):
        raise node.fault(f"its argument {at} must depend on the input of the network")
    return found


def constant_of(node: Node, arguments: Sequence[Argument], at: int, *, random: bool = False) -> Constant | None:
    """A constant argument; None if it is left out."""
    found = arguments[at] if at < len(arguments) else None
    if found is None:
        return None
    if not isinstance(found, Constant):
        raise node.fault(f"its argument {at} must be constant; products of values are not supported")
    if found.std is not None and not random:
        raise node.fault("its constant has standard deviations, which only weights, kernels and biases may have")
    return found


def numbers(node: Node, arguments: Sequence[Argument], at: int) -> np.ndarray[Any, np.dtype[Any]] | None:
    """The numbers of a constant argument without standard deviations."""
    found = constant_of(node, arguments, at)
    return None if found is None else found.value


def expect_no_growth(node: Node, value: Value, constant: Constant) -> None:
    """Refuse a constant that would make the value larger."""
    try:
        fits = np.broadcast_shapes(constant.value.shape, value.shape) == value.shape
    except ValueError:
        fits = False
    if not fits:
        raise node.fault(f"a constant of the shape {constant.value.shape} does not fit a value of {value.shape}")


def axes_of(node: Node, arguments: Sequence[Argument], dimensions: int) -> list[int] | None:
    """The axes of an operation, once a setting and later an argument; None: all of them."""
    found = numbers(node, arguments, 1)
    axes = node.settings.get("axes") if found is None else found.tolist()
    return None if axes is None else [axis % dimensions for axis in axes]
