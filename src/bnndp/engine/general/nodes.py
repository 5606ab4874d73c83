r"""The nodes of the pass: each carries bounds backward through its layer, and variances of rows.

``lower`` turns a lower bound ``rows . E out + constant`` into one of the same kind in the input of the layer.
``parts`` bounds, for rows u, :math:`\mathbb E\operatorname{Var}(u\cdot z\mid Y)` and the standard deviation of
:math:`\mathbb E[u\cdot z\mid Y]`, Y the history of the signal z after the node (``signal.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from bnndp.engine.general.activated import Linearised
from bnndp.engine.general.activation_planes import Planes
from bnndp.engine.general.hinge import Hinge
from bnndp.engine.general.rows import Rows
from bnndp.engine.general.signal import GAUSSIAN, POWERS, Pre, Signal, Tails, no_tails
from bnndp.engine.general.weights import Weights, row_variance
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
    "vanished",
]

Bound = tuple[Rows, Tensor]
"""Rows and constants (batch, rows) of a lower bound."""


class Node(Protocol):
    """One step of the pass with what it found on the box."""

    @property
    def signal(self) -> Signal:
        """After the step."""
        ...

    def lower(self, rows: Rows, constant: Tensor) -> Bound:
        """The bound in terms of the input of the step."""
        ...

    def parts(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Mean conditional variance and standard deviation of the conditional mean of rows: (batch, rows) each."""
        ...

    def tails(self, rows: Rows) -> Tails:
        """Of ``rows . (z - E z)``: (batch, rows)."""
        ...


def nothing(signal: Signal, rows: Rows, *more: int) -> Tensor:
    """Zeros (batch, rows, *more)."""
    return signal.variance.new_zeros(signal.variance.shape[0], rows.count, *more)


@dataclass(frozen=True, slots=True)
class Input:
    """The input x."""

    signal: Signal

    def lower(self, rows: Rows, constant: Tensor) -> Bound:
        return rows, constant

    def parts(self, rows: Rows) -> tuple[Tensor, Tensor]:
        zero = nothing(self.signal, rows)
        return zero, zero

    def tails(self, rows: Rows) -> Tails:
        return no_tails(nothing(self.signal, rows, len(POWERS)))


@dataclass(frozen=True, slots=True)
class Weighted:
    """A layer with weights: not a signal of its own, but what its activation needs of it."""

    weights: Weights
    below: Node
    scale: Tensor  # (batch, n_out): |mu| |E z| + |b|, the size of the terms of its means

    def lower(self, rows: Rows, beta: Rows | None, constant: Tensor) -> Bound:
        """From coefficients of E X and, where the input is a function of x, of the spreads s."""
        weights, z = self.weights, self.below.signal
        lost = rows.abs().dot(self.scale) + constant.abs()
        constant = constant + rows.dot(weights.bias)
        found = weights.pull(rows)
        if beta is not None:
            # s(z) lies between its tangent at the middle and that plus the excess.
            middle, radius = 0.5 * (z.mean.lower + z.mean.upper), 0.5 * (z.mean.upper - z.mean.lower)
            at, excess = weights.spread(middle), weights.spread_excess(radius * UP)
            slope = weights.spread_pull(beta, middle)
            constant = constant + beta.dot(at) - slope.dot(middle)
            constant = constant + beta.map(_negative).dot(excess * UP)
            size = weights.spread_size(z.mean.magnitude) + SMALL**2  # its terms may underflow
            lost = lost + 8 * beta.abs().dot(size) + 2 * slope.abs().dot(z.mean.magnitude)
            constant = constant - vanished(z.mean) * z.mean.magnitude.sum(-1, keepdim=True)  # of coefficients of z^2
            found = found.plus(slope)  # type: ignore[arg-type]
        return found, constant - gamma(4 * (weights.n_out + weights.n_in) + 16) * lost - vanished(z.mean)

    def deviation_below(self, rows: Rows) -> Tensor:
        """Standard deviation of ``rows . m``, m = E[X | z]."""
        return deviation(self.below, self.weights.pull(rows))


