r"""The nodes of the pass: each carries bounds backward through its layer, and variances of rows.

``lower`` turns a lower bound ``rows . E out + constant`` into one of the same kind in the input of the layer.
``parts`` bounds, for rows u, :math:`\mathbb E\operatorname{Var}(u\cdot z\mid Y)` and the standard deviation of
:math:`\mathbb E[u\cdot z\mid Y]`, Y the history of the signal z after the node (``signal.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from bnndp.engine.general.activated import Linearised
from bnndp.engine.general.activation_planes import Planes
from bnndp.engine.general.hinge import Hinge
from bnndp.engine.general.independent import independent_norms
from bnndp.engine.general.pre_activation import Squares
from bnndp.engine.general.rows import DenseRows, Rows
from bnndp.engine.general.signal import CENTRED, GAUSSIAN, POWERS, RIO, Pre, Signal
from bnndp.engine.general.weights import SpreadRest, Weights, row_variance
from bnndp.geometry.bounds import Interval
from bnndp.maths.rounding import SMALL, TINY, UP, gamma

__all__ = [
    "Activated",
    "Input",
    "Node",
    "Weighted",
    "deviation",
    "interval_means",
    "lower_bound",
    "nothing",
    "sums_of_squares",
    "vanished",
    "with_rest",
]

Bound = tuple[Rows, Tensor]
"""Rows and constants (batch, rows) of a lower bound."""


class Node(Protocol):
    """One step of the pass with what it found on the box."""

    @property
    def mean(self) -> Interval:
        """Range of the means after the step."""
        ...

    @property
    def signal(self) -> Signal:
        """After the step: more than its mean only where it is asked for."""
        ...

    def lower(self, rows: Rows, constant: Tensor) -> Bound:
        """The bound in terms of the input of the step."""
        ...

    def parts(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Mean conditional variance and standard deviation of the conditional mean of rows: (batch, rows) each."""
        ...

    def norms(self, rows: Rows) -> Tensor:
        """Of ``rows . (z - E z)``: (batch, rows, q)."""
        ...


def nothing(signal: Signal, rows: Rows, *more: int) -> Tensor:
    """Zeros (batch, rows, *more)."""
    return signal.variance.new_zeros(signal.variance.shape[0], rows.count, *more)


@dataclass(frozen=True, slots=True)
class Input:
    """The input x."""

    signal: Signal

    @property
    def mean(self) -> Interval:
        return self.signal.mean

    def lower(self, rows: Rows, constant: Tensor) -> Bound:
        return rows, constant

    def parts(self, rows: Rows) -> tuple[Tensor, Tensor]:
        zero = nothing(self.signal, rows)
        return zero, zero

    def norms(self, rows: Rows) -> Tensor:
        return nothing(self.signal, rows, len(POWERS))


@dataclass(frozen=True, slots=True)
class Weighted:
    """A layer with weights: not a signal of its own, but what its activation needs of it."""

    weights: Weights
    below: Node
    scale: Tensor  # (batch, n_out): |mu| |E z| + |b|, the size of the terms of its means

    def lower(self, rows: Rows, beta: Rows | None, constant: Tensor) -> Bound:
        """From coefficients of E X and, where the input is a function of x, of the spreads s."""
        weights, mean = self.weights, self.below.mean
        lost = rows.abs().dot(self.scale) + constant.abs()
        constant = constant + rows.dot(weights.bias)
        found = weights.pull(rows)
        if beta is not None:
            # s(z) lies between its tangent at the middle and that plus the excess.
            middle, radius = 0.5 * (mean.lower + mean.upper), 0.5 * (mean.upper - mean.lower)
            at, excess = weights.spread(middle), weights.spread_excess(radius * UP)
            slope = weights.spread_pull(beta, middle)
            constant = constant + beta.dot(at) - slope.dot(middle)
            constant = constant + beta.map(_negative).dot(excess * UP)
            size = weights.spread_size(mean.magnitude) + SMALL**2  # its terms may underflow
            lost = lost + 8 * beta.abs().dot(size) + 2 * slope.abs().dot(mean.magnitude)
            constant = constant - vanished(mean) * mean.magnitude.sum(-1, keepdim=True)  # of coefficients of z^2
            found = found.plus(slope)  # type: ignore[arg-type]
        return found, constant - gamma(4 * (weights.n_out + weights.n_in) + 16) * lost - vanished(mean)

    def deviation_below(self, rows: Rows) -> Tensor:
        """Standard deviation of ``rows . m``, m = E[X | z]."""
        return deviation(self.below, self.weights.pull(rows))


