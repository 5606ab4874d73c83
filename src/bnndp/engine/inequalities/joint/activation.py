"""What is known of an activation of jointly Gaussian values (``joint_gaussian.py``)."""

from __future__ import annotations

import torch
from torch import Tensor

from bnndp.activations.activation import Activation
from bnndp.engine.inequalities.second_moment import second_moment
from bnndp.engine.inequalities.smoothed import second_at
from bnndp.engine.moments.intervals import BLUR, product
from bnndp.engine.moments.joint_gaussian import Joint, Near
from bnndp.engine.moments.pre_activation import PreActivation
from bnndp.geometry.bounds import Interval
from bnndp.maths.rounding import TINY, UP

__all__ = ["joint_of"]

_SLOPE = 2e-9  # error granted to a slope


def joint_of(
    phi: Activation,
    x: PreActivation,
    gaussian: Near,  # (batch, groups, g, g)
    z_mean: Interval,  # (batch, n) each
    variance: Interval,  # of z
    remainder: Tensor,  # sd(z - pX) for some number p, at most
) -> Joint:
    """Of an activation of jointly Gaussian values."""
    mean, spread = x.mean, x.spread
    shape, least = phi.shape, spread.lower.sqrt()
    middle, half = 0.5 * (mean.lower + mean.upper), 0.5 * (mean.upper - mean.lower) * UP
    root, wide = (0.5 * (spread.lower + spread.upper)).sqrt(), 0.5 * (spread.upper - spread.lower) * UP
    third, fourth = (shape.derivative(order, least) for order in (3, 4))
    slope = _slope(phi, mean, root, half, 0.5 * product(third, wide))
    value, error = second_at(phi, middle, root)
    bend = Near(value, (error + product(third, half) + 0.5 * product(fourth, wide)) * UP)
    second = (variance.upper - slope.least.square() * spread.lower / UP).clamp_min(0) * UP + BLUR * variance.upper
    second = torch.minimum(second, remainder.square() * UP)
    second = torch.fmin(second, _second_from_middle(phi, x, middle, half).square() * UP)
    least_second = variance.lower - slope.size.square() * spread.upper * UP
    bent = torch.where(bend.off.isfinite(), bend.least, 0.0) * spread.lower
    above = (second - 0.5 * bent.square() / UP).clamp_min(0) * UP + BLUR * second
    # A convex function is above all its tangents, so above their mean E z + p (x - m) - Cov(phi'(X), X).
    dip = product(bend.size, spread.upper) * UP if shape.fall == 0 else torch.full_like(middle, torch.inf)
    low, high = shape.slopes
    nearest = torch.minimum(
        torch.maximum(slope.interval.lower, torch.full_like(middle, 0.5 * (low + high))), slope.interval.upper
    )
    steps = ((high - nearest) * (nearest - low)).clamp_min(0) * UP  # Var phi'(X) (Bhatia and Davis 2000)
    step_deviation = steps.sqrt() * UP
    steps = (steps - bend.least.square().nan_to_num(0.0) * spread.lower / UP).clamp_min(0) * UP + BLUR * steps
    return Joint(
        gaussian=gaussian,
        slope=slope,
        bend=bend,
        deviation=variance.upper.sqrt() * UP,
        second=second.sqrt() * UP,
        second_low=(least_second / UP - BLUR * variance.upper).clamp_min(0).sqrt() / UP,
        third=above.sqrt() * UP,
        slope_second=steps.sqrt() * UP,
        root=least / UP,
        spread_root=spread.upper.sqrt() * UP,
        widest=torch.maximum(high - slope.interval.lower, slope.interval.upper - low) * UP,
        slope_deviation=step_deviation,
        slope_covariance=_slope_covariance(phi, mean, spread, slope, z_mean),
        variance=variance,
        dip=dip,
    )


def _second_from_middle(phi: Activation, x: PreActivation, middle: Tensor, half: Tensor) -> Tensor:
    r"""Standard deviation of what is of degree two and more: at the middle, and what it moves by on the box.

    Of :math:`\varphi(m+r\xi)` less the best line the derivatives in m and r are at most w and :math:`w|\xi|`.
    """
    root = (0.5 * (x.spread.lower + x.spread.upper)).sqrt()
    away = torch.maximum(x.spread.upper.sqrt() - root, root - x.spread.lower.sqrt()) * UP
    variance, slope = phi.variance(middle, root).upper, phi.slope(middle, root).abs()
    line = torch.where(
        torch.full_like(root, phi.shape.slope_known, dtype=torch.bool), (slope - _SLOPE).clamp_min(0), 0.0
    )
    at = (variance - line.square() * root.square() / UP).clamp_min(0) * UP + BLUR * variance
    return at.sqrt() * UP + phi.shape.swing * (half + away) * UP


def _slope_covariance(phi: Activation, mean: Interval, spread: Interval, slope: Near, z: Interval) -> Near:
    r"""Cov(phi'(X), z): half the slope of E z^2 in m less p E z; a central difference of E z^2."""
    shape, least = phi.square, spread.lower.sqrt()
    middle, half = 0.5 * (mean.lower + mean.upper), 0.5 * (mean.upper - mean.lower) * UP
    root, wide = (0.5 * (spread.lower + spread.upper)).sqrt(), 0.5 * (spread.upper - spread.lower) * UP
    h = 0.05 * root.clamp_min(TINY)
    left, right = (second_moment(phi, middle + sign * h, root) for sign in (-1, 1))
    third = shape.derivative(3, least)
    value = 0.25 * (right.lower + right.upper - left.lower - left.upper) / h
    off = 0.25 * (right.upper - right.lower + left.upper - left.lower) / h + product(third, h.square()) / 6
    off = off + product(torch.maximum(*shape.curvature(root)), half) + 0.5 * product(third, wide)
    mean_z = Near(0.5 * (z.lower + z.upper), 0.5 * (z.upper - z.lower) * UP)
    less = slope.times(mean_z)
    found = 0.5 * value - less.value
    return Near(found, (0.5 * off + less.off + BLUR * (value.abs() + less.value.abs())) * UP)


def _slope(phi: Activation, mean: Interval, root: Tensor, half: Tensor, moved: Tensor) -> Near:
    """E phi'(X) on the box; ``moved`` is what the spread may move it by."""
    shape, (low, high) = phi.shape, phi.shape.slopes
    if not shape.slope_known:
        return Near(torch.full_like(root, 0.5 * (low + high)), torch.full_like(root, 0.5 * (high - low)) * UP)
    at = phi.slope(0.5 * (mean.lower + mean.upper), root)
    way = product(torch.maximum(*shape.curvature(root)), half)
    ends = [at - way, at + way]
    if shape.fall == 0:  # the slope increases
        ends = [torch.fmax(ends[0], phi.slope(mean.lower, root)), torch.fmin(ends[1], phi.slope(mean.upper, root))]
    least, most = (torch.full_like(root, end) for end in (low, high))
    first, last = torch.fmax(ends[0] - moved, least), torch.fmin(ends[1] + moved, most)
    return Near(0.5 * (first + last), 0.5 * (last - first) * UP + _SLOPE)
