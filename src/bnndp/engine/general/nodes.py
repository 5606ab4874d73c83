r"""The nodes of the pass: each carries bounds backward through its layer, and variances of rows.

Nodes form a directed acyclic graph: each knows its inputs, and in a list of nodes they come before it.
``lower`` turns a lower bound ``rows . E z + variances . Var z + constant`` into one of the same kind in the input of
the layer.
``parts`` bounds, for rows u, :math:`\mathbb E\operatorname{Var}(u\cdot z\mid Y)` and the standard deviation of
:math:`\mathbb E[u\cdot z\mid Y]`, Y the history of the signal z after the node (``signal.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import repeat
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
from bnndp.engine.general.joint_gaussian import Coupling, Joint, Near
from bnndp.engine.general.of_boxes import of_boxes
from bnndp.engine.general.pre_activation import Squares
from bnndp.engine.general.rows import DenseRows, JoinedRows, Rows, minimum, sum_of
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
    "OnOne",
    "Unfolded",
    "Weighted",
    "deviation",
    "least_value",
    "lower_bound",
    "nothing",
    "on_boxes",
    "outlined",
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


Unfolded = tuple[tuple[Rows, ...], Callable[[Tensor], Tensor]]
"""``rows . z`` taken apart: rows of the inputs of a node, and how a deviation (or the norms) grows on the way back.