@dataclass(frozen=True, eq=False)
class Activated:
    """An activation, after weights or on a signal."""

    planes: Planes
    pre: Pre
    moments: Callable[[], tuple[Signal, Linearised]]  # only for variances, and for the layers above
    weighted: Weighted | None
    below: Node
    hinge: Hinge | None = None  # other lower planes, for the search

    @property
    def mean(self) -> Interval:
        return self.planes.range

    @cached_property
    def _found(self) -> tuple[Signal, Linearised]:
        return self.moments()

    @property
    def signal(self) -> Signal:
        return self._found[0]

    @property
    def linear(self) -> Linearised:
        """What the variance of rows needs."""
        return self._found[1]

    def lower(self, rows: Rows, constant: Tensor) -> Bound:
        positive, negative, found = rows.map(_positive), rows.map(_negative), self.planes
        alpha = positive.times(found.lower_alpha).plus(negative.times(found.upper_alpha))  # type: ignore[arg-type]
        offset = positive.dot(found.lower_offset) + negative.dot(found.upper_offset)
        lost = rows.abs().dot(found.size) + constant.abs()
        constant = constant + offset - gamma(2 * found.size.shape[-1] + 8) * lost - vanished(self.pre.mean)
        if self.weighted is None:
            return alpha, constant
        beta = None
        if bool((found.lower_beta != 0).any() | (found.upper_beta != 0).any()):
            beta = positive.times(found.lower_beta).plus(negative.times(found.upper_beta))  # type: ignore[arg-type]
        return self.weighted.lower(alpha, beta, constant)

    def parts(self, rows: Rows) -> tuple[Tensor, Tensor]:
        zero = nothing(self.signal, rows)
        if self.signal.fixed:
            return zero, zero
        linear, size, rest = rows.times(self.linear.slope), rows.abs(), self.linear.rest
        if self.weighted is None:
            _, central = self.below.parts(linear)
            return rows.square().dot(self.linear.noise) * UP, (central + size.dot(rest.central)) * UP
        weights, z = self.weighted.weights, self.weighted.below.signal
        central = zero if z.fixed else self.weighted.deviation_below(linear) + size.dot(rest.central)
        if weights.groups == weights.n_out:
            return rows.square().dot(self.linear.noise) * UP, central * UP
        left = size.group_dots(rest.given[..., None], weights.groups)[..., 0]
        given = row_variance(weights, linear, z).sqrt() + torch.linalg.vector_norm(left, dim=-1)
        return zero, (given.square() + central.square()).sqrt() * UP

    def norms(self, rows: Rows) -> Tensor:
        r"""Z = p X + rho: the linear part given below, the rests, and what varies given y.

        Given y, groups are independent: a sum of Lipschitz functions of Gaussians is dominated in convex order by that
        of the Gaussians; or by the norms of the terms.
        """
        if self.signal.fixed:
            return nothing(self.signal, rows, len(POWERS))
        linear, size, rest, x = rows.times(self.linear.slope), rows.abs(), self.linear.rest, self.pre
        if self.weighted is None:
            return (self.below.norms(linear) + size.dots(rest.norms)) * UP
        weights, z = self.weighted.weights, self.weighted.below.signal
        gaussian = x.norms.new_tensor(GAUSSIAN)
        if weights.groups == weights.n_out:
            noise = gaussian * self.linear.steepest * rows.square().dots(x.spread_norms.square()).sqrt()
            noise = torch.minimum(noise, independent_norms(rows, self.signal.given, self.signal.deviations))
        else:
            at, away = weights.row_parts(linear, z, z.norms)
            left = torch.linalg.vector_norm(size.group_dots(rest.norms, weights.groups), dim=2)
            noise = gaussian * (at[..., None] + away) + x.norms.new_tensor(RIO) * left
        if z.fixed:
            return noise * UP
        below = self.weighted.below.norms(weights.pull(linear))
        return (below + size.dots(rest.central_norms) + noise) * UP


