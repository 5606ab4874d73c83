"""The general moment pass: any graph of layers, forward for moments, backward for the ranges of means.

At each layer with weights the range of its means is found by carrying its rows down to x; then come the moments, the
expectation of its activation and the planes (docs/theory.md). What is random is bounded over the whole posterior.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

import torch
from torch import Tensor

from bnndp.activations import Identity
from bnndp.activations.activation import Activation
from bnndp.engine.chunks import device_size
from bnndp.engine.general.activated import Linearised, activated, activated_signal, outline
from bnndp.engine.general.activation_planes import Planes, few_kinks, planes, planes_of_exact
from bnndp.engine.general.concatenation import Concatenation
from bnndp.engine.general.efron_stein import MeanSlopes, mean_slopes
from bnndp.engine.general.expectation import Around, around
from bnndp.engine.general.hinge import Hinge, hinge_of
from bnndp.engine.general.joint_expansion import Moments, gradient_of, joint_expansion, side_by_side
from bnndp.engine.general.joint_gaussian import LARGEST_JOINT, Joint
from bnndp.engine.general.laws.summed import Branch, Unchanged, summed
from bnndp.engine.general.mean_range import Wanted, mean_range, not_far_below, with_kink_inside
from bnndp.engine.general.nodes import (
    Activated,
    Bound,
    Input,
    Node,
    Weighted,
    least_value,
    lower_bound,
    on_boxes,
    outlined,
    with_rest,
)
from bnndp.engine.general.pre_activation import Jointly, Squares, Through, pre_of_signal, pre_of_weights
from bnndp.engine.general.reach import reached_variance
from bnndp.engine.general.remainders import Rests
from bnndp.engine.general.rows import DenseRows
from bnndp.engine.general.signal import GAUSSIAN, Pre, Signal, fixed, of_box
from bnndp.engine.general.stacked import StackedLinear
from bnndp.engine.general.steps import step
from bnndp.engine.general.variance_planes import variance_planes
from bnndp.engine.general.weights import Weights, weights_of
from bnndp.engine.general.weights import row_variance as noise_of_rows
from bnndp.errors import UnsupportedLayerError
from bnndp.geometry.bounds import Affine, Interval
from bnndp.geometry.box import Box
from bnndp.geometry.half_space import HalfSpace
from bnndp.layers import WEIGHTED, Concatenate, Residual
from bnndp.maths.rounding import SMALL, UP
from bnndp.network import Layer, is_activation

__all__ = [
    "Passed",
    "Region",
    "Relaxed",
    "activations_of",
    "hidden_layers",
    "joint_numbers",
    "least_rows",
    "mean_rows",
    "output_bound",
    "relaxed",
    "row_variance",
    "through_layers",
]

_NUMBERS = 2**23  # entries of the matrices of rows held at a time
_WEIGHTED = (*WEIGHTED, StackedLinear)


@dataclass(frozen=True, slots=True)
class Passed:
    """All layers but the last one with weights, on the boxes; and that last layer."""

    nodes: list[Node]  # the input first, and each after its own inputs
    output: Weighted
    box: Box

    @property
    def fixed(self) -> bool:
        """Whether nothing is random before the last layer."""
        known = isinstance(self.last, Activated) and self.last.outlines is not None
        return not known and self.last.signal.fixed

    @property
    def last(self) -> Node:
        """The node below the output layer."""
        return self.nodes[-1]


@dataclass(frozen=True, slots=True)
class Relaxed:
    """What is known where an activation follows random weights: moments of X, bounds of E phi(X), planes."""

    pre: Pre
    near: Around
    planes: Planes
    hinge: Hinge | None


Relax = Callable[[int, Activation, Weighted, Interval], Relaxed]
"""From the number of activations before, the activation, the layer before it and its range of means."""


def relaxed(index: int, phi: Activation, weighted: Weighted, mean: Interval) -> Relaxed:
    """The bounds of the pass."""
    x = pre_of_weights(weighted.weights, weighted.below.signal, mean, lambda: through_layers(weighted))
    near = around(phi, x)
    hinge = hinge_of(phi, x, near)
    return Relaxed(x, near, planes(phi, x, near, hinge), hinge)


@dataclass(frozen=True, slots=True)
class Region:
    """The x that a pass is about: those of the boxes, or of cells of them.

    ``signs[k]`` (batch, n_k) of -1, 0 and 1 leave those x on which the means that go into the k-th activation have
    these signs; ``cut`` leaves those of a half-space. ``relax`` makes the bounds at activations after
    random weights; a diagnosis takes others (benchmarks/tightness).
    """

    box: Box
    signs: Sequence[Tensor] = ()
    cut: HalfSpace | None = None
    relax: Relax = relaxed


def hidden_layers(layers: Sequence[Layer], shapes: Sequence[tuple[int, ...]], region: Region) -> Passed:
    """The pass up to the last layer with weights, of the layers of a network or of stacked ones.

    ``shapes`` are those before each layer.
    """
    last = max((i for i, layer in enumerate(layers) if isinstance(layer, _WEIGHTED)), default=-1)
    nodes: list[Node] = [Input(of_box(region.box))]
    weighted = _walk(layers[: last + 1], shapes, nodes, region, count())
    if weighted is None:
        kinds = " ".join(layer.kind for layer in layers)
        raise UnsupportedLayerError(f"the layers {kinds} do not end in one with weights.")
    return Passed(nodes, weighted, region.box)


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
            pending, weighted = weighted, None
            if is_activation(layer):
                nodes.append(_activated(layer, nodes, pending, region, next(number), linear=_linear(after)))
                continue
            nodes.append(_activated(Identity(), nodes, pending, region, next(number), linear=_linear(layer)))
        if isinstance(layer, _WEIGHTED):
            weighted = _weighted(weights_of(layer, shape), nodes[-1])
        elif isinstance(layer, Residual):
            weighted = _sum(layer, shape, nodes, region, number)
        elif isinstance(layer, Concatenate):
            nodes.append(_concatenated(layer, shape, nodes, region, number))
        elif is_activation(layer):
            if not isinstance(layer, Identity):
                nodes.append(_on_signal(layer, nodes[-1], region, next(number)))
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
    return _weighted(weights, below)


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
            grown.append(_activated(Identity(), grown, weighted, region, next(number)))
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


def output_bound(passed: Passed, rows: Tensor) -> Bound:  # rows (batch or 1, rows, n_out)
    """``rows . E f(x)`` in terms of the last node."""
    return passed.output.lower(DenseRows(rows), None, rows.new_zeros(rows.shape[:2]))


def mean_rows(passed: Passed, rows: Tensor) -> Affine:  # rows (batch, rows, n_out)
    """Affine functions of x below ``rows . E f(x)``: (batch, rows)."""
    bound = lower_bound(passed.nodes, output_bound(passed, rows))
    return Affine(bound.rows.dense().values, bound.constant)


def least_rows(passed: Passed, rows: Tensor, cut: HalfSpace | None) -> Tensor:  # rows (batch or 1, rows, n_out)
    """Lower bound of ``rows . E f(x)`` on the box, or what ``cut`` leaves of it: (batch, rows).

    The better of that of the rows carried down to x and that of the ranges of the means below the last layer.
    """
    bound = output_bound(passed, rows)
    return torch.maximum(least_value(passed.nodes, bound, passed.box, cut), bound.least_in(passed.last.mean))


def row_variance(passed: Passed, rows: Tensor, at: Tensor | None = None) -> Tensor:  # rows (batch or some, rows, n_out)
    """Upper bound of ``Var(rows . f(x))`` on the boxes, or on those ``at`` (some,): (batch or some, rows)."""
    weights, below, u = passed.output.weights, passed.last, DenseRows(rows)
    if at is not None:
        some = None if passed.fixed else on_boxes(below, at)
        if some is None:
            every = rows.new_zeros(passed.box.batch, *rows.shape[1:]).index_copy(0, at, rows)
            return row_variance(passed, every)[at]
        below = some
    z, inner = outlined(below, weights.pull(u))
    found = (noise_of_rows(weights, u, z) + inner.square()) * UP
    if not z.fixed:
        return found + SMALL**2  # terms may underflow
    if not weights.random:
        return found
    found, reached = found + SMALL**2, reached_variance(passed.output, below, rows)
    return found if reached is None else torch.fmin(found, reached)


def _weighted(weights: Weights, below: Node) -> Weighted:
    scale = weights.power(below.mean.magnitude, 1) + weights.bias.abs()
    return Weighted(weights, below, scale * UP)


def _linear(layer: Layer | None) -> bool:
    """Whether a layer asks for rows of the signal below it only: one with weights and no variance."""
    return isinstance(layer, _WEIGHTED) and not layer.random


def _activated(
    phi: Activation,
    nodes: list[Node],
    weighted: Weighted,
    region: Region,
    number: int,  # of activations before it
    *,
    linear: bool = False,  # whether nothing but rows of it is asked for
) -> Node:
    weights, below = weighted.weights, weighted.below
    exact = below.signal.fixed and not weights.random
    mean = mean_range(nodes, weighted, region.box, region.cut, _wanted(phi, weighted, exact=exact, linear=linear))
    mean = _on_cell(mean, region, number)
    if exact:
        return _exact(phi, mean, weighted, below)
    found = region.relax(number, phi, weighted, mean)
    x, near = found.pre, found.near
    independent = weights.groups == weights.n_out
    joint = None if independent else partial(weights.joint, below.mean)
    moments = partial(activated, phi, x, near, found.planes, joint=joint)
    variances = partial(variance_planes, phi, x, near)

    def slopes() -> MeanSlopes | None:
        known = not weights.coupled or weights.spread_rest(below.signal) is not None
        return mean_slopes(phi, x, squares=known)

    by_slopes = below.signal.kernel is not None and phi.shape.slope_known
    outlines = partial(outline, phi, x, near, found.planes, by_slopes=by_slopes) if independent else None
    return Activated(found.planes, x, moments, variances, slopes, weighted, below, lambda: found.hinge, outlines)


def _wanted(phi: Activation, weighted: Weighted, *, exact: bool, linear: bool) -> Wanted | None:
    """Of which neurons rows are to be carried down; None: of all."""
    shape, weights, z = phi.shape, weighted.weights, weighted.below.signal
    if exact:
        kinks = few_kinks(phi)
        return with_kink_inside(kinks) if linear and kinks is not None else None
    if not (shape.convex and shape.kinks and shape.slopes[0] == 0 and z.source):
        return None  # only sums of independent terms have known tails
    variance = weights.mean_spread(z).upper + weights.power(z.variance, 2)
    return not_far_below(min(where for where, _ in shape.kinks), (variance * UP).sqrt() + SMALL)


def _exact(phi: Activation, mean: Interval, weighted: Weighted | None, below: Node) -> Node:
    """An activation of a function of x: nothing is random, so there are planes and no moments."""
    x, zero = pre_of_signal(fixed(mean)), torch.zeros_like(mean.lower)
    found, near = planes_of_exact(phi, x), Around(zero, zero, zero, zero)

    def moments() -> tuple[Signal, Linearised]:
        signal = fixed(found.range)
        rest = Rests(zero, zero, signal.norms, signal.norms)
        return signal, Linearised(phi.shape.steepest, zero, zero, rest, None)

    return Activated(found, x, moments, None, None, weighted, below, partial(hinge_of, phi, x, near))


def _on_signal(phi: Activation, below: Node, region: Region, number: int) -> Node:
    z = below.signal
    mean = _on_cell(z.mean, region, number)
    if z.fixed:
        return _exact(phi, mean, None, below)
    x = replace(pre_of_signal(z), mean=mean)
    near = around(phi, x)
    hinge = hinge_of(phi, x, near)
    found = planes(phi, x, near, hinge)
    moments = partial(activated_signal, phi, z, x, found)
    return Activated(found, x, moments, None, None, None, below, lambda: hinge)


def _on_cell(mean: Interval, region: Region, number: int) -> Interval:
    """The range of the means before an activation where they have the signs of the region."""
    return mean.where_sign(region.signs[number]) if number < len(region.signs) else mean


def through_layers(weighted: Weighted) -> Through:
    """What the nodes below say of the rows of a layer, in pieces."""
    below, batch = weighted.below, weighted.scale.shape[0]
    numbers = device_size(_NUMBERS, weighted.scale.device) // batch
    central, norms, apart = [], [], []
    for _, rows in weighted.weights.own_rows(numbers):
        central.append(below.parts(rows)[1].square())
        norms.append(below.norms(rows))
        if isinstance(below, Activated) and (found := below.apart(rows)) is not None:
            apart.append(found)
    if weighted.joint is not None:
        return _jointly(weighted, weighted.joint, torch.cat(central, 1) * UP, torch.cat(norms, 1))
    squares = [below.sums_of_squares(rows) for _, rows in weighted.weights.square_rows(numbers) or ()]
    known = [found for found in squares if found is not None]
    names = ("deviation", "central", "central_norm4", "norms", "extra", "extra_norm4")
    spread = Squares(*(torch.cat([getattr(s, name) for s in known], 1) for name in names)) if known else None
    rest = weighted.weights.spread_rest(below.signal) if spread is not None else None
    spread = spread if spread is None or rest is None else with_rest(spread, rest, below)
    norm4, least = (torch.cat(part, 1) for part in zip(*apart, strict=True)) if apart else (None, None)
    return Through(torch.cat(central, 1) * UP, torch.cat(norms, 1), spread, norm4, least)


def _jointly(weighted: Weighted, joint: Joint, most: Tensor, norms: Tensor) -> Through:
    """The same where the values below are made of jointly Gaussian ones; some rows at a time.

    ``most`` (batch, n_out) is at least the variance of the means, norms are (batch, n_out, q).
    """
    weights, z = weighted.weights, weighted.below.signal
    unit = torch.eye(weights.n_out, dtype=norms.dtype, device=norms.device)[None]
    mu, rests = weights.pull(DenseRows(unit)).dense().values, _rests(weighted.below, joint)
    variance = joint.form(joint.covariance, mu).interval
    noise = Interval(variance.lower.clamp_min(0) / UP, torch.fmin(variance.upper.clamp_min(0) * UP, most))
    zero = torch.zeros_like(noise.upper)
    spread = weights.mean_spread(z).upper if weights.random else zero
    step = max(1, device_size(_NUMBERS, norms.device) // (4 * len(norms) * weights.n_in))
    pieces = []
    for start in range(0, weights.n_out, step):
        part = slice(start, start + step)
        coupling = None if weighted.coupling is None else weighted.coupling[part]
        gradient = gradient_of(weights, z, coupling, unit[:, part])
        straight = zero[:, part] if gradient is None else weighted.below.norms(DenseRows(gradient.rows.value))[..., 0]
        pieces.append(joint_expansion(joint, mu[:, part], gradient, Moments(z.norms, rests), spread[:, part], straight))
    found = side_by_side(pieces)
    known = torch.stack([found.spread_fourth.sqrt().sqrt() * UP, torch.full_like(zero, torch.inf)], -1)
    squares = Squares(found.spread_variance.sqrt() * UP, zero, zero, known, zero, zero)
    return Through(zero, norms, squares if weights.random else None, jointly=Jointly(noise, found))


def _rests(below: Node, joint: Joint) -> Tensor:  # (batch, n, q)
    """Norms of what the line of slope E phi'(X) leaves of the values after an activation."""
    if not isinstance(below, Activated):
        return torch.full_like(below.signal.norms, torch.inf)
    away = (joint.slope.value - below.linear.slope).abs() + joint.slope.off
    more = (away * joint.spread_root)[..., None] * away.new_tensor(GAUSSIAN)
    return (below.linear.rest.norms + more) * UP
