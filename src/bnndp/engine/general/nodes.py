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

from bnndp.engine.general.activated import Linearised, Outline
from bnndp.engine.general.activation_planes import Planes
from bnndp.engine.general.efron_stein import MeanSlopes, row_deviation
from bnndp.engine.general.folded import Before, Folded, folded
from bnndp.engine.general.ground import Ground, SpreadAtMiddle
from bnndp.engine.general.hinge import Hinge
from bnndp.engine.general.independent import independent_norms
from bnndp.engine.general.intervals import BLUR
from bnndp.engine.general.joint_gaussian import Near
from bnndp.engine.general.of_boxes import of_boxes
from bnndp.engine.general.pre_activation import Squares
from bnndp.engine.general.rows import DenseRows, Rows, minimum
from bnndp.engine.general.signal import CENTRED, GAUSSIAN, POWERS, RIO, Pre, SecondMoments, Signal
from bnndp.engine.general.weights import SpreadRest, Weights, row_variance
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box
from bnndp.geometry.half_space import HalfSpace
from bnndp.maths.rounding import SMALL, TINY, UP, gamma

__all__ = [
    "Activated",
    "Before",
    "Bound",
    "Input",
    "Node",
    "Weighted",
    "deviation",
    "least_value",
    "lower_bound",
    "nothing",
    "outlined",
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
        found = within(self.variances, Interval(z.variance_low, z.variance))
        return Bound(self.rows, self.constant + found - gamma(4) * self.constant.abs())

    def least_in(self, mean: Interval) -> Tensor:  # (batch, n) -> (batch, rows)
        """Its least value where E z is anywhere in this range, of a bound without variances."""
        return self.constant + within(self.rows, mean) - gamma(4) * self.constant.abs()


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


def nothing(signal: SecondMoments, rows: Rows, *more: int) -> Tensor:
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


@dataclass(frozen=True, eq=False)
class Weighted:
    """A layer with weights: not a signal of its own, but what its activation needs of it."""

    weights: Weights
    below: Node
    scale: Tensor  # (batch, n_out): |mu| |E z| + |b|, the size of the terms of its means

    def lower(self, rows: Rows, beta: Rows | None, constant: Tensor) -> Bound:
        """From coefficients of E X and of T = S + N."""
        return self.lower_less_bias(Before(rows, beta, None, self.with_bias(rows, constant)))

    def with_bias(self, rows: Rows, constant: Tensor) -> Tensor:  # (batch, rows)
        """The constant with the biases, less what rounding may take off rows through the layer."""
        lost = gamma(8) * constant.abs() + self.rounding * rows.abs().dot(self.scale)
        return constant + rows.dot(self.weights.bias) - lost

    def lower_less_bias(self, before: Before) -> Bound:
        r"""From coefficients of E X, of T, and of the tangent of S at the middle of the means, those >= 0.

        The constant has the biases and the rounding of the rows in it already.

        With d = z - E z, :math:`S=s(\mathbb Ez)+\mathbb Ed^\top\Sigma d`. The first part lies between its tangent at
        the middle of the means and that plus the excess; the second is a row of variances, and so is N where the
        coordinates are independent.
        """
        found, both = self.weights.pull(before.alpha), before.both
        constant = before.constant - self._vanished
        if both is None:
            return Bound(found, constant)
        mean, middle = self.below.mean, self._middle
        slope = self.weights.spread_pull(both, middle)
        lost = 2 * slope.abs().dot(mean.magnitude) + constant.abs()
        constant = constant + self.spread_at_middle.met_by(both, before.beta) - slope.dot(middle) - self.rounding * lost
        variances = None
        if before.beta is not None:
            variances, ends = self._of_variances(before.beta)
            constant = constant + ends - self.rounding * ends.abs()
        return Bound(found.plus(slope), constant, variances)  # type: ignore[arg-type]

    @property
    def interval(self) -> Interval:
        """Range of E X from the range of E z alone."""
        at, away = self.at_middle, self.weights.power(self._half, 1)
        # Middle, half widths, both products and the sum are off by less than 2 terms + 8 units of ``scale``: halves
        # are no larger than magnitudes, and gamma is twice that.
        lost = gamma(2 * self.weights.terms + 16) * self.scale + TINY
        return Interval(at - away - lost, at + away + lost)

    @property
    def rounding(self) -> float:
        """Of rows through the layer, relative to the sizes of the terms."""
        return gamma(4 * (self.weights.n_out + self.weights.n_in) + 16)

    @cached_property
    def at_middle(self) -> Tensor:  # (batch, n_out)
        """E X at the middle of the range of E z."""
        return self.weights.apply(self._middle) + self.weights.bias

    @cached_property
    def spread_at_middle(self) -> SpreadAtMiddle:
        """Of s, at the middle of the range of E z."""
        size = self.weights.spread_size(self.below.mean.magnitude) + SMALL**2  # its terms may underflow
        squares = self._vanished * self.below.mean.magnitude.sum(-1, keepdim=True)  # of coefficients of z^2
        excess = self.weights.spread_excess(self._half * UP) * UP
        return SpreadAtMiddle(self.weights.spread(self._middle), excess, 8 * self.rounding * size, squares)

    def ground(self, planes: Folded) -> Ground:
        """For planes of an activation with the means at the middle in their constants, if z is the input."""
        spread = self.spread_at_middle if self.weights.random else None
        return Ground(self.weights, planes, spread, self._vanished, self._middle, self._half)

    @cached_property
    def _middle(self) -> Tensor:  # (batch, n_in)
        mean = self.below.mean
        return (0.5 * mean.lower + 0.5 * mean.upper).clamp(mean.lower, mean.upper)

    @cached_property
    def _half(self) -> Tensor:  # (batch, n_in)
        """At least half the widths of the range of E z."""
        mean = self.below.mean
        return torch.maximum(mean.upper - self._middle, self._middle - mean.lower).clamp_min(0) * (1 + gamma(4))

    @cached_property
    def _vanished(self) -> Tensor:  # (batch, 1)
        return vanished(self.below.mean)

    def _of_variances(self, beta: Rows) -> tuple[Rows | None, Tensor]:
        """``beta . (T - s(E z))`` as coefficients of Var z and a constant, less what rounding may take off."""
        weights, z = self.weights, self.below.signal
        if z.fixed:
            return None, nothing(z, beta)
        spread, noise = weights.variance_pull(beta), weights.power_pull(beta, 2)
        excess, size = self._variance_excess
        lost = self.rounding * beta.abs().dot(size) + vanished(Interval(size, size))
        if z.source:
            return spread.plus(noise), -lost  # type: ignore[arg-type]
        if z.joint is not None and self._apart is not None:
            return spread.plus(noise), within(beta, self._apart) - lost  # type: ignore[arg-type]
        ends = within(noise, z.noise) - lost
        if not weights.coupled:
            return spread, ends
        # Products of two coordinates have a mean of at most their norm. Where that is much: at least the part that is
        # independent given Y, at most the excess of the deviations (Minkowski).
        rest, small = weights.spread_rest(z), torch.zeros_like(excess)
        if rest is not None:
            small = (rest.products[..., 0] < _FEW * excess).double()
            ends = ends - beta.abs().times(small).dot(rest.products[..., 0]) * UP
            spread = weights.variance_pull(beta.times(small))
        large = beta.times(1 - small)
        least = within(weights.variance_pull(large.map(_positive)), z.noise)
        return None if rest is None else spread, ends + least + large.map(_negative).dot(excess)

    @cached_property
    def _apart(self) -> Interval | None:  # (batch, n_out)
        """Of jointly Gaussian values below: what products of two of them add to T - s(E z)."""
        joint, coupling = self.below.signal.joint, self.weights.coupling
        if joint is None or (coupling is None and self.weights.coupled):
            return None
        unit = torch.eye(self.weights.n_out, dtype=joint.root.dtype, device=joint.root.device)[None]
        own = joint.form(joint.apart, self.weights.pull(DenseRows(unit)).dense().values)
        products = Near.zero(own.value) if coupling is None else joint.products(coupling)
        return Near(own.value + products.value, (own.off + products.off) * UP + BLUR * own.size).interval

    @cached_property
    def _variance_excess(self) -> tuple[Tensor, Tensor]:  # (batch, n_out) each
        """Of standard deviations of z: the excess, and the size of the terms of ``T - s(E z)``."""
        variance = self.below.signal.variance
        excess = self.weights.spread_excess(variance.sqrt()) * UP
        return excess, excess + self.weights.power(variance, 2) + SMALL**2  # its terms may underflow

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
    hinges: Callable[[], Hinge | None] | None = None  # other lower planes, for the search
    outlines: Callable[[], Outline] | None = None  # where rows of z have a variance without other moments

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
    def outline(self) -> Outline | None:
        """The second moments, if they are enough for the variance of rows."""
        return None if self.outlines is None else self.outlines()

    @cached_property
    def slopes(self) -> MeanSlopes | None:
        """What the deviation of rows of E[z | y] needs, if the coordinates of y are independent."""
        return None if self.mean_slopes is None else self.mean_slopes()

    @cached_property
    def variance_planes(self) -> Planes | None:
        """Planes below and above Var z; none if only its range is known."""
        z = self.signal
        return None if self.variances is None or z.fixed else self.variances(Interval(z.variance_low, z.variance))

    @cached_property
    def hinge(self) -> Hinge | None:
        """Other lower planes, if there are some."""
        return None if self.hinges is None else self.hinges()

    def lower(self, bound: Bound) -> Bound:
        return self._lower_less_bias(self._folded.apply(bound.rows, bound.constant), bound.variances)

    @cached_property
    def ground(self) -> Ground | None:
        """Where rows end; None unless this follows weights on the input."""
        if self.weighted is None or not isinstance(self.below, Input):
            return None
        return self.weighted.ground(self._fold(self.planes, self.weighted.at_middle))

    def least(self, bound: Bound) -> Tensor | None:
        """Least value of the bound: (batch, rows); None unless this follows weights on the input."""
        if self.ground is None:
            return None
        before = self.ground.planes.apply(bound.rows, bound.constant)
        if bound.variances is not None:
            before = self._with_variances(before, bound.variances, self._folded_variances_at_middle)
        return self.ground.least_before(before)

    def lower_in_planes(self, alpha: Rows, beta: Rows | None, tangent: Rows | None, bound: Bound) -> Bound:
        """From coefficients of the mean, of T and of the tangent of S, in place of the rows of the bound."""
        constant = bound.constant if self.weighted is None else self.weighted.with_bias(alpha, bound.constant)
        return self._lower_less_bias(Before(alpha, beta, tangent, constant), bound.variances)

    def _lower_less_bias(self, before: Before, variances: Rows | None) -> Bound:
        if variances is not None:
            before = self._with_variances(before, variances, self._folded_variances)
        if self.weighted is not None:
            return self.weighted.lower_less_bias(before)
        alpha, beta, constant = before.alpha, before.beta, before.constant
        if beta is None or self.below.signal.source:
            return Bound(alpha, constant, beta)  # T is the variance of the signal
        return Bound(alpha, constant + within(beta, self.pre.noise) - gamma(4) * constant.abs())

    def _with_variances(self, before: Before, variances: Rows, planes: Folded | None) -> Before:
        """With rows of Var z in terms of the mean and of T, or of its range."""
        if planes is None:
            bound = Bound(before.alpha, before.constant, variances).without_variances(self.signal)
            return replace(before, constant=bound.constant)
        return before.plus(planes.apply(variances, before.constant))

    @cached_property
    def _folded(self) -> Folded:
        return self._fold(self.planes, self._bias)

    @cached_property
    def _folded_variances(self) -> Folded | None:
        return None if self.variance_planes is None else self._fold(self.variance_planes, self._bias)

    @cached_property
    def _folded_variances_at_middle(self) -> Folded | None:
        return None if self.variance_planes is None else self._fold(self.variance_planes, self._at_middle)

    @property
    def _bias(self) -> Tensor | float:
        return 0.0 if self.weighted is None else self.weighted.weights.bias

    @property
    def _at_middle(self) -> Tensor | float:
        return 0.0 if self.weighted is None else self.weighted.at_middle

    def _fold(self, planes: Planes, means: Tensor | float) -> Folded:  # (batch, n) or (n,)
        """The planes with these values of the means in the constants, and the rounding of rows through the weights."""
        lost = 0.0 if self.weighted is None else self.weighted.rounding * self.weighted.scale
        return folded(planes, means, lost, vanished(self.pre.mean))

    def parts(self, rows: Rows) -> tuple[Tensor, Tensor]:
        zero = nothing(self.signal, rows)
        if self.signal.fixed:
            return zero, zero
        if self.signal.joint is not None:
            return zero, self.signal.joint.row_deviation(rows.dense().values)
        linear, size, rest = rows.times(self.linear.slope), rows.abs(), self.linear.rest
        if self.weighted is None:
            _, central = self.below.parts(linear)
            return rows.square().dot(self.linear.noise) * UP, (central + size.dot(rest.central)) * UP
        weights, z = self.weighted.weights, self.weighted.below.signal
        central = zero if z.fixed else self.weighted.deviation_below(linear) + size.dot(rest.central)
        if isinstance(rows, DenseRows):
            central = torch.fmin(central, self.central(rows))
        if weights.groups == weights.n_out:
            return rows.square().dot(self.linear.noise) * UP, central * UP
        left = size.group_dots(rest.given[..., None], weights.groups)[..., 0]
        given = row_variance(weights, linear, z).sqrt() + torch.linalg.vector_norm(left, dim=-1)
        return zero, (given.square() + central.square()).sqrt() * UP

    def central(self, rows: DenseRows, at: Tensor | None = None) -> Tensor:
        """Standard deviation of ``rows . E[z | y]``: (batch, rows); infinite if the coordinates of y may depend.

        The rows are of all boxes, or of those ``at`` (some,).
        """
        if self.pre.fixed:
            return rows.values.new_zeros(rows.values.shape[:2])
        if self.slopes is None or self.weighted is None:
            return rows.values.new_full(rows.values.shape[:2], torch.inf)
        weights, z, slopes = self.weighted.weights, self.weighted.below.signal, self.slopes
        coupling = weights.spread_rest(z) if weights.coupled else None
        if at is not None:
            slopes, z = of_boxes(slopes, at), of_boxes(z, at)
            coupling = None if coupling is None else of_boxes(coupling, at)
        return row_deviation(slopes, weights, rows, z, coupling)

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
        central = self._central_norms(self.weighted, rows)
        found = central + noise
        if weights.groups == weights.n_out:
            found[..., 0] = torch.fmin(found[..., 0], self._fourth_norm(rows, central[..., 0], noise[..., 0]))
        return found * UP

    def apart(self, rows: Rows) -> tuple[Tensor, Tensor] | None:
        """Of ``rows . E[z | y]`` less its mean: the norm in L4, and the variance from below; (batch, rows) each.

        None unless the values are independent given y. The variance is that of the lines of the activations less their
        rests, and for a row of y at least the mean of its variance given the history of y.
        """
        weighted = self.weighted
        if weighted is None or self.pre.fixed or weighted.weights.groups != weighted.weights.n_out:
            return None
        y, linear = weighted.below.signal, rows.times(self.linear.slope)
        size = weighted.weights.power_pull(linear.abs(), 1).dot(y.variance.sqrt())  # of the terms, for the rounding
        line = weighted.weights.pull(linear).square().dot(y.noise.lower.clamp_min(0)).sqrt() / UP
        least = line - rows.abs().dot(self.linear.rest.central) * UP - weighted.rounding * size
        return self._central_norms(weighted, rows)[..., 0], least.clamp_min(0).square() / UP

    def _central_norms(self, weighted: Weighted, rows: Rows) -> Tensor:
        """Of ``rows . E[z | y]`` less its mean, z = p X + rho: (batch, rows, q)."""
        below = weighted.below.norms(weighted.weights.pull(rows.times(self.linear.slope)))
        return (below + rows.abs().dots(self.linear.rest.central_norms)) * UP

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


def outlined(node: Node, rows: Rows, at: Tensor | None = None) -> tuple[SecondMoments, Tensor]:
    """Second moments of z after the node, and the standard deviation of ``rows . z``: (batch, rows).

    Without the moments of higher order where they are of little use: those of E[z | y] for a y with independent
    coordinates need none. The rows are of all boxes, or of those ``at`` (some,), and so is what is found.
    """
    z = node.outline if isinstance(node, Activated) else None
    if z is None or not isinstance(node, Activated) or not isinstance(rows, DenseRows):
        return node.signal, deviation(node, rows)
    z = z if at is None else of_boxes(z, at)
    found = (rows.square().dot(z.noise) + node.central(rows, at).square()).sqrt()
    return z, torch.minimum(found, rows.abs().dot(z.variance.sqrt())) * UP


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
    if line.rest_norms is not None:  # the lines as a row below
        lines = node.weighted.below.norms(weights.pull(rows.times(line.slope)))[..., :2]
        inner = torch.fmin(inner, lines + rows.dots(line.rest_norms))
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


def least_value(chain: list[Node], bound: Bound, box: Box, cut: HalfSpace | None = None) -> Tensor:
    """Lower bound, over the boxes or what ``cut`` leaves of them, of one in terms of the last node: (batch, rows)."""
    first = chain[1] if len(chain) > 1 and box.within is None and cut is None else None
    for node in reversed(chain[1:]):
        found = node.least(bound) if node is first and isinstance(node, Activated) else None
        if found is not None:
            return found
        bound = node.lower(bound)
    return minimum(bound.rows, bound.constant, box, cut)


def within(rows: Rows, values: Interval) -> Tensor:  # (batch, n) -> (batch, rows)
    """The least of ``rows . values``, less what rounding may take off it: as in ``folded.py``."""
    slack, negative = gamma(4 * values.lower.shape[-1] + 16) * values.magnitude, rows.map(_negative)
    low, high = values.lower - slack, values.upper + slack
    return rows.dot(low) + negative.dot(high - low) - vanished(values)


def _positive(values: Tensor) -> Tensor:
    return values.clamp_min(0)


def _cube(values: Tensor) -> Tensor:
    return values.abs() ** 3


def _negative(values: Tensor) -> Tensor:
    return values.clamp_max(0)


def vanished(met: Interval) -> Tensor:  # (batch, n) -> (batch, 1)
    """What a bound may lose where coefficients of these values underflow: TINY of each."""
    return TINY * (1 + met.magnitude.sum(-1, keepdim=True))
