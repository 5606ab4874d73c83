r"""The nodes of the pass: each carries bounds backward through its layer, and variances of rows.

``lower`` turns a lower bound ``rows . E z + variances . Var z + constant`` into one of the same kind in the input of
the layer.
``parts`` bounds, for rows u, :math:`\mathbb E\operatorname{Var}(u\cdot z\mid Y)` and the standard deviation of
:math:`\mathbb E[u\cdot z\mid Y]`, Y the history of the signal z after the node (``signal.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from bnndp.engine.general.activated import Linearised
from bnndp.engine.general.activation_planes import Planes
from bnndp.engine.general.efron_stein import MeanSlopes, row_deviation
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
    "Bound",
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
    "within",
]

_FEW = 0.25  # share of s - s(E z) up to which its products of two coordinates are bounded by their norm


@dataclass(frozen=True, slots=True)
class Bound:
    """A lower bound ``rows . E z + variances . Var z + constant`` in terms of a signal z."""

    rows: Rows
    constant: Tensor  # (batch, rows)
    variances: Rows | None = None

    def without_variances(self, z: Signal) -> Bound:
        """With the ranges of the variances in their place."""
        if self.variances is None:
            return self
        found, lost = within(self.variances, Interval(z.variance_low, z.variance))
        return Bound(self.rows, self.constant + found - lost - gamma(4) * self.constant.abs())


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

    def lower(self, bound: Bound) -> Bound:
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

    def lower(self, bound: Bound) -> Bound:
        return bound

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
        r"""From coefficients of E X and of T = S + N.

        With d = z - E z, :math:`S=s(\mathbb Ez)+\mathbb Ed^\top\Sigma d`. The first part lies between its tangent at
        the middle of the means and that plus the excess; the second is a row of variances, and so is N where the
        coordinates are independent.
        """
        weights, mean = self.weights, self.below.mean
        lost, variances = rows.abs().dot(self.scale) + constant.abs(), None
        constant = constant + rows.dot(weights.bias)
        found = weights.pull(rows)
        if beta is not None:
            middle, radius = 0.5 * (mean.lower + mean.upper), 0.5 * (mean.upper - mean.lower)
            at, excess = weights.spread(middle), weights.spread_excess(radius * UP)
            slope = weights.spread_pull(beta, middle)
            constant = constant + beta.dot(at) - slope.dot(middle)
            constant = constant + beta.map(_negative).dot(excess * UP)
            size = weights.spread_size(mean.magnitude) + SMALL**2  # its terms may underflow
            lost = lost + 8 * beta.abs().dot(size) + 2 * slope.abs().dot(mean.magnitude)
            constant = constant - vanished(mean) * mean.magnitude.sum(-1, keepdim=True)  # of coefficients of z^2
            found = found.plus(slope)  # type: ignore[arg-type]
            variances, ends, off = self._of_variances(beta)
            constant, lost = constant + ends - off, lost + ends.abs()
        constant = constant - gamma(4 * (weights.n_out + weights.n_in) + 16) * lost - vanished(mean)
        return Bound(found, constant, variances)

    def _of_variances(self, beta: Rows) -> tuple[Rows | None, Tensor, Tensor]:
        """``beta . (T - s(E z))`` as coefficients of Var z and a constant, with what rounding may take off it."""
        weights, z = self.weights, self.below.signal
        if z.fixed:
            zero = nothing(z, beta)
            return None, zero, zero
        spread, noise = weights.variance_pull(beta), weights.power_pull(beta, 2)
        excess = weights.spread_excess(z.variance.sqrt()) * UP
        size = excess + weights.power(z.variance, 2) + SMALL**2  # its terms may underflow
        lost = gamma(4 * (weights.n_out + weights.n_in) + 16) * beta.abs().dot(size) + vanished(Interval(size, size))
        if z.source:
            return spread.plus(noise), nothing(z, beta), lost  # type: ignore[arg-type]
        ends, off = within(noise, z.noise)
        if not weights.coupled:
            return spread, ends, off + lost
        # Products of two coordinates have a mean of at most their norm. Where that is much: at least the part that is
        # independent given Y, at most the excess of the deviations (Minkowski).
        rest, small = weights.spread_rest(z), torch.zeros_like(excess)
        if rest is not None:
            small = (rest.products[..., 0] < _FEW * excess).double()
            off = off + beta.abs().times(small).dot(rest.products[..., 0]) * UP
            spread = weights.variance_pull(beta.times(small))
        large = beta.times(1 - small)
        least, more = within(weights.variance_pull(large.map(_positive)), z.noise)
        known = None if rest is None else spread
        return known, ends + least + large.map(_negative).dot(excess), off + more + lost

    def deviation_below(self, rows: Rows) -> Tensor:
        """Standard deviation of ``rows . m``, m = E[X | z]."""
        return deviation(self.below, self.weights.pull(rows))


@dataclass(frozen=True, eq=False)
class Activated:
    """An activation, after weights or on a signal."""

    planes: Planes
    pre: Pre
    moments: Callable[[], tuple[Signal, Linearised]]  # only for variances, and for the layers above
    variances: Callable[[Interval], Planes] | None  # planes of Var z, given its range; none on a signal
    mean_slopes: Callable[[], MeanSlopes | None] | None  # where the signal below has independent coordinates
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

    @cached_property
    def slopes(self) -> MeanSlopes | None:
        """What the deviation of rows of E[z | y] needs, if the coordinates of y are independent."""
        return None if self.mean_slopes is None else self.mean_slopes()

    @cached_property
    def variance_planes(self) -> Planes | None:
        """Planes below and above Var z; none if only its range is known."""
        z = self.signal
        return None if self.variances is None or z.fixed else self.variances(Interval(z.variance_low, z.variance))

    def lower(self, bound: Bound) -> Bound:
        alpha, beta, constant = _on_planes(self.planes, bound.rows, bound.constant)
        return self.lower_in_planes(alpha, beta, replace(bound, constant=constant - vanished(self.pre.mean)))

    def lower_in_planes(self, alpha: Rows, beta: Rows | None, bound: Bound) -> Bound:
        """From coefficients of the mean and of T before the activation, in place of the rows of the bound."""
        constant, variances = bound.constant, bound.variances
        if variances is not None:
            planes = self.variance_planes
            if planes is None:
                constant = bound.without_variances(self.signal).constant
            else:
                more, tilt, constant = _on_planes(planes, variances, constant)
                alpha, beta = alpha.plus(more), _sum(beta, tilt)  # type: ignore[arg-type]
        if self.weighted is not None:
            return self.weighted.lower(alpha, beta, constant)
        if beta is None or self.below.signal.source:
            return Bound(alpha, constant, beta)  # T is the variance of the signal
        ends, lost = within(beta, self.pre.noise)
        return Bound(alpha, constant + ends - lost - gamma(4) * constant.abs())

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
        if self.slopes is not None and isinstance(rows, DenseRows):
            coupling = weights.spread_rest(z) if weights.coupled else None
            found = row_deviation(self.slopes, weights, rows, z, self.pre.mean_variance.sqrt(), coupling)
            central = torch.fmin(central, found)
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
        central = self.weighted.below.norms(weights.pull(linear)) + size.dots(rest.central_norms)
        found = central + noise
        if weights.groups == weights.n_out:
            found[..., 0] = torch.fmin(found[..., 0], self._fourth_norm(rows, central[..., 0], noise[..., 0]))
        return found * UP

    def _fourth_norm(self, rows: Rows, central: Tensor, noise: Tensor) -> Tensor:  # (batch, rows) each
        r"""Of H + N, H the centred mean given y, N a sum of independent terms with variance V and third moment K.

        :math:`\mathbb E(H+N)^4=\mathbb EH^4+6\mathbb EH^2V+4\mathbb EHK+\mathbb EN^4`, and as E H = 0 K counts by its
        standard deviation.
        """
        variance = rows.square().dot(self.signal.deviations[..., 0].square())  # ||V||_2
        third = rows.map(_cube).dot(self.signal.third_deviation)
        square = central.square()
        return (square.square() + 6 * square * variance + 4 * central * third + noise**4).sqrt().sqrt()


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


def lower_bound(chain: list[Node], bound: Bound) -> Bound:
    """Carry a lower bound in terms of the last node down to x."""
    for node in reversed(chain):
        bound = node.lower(bound)
    return bound


def _on_planes(planes: Planes, rows: Rows, constant: Tensor) -> tuple[Rows, Rows | None, Tensor]:
    """Coefficients of M and of T, and the constant, from those of what lies between the planes."""
    positive, negative = rows.map(_positive), rows.map(_negative)
    alpha = positive.times(planes.lower_alpha).plus(negative.times(planes.upper_alpha))  # type: ignore[arg-type]
    offset = positive.dot(planes.lower_offset) + negative.dot(planes.upper_offset)
    lost = rows.abs().dot(planes.size) + constant.abs()
    constant = constant + offset - gamma(2 * planes.size.shape[-1] + 8) * lost
    if not planes.tilted:
        return alpha, None, constant
    return alpha, positive.times(planes.lower_beta).plus(negative.times(planes.upper_beta)), constant  # type: ignore[arg-type]


def within(rows: Rows, values: Interval) -> tuple[Tensor, Tensor]:  # (batch, n) -> (batch, rows) each
    """The least of ``rows . values``, and what rounding may take off it."""
    found = rows.map(_positive).dot(values.lower) + rows.map(_negative).dot(values.upper)
    lost = gamma(2 * values.lower.shape[-1] + 8) * rows.abs().dot(values.magnitude)
    return found, lost + vanished(values)


def _sum(a: Rows | None, b: Rows | None) -> Rows | None:
    if a is None or b is None:
        return b if a is None else a
    return a.plus(b)  # type: ignore[arg-type]


def _positive(values: Tensor) -> Tensor:
    return values.clamp_min(0)


def _cube(values: Tensor) -> Tensor:
    return values.abs() ** 3


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
