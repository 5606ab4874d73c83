"""A layer with weights as the pass sees it: bounds carried back through it, and what its activation needs of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bnndp.engine.laws.weights import Weights, spread_around
from bnndp.engine.moments.intervals import BLUR
from bnndp.engine.moments.joint_gaussian import Coupling, Joint, Near
from bnndp.engine.moments.signal import nothing
from bnndp.engine.nodes.bound import Bound, vanished, within
from bnndp.engine.nodes.first_layer import FirstLayer, SpreadAtMiddle
from bnndp.engine.nodes.node import Node, row_std
from bnndp.engine.planes.folded import Before, Folded
from bnndp.engine.rows import DenseRows, Rows
from bnndp.geometry.bounds import Interval
from bnndp.maths.rounding import SMALL, TINY, UP, gamma

__all__ = ["Weighted"]

_FEW = 0.25  # share of s - s(E z) up to which its products of two coordinates are bounded by their norm


@dataclass(frozen=True, eq=False)
class Weighted:
    """A layer with weights: not a signal of its own, but what its activation needs of it."""

    weights: Weights
    below: Node
    scale: Tensor  # (batch, n_out): |mu| |E z| + |b|, the size of the terms of its means
    deviations: float | None = None  # of the noise of ranges that hold for most weights; None: those of means
    spread_above: Tensor | None = None  # (batch, n_out): there, s is at most this, if that is known

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
            return Bound(found, constant, noise=self.noise(before.alpha))
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
        if self.own_noise is not None and self.deviations is not None:
            lost = lost + self.deviations * self.own_noise.sqrt() * UP
        return Interval(at - away - lost, at + away + lost)

    def noise(self, rows: Rows) -> Tensor | None:  # (batch, rows)
        """The variance of ``rows . X`` given z, at most over the range of z; None: bounds are of means, or X is."""
        if self.deviations is None or not self.weights.random:
            return None
        if self.own_noise is not None and self.weights.groups == self.weights.n_out:
            return rows.square().dot(self.own_noise)
        z = self.below.signal
        at, _ = self.weights.row_parts(rows, z, z.variance[..., None])
        return at.square() * UP

    @cached_property
    def own_noise(self) -> Tensor | None:  # (batch, n_out)
        """The same for every single X."""
        if self.deviations is None or not self.weights.random:
            return None
        z = self.below.signal
        most = self.weights.spread_size(z.mean.magnitude)
        if self.weights.coupled:
            at, reach = spread_around(self.weights, z.mean)
            most = torch.fmin(most, (at.sqrt() + reach).square())
        if self.spread_above is not None:
            most = torch.fmin(most, self.spread_above)
        return most * UP + SMALL**2

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

    def as_first_layer(self, planes: Folded) -> FirstLayer:
        """For planes of an activation with the means at the middle in their constants, if z is the input."""
        spread = self.spread_at_middle if self.weights.random else None
        return FirstLayer(self.weights, planes, spread, self._vanished, self._middle, self._half)

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
        remainder, small = weights.spread_remainder(z), torch.zeros_like(excess)
        if remainder is not None:
            small = (remainder.products[..., 0] < _FEW * excess).double()
            ends = ends - beta.abs().times(small).dot(remainder.products[..., 0]) * UP
            spread = weights.variance_pull(beta.times(small))
        large = beta.times(1 - small)
        least = within(weights.variance_pull(large.positive()), z.noise)
        return None if remainder is None else spread, ends + least + large.negative().dot(excess)

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

    def row_std_below(self, rows: Rows) -> Tensor:
        """Standard deviation of ``rows . m``, m = E[X | z]."""
        return row_std(self.below, self.weights.pull(rows))
