r"""The nodes of the pass: each carries bounds backward through its layer, and variances of rows.

``lower`` turns a lower bound ``matrix . E out + constant`` into one of the same kind in the input of the layer.
``parts`` bounds, for rows u, :math:`\mathbb E\operatorname{Var}(u\cdot z\mid Y)` and the standard deviation of
:math:`\mathbb E[u\cdot z\mid Y]`, Y the history of the signal z after the node (``signal.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from bnndp.bounds import Interval
from bnndp.maths.rounding import TINY, gamma
from bnndp.propagation.activated import Linearised
from bnndp.propagation.planes import Planes
from bnndp.propagation.signal import GAUSSIAN, POWERS, UP, Signal
from bnndp.propagation.weights import Weights, row_variance
from bnndp.regions import apply_rows

__all__ = ["Activated", "Input", "Node", "Weighted", "deviation", "interval_means", "lower_bound"]

Bound = tuple[Tensor, Tensor]
"""Matrix (batch, rows, n) and constant (batch, rows) of a lower bound."""


class Node(Protocol):
    """One step of the pass with what it found on the box."""

    signal: Signal  # after the step

    def lower(self, matrix: Tensor, constant: Tensor) -> Bound:
        """The bound in terms of the input of the step."""
        ...

    def parts(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Mean conditional variance and standard deviation of the conditional mean of rows: (batch, rows) each."""
        ...

    def norms(self, rows: Tensor) -> Tensor:
        """||rows . (z - E z)||_q, at most: (batch, rows, q)."""
        ...


