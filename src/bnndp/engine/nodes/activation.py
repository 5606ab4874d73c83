"""The node of an activation, after weights or on a signal: bounds through its planes, variances and norms of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from bnndp.engine.chunks import selected
from bnndp.engine.inequalities.efron_stein import MeanSlopes, conditional_mean_std
from bnndp.engine.inequalities.expectation import ExpectationBounds
from bnndp.engine.inequalities.lower_side import lower_norm
from bnndp.engine.laws.weights import row_variance
from bnndp.engine.moments.pre_activation import PreActivation, Squares
from bnndp.engine.moments.signal import GAUSSIAN, POWERS, RIO, Signal, nothing
from bnndp.engine.nodes.activation_moments import Linearised
from bnndp.engine.nodes.bound import Bound, vanished, within
from bnndp.engine.nodes.first_layer import FirstLayer
from bnndp.engine.nodes.node import Input, Node, OnOne, Unfolded
from bnndp.engine.nodes.outline import Outline
from bnndp.engine.nodes.weighted import Weighted
from bnndp.engine.planes.folded import Before, Folded, folded
from bnndp.engine.planes.hinge import Hinge
from bnndp.engine.planes.mean import Planes
from bnndp.engine.rows import DenseRows, Rows
from bnndp.engine.sums.norms import independent_norms
from bnndp.geometry.bounds import Interval
from bnndp.maths.rounding import UP, gamma

__all__ = ["Activated", "OnBoxes"]


@dataclass(frozen=True, eq=False)
class Activated(OnOne):
    """An activation, after weights or on a signal."""

    planes: Planes
    pre: PreActivation
    moments: Callable[[], tuple[Signal, Linearised]]  # only for variances, and for the layers above
    variances: Callable[[Interval], Planes | None] | None  # planes of Var z, given its range; none on a signal
    mean_slopes: Callable[[], MeanSlopes | None] | None  # where the signal below has independent coordinates
    weighted: Weighted | None
    below: Node
    hinges: Callable[[], Hinge | None] | None = None  # other lower planes, for the search
    outlines: Callable[[], Outline | None] | None = None  # where rows of z have a variance without other moments
    near: ExpectationBounds | None = None  # the bounds of E phi(X) behind the planes, after random weights

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
    def first_layer(self) -> FirstLayer | None:
        """Where rows end; None unless this follows weights on the input."""
        if self.weighted is None or self.weighted.own_noise is not None or not isinstance(self.below, Input):
            return None
        return self.weighted.as_first_layer(self._fold(self.planes, self.weighted.at_middle))

    def least(self, bound: Bound) -> Tensor | None:
        """Least value of the bound: (batch, rows); None unless this follows weights on the input."""
        if self.first_layer is None or bound.variances is None:
            return None if self.first_layer is None else self.first_layer.least(bound.rows, bound.constant)
        before = self.first_layer.planes.apply(bound.rows, bound.constant)
        return self.first_layer.least_before(
            self._with_variances(before, bound.variances, self._folded_variances_at_middle)
        )

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
        linear, remainder = rows.times(self.linear.slope), self._remainder(rows)
        if self.weighted is None:
            _, central = self.below.parts(linear)
            return rows.square().dot(self.linear.noise) * UP, (central + remainder) * UP
        central = zero if self.pre.fixed else self.weighted.row_std_below(linear) + remainder
        if isinstance(rows, DenseRows):
            central = torch.fmin(central, self.central(rows))
        noise = self._noise(rows, linear)
        if self.independent:
            return noise * UP, central * UP
        return zero, (noise + central.square()).sqrt() * UP

    def unfold(self, rows: Rows) -> Unfolded:
        below, remainder = self.line(rows)
        if self.weighted is None:
            return (below,), lambda found: (found + remainder) * UP
        noise = self._noise(rows, rows.times(self.linear.slope))
        return (below,), lambda found: (noise + (found + remainder).square()).sqrt() * UP

    def line(self, rows: Rows) -> tuple[Rows, Tensor]:
        """The rows of the input that ``rows . E[z | y]`` is near, y all of it, and the deviation of what is left."""
        linear = rows.times(self.linear.slope)
        return linear if self.weighted is None else self.weighted.weights.pull(linear), self._remainder(rows)

    def _remainder(self, rows: Rows) -> Tensor:  # (batch, rows)
        if self.pre.fixed:
            return nothing(self.signal, rows)
        each = self.linear.remainder.central
        if self.weighted is None and self.below.signal.source:  # what is left is independent, too
            return rows.square().dot(each.square()).sqrt()
        return rows.abs().dot(each)

    def _noise(self, rows: Rows, linear: Rows) -> Tensor:
        """E of the variance of ``rows . z`` given y, after weights: (batch, rows)."""
        if self.independent or self.weighted is None:
            return rows.square().dot(self.linear.noise)
        weights = self.weighted.weights
        left = rows.abs().group_dots(self.linear.remainder.given[..., None], weights.groups)[..., 0]
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
        coupling = weights.spread_remainder(z) if weights.coupled else None
        return conditional_mean_std(self.slopes, weights, rows, z, coupling, more)

    def norms(self, rows: Rows) -> Tensor:
        r"""Z = p X + rho: the linear part given below, the remainders, and what varies given y.

        Given y, groups are independent: a sum of Lipschitz functions of Gaussians is dominated in convex order by that
        of the Gaussians; or by the norms of the terms.
        """
        if self.signal.fixed:
            return nothing(self.signal, rows, len(POWERS))
        (below,), joined = self.unfold_norms(rows)
        return joined(nothing(self.signal, rows, len(POWERS)) if self.pre.fixed else self.below.norms(below))

    def unfold_norms(self, rows: Rows) -> Unfolded:
        linear, size, remainder, x = rows.times(self.linear.slope), rows.abs(), self.linear.remainder, self.pre
        if self.weighted is None:
            own = size.dots(remainder.norms)
            return (linear,), lambda found: (found + own) * UP
        weights, z = self.weighted.weights, self.weighted.below.signal
        gaussian = x.norms.new_tensor(GAUSSIAN)
        if self.independent:
            noise = gaussian * self.linear.steepest * rows.square().dots(x.spread_norms.square()).sqrt()
            noise = torch.minimum(noise, independent_norms(rows, self.signal.given, self.signal.deviations))
        else:
            at, away = weights.row_parts(linear, z, z.norms)
            left = torch.linalg.vector_norm(size.group_dots(remainder.norms, weights.groups), dim=2)
            noise = gaussian * (at[..., None] + away) + x.norms.new_tensor(RIO) * left
        central = torch.zeros_like(noise) if x.fixed else size.dots(remainder.central_norms)

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
        remainders, and for a row of y at least the mean of its variance given the history of y.
        """
        weighted = self.weighted
        if weighted is None or self.pre.fixed or not self.independent:
            return None
        y, linear = weighted.below.signal, rows.times(self.linear.slope)
        size = weighted.weights.power_pull(linear.abs(), 1).dot(y.variance.sqrt())  # of the terms, for the rounding
        below, remainder = weighted.weights.pull(linear), self.linear.remainder
        line = below.square().dot(y.noise.lower.clamp_min(0)).sqrt() / UP
        least = line - rows.abs().dot(remainder.central) * UP - weighted.rounding * size
        norm4 = self.below.norms(below)[..., 0] + rows.abs().dot(remainder.central_norms[..., 0])
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
        """What varies given y is independent, the lines of E[z_j^2 | y] are rows below; their remainders are added."""
        line = self.linear.square
        if line is None or self.weighted is None or not self.independent:
            return None
        square = rows.square()
        central = self.weighted.row_std_below(rows.times(line.slope)) + rows.dot(line.remainder)
        inner = rows.dots(line.norms)
        if line.remainder_norms is not None:  # the lines as a row below
            lines = self.below.norms(self.weighted.weights.pull(rows.times(line.slope)))[..., :2]
            inner = torch.fmin(inner, lines + rows.dots(line.remainder_norms))
        norms = independent_norms(rows, line.given_norms, line.deviations) + inner
        deviation = (square.dot(line.given.square()) + central.square()).sqrt()
        none = torch.zeros_like(deviation)
        low4, hinge = None, self.linear.hinge
        if hinge is not None and isinstance(rows, DenseRows):
            most = rows.dot(self.signal.second.upper)
            low4 = lower_norm(self.weighted.weights, self.below.signal, rows, most, hinge)
        return Squares(deviation * UP, central * UP, inner[..., 0] * UP, norms * UP, none, none, low4)


@dataclass(frozen=True, slots=True)
class OnBoxes:
    """An activation on some of its boxes, or on cells of them: what holds for every x of a box holds there."""

    whole: Activated
    at: Tensor  # (cells,) of integers

    def activated(
        self, pre: PreActivation, planes: Planes, weighted: Weighted, below: Node, hinge: Hinge | None = None
    ) -> Activated:
        """The node with these planes, and with the moments of the whole boxes."""
        whole, at = self.whole, self.at

        def moments() -> tuple[Signal, Linearised]:
            return replace(selected(whole.signal, at), mean=planes.range), selected(whole.linear, at)

        def variances(_: Interval) -> Planes | None:
            return None if whole.variance_planes is None else selected(whole.variance_planes, at)

        def slopes() -> MeanSlopes | None:
            return None if whole.slopes is None else selected(whole.slopes, at)

        def outline() -> Outline | None:
            return None if whole.outline is None else selected(whole.outline, at)

        known = None if whole.variances is None else variances
        return Activated(planes, pre, moments, known, slopes, weighted, below, lambda: hinge, outline)


def _cube(values: Tensor) -> Tensor:
    return values.abs() ** 3
