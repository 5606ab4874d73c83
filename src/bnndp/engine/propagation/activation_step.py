"""The step of the pass at an activation: the range of the means before it, and the node with what is known after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from bnndp.activations.activation import Activation
from bnndp.engine.chunks import selected
from bnndp.engine.inequalities.efron_stein import MeanSlopes, mean_slopes
from bnndp.engine.inequalities.expectation import ExpectationBounds, expectation_bounds
from bnndp.engine.inequalities.remainders import Remainders
from bnndp.engine.moments.pre_activation import PreActivation
from bnndp.engine.moments.signal import Signal, fixed
from bnndp.engine.nodes.activation import Activated, OnBoxes
from bnndp.engine.nodes.activation_moments import Linearised, activated, activated_signal
from bnndp.engine.nodes.node import Node
from bnndp.engine.nodes.outline import outline
from bnndp.engine.nodes.weighted import Weighted
from bnndp.engine.planes.hinge import Hinge, hinge_of
from bnndp.engine.planes.mean import Planes, few_kinks, planes, planes_of_exact
from bnndp.engine.planes.variance import variance_planes
from bnndp.engine.propagation.mean_range import Wanted, mean_range, not_far_below, with_kink_inside
from bnndp.engine.propagation.pre_activation import pre_of_signal, pre_of_weights
from bnndp.engine.propagation.row_moments import row_moments
from bnndp.engine.propagation.spreads import Spreads
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box
from bnndp.geometry.half_space import HalfSpace
from bnndp.maths.rounding import SMALL, UP

__all__ = ["Region", "Relaxed", "after_signal", "after_weights", "relaxed", "relaxed_on_cells"]


@dataclass(frozen=True, slots=True)
class Relaxed:
    """What is known where an activation follows random weights: moments of X, bounds of E phi(X), planes."""

    pre: PreActivation
    near: ExpectationBounds
    planes: Planes
    hinge: Hinge | None
    whole: OnBoxes | None = None  # where its moments are taken from, if it is about parts of boxes


Relax = Callable[[int, Activation, Weighted, Interval], Relaxed]
"""From the number of activations before, the activation, the layer before it and its range of means."""


def relaxed(index: int, phi: Activation, weighted: Weighted, mean: Interval) -> Relaxed:
    """The bounds of the pass."""
    x = pre_of_weights(weighted.weights, weighted.below.signal, mean, lambda: row_moments(weighted))
    near = expectation_bounds(phi, x)
    hinge = hinge_of(phi, x, near)
    return Relaxed(x, near, planes(phi, x, near, hinge), hinge)


def relaxed_on_cells(
    whole: Sequence[Activated], owner: Tensor, index: int, phi: Activation, weighted: Weighted, mean: Interval
) -> Relaxed:
    """The bounds on cells of the boxes ``owner`` (cells,), whose activations are ``whole``.

    Moments and errors that hold for every x of a box hold on its cells. Only the ranges of the means are those of the
    cells, and so are the planes.
    """
    node = whole[index]
    if node.near is None:
        return relaxed(index, phi, weighted, mean)
    x, near = replace(selected(replace(node.pre, expansion=None), owner), mean=mean), selected(node.near, owner)
    hinge = hinge_of(phi, x, near)
    return Relaxed(x, near, planes(phi, x, near, hinge), hinge, OnBoxes(node, owner))


@dataclass(frozen=True, slots=True)
class Region:
    """The x that a pass is about: those of the boxes, or of cells of them.

    ``signs[k]`` (batch, n_k) of -1, 0 and 1 leave those x on which the means that go into the k-th activation have
    these signs; ``cut`` leaves those of a half-space. ``ranges[k]`` are known ranges of these means, and ``anew[k]``
    (batch, n_k) says of which of them better ones are asked for. ``relax`` makes the bounds at activations after random
    weights; a diagnosis takes others (benchmarks/tightness). The pass ends before the activation ``until``.
    """

    box: Box
    signs: Sequence[Tensor] = ()
    cut: HalfSpace | None = None
    relax: Relax = relaxed
    ranges: Sequence[Interval] = ()
    anew: Sequence[Tensor] | None = None  # None: of all that make a difference; empty: of none
    until: int | None = None  # None: at the last layer with weights
    deviations: float | None = None  # of noise, for bounds for most weights; None: bounds of means
    spreads: Spreads | None = None  # for the noise of bounds for most weights

    def known(self, number: int) -> Interval | None:
        """The known range of the means before an activation."""
        return self.ranges[number] if number < len(self.ranges) else None

    def asked(self, number: int) -> Tensor | None:
        """The neurons before an activation of which a better range is asked for; None if they are not chosen here."""
        known = self.known(number)
        if self.anew is None or known is None:
            return None
        return self.anew[number] if self.anew else torch.zeros_like(known.lower, dtype=torch.bool)


def after_weights(
    phi: Activation,
    nodes: list[Node],
    weighted: Weighted,
    region: Region,
    number: int,  # of activations before it
    *,
    linear: bool = False,  # whether nothing but rows of it is asked for
) -> Node:
    """The node of an activation after a layer with weights."""
    weights, below = weighted.weights, weighted.below
    exact = weighted.deviations is not None or (below.signal.fixed and not weights.random)
    known, asked = region.known(number), region.asked(number)
    wanted = (lambda _: asked) if asked is not None else _wanted(phi, weighted, exact=exact, linear=linear)
    mean = mean_range(nodes, weighted, region.box, region.cut, wanted, known)
    mean = _on_cell(mean, region, number)
    if exact:
        return _exact(phi, mean, weighted, below)
    found = region.relax(number, phi, weighted, mean)
    x, near = found.pre, found.near
    if found.whole is not None:
        return found.whole.activated(x, found.planes, weighted, below, found.hinge)
    independent = weights.groups == weights.n_out
    joint = None if independent else partial(weights.joint, below.mean)
    moments = partial(activated, phi, x, near, found.planes, joint=joint)
    variances = partial(variance_planes, phi, x, near)

    def slopes() -> MeanSlopes | None:
        known = not weights.coupled or weights.spread_remainder(below.signal) is not None
        return mean_slopes(phi, x, squares=known)

    by_slopes = below.signal.kernel is not None and phi.shape.slope_known
    outlines = partial(outline, phi, x, near, found.planes, by_slopes=by_slopes) if independent else None
    return Activated(found.planes, x, moments, variances, slopes, weighted, below, lambda: found.hinge, outlines, near)


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
    found, near = planes_of_exact(phi, x), ExpectationBounds(zero, zero, zero, zero)

    def moments() -> tuple[Signal, Linearised]:
        signal = fixed(found.range)
        remainder = Remainders(zero, zero, signal.norms, signal.norms)
        return signal, Linearised(phi.shape.steepest, zero, zero, remainder, None)

    return Activated(found, x, moments, None, None, weighted, below, partial(hinge_of, phi, x, near))


def after_signal(phi: Activation, below: Node, region: Region, number: int) -> Node:
    """The node of an activation of the values after another node."""
    z = below.signal
    known = region.known(number)
    mean = _on_cell(z.mean if known is None else z.mean.meet(known), region, number)
    if z.fixed:
        return _exact(phi, mean, None, below)
    x = replace(pre_of_signal(z), mean=mean)
    near = expectation_bounds(phi, x)
    hinge = hinge_of(phi, x, near)
    found = planes(phi, x, near, hinge)
    moments = partial(activated_signal, phi, z, x, found)
    return Activated(found, x, moments, None, None, None, below, lambda: hinge)


def _on_cell(mean: Interval, region: Region, number: int) -> Interval:
    """The range of the means before an activation where they have the signs of the region."""
    return mean.where_sign(region.signs[number]) if number < len(region.signs) else mean
