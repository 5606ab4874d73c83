"""Operations on constants alone, as exporters leave them in graphs: mostly sizes for Reshape, some arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bnndp.importers.onnx.graph import Node

__all__ = ["computed"]

Array = np.ndarray[Any, np.dtype[Any]]


def computed(node: Node, values: Sequence[Array | None]) -> Array:
    """The value of a node whose arguments are these constants; None: one that is left out."""
    if node.kind == "Constant":
        name, value = next(iter(node.settings.items()), ("", None))
        if name not in ("value", "value_float", "value_floats", "value_int", "value_ints"):
            raise node.fault(f"constants by {name!r:.40} are not supported")
        return np.asarray(value)
    if node.kind not in _OPERATIONS or not values or values[0] is None:
        raise node.fault("is not computed from constants here; simplify the model first, at its export or by onnxsim")
    try:
        return np.asarray(_OPERATIONS[node.kind](node, values))
    except (ValueError, IndexError, TypeError, AttributeError) as error:
        raise node.fault(f"its constants do not fit: {error}") from error


def _axes(node: Node, values: Sequence[Any]) -> list[int]:
    """The axes of Squeeze and Unsqueeze: once a setting, later an argument."""
    found = node.settings.get("axes") if len(values) < 2 or values[1] is None else values[1].tolist()
    return [] if found is None else list(found)


def _unsqueeze(node: Node, values: Sequence[Any]) -> Array:
    axes = _axes(node, values)
    return np.expand_dims(values[0], tuple(axes))


def _squeeze(node: Node, values: Sequence[Any]) -> Array:
    axes = _axes(node, values)
    return np.squeeze(values[0], tuple(axes) if axes else None)


def _slice(node: Node, values: Sequence[Any]) -> Array:
    data, *rest = values
    named = [node.settings.get(name) for name in ("starts", "ends", "axes")]
    given = [None if each is None else each.tolist() for each in rest] if rest else named
    starts, ends = given[0], given[1]
    if starts is None or ends is None:
        raise ValueError("starts and ends are lacking")
    axes = (given[2] if len(given) > 2 else None) or list(range(len(starts)))
    steps = (given[3] if len(given) > 3 else None) or [1] * len(starts)
    cut = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        cut[axis] = slice(start, end, step)
    return data[tuple(cut)]


def _divide(_node: Node, values: Sequence[Any]) -> Array:
    first, second = values
    if first.dtype.kind == "f":
        return first / second
    return np.trunc(first / second).astype(first.dtype)


def _cast(node: Node, values: Sequence[Any]) -> Array:
    to = node.settings.get("to")
    if to in (1, 10, 11, 16):  # floats
        return values[0].astype(np.float64)
    if to in (6, 7):  # int32, int64
        return values[0].astype(np.int64)
    raise ValueError(f"a cast to the type {to} is not supported")


_OPERATIONS: dict[str, Callable[[Node, Sequence[Any]], Array]] = {
    "Add": lambda _, values: values[0] + values[1],
    "Cast": _cast,
    "Concat": lambda node, values: np.concatenate(values, node.settings.get("axis", 0)),
    "Div": _divide,
    "Gather": lambda node, values: np.take(values[0], values[1], node.settings.get("axis", 0)),
    "Identity": lambda _, values: values[0],
    "Mul": lambda _, values: values[0] * values[1],
    "Neg": lambda _, values: -values[0],
    "Reshape": lambda _, values: values[0].reshape(values[1].tolist()),
    "Slice": _slice,
    "Sqrt": lambda _, values: np.sqrt(values[0]),
    "Squeeze": _squeeze,
    "Sub": lambda _, values: values[0] - values[1],
    "Transpose": lambda node, values: np.transpose(values[0], node.settings.get("perm")),
    "Unsqueeze": _unsqueeze,
}