The function takes that of the sum of these rows with anything that does not depend on the noise of the node, and gives
that of the sum with ``rows . z`` in their place.
"""


class Node(Protocol):
    """One step of the pass with what it found on the box."""

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The nodes that it takes its values from."""
        ...

    @property
    def mean(self) -> Interval:
        """Range of the means after the step."""
        ...

    @property
    def signal(self) -> Signal:
        """After the step: more than its mean only where it is asked for."""
        ...

    def lower(self, bound: Bound) -> Bound:
        """The bound in terms of the input of the step; of several inputs with joined rows."""
        ...

    def parts(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Mean conditional variance and standard deviation of the conditional mean of rows: (batch, rows) each."""
        ...

    def norms(self, rows: Rows) -> Tensor:
        """Of ``rows . (z - E z)``: (batch, rows, q)."""
        ...

    def unfold(self, rows: Rows) -> Unfolded:
        """With standard deviations (batch, rows)."""
        ...

    def unfold_norms(self, rows: Rows) -> Unfolded:
        """With norms (batch, rows, q) of centred sums."""
        ...

    def sums_of_squares(self, rows: Rows) -> Squares | None:
        """How ``rows . z^2`` varies, for rows >= 0, if the z_j are independent given a history; None: not known."""
        ...


class OnOne:
    """What nodes with one input share."""

    __slots__ = ()
    below: Node

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.below,)

    def sums_of_squares(self, rows: Rows) -> Squares | None:
        return None


def nothing(signal: SecondMoments, rows: Rows, *more: int) -> Tensor:
    """Zeros (batch, rows, *more)."""
    return signal.variance.new_zeros(signal.variance.shape[0], rows.count, *more)


@dataclass(frozen=True, slots=True, eq=False)
class Input:
    """The input x."""

    signal: Signal

    @property
    def inputs(self) -> tuple[Node, ...]:
        return ()

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

    def unfold(self, rows: Rows) -> Unfolded:
        return (), lambda found: found

    unfold_norms = unfold

    def sums_of_squares(self, rows: Rows) -> Squares | None:
        return None


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
        if self._apart is not None:
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
    def coupling(self) -> Coupling | None:
        """Covariances of two different weights of a row, if there are some and they are formed."""
        return self.weights.coupling

    @cached_property
    def joint(self) -> Joint | None:
        """Of jointly Gaussian values below; None too where products of two of them in s are not known."""
        found = self.below.signal.joint
        return None if found is None or (self.weights.coupled and self.coupling is None) else found

    @cached_property
    def _apart(self) -> Interval | None:  # (batch, n_out)
        """Of jointly Gaussian values below: what products of two of them add to T - s(E z)."""
        joint, coupling = self.joint, self.coupling
        if joint is None:
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
class Activated(OnOne):
    """An activation, after weights or on a signal."""

    planes: Planes
    pre: Pre
    moments: Callable[[], tuple[Signal, Linearised]]  # only for variances, and for the layers above
    variances: Callable[[Interval], Planes] | None  # planes of Var z, given its range; none on a signal
    mean_slopes: Callable[[], MeanSlopes | None] | None  # where the signal below has independent coordinates
    weighted: Weighted | None
    below: Node
    hinges: Callable[[], Hinge | None] | None = None  # other lower planes, for the search
    outlines: Callable[[], Outline | None] | None = None  # where rows of z have a variance without other moments

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
        if self.ground is None or bound.variances is None:
            return None if self.ground is None else self.ground.least(bound.rows, bound.constant)
        before = self.ground.planes.apply(bound.rows, bound.constant)
        return self.ground.least_before(self._with_variances(before, bound.variances, self._folded_variances_at_middle))

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
        linear, rest = rows.times(self.linear.slope), self._rest(rows)
        if self.weighted is None:
            _, central = self.below.parts(linear)
            return rows.square().dot(self.linear.noise) * UP, (central + rest) * UP
        central = zero if self.pre.fixed else self.weighted.deviation_below(linear) + rest
        if isinstance(rows, DenseRows):
            central = torch.fmin(central, self.central(rows))
        noise = self._noise(rows, linear)
        if self.independent:
            return noise * UP, central * UP
        return zero, (noise + central.square()).sqrt() * UP

    def unfold(self, rows: Rows) -> Unfolded:
        below, rest = self.line(rows)
        if self.weighted is None:
            return (below,), lambda found: (found + rest) * UP
        noise = self._noise(rows, rows.times(self.linear.slope))
        return (below,), lambda found: (noise + (found + rest).square()).sqrt() * UP

    def line(self, rows: Rows) -> tuple[Rows, Tensor]:
        """The rows of the input that ``rows . E[z | y]`` is near, y all of it, and the deviation of what is left."""
        linear = rows.times(self.linear.slope)
        return linear if self.weighted is None else self.weighted.weights.pull(linear), self._rest(rows)

    def _rest(self, rows: Rows) -> Tensor:  # (batch, rows)
        if self.pre.fixed:
            return nothing(self.signal, rows)
        each = self.linear.rest.central
        if self.weighted is None and self.below.signal.source:  # what is left is independent, too
            return rows.square().dot(each.square()).sqrt()
        return rows.abs().dot(each)

    def _noise(self, rows: Rows, linear: Rows) -> Tensor:
        """E of the variance of ``rows . z`` given y, after weights: (batch, rows)."""
        if self.independent or self.weighted is None:
            return rows.square().dot(self.linear.noise)
        weights = self.weighted.weights
        left = rows.abs().group_dots(self.linear.rest.given[..., None], weights.groups)[..., 0]
        sd = row_variance(weights, linear, self.weighted.below.signal).sqrt() + torch.linalg.vector_norm(left, dim=-1)
        if self.signal.joint is not None:  # on wide boxes covariances are hardly known
            sd = torch.fmin(sd, self.signal.joint.row_deviation(rows.dense().values))
        return sd.square()

    @property
    def independent(self) -> bool:
        """Whether the coordinates of z are independent given y."""
        return self.weighted is not None and self.weighted.weights.groups == self.weighted.weights.n_out

    def central(self, rows: DenseRows, more: DenseRows | None = None) -> Tensor:
        """Standard deviation of ``rows . E[z | y] + more . y``: (batch, rows); infinite if the y_j may depend."""
        if self.pre.fixed:
            return nothing(self.below.signal, rows)
        if self.slopes is None or self.weighted is None:
            return nothing(self.below.signal, rows) + torch.inf
        weights, z = self.weighted.weights, self.weighted.below.signal
        coupling = weights.spread_rest(z) if weights.coupled else None
        return row_deviation(self.slopes, weights, rows, z, coupling, more)

    def norms(self, rows: Rows) -> Tensor:
        r"""Z = p X + rho: the linear part given below, the rests, and what varies given y.

        Given y, groups are independent: a sum of Lipschitz functions of Gaussians is dominated in convex order by that
        of the Gaussians; or by the norms of the terms.
        """
        if self.signal.fixed:
            return nothing(self.signal, rows, len(POWERS))
        (below,), joined = self.unfold_norms(rows)
        return joined(nothing(self.signal, rows, len(POWERS)) if self.pre.fixed else self.below.norms(below))

    def unfold_norms(self, rows: Rows) -> Unfolded:
        linear, size, rest, x = rows.times(self.linear.slope), rows.abs(), self.linear.rest, self.pre
        if self.weighted is None:
            own = size.dots(rest.norms)
            return (linear,), lambda found: (found + own) * UP
        weights, z = self.weighted.weights, self.weighted.below.signal
        gaussian = x.norms.new_tensor(GAUSSIAN)
        if self.independent:
            noise = gaussian * self.linear.steepest * rows.square().dots(x.spread_norms.square()).sqrt()
            noise = torch.minimum(noise, independent_norms(rows, self.signal.given, self.signal.deviations))
        else:
            at, away = weights.row_parts(linear, z, z.norms)
            left = torch.linalg.vector_norm(size.group_dots(rest.norms, weights.groups), dim=2)
            noise = gaussian * (at[..., None] + away) + x.norms.new_tensor(RIO) * left
        central = torch.zeros_like(noise) if x.fixed else size.dots(rest.central_norms)

        def joined(found: Tensor) -> Tensor:
            inner = found + central
            total = inner + noise
            if self.independent:
                total[..., 0] = torch.fmin(total[..., 0], self._fourth_norm(rows, inner[..., 0], noise[..., 0]))
            return total * UP

        return (weights.pull(linear),), joined

    def apart(self, rows: Rows) -> tuple[Tensor, Tensor] | None:
        """Of ``rows . E[z | y]`` less its mean: the norm in L4, and the variance from below; (batch, rows) each.

        None unless the values are independent given y. The variance is that of the lines of the activations less their
        rests, and for a row of y at least the mean of its variance given the history of y.
        """
        weighted = self.weighted
        if weighted is None or self.pre.fixed or not self.independent:
            return None
        y, linear = weighted.below.signal, rows.times(self.linear.slope)
        size = weighted.weights.power_pull(linear.abs(), 1).dot(y.variance.sqrt())  # of the terms, for the rounding
        below, rest = weighted.weights.pull(linear), self.linear.rest
        line = below.square().dot(y.noise.lower.clamp_min(0)).sqrt() / UP
        least = line - rows.abs().dot(rest.central) * UP - weighted.rounding * size
        norm4 = self.below.norms(below)[..., 0] + rows.abs().dot(rest.central_norms[..., 0])
        return norm4 * UP, least.clamp_min(0).square() / UP

    def _fourth_norm(self, rows: Rows, central: Tensor, noise: Tensor) -> Tensor:  # (batch, rows) each
        r"""Of H + N, H the centred mean given y, N a sum of independent terms with variance V and third moment K.

        :math:`\mathbb E(H+N)^4=\mathbb EH^4+6\mathbb EH^2V+4\mathbb EHK+\mathbb EN^4`, and as E H = 0 K counts by its
        standard deviation.
        """
        variance = rows.square().dot(self.signal.deviations[..., 0].square())  # ||V||_2
        third = rows.map(_cube).dot(self.signal.third_deviation)
        square = central.square()
        return (square.square() + 6 * square * variance + 4 * central * third + noise**4).sqrt().sqrt()

    def sums_of_squares(self, rows: Rows) -> Squares | None:
        """What varies given y is independent, the lines of E[z_j^2 | y] are rows below, and their rests are added."""
        line = self.linear.square
        if line is None or self.weighted is None or not self.independent:
            return None
        square = rows.square()
        central = self.weighted.deviation_below(rows.times(line.slope)) + rows.dot(line.rest)
        inner = rows.dots(line.norms)
        if line.rest_norms is not None:  # the lines as a row below
            lines = self.below.norms(self.weighted.weights.pull(rows.times(line.slope)))[..., :2]
            inner = torch.fmin(inner, lines + rows.dots(line.rest_norms))
        norms = independent_norms(rows, line.given_norms, line.deviations) + inner
        deviation = (square.dot(line.given.square()) + central.square()).sqrt()
        none = torch.zeros_like(deviation)
        return Squares(deviation * UP, central * UP, inner[..., 0] * UP, norms * UP, none, none)


def deviation(node: Node, rows: Rows) -> Tensor:
    """Standard deviation of ``rows . z`` after the node, at most: (batch, rows); by parts or by adding all of them."""
    if node.signal.fixed:
        return nothing(node.signal, rows)
    noise, central = node.parts(rows)
    found = (noise + central.square()).sqrt()
    if node.signal.source:
        return torch.minimum(found, rows.square().dot(node.signal.variance).sqrt()) * UP
    return torch.minimum(found, rows.abs().dot(node.signal.variance.sqrt())) * UP


def outlined(node: Node, rows: Rows) -> tuple[SecondMoments, Tensor]:
    """Second moments of z after the node, and the standard deviation of ``rows . z``: (batch, rows).

    Without the moments of higher order, which nothing above the node asks for.
    """
    z = node.outline if isinstance(node, Activated) else None
    if z is None or not isinstance(node, Activated) or node.weighted is None or not isinstance(rows, DenseRows):
        return node.signal, deviation(node, rows)
    central = node.central(rows)
    if z.line is not None:
        linear = node.weighted.deviation_below(rows.times(z.line.slope)) + rows.abs().dot(z.line.rest)
        central = torch.fmin(central, linear)
    found = (rows.square().dot(z.noise) + central.square()).sqrt()
    return z, torch.minimum(found, rows.abs().dot(z.variance.sqrt())) * UP


def on_boxes(node: Node, at: Tensor) -> Node | None:
    """The node for some of the boxes, as far as variances of rows go; None unless outputs are independent given y."""
    if isinstance(node, Input):
        return Input(of_boxes(node.signal, at))
    if not isinstance(node, Activated) or node.weighted is None:
        return None
    weights, below = node.weighted.weights, on_boxes(node.below, at)
    if below is None or weights.groups != weights.n_out:
        return None
    weighted = Weighted(weights, below, node.weighted.scale[at])
    pre, planes = of_boxes(replace(node.pre, expansion=None), at), of_boxes(node.planes, at)

    def moments() -> tuple[Signal, Linearised]:
        return of_boxes(node.signal, at), of_boxes(node.linear, at)

    def slopes() -> MeanSlopes | None:
        return None if node.slopes is None else of_boxes(node.slopes, at)

    def outline() -> Outline | None:
        return None if node.outline is None else of_boxes(node.outline, at)

    return Activated(planes, pre, moments, None, slopes, weighted, below, outlines=outline)


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


def lower_bound(nodes: Sequence[Node], bound: Bound, lower: Lower | None = None) -> Bound:
    """Carry a lower bound in terms of the last node down to x; ``lower`` takes the place of ``Node.lower``."""
    waiting, constant = _carried(nodes, bound, 1, lower)
    return replace(waiting[nodes[0]], constant=constant, variances=None)


def least_value(nodes: Sequence[Node], bound: Bound, box: Box, cut: HalfSpace | None = None) -> Tensor:
    """Lower bound, over the boxes or what ``cut`` leaves of them, of one in terms of the last node: (batch, rows)."""
    waiting, constant = _carried(nodes, bound, 2)
    first = nodes[1] if len(nodes) > 1 else None
    if first in waiting:
        bound = replace(waiting[first], constant=constant)
        plain = len(waiting) == 1 and box.within is None and cut is None
        found = first.least(bound) if plain and isinstance(first, Activated) else None
        if found is not None:
            return found
        constant = _lowered(first, waiting, constant, None)
    return minimum(waiting[nodes[0]].rows, constant, box, cut)


Lower = Callable[[Node, Bound], Bound]
"""The bound in terms of the input of a node."""


def _carried(
    nodes: Sequence[Node], bound: Bound, stop: int, lower: Lower | None = None
) -> tuple[dict[Node, Bound], Tensor]:
    """The bound in terms of the nodes before ``stop``, by node, and its constant: (batch, rows).

    Rows of a node are summed over all nodes that use it, so what cancels between two ways from x cancels here.
    """
    waiting, constant = {nodes[-1]: bound}, bound.constant
    for node in reversed(nodes[stop:]):
        constant = _lowered(node, waiting, constant, lower)
    return waiting, constant


def _lowered(node: Node, waiting: dict[Node, Bound], constant: Tensor, lower: Lower | None) -> Tensor:
    """Take the rows of a node out of ``waiting`` and put those of its inputs there; the new constant."""
    own = waiting.pop(node)
    bound = Bound(own.rows, constant, own.variances)
    found = node.lower(bound) if lower is None else lower(node, bound)
    inputs, constant = node.inputs, found.constant
    for below, part in zip(inputs, (found,) if len(inputs) == 1 else _split(found), strict=True):
        if below not in waiting:
            waiting[below] = part
        else:
            waiting[below], lost = _meet(waiting[below], part, below)
            constant = constant - lost - gamma(4) * constant.abs()
    return constant


def _split(bound: Bound) -> list[Bound]:
    """A bound with joined rows as one for each input."""
    rows, variances = (each.parts if isinstance(each, JoinedRows) else () for each in (bound.rows, bound.variances))
    return [Bound(own, bound.constant, other) for own, other in zip(rows, variances or repeat(None), strict=False)]


def _meet(a: Bound, b: Bound, node: Node) -> tuple[Bound, Tensor]:
    """The rows of two users of a node together, and what rounding may take off their sum: (batch, rows)."""
    size = node.mean.magnitude
    lost = gamma(8) * (a.rows.abs().dot(size) + b.rows.abs().dot(size)) + vanished(node.mean)
    rows, variances = sum_of(a.rows, b.rows), b.variances if a.variances is None else a.variances
    if a.variances is not None and b.variances is not None:
        most = node.signal.variance
        lost = lost + gamma(8) * (a.variances.abs().dot(most) + b.variances.abs().dot(most))
        variances, lost = sum_of(a.variances, b.variances), lost + vanished(Interval(most, most))
    return Bound(rows, a.constant, variances), lost


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