def deviation(node: Node, rows: Rows) -> Tensor:
    """Standard deviation of ``rows . z`` after the node, at most: (batch, rows); by parts or by adding all of them."""
    if node.signal.fixed:
        return nothing(node.signal, rows)
    noise, central = node.parts(rows)
    found = (noise + central.square()).sqrt()
    if node.signal.source:
        return torch.minimum(found, rows.square().dot(node.signal.variance).sqrt()) * UP
    return torch.minimum(found, rows.abs().dot(node.signal.variance.sqrt())) * UP


def sums_of_squares(node: Node, rows: Rows) -> Squares | None:
    """How ``rows . z^2`` varies after the node, for rows >= 0, if the z_j are independent given y; else None.

    What varies given y is independent, the lines of E[z_j^2 | y] are rows below, and their rests are added.
    """
    if not (isinstance(node, Activated) and node.weighted is not None):
        return None
    line, weights = node.linear.square, node.weighted.weights
    if line is None or weights.groups != weights.n_out:
        return None
    square = rows.square()
    central = node.weighted.deviation_below(rows.times(line.slope)) + rows.dot(line.rest)
    inner = rows.dots(line.norms)
    norms = independent_norms(rows, line.given_norms, line.deviations) + inner
    deviation = (square.dot(line.given.square()) + central.square()).sqrt()
    none = torch.zeros_like(deviation)
    return Squares(deviation * UP, central * UP, inner[..., 0] * UP, norms * UP, none, none)


def with_rest(squares: Squares, rest: SpreadRest, node: Node) -> Squares:
    """With what else there is in s than squares of the signal after the node."""
    rows, z, slack = DenseRows(rest.rows), node.signal, DenseRows(rest.slack)
    extra = deviation(node, rows) + slack.dot(z.variance.sqrt()) + rest.products[..., 0]
    centred = z.norms.new_tensor(CENTRED[:2])  # the means of products are not zero
    norms = (node.norms(rows) + slack.dots(z.norms))[..., :2] + centred * rest.products[..., 1:]
    return Squares(
        (squares.deviation + extra) * UP,
        squares.central,
        squares.central_norm4,
        (squares.norms + norms) * UP,
        extra * UP,
        norms[..., 0] * UP,
    )


def lower_bound(chain: list[Node], rows: Rows, constant: Tensor) -> Bound:
    """Carry a lower bound in E z of the last node down to x."""
    for node in reversed(chain):
        rows, constant = node.lower(rows, constant)
    return rows, constant


def _positive(values: Tensor) -> Tensor:
    return values.clamp_min(0)


def _negative(values: Tensor) -> Tensor:
    return values.clamp_max(0)


def vanished(met: Interval) -> Tensor:  # (batch, n) -> (batch, 1)
    """What a bound may lose where coefficients of these values underflow: TINY of each."""
    return TINY * (1 + met.magnitude.sum(-1, keepdim=True))


def interval_means(weights: Weights, mean: Interval, scale: Tensor) -> Interval:
    """Range of E X from the range of E z alone."""
    middle, radius = 0.5 * (mean.lower + mean.upper), 0.5 * (mean.upper - mean.lower)
    at, away = weights.apply(middle) + weights.bias, weights.power(radius, 1)
    # Middle, radius, both products and the sum are off by less than 2 terms + 8 units of ``scale``: radii are no larger
    # than magnitudes, and gamma is twice that.
    lost = gamma(2 * weights.terms + 16) * scale + TINY
    return Interval(at - away - lost, at + away + lost)
