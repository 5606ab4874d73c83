"""The general moment pass: any chain of layers, forward for moments, backward for the ranges of means.

At each layer with weights the range of its means is found by carrying its rows down to x; then come the moments, the
expectation of its activation and the planes (docs/theory.md). What is random is bounded over the whole posterior.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from bnndp.activations import Identity
from bnndp.activations.activation import Activation
from bnndp.engine.chunks import device_size
from bnndp.engine.general.activated import Linearised, activated, activated_signal, outline
from bnndp.engine.general.activation_planes import Planes, few_kinks, planes, planes_of_exact
from bnndp.engine.general.efron_stein import MeanSlopes, mean_slopes
from bnndp.engine.general.expectation import Around, around
from bnndp.engine.general.hinge import Hinge, hinge_of
from bnndp.engine.general.joint_expansion import Moments, gradient_of, joint_expansion
from bnndp.engine.general.joint_gaussian import Joint
from bnndp.engine.general.laws.residual import added
from bnndp.engine.general.mean_range import Wanted, mean_range, not_far_below, with_kink_inside
from bnndp.engine.general.nodes import (
    Activated,
    Bound,
    Input,
    Node,
    Weighted,
    least_value,
    lower_bound,
    outlined,
    sums_of_squares,
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
from bnndp.layers import WEIGHTED, Residual
from bnndp.maths.rounding import SMALL, UP
from bnndp.network import Layer, is_activation

__all__ = [
    "Passed",
    "Region",
    "Relaxed",
    "activations_of",
    "hidden_layers",
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

    chain: list[Node]
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
        return self.chain[-1]


@dataclass(frozen=True, slots=True)
class Relaxed:
    """What is known where an activation follows random weights: moments of X, bounds of E phi(X), planes."""

    pre: Pre
    near: Around
    planes: Planes
    hinge: Hinge | None


Relax = Callable[[int, Activation, Weighted, Interval], Relaxed]
"""From the number of activations after weights below, the activation, the layer before it and its range of means."""


def relaxed(index: int, phi: Activation, weighted: Weighted, mean: Interval) -> Relaxed:
    """The bounds of the pass."""
    x = pre_of_weights(weighted.weights, weighted.below.signal, mean, lambda: through_layers(weighted))
    near = around(phi, x)
    hinge = hinge_of(phi, x, near)
    return Relaxed(x, near, planes(phi, x, near, hinge), hinge)


@dataclass(frozen=True, slots=True)
class Region:
    """The x that a pass is about: those of the boxes, or of cells of them.

    ``signs[k]`` (batch, n_k) of -1, 0 and 1 leave those x on which the means that go into the k-th activation after
    weights have these signs; ``cut`` leaves those of a half-space. ``relax`` makes the bounds at activations after
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
    chain: list[Node] = [Input(of_box(region.box))]
    weighted = _walk(layers[: last + 1], shapes, chain, region)
    if weighted is None:
        kinds = " ".join(layer.kind for layer in layers)
        raise UnsupportedLayerError(f"the layers {kinds} do not end in one with weights.")
    return Passed(chain, weighted, region.box)


def activations_of(chain: Sequence[Node]) -> dict[int, Activated]:
    """The activations after weights, by their place in the chain: those inside residual blocks are not among them."""
    return {i: node for i, node in enumerate(chain) if isinstance(node, Activated) and node.weighted is not None}


