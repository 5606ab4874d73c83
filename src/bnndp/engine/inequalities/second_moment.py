r"""The variance of :math:`z=\varphi(X)`, X Gaussian given a random input, from both sides.

:math:`\mathbb Ez^2` is the mean of one more function, :math:`\varphi^2`, and the inequalities of ``expectation.py``
hold for it: it lies within an error e of :math:`F(M,\rho)=\mathbb E\varphi(M+\rho\xi)^2=v+G^2`, v the variance there.
And :math:`\mathbb Ez` is within some :math:`\Delta` of :math:`G(M,\rho)`, so

.. math:: |\operatorname{Var}z-v(M,\rho)|\le e+2|G(M,\rho)|\Delta+\Delta^2 .

Only the values of the activation itself have to be known on the box, not those of its square.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.activations.activation import Activation, Shape
from bnndp.engine.inequalities.central_range import variance_range
from bnndp.engine.inequalities.expectation import ExpectationBounds, PointwiseBounds, pointwise_bounds
from bnndp.engine.moments.pre_activation import PreActivation
from bnndp.geometry.bounds import Interval
from bnndp.maths.rounding import UP

__all__ = ["second_moment", "variance_error", "variance_of"]

_FIRST_ABSOLUTE = 0.7978845608028655  # E |xi|, rounded up


@dataclass(frozen=True, slots=True)
class _Squared:
    """The square of an activation, as far as the inequalities ask for it."""

    phi: Activation

    @property
    def shape(self) -> Shape:
        return self.phi.square

    def mean(self, m: Tensor, r: Tensor) -> Tensor:
        found = second_moment(self.phi, m, r)
        return 0.5 * (found.lower + found.upper)

    def slope(self, m: Tensor, r: Tensor) -> Tensor:
        return torch.full_like(m + r, torch.nan)  # the shape says that it is not known


def second_moment(phi: Activation, m: Tensor, r: Tensor) -> Interval:
    """F(m, r), with the errors of its computation."""
    variance, mean, error = phi.variance(m, r), phi.mean(m, r).abs(), phi.error(m, r)
    low, high = (mean - error).clamp_min(0).square(), (mean + error).square()
    return Interval((variance.lower + low) / UP, (variance.upper + high) * UP)


def variance_of(phi: Activation, x: PreActivation, near: ExpectationBounds) -> Interval:
    """Range of Var z over the box; ``near`` are the bounds of E z. No number where nothing is known."""
    second = pointwise_bounds(_Squared(phi), x).at_one_spread(phi.square)
    ends = []
    for rho, error in ((second.lower_rho, second.lower_error), (second.upper_rho, second.upper_error)):
        at = variance_range(phi, x.mean, Interval(rho, rho))
        largest = torch.maximum(*(phi.mean(m, rho).abs() + phi.error(m, rho) for m in (x.mean.lower, x.mean.upper)))
        largest = largest + phi.shape.steepest * (x.mean.upper - x.mean.lower)
        away = torch.maximum(
            near.lower_error + _apart(phi, x.mean, near.lower_rho, rho),
            near.upper_error + _apart(phi, x.mean, near.upper_rho, rho),
        )
        ends.append((at, (error + 2 * largest * away + away.square()) * UP))
    (low, below), (high, above) = ends
    return Interval((low.lower - below).clamp_min(0), (high.upper + above) * UP)


def variance_error(phi: Activation, x: PreActivation, pointwise: PointwiseBounds) -> tuple[Tensor, Tensor]:
    r"""What Var z may be below and above v(M, rho) at any x of the box, rho^2 = S + N at the same x.

    With :math:`\delta=\mathbb Ez-G` it is :math:`v+(\mathbb Ez^2-F)-2G\delta-\delta^2`.
    """
    second, r = pointwise_bounds(_Squared(phi), x), Interval(pointwise.total.lower.sqrt(), pointwise.total.upper.sqrt())
    m, half = 0.5 * (x.mean.lower + x.mean.upper), 0.5 * (x.mean.upper - x.mean.lower)
    moved = phi.shape.steepest * (half + _FIRST_ABSOLUTE * (r.upper - r.lower)) * UP
    at, moved = phi.mean(m, r.upper), moved + phi.error(m, r.upper)
    products = torch.stack(
        [2 * g * d for g in (at - moved, at + moved) for d in (-pointwise.lower_error, pointwise.upper_error)]
    )
    slack = 1e-10 * products.abs().amax(0)
    square = torch.maximum(pointwise.lower_error.square(), pointwise.upper_error.square())
    return second.lower_error + products.amax(0) + slack + square * UP, second.upper_error - products.amin(0) + slack


def _apart(phi: Activation, m: Interval, a: Tensor, b: Tensor) -> Tensor:
    """At most |G(m, a) - G(m, b)| for all m of the range: by the heat equation around its middle, or Lipschitz."""
    middle, half = 0.5 * (m.lower + m.upper), 0.5 * (m.upper - m.lower) * UP
    least = torch.minimum(a, b)
    steep = 0.5 * phi.shape.derivative(3, least) * (a.square() - b.square()).abs()
    at = (phi.mean(middle, a) - phi.mean(middle, b)).abs() + phi.error(middle, a) + phi.error(middle, b)
    fine = at + torch.where((a == b) | (half == 0), 0.0, steep * half)
    coarse = _FIRST_ABSOLUTE * phi.shape.swing * (a - b).abs()
    return torch.where(a == b, 0.0, torch.fmin(fine, coarse) * UP)