@dataclass(frozen=True, slots=True)
class Activated:
    """An activation, after weights or on a signal."""

    planes: Planes
    linear: Linearised
    signal: Signal
    weighted: Weighted | None
    below: Node
    hinge: Hinge | None = None  # other lower planes, for the search

    def lower(self, rows: Rows, constant: Tensor) -> Bound:
        positive, negative, found = rows.map(_positive), rows.map(_negative), self.planes
        alpha = positive.times(found.lower_alpha).plus(negative.times(found.upper_alpha))  # type: ignore[arg-type]
        offset = positive.dot(found.lower_offset) + negative.dot(found.upper_offset)
        lost = rows.abs().dot(found.size) + constant.abs()
        constant = constant + offset - gamma(2 * found.size.shape[-1] + 8) * lost - vanished(self.linear.pre.mean)
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

    def tails(self, rows: Rows) -> Tails:
        r"""Z = p X + rho: the linear part, and the rests of steady and of loose neurons.

        Given y, the loose rests of a group are a Lipschitz function of its own noise; through the means m = L + R of
        the layer they are one of the noise below, up to what R and the fluctuation of s may change.
        """
        if self.signal.fixed:
            return no_tails(nothing(self.signal, rows, len(POWERS)))
        linear, size, rest, x = rows.times(self.linear.slope), rows.abs(), self.linear.rest, self.linear.pre
        if self.weighted is None:
            return self.below.tails(linear).plus(no_tails(size.dots(rest.norms)))
        weights, z = self.weighted.weights, self.weighted.below.signal
        below = Input(self.signal).tails(rows) if z.fixed else self.weighted.below.tails(weights.pull(linear))
        at, away = weights.row_parts(linear, z, z.norms)
        gaussian, twice = away.new_tensor(GAUSSIAN), 2 * UP
        independent = weights.groups == weights.n_out
        loose = size.times(rest.loose)
        if independent:
            inner = loose.square().dot(x.spread.upper).sqrt()
        else:
            inner = torch.linalg.vector_norm(
                loose.group_dots(x.spread.upper.sqrt()[..., None], weights.groups)[..., 0], dim=-1
            )
        means = loose.dots(torch.cat([x.tails.constant[..., None], x.tails.left + gaussian * x.spread_away], -1))
        outer = below.constant + means[..., 0]
        left = gaussian * away + below.left + twice * (size.dots(rest.steady_norms) + means[..., 1:])
        constant = ((at + inner).square() + outer.square()).sqrt() * UP
        norms = below.norms + size.dots(rest.central_norms)
        if independent:
            noise = self.linear.steepest * rows.square().dots(x.spread_norms.square()).sqrt()
        else:
            noise = at[..., None] + away + inner[..., None] + loose_away(loose, x, weights.groups)
            norms = norms + size.dots(rest.steady_norms)
        return Tails((gaussian * noise + norms) * UP, constant, left * UP)


def loose_away(loose: Rows, x: Pre, groups: int) -> Tensor:
    """Norms of the groups' Lipschitz constants beyond those at the mean: (batch, rows, q)."""
    return torch.linalg.vector_norm(loose.group_dots(x.spread_away, groups), dim=2)


def deviation(node: Node, rows: Rows) -> Tensor:
    """Standard deviation of ``rows . z`` after the node, at most: (batch, rows); by parts or by adding all of them."""
    if node.signal.fixed:
        return nothing(node.signal, rows)
    noise, central = node.parts(rows)
    found = (noise + central.square()).sqrt()
    if node.signal.source:
        return torch.minimum(found, rows.square().dot(node.signal.variance).sqrt()) * UP
    return torch.minimum(found, rows.abs().dot(node.signal.variance.sqrt())) * UP


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
