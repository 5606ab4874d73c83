"""The step of the pass through a layer without weights: one function, dispatched on the record."""

from __future__ import annotations

from functools import singledispatch

from bnndp.engine.nodes.node import Node
from bnndp.errors import UnsupportedLayerError

__all__ = ["step"]


@singledispatch
def step(layer: object, below: Node, shape: tuple[int, ...]) -> Node:
    """The node after ``layer``, for a signal of this shape."""
    raise UnsupportedLayerError(f"the pass knows no layer of kind {type(layer).__name__}.")
