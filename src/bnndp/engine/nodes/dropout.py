r"""Node of dropout: factors of mean one on units or channels, with their exact moments.

For a factor B of variance :math:`\alpha`, independent of z, :math:`\operatorname{Var}(u\cdot zB)
=\operatorname{Var}(u\cdot z)+\alpha\sum_ju_j^2\mathbb Ez_j^2`; for one factor a channel the last sum is that of
:math:`\mathbb E(\sum_{j\in c}u_jz_j)^2`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bnndp.engine.moments.intervals import plus, square, times
from bnndp.engine.moments.signal import GAUSSIAN, Signal
from bnndp.engine.nodes.bound import Bound, vanished
from bnndp.engine.nodes.node import Node, OnOne, Unfolded, row_std
from bnndp.engine.nodes.step import step
from bnndp.engine.rows import Rows
from bnndp.geometry.bounds import Interval
from bnndp.layers import Dropout
from bnndp.maths.rounding import SMALL, UNIT, UP, gamma

__all__ = ["Dropped"]

_SUB_GAUSSIAN = (2.0 * UP, 768**0.125 * UP, 20643840**0.0625 * UP)
"""(q 2^(q/2) Gamma(q/2))^(1/q): the norm in Lq of a sub-Gaussian variable with the constant 1, at most."""

_EVEN = 1e-3  # odds nearer to one: the best constant is taken as 1/4, which it does not exceed
_ROUNDED_ALPHA = 1e-9  # relative: ``alpha`` is rounded up by 1e-10, and the sums over coordinates are rounded
_ROUNDED = 1e-11  # relative to the terms of a sum: more than float64 loses in one of 1e4 terms


@dataclass(frozen=True, slots=True, eq=False)
class Dropped(OnOne):
    """Dropout of units or of channels."""

    alpha: float
    channels: int  # 0: every unit has a factor of its own
    factors: tuple[float, ...]  # norms of a sum of B_j - 1 with coefficients of unit length, at most
    signal: Signal
    below: Node

    @property
    def mean(self) -> Interval:
        return self.signal.mean

    def lower(self, bound: Bound) -> Bound:
        """Var(z B) = (1 + alpha) Var z + alpha (E z)^2; the square is between a tangent and that plus radius^2."""
        own, z = bound.variances, self.below.signal
        if own is None:
            return bound
        middle, radius = 0.5 * (z.mean.lower + z.mean.upper), 0.5 * (z.mean.upper - z.mean.lower) * UP
        square = own.negative().dot(radius.square()) * UP - own.dot(middle.square())
        size = 4 * z.mean.magnitude.square() + z.variance + SMALL**2  # terms may underflow
        lost = _ROUNDED_ALPHA * (1 + self.alpha) * own.abs().dot(size) + gamma(8) * bound.constant.abs()
        return Bound(
            bound.rows.plus(own.times(2 * self.alpha * middle)),  # type: ignore[arg-type]
            bound.constant + self.alpha * square - lost - vanished(z.mean) - vanished(Interval(size, size)),
            None if z.fixed else own.map(lambda v: v * (1 + self.alpha)),
        )

    def parts(self, rows: Rows) -> tuple[Tensor, Tensor]:
        if not self.channels:
            noise, central = self.below.parts(rows)
            return (noise + self._noise(rows)) * UP, central
        total = row_std(self.below, rows).square() + self._noise(rows)
        return torch.zeros_like(total), total.sqrt() * UP

    def norms(self, rows: Rows) -> Tensor:
        """Those of z - E z, plus z (B - 1), which given z is a sum of independent (sub-)Gaussian terms."""
        _, joined = self.unfold_norms(rows)
        return joined(self.below.norms(rows))

    def unfold(self, rows: Rows) -> Unfolded:
        noise = self._noise(rows)
        return (rows,), lambda found: (found.square() + noise).sqrt() * UP

    def unfold_norms(self, rows: Rows) -> Unfolded:
        z, sizes = self.below.signal, self.below.signal.mean.magnitude[..., None] + self.below.signal.norms
        if self.channels:
            own = torch.linalg.vector_norm(rows.abs().group_dots(sizes, self.channels), dim=2)
        else:
            own = rows.square().dots(sizes.square()).sqrt()
        return (rows,), lambda found: (found + z.norms.new_tensor(self.factors) * own) * UP

    def _noise(self, rows: Rows) -> Tensor:
        """E of the variance of ``rows . z B`` given z: (batch, rows)."""
        z = self.below.signal
        if not self.channels:
            return self.alpha * rows.square().dot(z.second.upper)
        middle, radius = 0.5 * (z.mean.lower + z.mean.upper), 0.5 * (z.mean.upper - z.mean.lower)
        at = rows.group_dots(middle[..., None], self.channels)[..., 0]
        others = torch.stack([radius + _ROUNDED * middle.abs(), z.variance.sqrt()], -1)  # what rounding may cancel
        away, random = rows.abs().group_dots(others, self.channels).unbind(-1)
        return self.alpha * ((at.abs() + away).square() + random.square()).sum(-1)


@step.register
def _(layer: Dropout, below: Node, shape: tuple[int, ...]) -> Node:
    if not layer.random:
        return below
    z, alpha = below.signal, layer.rate / (1 - layer.rate) * UP
    third, fourth, factor4 = _moments(layer)
    second = z.second
    norm4 = z.mean.magnitude + z.norms[..., 0]  # ||z||_4
    factors = _factors(layer)
    norms = (z.norms + (z.mean.magnitude[..., None] + z.norms) * z.norms.new_tensor(factors)) * UP
    noise_fourth = (fourth**0.25 * norm4 + factor4**0.25 * z.noise_fourth.upper.sqrt().sqrt()) ** 4 * UP
    noise = Interval((z.noise.lower + alpha * second.lower / UP) / UP, (z.noise.upper + alpha * second.upper) * UP)
    deviation = (z.noise_deviation + alpha * (z.square_std + z.noise_deviation)) * UP
    cube = noise.upper.sqrt() * noise_fourth.sqrt()
    if z.fixed:
        cube, deviation = abs(third) * z.mean.magnitude**3, torch.zeros_like(cube)
    signal = Signal(
        mean=z.mean,
        variance=(z.variance + alpha * second.upper) * UP,
        variance_low=(z.variance_low + alpha * second.lower / UP) / UP,
        norms=norms,
        inner=z.inner,
        given=norms if z.source else norms + z.inner,
        deviations=norms if z.source else norms + z.inner,
        roughness=math.sqrt(2) * noise.upper.sqrt() * UP,
        noise=noise,
        noise_deviation=deviation,
        third=Interval(-cube * UP, cube * UP),
        third_deviation=torch.zeros_like(cube) if z.source else cube * UP,
        noise_fourth=Interval(torch.zeros_like(noise_fourth), noise_fourth),
        fixed=False,
        source=z.source,
    )
    if layer.channels:
        signal = signal.without_history()
    elif z.source:
        signal = replace(signal, **_exact(z, layer.rate / (1 - layer.rate), third, fourth))
    return Dropped(alpha, shape[0] if layer.channels else 0, factors, signal, below)


def _exact(z: Signal, second: float, third: float, fourth: float) -> dict[str, Any]:
    r"""Moments of (1 + e) z for independent coordinates z = h + A, from the central moments of e.

    Its centred value is A + e z, so the third moment is :math:`\mathbb EA^3+3e_2\mathbb EAz^2+e_3\mathbb Ez^3` and the
    fourth :math:`\mathbb EA^4+6e_2\mathbb EA^2z^2+4e_3\mathbb EAz^3+e_4\mathbb Ez^4`.
    """
    h, v, k3, c = z.mean, z.noise, z.third, z.noise_fourth
    h2, v_h, k3_h = square(h), times(h, v), times(h, k3)
    h2_v = times(h2, v)
    cross = plus(v_h, v_h, k3)  # E A z^2
    both = plus(h2_v, k3_h, k3_h, c)  # E A^2 z^2
    high = plus(*[h2_v] * 3, *[k3_h] * 3, c)  # E A z^3
    cube = plus(times(h, h2), *[v_h] * 3, k3)  # E z^3
    power = plus(square(h2), *[h2_v] * 6, *[k3_h] * 4, c)  # E z^4
    off = 16 * UNIT * (second + fourth)  # of ``third``, a difference of two numbers that are at most their sum
    found = plus(k3, *[_scaled(cross, second)] * 3, _scaled(cube, third), _around_zero(cube, off))
    last = plus(
        c,
        *[_scaled(both, second)] * 6,
        *[_scaled(high, third)] * 4,
        *[_around_zero(high, off)] * 4,
        _scaled(power, fourth),
    )
    return {
        "third": found,
        "third_deviation": torch.zeros_like(found.lower),
        "noise_fourth": Interval(last.lower.clamp_min(0), last.upper.clamp_min(0)),
    }


def _around_zero(a: Interval, factor: float) -> Interval:
    return Interval(-factor * a.magnitude, factor * a.magnitude)


def _scaled(a: Interval, factor: float) -> Interval:
    ends = a.lower * factor, a.upper * factor
    return Interval(torch.minimum(*ends), torch.maximum(*ends))


def _constant(layer: Dropout) -> float:
    r"""Sub-Gaussian constant of B - 1: its deviation if Gaussian; the best one of a Bernoulli variable otherwise.

    That of a Bernoulli variable of probability q is :math:`(1-2q)/(2\log((1-q)/q))` as a square, at most 1/4
    (Kearns and Saul 1998; Buldygin and Moskvichova 2013).
    """
    keep = 1 - layer.rate
    if layer.law == "gaussian":
        return math.sqrt(layer.rate / keep) * UP
    odds = math.log(keep / layer.rate)
    square = 0.25 if abs(odds) < _EVEN else (keep - layer.rate) / (2 * odds)
    return math.sqrt(square) / keep * UP


def _factors(layer: Dropout) -> tuple[float, ...]:
    r"""Norms of :math:`\sum_ja_j(B_j-1)`, |a| = 1: of a Gaussian, or of a sub-Gaussian variable."""
    norms = GAUSSIAN if layer.law == "gaussian" else _SUB_GAUSSIAN
    return tuple(norm * _constant(layer) * UP for norm in norms)


def _moments(layer: Dropout) -> tuple[float, float, float]:
    """Third and fourth central moment of the factor, and its fourth moment."""
    keep = 1 - layer.rate
    alpha = layer.rate / keep
    if layer.law == "gaussian":
        return 0.0, 3 * alpha**2, 1 + 6 * alpha + 3 * alpha**2
    # B / keep with P(B = 1) = keep: values 1 / keep and 0.
    third = keep * (1 / keep - 1) ** 3 - layer.rate
    fourth = keep * (1 / keep - 1) ** 4 + layer.rate
    return third, fourth, keep ** (-3)
