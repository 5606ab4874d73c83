"""The graph of an ONNX file: its nodes in order, its constants, and the shape of its input.

The package ``onnx`` parses the file, and nothing outside this module knows it. Nothing in the file is run. Numbers of
any float type become float64, which holds them exactly.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bnndp.errors import ModelFileError, one_line
from bnndp.files.compressed import read_compressed

__all__ = ["Graph", "Node", "read_graph"]

_LARGEST = 2**31  # bytes: what a file of this kind can have
_DOMAINS = ("", "ai.onnx")


@dataclass(frozen=True, slots=True)
class Node:
    """One operation: values by their names; a name that is empty stands for an argument that is left out."""

    kind: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    settings: Mapping[str, Any]  # attributes as Python values and arrays

    def __str__(self) -> str:
        """For messages."""
        return f"node {self.name or self.outputs[0]!s:.60} ({self.kind:.40})"

    def fault(self, what: str) -> ModelFileError:
        """An error about it."""
        return ModelFileError(f"{self}: {what}")

    def expect(self, **usual: object) -> None:
        """Refuse settings that are neither left out nor one of the usual values (a tuple: several of them)."""
        for name, values in usual.items():
            found = self.settings.get(name)
            allowed = values if isinstance(values, tuple) else (values,)
            if found is not None and found not in allowed:
                raise self.fault(f"{name} {found!r} is not supported; it must be {' or '.join(map(repr, allowed))}")


@dataclass(frozen=True, slots=True)
class Graph:
    """A graph with one input and one output."""

    nodes: tuple[Node, ...]
    constants: Mapping[str, np.ndarray]
    input: str
    shape: tuple[int, ...]  # of the input, with its batch of one where it has one
    output: str


def read_graph(path: str | os.PathLike[str]) -> Graph:
    """The graph in a file, which may be compressed by gzip; faults are a :class:`ModelFileError` of one line."""
    content = read_compressed(path, _LARGEST)
    try:
        import onnx
    except ImportError as error:
        raise ModelFileError(
            f"{path}: ONNX files are read by the package onnx; install it: pip install 'bnndp[onnx]'"
        ) from error
    try:
        model = onnx.load_model_from_string(content)
        return _graph(model)
    except ModelFileError as error:
        raise ModelFileError(one_line(f"{path}: cannot be converted: {error}")) from error
    except Exception as error:  # protobuf and onnx raise many kinds, none of them about us
        raise ModelFileError(one_line(f"{path}: is not a whole ONNX file: {error}")) from error


def _graph(model: Any) -> Graph:
    graph = model.graph
    if not graph.node:
        raise ModelFileError("it holds no operations; give a file of an ONNX model")
    if model.functions or graph.sparse_initializer:
        raise ModelFileError("local functions and sparse tensors are not supported; export without them")
    outside = next((t.name for t in graph.initializer if t.data_location == t.EXTERNAL), None)
    if outside is not None:
        raise ModelFileError(f"tensor {outside!r:.80} is in another file; save the model with all tensors inside")
    constants = {_text(each.name): _array(each) for each in graph.initializer}
    inputs = [each for each in graph.input if _text(each.name) not in constants]
    for kind, found in (("inputs", inputs), ("outputs", graph.output)):
        if len(found) != 1:
            names = ", ".join(f"{each.name!r:.60}" for each in list(found)[:4])
            raise ModelFileError(f"the model has {len(found)} {kind} ({names}); it must have one")
    nodes = tuple(map(_node, graph.node))
    return Graph(nodes, constants, _text(inputs[0].name), _shape(inputs[0]), _text(graph.output[0].name))


def _node(proto: Any) -> Node:
    from onnx import helper

    names = tuple(map(_text, proto.input)), tuple(map(_text, proto.output))
    node = Node(_text(proto.op_type), _text(proto.name), *names, {})
    if not node.outputs:
        raise ModelFileError(f"a node of the kind {node.kind:.40} has no output")
    if proto.domain not in _DOMAINS:
        raise node.fault(f"operations of {proto.domain!r:.40} are not supported; export with those of ONNX alone")
    if any(each.type in (each.GRAPH, each.GRAPHS) for each in proto.attribute):
        raise node.fault("operations that hold graphs are not supported; export without control flow")
    settings = {_text(each.name): _setting(helper.get_attribute_value(each)) for each in proto.attribute}
    return Node(node.kind, node.name, node.inputs, node.outputs, settings)


def _text(value: str | bytes) -> str:
    """A text of the file; protobuf gives bytes where it is no UTF-8."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _setting(value: Any) -> Any:
    from onnx import TensorProto

    if isinstance(value, TensorProto):
        return _array(value)
    return _text(value) if isinstance(value, bytes) else value


def _array(value: Any) -> np.ndarray:
    from onnx import numpy_helper

    found = np.asarray(numpy_helper.to_array(value))
    return found.astype(np.float64) if found.dtype.kind == "f" else found


def _shape(value: Any) -> tuple[int, ...]:
    """The shape of the input; a first dimension that is free is a batch, of which one is taken."""
    if not value.type.HasField("tensor_type") or not value.type.tensor_type.HasField("shape"):
        raise ModelFileError(f"the input {value.name!r:.60} has no shape; export with one")
    sizes = [each.dim_value if each.HasField("dim_value") else 0 for each in value.type.tensor_type.shape.dim]
    if len(sizes) > 1 and sizes[0] <= 0:
        sizes[0] = 1
    if not sizes or min(sizes) <= 0:
        raise ModelFileError(
            f"the input {value.name!r:.60} has the shape {tuple(sizes)}, where 0 is not known; only "
            "the first, the batch, may be unknown"
        )
    return tuple(sizes)
