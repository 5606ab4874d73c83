"""The pass of the moment method with some of its bounds replaced by true values at x*: a diagnosis, never a bound.

The loop is that of ``bnndp.engine.dense.forward.hidden_layers``; without sources it gives the same numbers (tested).
The bounds of the single steps are those of ``bnndp.engine.dense.relax``: two of its inner functions are used here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from benchmarks.tightness.sources import Source, planes
from benchmarks.tightness.truth import FirstTruth, LayerTruth, Steps, Truth
from bnndp.engine.dense.backward import Ground
from bnndp.engine.dense.conditional import Layers, conditional
from bnndp.engine.dense.dense_pass import DensePass
from bnndp.engine.dense.first import FirstLayer, first_layer
from bnndp.engine.dense.forward import Hidden, HiddenLayers, interval_means, mean_ranges
from bnndp.engine.dense.pre_activation import pre_activation
from bnndp.engine.dense.records import PreActivation, Relaxation
from bnndp.engine.dense.relax import _taylor_in_s, _taylor_in_v, relax
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box, apply_rows
from bnndp.layers import Linear
from bnndp.maths.normal import cdf
from bnndp.maths.rectified import expected_relu, ratio
from bnndp.maths.rounding import TINY
from bnndp.maths.tails import HALF_PEAK, MEAN_ABOVE, MEAN_BELOW, PEAK, excess, shortfall

__all__ = ["Substituted"]

Sources = Collection[Source]
_STEPS = frozenset({Source.REPLACEMENT, Source.VARIANCE_STEP, Source.COVARIANCE, Source.CURVATURE, Source.JENSEN})


@dataclass(frozen=True, eq=False)
class Substituted(DensePass):
    """The pass in which the bounds named by ``sources`` are true values at x*; without sources the usual one."""

    truth: Truth | None = None
    sources: Sources = ()

    @cached_property
    def layers(self) -> HiddenLayers:
        """The hidden layers on the boxes."""
        if self.truth is None:
            return super().layers
        return _hidden_layers(self.linears[:-1], self.box, self.truth, self.sources)


def _hidden_layers(layers: Sequence[Linear], box: Box, truth: Truth, sources: Sources) -> HiddenLayers:
    first = first_layer(layers[0], box)
    if Source.PLANES_1 in sources:
        first = _touching(first, truth.first)
    ground = Ground.of(first, box)
    chain: list[Hidden] = []
    given: Layers = []
    for k, layer in enumerate(layers[1:], start=1):
        true = truth.hidden[k - 1]
        latents = [first.latent, *(h.latent for h in chain)]
        before = _with_true_moments(pre_activation(layer, first, latents, given), true, sources)
        scale = apply_rows(layer.weight_mean.abs(), latents[-1].mean.upper) + layer.bias_mean.abs()
        mean = mean_ranges(before, interval_means(layer, latents[-1].mean, scale), chain, ground)
        relaxation, latent = relax(before, mean)
        if planes(k) in sources:
            relaxation = _tangent_planes(before, true, sources)
        else:
            relaxation = _with_true_steps(relaxation, before, mean, true, sources)
        if k + 1 < len(layers):
            below = None if chain else first.sources
            given.append((before, conditional(before, mean, latent, latents[-1], below)))
        chain.append(Hidden(before, mean, relaxation, latent, scale))
    return HiddenLayers(chain, given, ground)


def _touching(first: FirstLayer, true: FirstTruth) -> FirstLayer:
    """Both planes of the first layer are the tangent plane of g(m(x), r(x)) at x*.

    The lower plane of the pass is that tangent plane at the centre of the box; it is asked for with x* as the centre.
    """
    ranges = replace(first.ranges, m_centre=true.mean, r_centre=true.std)
    moved = replace(first, centre=true.x, ranges=ranges, tangent=ratio(true.mean, true.std))
    return replace(moved, upper=moved.lower)


def _with_true_moments(before: PreActivation, true: LayerTruth, sources: Sources) -> PreActivation:
    """The record with the moments of the sources at x*."""
    if Source.SECOND in sources:
        spread, noise = true.spread, true.noise
        before = replace(before, spread=Interval(spread, spread), noise=Interval(noise, noise))
    if Source.MEAN_VARIANCE in sources:
        before = replace(before, central=true.central, fourth=true.norm(4) ** 4)
        if before.tail is None:  # a layer after the second: there the eighth moment is used
            before = replace(before, norm8=true.norm(8))
    if Source.SPREAD_VARIANCE in sources:
        before = replace(
            before,
            spread_variance=true.spread_variance,
            spread_fourth=true.spread_norm4(),
            noise_variance=true.noise_variance,
        )
    if Source.REPLACEMENT in sources:
        low = true.steps(before.spread.lower, before.noise.lower).replacement.abs()
        high = true.steps(before.spread.upper, before.noise.upper).replacement.abs()
        before = replace(before, replacement=Interval(low, high))
    return before


def _tangent_planes(before: PreActivation, true: LayerTruth, sources: Sources) -> Relaxation:
    """Both bounds of E z as functions of M are replaced by their tangents at M* = M(x*): no chord, no other point."""
    point = Interval(true.mean, true.mean)
    found = _with_true_steps(relax(before, point)[0], before, point, true, sources)
    value = found.upper_slope * true.mean + found.upper_offset  # of the upper bound at M*
    slope = cdf(ratio(true.mean, (before.spread.upper + before.noise.upper).sqrt()))
    return replace(found, upper_slope=slope, upper_offset=value - slope * true.mean)


def _with_true_steps(
    relaxation: Relaxation, before: PreActivation, mean: Interval, true: LayerTruth, sources: Sources
) -> Relaxation:
    """One more candidate on each side: the four steps of the proof, with the true errors of the sources' steps."""
    if not _STEPS & set(sources):
        return relaxation
    rho, loss = _steps_below(before, mean, true, sources)
    middle = 0.5 * (mean.lower + mean.upper)
    gain = expected_relu(middle, rho) - loss > expected_relu(middle, relaxation.rho) - relaxation.loss
    rho, loss = torch.where(gain, rho, relaxation.rho), torch.where(gain, loss, relaxation.loss)
    root, add = _steps_above(before, mean, true, sources)
    low, high = (expected_relu(end, root) + add for end in (mean.lower, mean.upper))
    slope = ((high - low) / (mean.upper - mean.lower).clamp_min(TINY)).clamp(0, 1)
    offset = torch.maximum(low - slope * mean.lower, high - slope * mean.upper)
    gain = slope * middle + offset < relaxation.upper_slope * middle + relaxation.upper_offset
    return replace(
        relaxation,
        tangent=ratio(middle, rho),
        rho=rho,
        loss=loss,
        upper_slope=torch.where(gain, slope, relaxation.upper_slope),
        upper_offset=torch.where(gain, offset, relaxation.upper_offset),
    )