@dataclass(frozen=True, slots=True)
class Input:
    """The input x."""

    signal: Signal

    def lower(self, matrix: Tensor, constant: Tensor) -> Bound:
        return matrix, constant

    def parts(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        zero = rows.new_zeros(rows.shape[:2])
        return zero, zero

    def norms(self, rows: Tensor) -> Tensor:
        return rows.new_zeros(*rows.shape[:2], len(POWERS))


@dataclass(frozen=True, slots=True)
class Weighted:
    """A layer with weights: not a signal of its own, but what its activation needs of it."""

    weights: Weights
    below: Node
    scale: Tensor  # (batch, n_out): |mu| |E z| + |b|, the size of the terms of its means

    def lower(self, matrix: Tensor, beta: Tensor | None, constant: Tensor) -> Bound:
        """From coefficients of E X and, where the input is a function of x, of the spreads s."""
        weights, z = self.weights, self.below.signal
        lost = apply_rows(matrix.abs(), self.scale) + constant.abs()
        constant = constant + matrix @ weights.bias
        found = weights.pull(matrix)
        if beta is not None:
            # s(z) lies between its tangent at the middle and that plus the excess.
            middle, radius = 0.5 * (z.mean.lower + z.mean.upper), 0.5 * (z.mean.upper - z.mean.lower)
            at, excess = weights.spread(middle), weights.spread_excess(radius * UP)
            slope = weights.spread_pull(beta, middle)
            constant = constant + apply_rows(beta, at) - apply_rows(slope, middle)
            constant = constant + apply_rows(beta.clamp_max(0), excess * UP)
            lost = lost + 4 * apply_rows(beta.abs(), at + excess) + 2 * apply_rows(slope.abs(), z.mean.magnitude)
            found = found + slope
        return found, constant - gamma(4 * (weights.n_out + weights.n_in) + 16) * lost - TINY

    def deviation_below(self, rows: Tensor) -> Tensor:
        """Standard deviation of ``rows . m``, m = E[X | z]."""
        return deviation(self.below, self.weights.pull(rows))


@dataclass(frozen=True, slots=True)
class Activated:
    """An activation, after weights or on a signal."""

    planes: Planes
    linear: Linearised
    signal: Signal
    weighted: Weighted | None
    below: Node

    def lower(self, matrix: Tensor, constant: Tensor) -> Bound:
        positive, negative = matrix.clamp_min(0), matrix.clamp_max(0)
        found = self.planes
        alpha = positive * found.lower_alpha[:, None] + negative * found.upper_alpha[:, None]
        offset = apply_rows(positive, found.lower_offset) + apply_rows(negative, found.upper_offset)
        lost = apply_rows(positive - negative, found.size) + constant.abs()
        constant = constant + offset - gamma(2 * matrix.shape[-1] + 8) * lost - TINY
        if self.weighted is None:
            return alpha, constant
        beta = None
        if bool((found.lower_beta != 0).any() | (found.upper_beta != 0).any()):
            beta = positive * found.lower_beta[:, None] + negative * found.upper_beta[:, None]
        return self.weighted.lower(alpha, beta, constant)

    def parts(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        zero = rows.new_zeros(rows.shape[:2])
        if self.signal.fixed:
            return zero, zero
        linear, size, rest = rows * self.linear.slope[:, None], rows.abs(), self.linear.rest
        if self.weighted is None:
            _, central = self.below.parts(linear)
            return apply_rows(rows.square(), self.linear.noise) * UP, (central + apply_rows(size, rest.central)) * UP
        weights, z = self.weighted.weights, self.weighted.below.signal
        central = zero if z.fixed else self.weighted.deviation_below(linear) + apply_rows(size, rest.central)
        if weights.groups == weights.n_out:
            return apply_rows(rows.square(), self.linear.noise) * UP, central * UP
        left = (size * rest.given[:, None]).reshape(*rows.shape[:2], weights.groups, -1).sum(-1)
        given = row_variance(weights, linear, z).sqrt() + left.square().sum(-1).sqrt()
        return zero, (given.square() + central.square()).sqrt() * UP

    def norms(self, rows: Tensor) -> Tensor:
        if self.signal.fixed:
            return rows.new_zeros(*rows.shape[:2], len(POWERS))
        linear, size, rest = rows * self.linear.slope[:, None], rows.abs(), self.linear.rest
        if self.weighted is None:
            return (self.below.norms(linear) + size @ rest.central_norms) * UP
        weights, z = self.weighted.weights, self.weighted.below.signal
        below = self.weighted.below.norms(weights.pull(linear)) + size @ rest.central_norms
        gaussian = below.new_tensor(GAUSSIAN)
        if weights.groups == weights.n_out:
            own = (rows.square() @ self.linear.spread_norms.square()).sqrt()
            return (gaussian * own + below) * UP
        at, away = weights.row_parts(linear, z, z.norms)
        # Given y a group's loose rests are a Lipschitz function of its own noise: dominated by a Gaussian.
        parts = size.reshape(*rows.shape[:2], weights.groups, -1)
        loose = torch.einsum("brgp,bgpq->brgq", parts, rest.loose_norms.reshape(rows.shape[0], weights.groups, -1, 3))
        spread = at[..., None] + away + torch.linalg.vector_norm(loose, dim=2)
        return (gaussian * spread + below + size @ rest.steady_norms) * UP


def deviation(node: Node, rows: Tensor) -> Tensor:
    """Standard deviation of ``rows . z`` after the node, at most: (batch, rows); by parts or by adding all of them."""
    if node.signal.fixed:
        return rows.new_zeros(rows.shape[:2])
    noise, central = node.parts(rows)
    plain = apply_rows(rows.abs(), node.signal.variance.sqrt())
    if node.signal.source:
        return torch.minimum((noise + central.square()).sqrt(), apply_rows(rows.square(), node.signal.variance).sqrt()) * UP
    return torch.minimum((noise + central.square()).sqrt(), plain) * UP


def lower_bound(chain: list[Node], matrix: Tensor, constant: Tensor) -> Bound:
    """Carry a lower bound in E z of the last node down to x."""
    for node in reversed(chain):
        matrix, constant = node.lower(matrix, constant)
    return matrix, constant


def interval_means(weights: Weights, mean: Interval, scale: Tensor) -> Interval:
    """Range of E X from the range of E z alone."""
    middle, radius = 0.5 * (mean.lower + mean.upper), 0.5 * (mean.upper - mean.lower)
    at, away = weights.apply(middle) + weights.bias, weights.power(radius, 1) * UP
    lost = gamma(2 * weights.terms + 16) * scale + TINY
    return Interval(at - away - lost, at + away + lost)
