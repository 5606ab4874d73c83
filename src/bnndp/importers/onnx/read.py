"""ONNX files as networks: the rules of all nodes one after the other, then the layers of the chain that they make."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bnndp.errors import CertError, ModelFileError, one_line
from bnndp.importers.onnx.arguments import Argument
from bnndp.importers.onnx.constants import computed
from bnndp.importers.onnx.folding import folded, leading_shift
from bnndp.importers.onnx.graph import Graph, Node, read_graph
from bnndp.importers.onnx.operators import RULES
from bnndp.importers.onnx.values import Branches, Constant, Permuted, Step, Value
from bnndp.layers import WEIGHTED, Flatten, Linear
from bnndp.layers.record import Record
from bnndp.network import BayesianNetwork

__all__ = ["network_of", "read_onnx"]

_OUTPUTS = ("Softmax", "LogSoftmax")

Stds = Mapping[str, np.ndarray[Any, np.dtype[Any]]]


def read_onnx(
    path: str | os.PathLike[str], std: str | os.PathLike[str] | None = None, task: str = "regression"
) -> BayesianNetwork:
    """Read a network from an ONNX file.

    Args:
        path: The file, ``.onnx`` or ``.onnx.gz``, of a network with one input and one output.
        std: A file of tensors, with standard deviations under the names of the weights; all others have none.
        task: ``"regression"`` or ``"classification"``. A softmax at the end goes with the second only, of which it is a
            part.

    Returns:
        The network. Its inputs and outputs are vectors, in the order of the tensors of the graph. Every fault is a
        :class:`ModelFileError` of one line with the file, the node and what to do.
    """
    graph = read_graph(path)
    stds = {} if std is None else _read_stds(std)
    try:
        return network_of(graph, stds, task)
    except (CertError, RuntimeError, MemoryError, ValueError) as error:
        raise ModelFileError(one_line(f"{path}: cannot be converted: {error}")) from error


def _read_stds(path: str | os.PathLike[str]) -> Stds:
    from bnndp.importers.convert import tensors_of

    return {name: tensor.to(torch.float64).numpy() for name, tensor in tensors_of(path).items()}


def network_of(graph: Graph, stds: Stds, task: str) -> BayesianNetwork:
    """The network of a graph."""
    _expect_stds(graph, stds)
    known: dict[str, Argument] = {name: Constant(value, stds.get(name)) for name, value in graph.constants.items()}
    known[graph.input] = Value.input(graph.shape)
    output = _logits(graph, task)
    for node in _needed(graph, output):
        known[node.outputs[0]] = _result(node, [_argument(node, name, known) for name in node.inputs])
    end = known.get(output)
    if not isinstance(end, Value):
        raise ModelFileError(f"the output {graph.output!r:.60} does not depend on the input")
    _expect_own_weights(end.steps)
    _expect_classes(graph, end)
    shift, steps = leading_shift(end.steps)
    return _network(folded(steps), end.root, shift, task)


def _needed(graph: Graph, output: str) -> list[Node]:
    """The nodes that an output depends on, in their order."""
    wanted, found = {output}, []
    for node in reversed(graph.nodes):
        if wanted & set(node.outputs):
            wanted |= set(node.inputs)
            found.append(node)
    return found[::-1]


def _logits(graph: Graph, task: str) -> str:
    """The output without the softmax that classification brings with it."""
    last = next((node for node in graph.nodes if graph.output in node.outputs), None)
    if last is None or last.kind not in _OUTPUTS:
        return graph.output
    if task != "classification":
        raise last.fault(
            "probabilities are no output of such a network; export its logits, or give the task classification"
        )
    return last.inputs[0]


def _expect_classes(graph: Graph, end: Value) -> None:
    """Refuse a softmax that is not one over all outputs."""
    last = next((node for node in graph.nodes if graph.output in node.outputs), None)
    if last is None or last.kind not in _OUTPUTS:
        return
    axis = last.settings.get("axis", -1)
    if not -len(end.shape) <= axis < len(end.shape) or end.shape[axis] != end.size:
        raise last.fault(f"it is over axis {axis} of {end.shape}, not over all outputs")


def _argument(node: Node, name: str, known: Mapping[str, Argument]) -> Argument:
    if not name:
        return None
    if name not in known:
        raise node.fault(f"its argument {name!r:.60} comes from nowhere before it; the file is not a valid model")
    return known[name]


def _result(node: Node, arguments: Sequence[Argument]) -> Argument:
    """What a node gives: a constant if all its arguments are."""
    first = arguments[0] if arguments else None
    if node.kind == "Shape" and isinstance(first, Value):
        node.expect(start=0)
        if "end" in node.settings:
            raise node.fault("only whole shapes are supported")
        return Constant(np.array(first.shape, dtype=np.int64))
    if any(isinstance(each, Value) for each in arguments):
        if node.kind not in RULES:
            raise node.fault(f"is not supported; known are {', '.join(RULES)}")
        return RULES[node.kind](node, arguments)
    constants = [each for each in arguments if isinstance(each, Constant)]
    if node.kind == "Identity" and constants:
        return constants[0]  # counted as a use of the constant itself
    if any(each.std is not None for each in constants):
        raise node.fault("it changes a constant with standard deviations; these must be weights as they stand")
    return Constant(computed(node, [each.value if isinstance(each, Constant) else None for each in arguments]))


def _expect_stds(graph: Graph, stds: Stds) -> None:
    """Refuse standard deviations that no single weight has."""
    source: dict[str, str] = {}
    for node in graph.nodes:
        if node.kind == "Identity":
            source[node.outputs[0]] = source.get(node.inputs[0], node.inputs[0])
    direct = (name for node in graph.nodes if node.kind != "Identity" for name in node.inputs)
    uses = Counter(source.get(name, name) for name in direct)
    for name, std in stds.items():
        if name not in graph.constants or not uses[name]:
            raise ModelFileError(f"there are standard deviations for {name!r:.80}, but the network has no such weights")
        if graph.constants[name].shape != std.shape:
            raise ModelFileError(f"{name!r:.80} has the shape {graph.constants[name].shape}, its stds {std.shape}")
        if uses[name] > 1:
            raise ModelFileError(
                f"{name!r:.80} is used {uses[name]} times; layers that share random weights are unknown"
            )
        if not np.all(np.isfinite(std) & (std >= 0)):
            raise ModelFileError(f"the standard deviations for {name!r:.80} must be finite and >= 0")


def _expect_own_weights(steps: tuple[Step, ...]) -> None:
    """Refuse random weights that two branches would draw independently, though they are the same."""
    seen = Counter(id(step) for step in _all(steps) if _is_random(step))
    if any(count > 1 for count in seen.values()):
        raise ModelFileError(
            "a layer with random weights is in two branches that start at different values; such graphs are unknown"
        )


def _all(steps: tuple[Step, ...]) -> Iterator[Step]:
    for step in steps:
        yield step
        if isinstance(step.does, Branches):
            for chain in step.does.chains:
                yield from _all(chain)


def _is_random(step: Step) -> bool:
    does = step.does
    if isinstance(does, Branches | Permuted):
        return False
    return does.random


def _network(layers: list[Record], shape: tuple[int, ...], shift: Tensor | None, task: str) -> BayesianNetwork:
    """The layers, without flattening of vectors, with a vector at the end and weights behind it."""
    found: list[Record] = []
    start = shape
    for layer in layers:
        if not (isinstance(layer, Flatten) and len(shape) == 1):
            if isinstance(layer, Flatten) and not found:
                start = shape = (math.prod(shape),)
                continue
            found.append(layer)
            shape = layer.out_shape(shape)
    if len(shape) == 3:
        found.append(Flatten())
        shape = (math.prod(shape),)
    last = next((layer for layer in reversed(found) if not isinstance(layer, Flatten)), None)
    if not isinstance(last, WEIGHTED):
        found.append(Linear.fixed(torch.eye(shape[0], dtype=torch.float64)))
    return BayesianNetwork(tuple(found), task, shift, start)
