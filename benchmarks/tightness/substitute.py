"""The pass in which some bounds are true values at x*: a diagnosis, never a bound.

The pass is that of the package; of each activation after random weights it takes the moments, the bounds of the
expectation and the planes from here. Without sources these are its own (tested).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from benchmarks.tightness.sources import Source, planes_source, remainder_source
from benchmarks.tightness.truth import LayerTruth, Truth, norms
from bnndp.activations.activation import Activation
from bnndp.engine.inequalities.expectation import ExpectationBounds, PointwiseBounds, expectation_bounds
from bnndp.engine.inequalities.smoothed import second_at
from bnndp.engine.moment_pass import MomentPass
from bnndp.engine.moments.pre_activation import PreActivation, RowMoments, Squares
from bnndp.engine.moments.signal import POWERS
from bnndp.engine.nodes.weighted import Weighted
from bnndp.engine.planes.hinge import hinge_of
from bnndp.engine.planes.mean import Plane, Planes, better_plane, made, planes
from bnndp.engine.propagation.activation_step import Region, Relaxed
from bnndp.engine.propagation.forward import HiddenLayers, hidden_layers
from bnndp.engine.propagation.pre_activation import pre_of_weights
from bnndp.engine.propagation.row_moments import row_moments
from bnndp.geometry.bounds import Interval

__all__ = ["Substituted"]


@dataclass(frozen=True, eq=False)
class Substituted(MomentPass):
    """The pass in which the bounds named by ``sources`` are true values at x*; without sources the usual one."""

    truth: Truth = field(kw_only=True)
    sources: Collection[Source] = ()

    @cached_property
    def hidden(self) -> HiddenLayers:
        """The hidden layers on the boxes."""
        return hidden_layers(self.layers, self.shapes, Region(self.box, relax=self._relaxed))

    def _relaxed(self, index: int, phi: Activation, weighted: Weighted, mean: Interval) -> Relaxed:
        true = self.truth.hidden[index]
        x = pre_of_weights(weighted.weights, weighted.below.signal, mean, lambda: self._through(weighted, true))
        x = x if x.fixed else self._moments(x, true)
        near = expectation_bounds(phi, x)
        known = _true_expectation(phi, near, true) if remainder_source(index) in self.sources else near
        hinge = hinge_of(phi, x, known)
        found = planes(phi, x, known, hinge)
        if planes_source(index) in self.sources:
            found = _tangents(phi, found, known, weighted, true)
        return Relaxed(x, near, found, hinge)

    def _through(self, weighted: Weighted, true: LayerTruth) -> RowMoments:
        """With the moments of rows through the layers below that are sources."""
        found = row_moments(weighted)
        if Source.MEAN_VARIANCE in self.sources:
            found = replace(found, central=true.central, norms=true.mean_norms(POWERS))
        if Source.SPREAD_VARIANCE in self.sources and found.spread is not None:
            found = replace(found, spread=_squares(true))
        return found

    def _moments(self, x: PreActivation, true: LayerTruth) -> PreActivation:
        """With the moments of X that are sources."""
        if Source.SECOND in self.sources:
            x = replace(x, spread=Interval(true.spread, true.spread), noise=Interval(true.noise, true.noise))
        if Source.MEAN_VARIANCE in self.sources:
            x = replace(x, central=true.central, norms=true.mean_norms(POWERS))
        if Source.HIGHER_ORDER in self.sources and x.expansion is not None:
            series = replace(x.expansion.series, remainders={}, quadratic={})
            x = replace(x, expansion=replace(x.expansion, in_full=lambda: series, in_pieces=None))
        return _with_true_spreads(x, true) if Source.SPREAD_VARIANCE in self.sources else x


def _squares(true: LayerTruth) -> Squares:
    """How s varies; given independent weights it is a sum of squares."""
    inner, zero = true.e - true.spread[:, None], torch.zeros_like(true.spread)
    central, norm4 = norms(inner, (2, 4)).unbind(-1)
    return Squares(true.spread_deviation, central, norm4, true.spread_norms(POWERS[:2]), zero, zero)


def _with_true_spreads(x: PreActivation, true: LayerTruth) -> PreActivation:
    """With the true fluctuation of s and of Var(m | y)."""
    root, (third, fourth, eighth) = true.s.sqrt(), true.spread_norms((3, 4, 8)).unbind(-1)
    expansion = x.expansion
    if expansion is not None:
        expansion = replace(
            expansion,
            spread_variance=true.spread_deviation.square(),
            spread_third=third**3,
            spread_fourth=fourth**4,
            spread_norm8=eighth,
            spread_low=(true.spread[:, None] - true.s).clamp_min(0).pow(4).mean(1),
        )
    return replace(
        x,
        spread_deviation=true.spread_deviation,
        noise_deviation=true.v.std(1, correction=0),
        spread_norms=norms(root, POWERS),
        spread_away=norms(root - true.spread.sqrt()[:, None], POWERS),
        spread_deltas=torch.stack([fourth, eighth], -1),
        expansion=expansion,
    )


def _true_expectation(phi: Activation, near: ExpectationBounds, true: LayerTruth) -> ExpectationBounds:
    """Both bounds of E phi(X), as functions of its mean, go through the true value at x*."""

    def excess(rho: Tensor) -> Tensor:
        return phi.mean(true.mean, rho) - true.output

    pointwise, more = near.pointwise, excess(true.total.sqrt())
    pointwise = pointwise if pointwise is None else PointwiseBounds(pointwise.total, more, -more)
    return ExpectationBounds(near.lower_rho, excess(near.lower_rho), near.upper_rho, -excess(near.upper_rho), pointwise)


def _tangents(phi: Activation, found: Planes, near: ExpectationBounds, weighted: Weighted, true: LayerTruth) -> Planes:
    """Both bounds of E phi(X), as functions of M and T, are replaced by their tangents at x*.

    Below the planes T becomes an affine function (``Weighted``): in it s(E z) is its tangent at the middle of the range
    of E z, and from above that plus the excess on the range. What it is off at x* goes into the constants.
    """
    weights, below, pointwise = weighted.weights, weighted.below.mean, near.pointwise
    mean, total = Interval(true.mean, true.mean), Interval(true.total, true.total)
    off = weights.spread_excess((true.below - 0.5 * (below.lower + below.upper)).abs())
    excess = weights.spread_excess(0.5 * (below.upper - below.lower))

    def tangent(rho: Tensor, error: Tensor, *, tilted: bool) -> Plane:
        slope, bend = phi.slope(true.mean, rho), second_at(phi, true.mean, rho)[0]
        tilt = 0.5 * bend if tilted else torch.zeros_like(slope)
        return slope, tilt, phi.mean(true.mean, rho) + error - slope * true.mean - tilt * true.total

    def touching(sign: int, rho: Tensor, error: Tensor, other: Tensor) -> Plane:  # sign 1 above, -1 below
        plane = tangent(rho, sign * error, tilted=False)
        if pointwise is None or torch.equal(pointwise.total.lower, pointwise.total.upper):
            return plane
        plane = better_plane(mean, total, plane, tangent(true.total.sqrt(), sign * other, tilted=True), sign)
        return *plane[:2], plane[2] + plane[1] * torch.where(sign * plane[1] > 0, off - excess, off)

    errors = near if pointwise is None else pointwise
    lower = touching(-1, near.lower_rho, near.lower_error, errors.lower_error)
    return made(mean, total, lower, touching(1, near.upper_rho, near.upper_error, errors.upper_error), found.range)