def _walk(
    layers: Sequence[Layer], shapes: Sequence[tuple[int, ...]], chain: list[Node], region: Region
) -> Weighted | None:
    """Append the nodes of the layers to the chain; a last layer with weights is given back instead."""
    weighted: Weighted | None = None
    for layer, after, shape in zip(layers, [*layers[1:], None], shapes, strict=False):
        if weighted is not None:
            pending, weighted = weighted, None
            count = len(activations_of(chain))
            sign = region.signs[count] if count < len(region.signs) else None
            if is_activation(layer):
                chain.append(_activated(layer, chain, pending, region, sign, linear=_linear(after)))
                continue
            chain.append(_activated(Identity(), chain, pending, region, sign, linear=_linear(layer)))
        if isinstance(layer, _WEIGHTED):
            weighted = _weighted(weights_of(layer, shape), chain[-1])
        elif isinstance(layer, Residual):
            chain.append(_block(layer, shape, chain, replace(region, signs=())))
        elif is_activation(layer):
            if not isinstance(layer, Identity):
                chain.append(_on_signal(layer, chain))
        else:
            node = step(layer, chain[-1], shape)
            if node is not chain[-1]:
                chain.append(node)
    return weighted


def _block(block: Residual, shape: tuple[int, ...], chain: list[Node], region: Region) -> Node:
    """The node of a residual block: its own nodes go on from the chain, and end in it."""
    grown = list(chain)
    weighted = _walk(block.layers, block.shapes(shape), grown, region)
    if weighted is not None:
        grown.append(_activated(Identity(), grown, weighted, region))
    inner = grown[len(chain) :]
    return added(inner, chain[-1]) if inner else added([_on_signal(Identity(), chain)], chain[-1])


def output_bound(passed: Passed, rows: Tensor) -> Bound:  # rows (batch or 1, rows, n_out)
    """``rows . E f(x)`` in terms of the last node."""
    return passed.output.lower(DenseRows(rows), None, rows.new_zeros(rows.shape[:2]))


def mean_rows(passed: Passed, rows: Tensor) -> Affine:  # rows (batch, rows, n_out)
    """Affine functions of x below ``rows . E f(x)``: (batch, rows)."""
    bound = lower_bound(passed.chain, output_bound(passed, rows))
    return Affine(bound.rows.dense().values, bound.constant)


def least_rows(passed: Passed, rows: Tensor, cut: HalfSpace | None) -> Tensor:  # rows (batch or 1, rows, n_out)
    """Lower bound of ``rows . E f(x)`` on the box, or what ``cut`` leaves of it: (batch, rows).

    The better of that of the rows carried down to x and that of the ranges of the means below the last layer.
    """
    bound = output_bound(passed, rows)
    return torch.maximum(least_value(passed.chain, bound, passed.box, cut), bound.least_in(passed.last.mean))


def row_variance(passed: Passed, rows: Tensor, at: Tensor | None = None) -> Tensor:  # rows (batch or some, rows, n_out)
    """Upper bound of ``Var(rows . f(x))`` on the boxes, or on those ``at`` (some,): (batch or some, rows)."""
    weights, below, u = passed.output.weights, passed.last, DenseRows(rows)
    if at is not None and not (isinstance(below, Activated) and below.outlines is not None):
        every = rows.new_zeros(passed.box.batch, *rows.shape[1:]).index_copy(0, at, rows)
        return row_variance(passed, every)[at]
    z, inner = outlined(below, weights.pull(u), at)
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
    chain: list[Node],
    weighted: Weighted,
    region: Region,
    sign: Tensor | None = None,  # (batch, n)
    *,
    linear: bool = False,  # whether nothing but rows of it is asked for
) -> Node:
    weights, below = weighted.weights, weighted.below
    exact = below.signal.fixed and not weights.random
    mean = mean_range(chain, weighted, region.box, region.cut, _wanted(phi, weighted, exact=exact, linear=linear))
    mean = mean if sign is None else mean.where_sign(sign)
    if exact:
        return _exact(phi, mean, weighted)
    found = region.relax(len(activations_of(chain)), phi, weighted, mean)
    x, near = found.pre, found.near
    independent = weights.groups == weights.n_out
    joint = None if independent else partial(weights.joint, below.mean)
    moments = partial(activated, phi, x, near, found.planes, joint=joint)
    variances = partial(variance_planes, phi, x, near)

    def slopes() -> MeanSlopes | None:
        known = not weights.coupled or weights.spread_rest(below.signal) is not None
        return mean_slopes(phi, x, squares=known)

    known = independent and (x.fixed or (below.signal.kernel is not None and phi.shape.slope_known))
    outlines = partial(outline, phi, x, near, found.planes) if known else None
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


