r"""The third and fourth derivative of :math:`G(\cdot,r)=\mathbb E\varphi(\cdot+r\xi)` in m, with their errors.

In closed form for what is affine between kinks: a jump J of the slope at k contributes
:math:`J\phi^{(p-2)}((m-k)/r)r^{-(p-1)}`, one of the second derivative :math:`J\phi^{(p-3)}((m-k)/r)r^{-(p-2)}`.
Otherwise by central differences of the slope, which is known to 1e-9: those of second order are off by :math:`h^2/12`
times the fifth derivative, those of third order by :math:`h^2/4` times the sixth.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from bnndp.activations.activation import Shape
from bnndp.engine.moments.intervals import product
from bnndp.geometry.bounds import Interval
from bnndp.maths.normal import pdf
from bnndp.maths.rectified import ratio
from bnndp.maths.rounding import TINY, UP

__all__ = ["Smoothed", "second", "second_at", "third_and_fourth"]

_SLOPE = 1e-9  # error granted to a slope
_STEP = 0.03  # of the differences, times the scale on which G varies
_ROUNDING = 1e-12  # of the closed form, relative to the largest value


class Smoothed(Protocol):
    """A function of a Gaussian: an activation, or its square."""

    @property
    def shape(self) -> Shape:
        """Bounds of its derivatives."""
        ...

    def mean(self, m: Tensor, r: Tensor) -> Tensor:
        """G(m, r), computed."""
        ...

    def slope(self, m: Tensor, r: Tensor) -> Tensor:
        """dG/dm to 1e-9 if the shape says ``slope_known``."""
        ...


def third_and_fourth(phi: Smoothed, m: Interval, r: Interval) -> tuple[Interval, Interval]:  # (batch, n) each
    """Ranges of both derivatives for m and r within these intervals."""
    middle = 0.5 * (m.lower + m.upper)
    half = torch.maximum(m.upper - middle, middle - m.lower) * UP  # the middle is rounded
    s = Interval(r.lower.square(), r.upper.square())
    root, wide = (0.5 * (s.lower + s.upper)).sqrt(), 0.5 * (s.upper - s.lower) * UP + 1e-14 * s.upper
    least = r.lower
    sup = {p: phi.shape.derivative(p, least) for p in (3, 4, 5, 6)}
    found = []
    for p, (value, error) in zip((3, 4), _at(phi, middle, root, sup), strict=True):
        moved = (error + product(sup[p + 1], half) + 0.5 * product(sup[p + 2], wide)) * UP
        low, high = (value - moved).nan_to_num(-torch.inf), (value + moved).nan_to_num(torch.inf)
        found.append(Interval(torch.maximum(low, -sup[p]), torch.minimum(high, sup[p])))
    return found[0], found[1]


def second(phi: Smoothed, m: Tensor, r: Tensor) -> Tensor:  # (batch, n) each
    """The size of the second derivative at (m, r), at most."""
    value, error = second_at(phi, m, r)
    return torch.fmin(value.abs() + error, torch.maximum(*phi.shape.curvature(r)))


def second_at(phi: Smoothed, m: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:  # (batch, n) each
    """The second derivative at (m, r), and what it may be off."""
    most = torch.maximum(*phi.shape.curvature(r))
    if phi.shape.kinks:
        total = torch.zeros_like(m)
        for where, jump in phi.shape.kinks:
            total = total + jump * pdf(ratio(m - where, r)) / r.clamp_min(TINY)
        return total, _ROUNDING * most
    if not phi.shape.slope_known:
        return torch.zeros_like(m), most
    h = 0.05 * (0.2 + r)
    value = 0.5 * (phi.slope(m + h, r) - phi.slope(m - h, r)) / h
    return value, _SLOPE / h * UP + h.square() / 6 * phi.shape.derivative(4, r)


def _at(phi: Smoothed, m: Tensor, r: Tensor, sup: dict[int, Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Values at (m, r), and what they may be off."""
    if phi.shape.kinks:
        third, fourth = torch.zeros_like(m), torch.zeros_like(m)
        safe = r.clamp_min(TINY)
        for where, jump in phi.shape.kinks:
            u = ratio(m - where, r)
            density = jump * pdf(u)
            third = third - u * density / safe**2
            fourth = fourth + (u * u - 1) * density / safe**3
        return [(third, _ROUNDING * sup[3]), (fourth, _ROUNDING * sup[4])]
    if phi.shape.bumps:
        third, fourth = torch.zeros_like(m), torch.zeros_like(m)
        safe = r.clamp_min(TINY)
        for where, jump in phi.shape.bumps:
            u = ratio(m - where, r)
            density = jump * pdf(u) / safe
            third, fourth = third + density, fourth - u * density / safe
        return [(third, _ROUNDING * sup[3]), (fourth, _ROUNDING * sup[4])]
    if not phi.shape.slope_known:
        zero = torch.zeros_like(m)
        return [(zero, sup[3]), (zero, sup[4])]
    h = _STEP * (0.2 + r)
    slopes = {i: phi.slope(m + i * h, r) for i in (-2, -1, 0, 1, 2)}
    third = (slopes[1] - 2 * slopes[0] + slopes[-1]) / h**2
    fourth = (slopes[2] - 2 * slopes[1] + 2 * slopes[-1] - slopes[-2]) / (2 * h**3)
    return [
        (third, 4 * _SLOPE / h**2 * UP + h**2 / 12 * sup[5]),
        (fourth, 3 * _SLOPE / h**3 * UP + h**2 / 4 * sup[6]),
    ]
