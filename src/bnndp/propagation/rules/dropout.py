r"""Node of dropout: factors of mean one on units or channels, with their exact moments.

For a factor B of variance :math:`\alpha`, independent of z, :math:`\operatorname{Var}(u\cdot zB)
=\operatorname{Var}(u\cdot z)+\alpha\sum_ju_j^2\mathbb Ez_j^2`; for one factor a channel the last sum is that of
:math:`\mathbb E(\sum_{j\in c}u_jz_j)^2`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.bounds import Interval
from bnndp.layers import Dropout
from bnndp.propagation.nodes import Bound, Node, deviation
from bnndp.propagation.rows import Rows
from bnndp.propagation.signal import GAUSSIAN, POWERS, UP, Signal
from bnndp.propagation.steps import step

__all__ = ["Dropped"]

_ROUNDED = 1e-11  # relative to the terms of a sum: more than float64 loses in one of 1e4 terms


@dataclass(frozen=True, slots=True)
class Dropped:
    """Dropout of units or of channels."""

    alpha: float
    channels: int  # 0: every unit has a factor of its own
    factors: tuple[float, ...]  # norms of a sum of B_j - 1 with coefficients of unit length, at most
    signal: Signal
    below: Node

    def lower(self, rows: Rows, constant: Tensor) -> Bound:
        return rows, constant

    def parts(self, rows: Rows) -> tuple[Tensor, Tensor]:
        z = self.below.signal
        if not self.channels:
            noise, central = self.below.parts(rows)
            return (noise + self.alpha * rows.square().dot(z.second.upper)) * UP, central
        middle, radius = 0.5 * (z.mean.lower + z.mean.upper), 0.5 * (z.mean.upper - z.mean.lower)
        at = rows.group_dots(middle[..., None], self.channels)[..., 0]
        others = torch.stack([radius + _ROUNDED * middle.abs(), z.variance.sqrt()], -1)  # what rounding may cancel
        away, random = rows.abs().group_dots(others, self.channels).unbind(-1)
        own = ((at.abs() + away).square() + random.square()).sum(-1)
        total = deviation(self.below, rows).square() + self.alpha * own
        return torch.zeros_like(total), total.sqrt() * UP

    def norms(self, rows: Rows) -> Tensor:
        """Norms of z - E z, plus those of z (B - 1), which given z is a sum of independent (sub-)Gaussian terms."""
        z, below = self.below.signal, self.below.norms(rows)
        factor, sizes = below.new_tensor(self.factors), z.mean.magnitude[..., None] + z.norms
        if not self.channels:
            return (below + factor * rows.square().dots(sizes.square()).sqrt()) * UP
        parts = rows.abs().group_dots(sizes, self.channels)
        return (below + factor * torch.linalg.vector_norm(parts, dim=2)) * UP


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
    noise_fourth = (fourth**0.25 * norm4 + factor4**0.25 * z.noise_fourth.sqrt().sqrt()) ** 4 * UP
    noise = Interval(
        (z.noise.lower + alpha * second.lower / UP) / UP, (z.noise.upper + alpha * second.upper) * UP
    )
    deviation_ = (z.noise_deviation + alpha * (z.square_deviation + z.noise_deviation)) * UP
    cube = (noise.upper * noise_fourth).sqrt()
    if z.fixed:
        cube, deviation_ = abs(third) * z.mean.magnitude**3, torch.zeros_like(cube)
    signal = Signal(
        mean=z.mean,
        variance=(z.variance + alpha * second.upper) * UP,
        norms=norms,
        noise=noise,
        noise_deviation=deviation_,
        third=cube * UP,
        noise_fourth=noise_fourth,
        fixed=False,
        source=z.source,
    )
    if layer.channels:
        signal = signal.without_history()
    return Dropped(alpha, shape[0] if layer.channels else 0, factors, signal, below)


def _factors(layer: Dropout) -> tuple[float, ...]:
    r"""Norms of :math:`\sum_ja_j(B_j-1)`, |a| = 1: Gaussian, or for values in an interval of length 1/keep sub-Gaussian.

    The sum is sub-Gaussian with the constant 1/(2 keep) (Hoeffding 1963), so
    :math:`\mathbb E|S|^q\le q2^{q/2}\Gamma(q/2)(2\,\text{keep})^{-q}`.
    """
    keep = 1 - layer.rate
    if layer.law == "gaussian":
        return tuple(norm * math.sqrt(layer.rate / keep) * UP for norm in GAUSSIAN)
    return tuple((q * 2 ** (q / 2) * math.gamma(q / 2)) ** (1 / q) / (2 * keep) * UP for q in POWERS)


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
