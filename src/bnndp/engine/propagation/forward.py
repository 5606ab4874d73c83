"""The forward pass: the graph of nodes of a network, up to its last layer with weights.

At each layer with weights the range of its means is found by carrying its rows down to x; then come the moments, the
expectation of its activation and the planes (docs/theory.md). What is random is bounded over the whole posterior.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

from torch import Tensor

from bnndp.activations import Identity
from bnndp.engine.laws.stacked import StackedLinear
from bnndp.engine.laws.summed import Unchanged
from bnndp.engine.laws.weights import Weights, weights_of
from bnndp.engine.moments.joint_gaussian import LARGEST_JOINT
from bnndp.engine.moments.signal import of_box
from bnndp.engine.nodes.activation import Activated
from bnndp.engine.nodes.concatenation import Concatenation
from bnndp.engine.nodes.node import Input, Node
from bnndp.engine.nodes.step import step
from bnndp.engine.nodes.weighted import Weighted
from bnndp.engine.propagation.activation_step import Region, after_signal, after_weights
from bnndp.engine.propagation.branches import Branch, summed
from bnndp.errors import UnsupportedLayerError
from bnndp.geometry.box import Box
from bnndp.layers import WEIGHTED, Concatenate, Residual
from bnndp.maths.rounding import UP
from bnndp.network import Layer, is_activation

__all__ = ["HiddenLayers", "activations_of", "hidden_layers", "joint_numbers"]

_WEIGHTED = (*WEIGHTED, StackedLinear)


@dataclass(frozen=True, slots=True)
class HiddenLayers:
    """All layers but the last one with weights, on the boxes; and that last layer."""

    nodes: list[Node]  # the input first, and each after its own inputs
    output: Weighted
    box: Box
    spreads: Sequence[Tensor | None] = ()  # of bounds for most weights: what s is at most, in the order of the layers

    def before(self, weighted: Weighted) -> HiddenLayers:
        """Those below another layer with weights: of several branches only the nodes that lead to it."""
        needed, kept = {weighted.below}, list[Node]()
        for node in reversed(self.nodes):
            if node in needed:
                needed.update(node.inputs)
                kept.append(node)
        return HiddenLayers(kept[::-1], weighted, self.box, self.spreads)

    @property
    def fixed(self) -> bool:
        """Whether nothing is random before the last layer."""
        known = isinstance(self.last, Activated) and self.last.outlines is not None
        return not known and self.last.signal.fixed

    @property
    def last(self) -> Node:
        """The node below the output layer."""
        return self.nodes[-1]


def hidden_layers(layers: Sequence[Layer], shapes: Sequence[tuple[int, ...]], region: Region) -> HiddenLayers:
    """The pass up to the last layer with weights, of the layers of a network or of stacked ones.

    ``shapes`` are those before each layer. If the region says so, the pass ends before that, below an activation.
    """
    last = max((i for i, layer in enumerate(layers) if isinstance(layer, _WEIGHTED)), default=-1)
    nodes: list[Node] = [Input(of_box(region.box))]
    spreads = () if region.spreads is None else region.spreads.found
    try:
        weighted = _walk(layers[: last + 1], shapes, nodes, region, count())
    except _Reached as reached:
        return HiddenLayers(reached.nodes, reached.weighted, region.box, spreads).before(reached.weighted)
    if weighted is None:
        kinds = " ".join(layer.kind for layer in layers)
        raise UnsupportedLayerError(f"the layers {kinds} do not end in one with weights.")
    return HiddenLayers(nodes, weighted, region.box, spreads)


class _Reached(Exception):
    """The layer with weights before the activation at which the pass is to end, from within any branch."""

    def __init__(self, nodes: list[Node], weighted: Weighted) -> None:
        super().__init__()
        self.nodes, self.weighted = nodes, weighted


def _expect_more(index: int, region: Region, nodes: list[Node], weighted: Weighted) -> None:
    """Raise where the pass is to end."""
    if index == region.until:
        raise _Reached(nodes, weighted)


def activations_of(nodes: Sequence[Node]) -> dict[int, Activated]:
    """The activations, by their place among the nodes."""
    return {i: node for i, node in enumerate(nodes) if isinstance(node, Activated)}


def _walk(
    layers: Sequence[Layer],
    shapes: Sequence[tuple[int, ...]],
    nodes: list[Node],
    region: Region,
    number: Iterator[int],  # of the next activation
) -> Weighted | None:
    """Append the nodes of the layers to those below; a last layer with weights is given back instead."""
    weighted: Weighted | None = None
    for layer, after, shape in zip(layers, [*layers[1:], None], shapes, strict=False):
        if weighted is not None:
            pending, weighted, index = weighted, None, next(number)
            _expect_more(index, region, nodes, pending)
            if is_activation(layer):
                nodes.append(after_weights(layer, nodes, pending, region, index, linear=_linear(after)))
                continue
            nodes.append(after_weights(Identity(), nodes, pending, region, index, linear=_linear(layer)))
        if isinstance(layer, _WEIGHTED):
            weighted = _weighted(weights_of(layer, shape), nodes, region)
        elif isinstance(layer, Residual):
            weighted = _sum(layer, shape, nodes, region, number)
        elif isinstance(layer, Concatenate):
            nodes.append(_concatenated(layer, shape, nodes, region, number))
        elif is_activation(layer):
            if not isinstance(layer, Identity):
                nodes.append(after_signal(layer, nodes[-1], region, next(number)))
        else:
            node = step(layer, nodes[-1], shape)
            if node is not nodes[-1]:
                nodes.append(node)
    return weighted


def _sum(block: Residual, shape: tuple[int, ...], nodes: list[Node], region: Region, number: Iterator[int]) -> Weighted:
    """The sum of the branches as a layer with weights; their nodes are appended to those below."""
    fork, ends = nodes[-1], list[Branch]()
    for node, weighted, out in _branches(block, shape, nodes, region, number, closed=False):
        weights = Unchanged(out, region.box.lower.device) if weighted is None else weighted.weights
        ends.append(Branch(weights, node, _grown_since(fork, node)))
    weights, below = summed(ends, block.out_shape(shape))
    if below is not fork:
        nodes.append(below)
    return _weighted(weights, nodes, region)


def _concatenated(
    block: Concatenate, shape: tuple[int, ...], nodes: list[Node], region: Region, number: Iterator[int]
) -> Node:
    """The outputs of the branches side by side; their nodes are appended to those below."""
    fork = nodes[-1]
    ends = [node for node, _, _ in _branches(block, shape, nodes, region, number, closed=True)]
    return Concatenation(tuple(ends), tuple(_grown_since(fork, end) for end in ends))


def _branches(
    block: Residual | Concatenate,
    shape: tuple[int, ...],
    nodes: list[Node],
    region: Region,
    number: Iterator[int],
    *,
    closed: bool,  # whether last weights are to be a node, too
) -> list[tuple[Node, Weighted | None, tuple[int, ...]]]:
    """Of each branch the last node, the weights after it and the shape of the outputs; its nodes are appended."""
    below, found = list(nodes), list[tuple[Node, Weighted | None, tuple[int, ...]]]()
    for branch, own in zip(block.branches, block.shapes(shape), strict=True):
        grown = list(below)
        weighted = _walk(branch, own, grown, region, number)
        if closed and weighted is not None:
            index = next(number)
            _expect_more(index, region, grown, weighted)
            grown.append(after_weights(Identity(), grown, weighted, region, index))
        nodes += grown[len(below) :]
        found.append((grown[-1], weighted, own[-1]))
    return found


def _grown_since(fork: Node, end: Node) -> bool:
    """Whether the history of a branch is that of a layer with weights in it, or of nothing random."""
    node = end
    while node is not fork:
        if isinstance(node, Concatenation) or (isinstance(node, Activated) and node.weighted is not None):
            return True
        (node,) = node.inputs
    return False


def joint_numbers(layers: Sequence[Layer], shapes: Sequence[tuple[int, ...]]) -> int:
    """Of the covariances that are formed for each box: those of the first layer that is random."""
    for layer, shape in zip(layers, shapes, strict=False):
        if layer.random:
            weights = weights_of(layer, shape) if isinstance(layer, _WEIGHTED) else None
            size = 0 if weights is None or weights.groups == weights.n_out else weights.n_out**2 // weights.groups
            return size if size <= LARGEST_JOINT else 0
    return 0


def _weighted(weights: Weights, nodes: list[Node], region: Region) -> Weighted:
    below = nodes[-1]
    scale = weights.power(below.mean.magnitude, 1) + weights.bias.abs()
    weighted = Weighted(weights, below, scale * UP)
    if region.deviations is None:
        return weighted
    if not below.signal.fixed:
        raise UnsupportedLayerError("bounds for most weights know Gaussian weights only.")
    spread = None if region.spreads is None else region.spreads.next(weights, nodes)
    return replace(weighted, deviations=region.deviations, spread_above=spread)


def _linear(layer: Layer | None) -> bool:
    """Whether a layer asks for rows of the signal below it only: one with weights and no variance."""
    return isinstance(layer, _WEIGHTED) and not layer.random