def _exact(phi: Activation, mean: Interval, weighted: Weighted) -> Node:
    """An activation of a function of x: nothing is random, so there are planes and no moments."""
    x, zero = pre_of_signal(fixed(mean)), torch.zeros_like(mean.lower)
    found, near = planes_of_exact(phi, x), Around(zero, zero, zero, zero)

    def moments() -> tuple[Signal, Linearised]:
        signal = fixed(found.range)
        rest = Rests(zero, zero, signal.norms, signal.norms)
        return signal, Linearised(phi.shape.steepest, zero, zero, rest, None)

    return Activated(found, x, moments, None, None, weighted, weighted.below, partial(hinge_of, phi, x, near))


def _on_signal(phi: Activation, chain: list[Node]) -> Node:
    z = chain[-1].signal
    x = pre_of_signal(z)
    found = planes(phi, x, around(phi, x))
    return Activated(found, x, partial(activated_signal, phi, z, x, found), None, None, None, chain[-1])


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
    if below.signal.joint is not None:
        return _jointly(weighted, below.signal.joint, torch.cat(norms, 1))
    squares = [sums_of_squares(below, rows) for _, rows in weighted.weights.square_rows(numbers) or ()]
    known = [found for found in squares if found is not None]
    names = ("deviation", "central", "central_norm4", "norms", "extra", "extra_norm4")
    spread = Squares(*(torch.cat([getattr(s, name) for s in known], 1) for name in names)) if known else None
    rest = weighted.weights.spread_rest(below.signal) if spread is not None else None
    spread = spread if spread is None or rest is None else with_rest(spread, rest, below)
    norm4, least = (torch.cat(part, 1) for part in zip(*apart, strict=True)) if apart else (None, None)
    return Through(torch.cat(central, 1) * UP, torch.cat(norms, 1), spread, norm4, least)


def _jointly(weighted: Weighted, joint: Joint, norms: Tensor) -> Through:  # norms (batch, n_out, q)
    """The same where the values below are made of jointly Gaussian ones."""
    weights, below = weighted.weights, weighted.below
    z, gradient = below.signal, gradient_of(weights, below.signal)
    unit = torch.eye(weights.n_out, dtype=norms.dtype, device=norms.device)[None]
    mu = weights.pull(DenseRows(unit)).dense().values
    variance = joint.form(joint.covariance, mu).interval
    noise = Interval(variance.lower.clamp_min(0) / UP, variance.upper.clamp_min(0) * UP)
    zero = torch.zeros_like(noise.upper)
    straight = below.norms(DenseRows(gradient.rows.value)) if gradient is not None else torch.zeros_like(norms)
    spread = weights.mean_spread(z).upper if gradient is not None else zero
    rests = _rests(below, joint)
    found = joint_expansion(joint, mu, gradient, Moments(z.norms, rests), spread, straight[..., 0])
    eighth = torch.full_like(zero, torch.inf)
    known = torch.stack([found.spread_fourth.sqrt().sqrt() * UP, eighth], -1)
    squares = Squares(found.spread_variance.sqrt() * UP, zero, zero, known, zero, zero)
    return Through(zero, norms, squares if gradient is not None else None, jointly=Jointly(noise, found))


def _rests(below: Node, joint: Joint) -> Tensor:  # (batch, n, q)
    """Norms of what the line of slope E phi'(X) leaves of the values after an activation."""
    if not isinstance(below, Activated):
        return torch.full_like(below.signal.norms, torch.inf)
    away = (joint.slope.value - below.linear.slope).abs() + joint.slope.off
    more = (away * joint.spread_root)[..., None] * away.new_tensor(GAUSSIAN)
    return (below.linear.rest.norms + more) * UP
