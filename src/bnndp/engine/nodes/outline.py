r"""The second moments of :math:`z=\varphi(X)` that the variance of outputs needs, without those of higher order."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.activations.activation import Activation
from bnndp.engine.inequalities.central_range import variance_range
from bnndp.engine.inequalities.expectation import ExpectationBounds
from bnndp.engine.inequalities.given import middle_of, noise_given_input
from bnndp.engine.inequalities.mean_line import central_std, slope_of
from bnndp.engine.inequalities.remainders import central_remainder
from bnndp.engine.inequalities.second_moment import variance_of
from bnndp.engine.moments.pre_activation import PreActivation
from bnndp.engine.planes.mean import Planes
from bnndp.geometry.bounds import Interval
from bnndp.maths.rounding import UP

__all__ = ["Outline", "outline"]


@dataclass(frozen=True, slots=True)
class Line:
    """E[z_i | y] = p_i m_i + remainder; (batch, n) each."""

    slope: Tensor  # p
    remainder: Tensor  # its standard deviation


@dataclass(frozen=True, slots=True)
class Outline:
    """The second moments of z that a variance of outputs needs, and no more: (batch, n) each."""

    mean: Interval
    variance: Tensor  # Var z, at most
    noise: Tensor  # E Var(z | y), at most
    fixed: bool = False
    line: Line | None = None  # unless the slopes of E[z | y] say more


def outline(phi: Activation, x: PreActivation, near: ExpectationBounds, found: Planes, *, by_slopes: bool) -> Outline:
    """For outputs that are independent given y; a fraction of the cost of ``activation_moments.py``.

    ``by_slopes`` if rows of E[z | y] are bounded by ``efron_stein.py``.
    """
    if x.fixed:
        most = variance_range(phi, x.mean, Interval(x.spread.lower.sqrt(), x.spread.upper.sqrt() * UP)).upper * UP
        most = torch.minimum(most, phi.shape.steepest**2 * x.spread.upper * UP)
        return Outline(found.range, most, most)
    total, noise = variance_of(phi, x, near).upper, noise_given_input(phi, x)
    variance, noise = torch.fmin(total, phi.shape.steepest**2 * x.variance * UP), torch.fmin(noise, total)
    if by_slopes:
        return Outline(found.range, variance, noise)
    _, s0 = middle_of(x)
    slope = slope_of(phi, x.mean, (s0 + x.mean_variance).sqrt())
    remainder = central_remainder(phi, x, slope)
    deviation = central_std(phi, x, slope, remainder, s0.sqrt())
    variance = torch.fmin(variance, (noise + deviation.square()) * UP)
    return Outline(found.range, variance, noise, line=Line(slope, remainder))