def _steps_below(before: PreActivation, mean: Interval, true: LayerTruth, sources: Sources) -> tuple[Tensor, Tensor]:
    """``g(M, rho) - loss`` below E z, at the lower ends of E s and E Var(m | y): (batch, n) each."""
    s1, n1 = before.spread.lower.clamp_min(TINY), before.noise.lower
    errors = true.steps(s1, n1)
    if Source.VARIANCE_STEP in sources:
        variance = -(errors.spread + errors.noise)
    else:
        scarf = PEAK * shortfall(before.spread.lower, before.spread_variance, s1) / s1.sqrt()
        taylor = _taylor_in_s(before, mean, s1, before.replacement.lower, MEAN_BELOW, -1)
        in_s, in_v = _parts(before, (s1, s1 + n1), (taylor, MEAN_BELOW), (errors, -1), sources)
        variance = torch.minimum(in_s, scarf) + in_v
    replacement = -errors.replacement if Source.REPLACEMENT in sources else before.replacement.lower
    jensen = -errors.jensen if Source.JENSEN in sources else torch.zeros_like(variance)
    return (s1 + n1).sqrt(), variance + replacement + jensen


def _steps_above(before: PreActivation, mean: Interval, true: LayerTruth, sources: Sources) -> tuple[Tensor, Tensor]:
    """``g(M, rho) + add`` above E z, at the upper ends of E s and E Var(m | y): (batch, n) each."""
    s0, n0 = before.spread.upper.clamp_min(TINY), before.noise.upper
    level = s0 + n0
    errors = true.steps(s0, n0)
    if Source.VARIANCE_STEP in sources:
        variance = errors.spread + errors.noise
    else:
        scarf = HALF_PEAK * excess(before.spread.upper, before.spread_variance, s0) / s0.sqrt()
        taylor = _taylor_in_s(before, mean, s0, before.replacement.upper, MEAN_ABOVE, 1)
        in_s, in_v = _parts(before, (s0, level), (taylor, MEAN_ABOVE), (errors, 1), sources)
        variance = torch.minimum(in_s, scarf) + in_v
    replacement = errors.replacement if Source.REPLACEMENT in sources else before.replacement.upper
    jensen = errors.jensen if Source.JENSEN in sources else HALF_PEAK * before.central / level.sqrt()
    return level.sqrt(), variance + replacement + jensen


def _parts(
    before: PreActivation,
    levels: tuple[Tensor, Tensor],  # s0 and s0 + n0, (batch, n) each
    bounds: tuple[Tensor, float],  # the bound of step 1 by Taylor's formula (batch, n), the constant of its 2nd order
    errors: tuple[Steps, int],  # true errors, and 1 above or -1 below
    sources: Sources,
) -> tuple[Tensor, Tensor]:
    """Steps 1 and 3 by Taylor's formula, with true values for the parts that are sources: (batch, n) each."""
    (s0, level), (taylor_s, constant), (true, sign) = levels, bounds, errors
    square_s = before.spread_variance + (before.spread.upper - before.spread.lower).square()
    square_v = before.noise_variance + (before.noise.upper - before.noise.lower).square()
    curved_s, curved_v = constant * square_s / s0**1.5, constant * square_v / level**1.5
    linear_s, linear_v = taylor_s - curved_s, _taylor_in_v(before, level, constant) - curved_v
    if Source.COVARIANCE in sources:
        linear_s, linear_v = sign * true.spread_linear, sign * true.noise_linear
    if Source.CURVATURE in sources:
        curved_s = sign * (true.spread - true.spread_linear)
        curved_v = sign * (true.noise - true.noise_linear)
    return linear_s + curved_s, linear_v + curved_v
