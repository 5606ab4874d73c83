"""Where rows end: an activation after weights on the input, as functions of x over the boxes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from bnndp.engine.chunks import cache_size, selected
from bnndp.engine.laws.weights import Weights
from bnndp.engine.planes.folded import Before, Folded
from bnndp.engine.rows import DenseRows, Rows
from bnndp.maths.rounding import gamma

__all__ = ["NUMBERS", "FirstLayer", "SpreadAtMiddle"]

NUMBERS = 2**19
"""Entries of the matrices of rows made at a time: in the caches of a CPU."""


@dataclass(frozen=True, slots=True)
class SpreadAtMiddle:
    """s of a layer at the middle of the means below it: (batch, n_out) each."""

    value: Tensor
    excess: Tensor  # what s is at most above its tangent there
    lost: Tensor  # by rounding of a unit coefficient: of s, and of its slopes times the means
    underflow: Tensor  # (batch, 1)

    def met_by(self, both: Rows, beta: Rows | None) -> Tensor:  # (batch, rows)
        """``both . s``, less the excess of the coefficients ``beta`` of s itself, and less the rounding."""
        found = both.dot(self.value) - both.abs().dot(self.lost) - self.underflow
        return found if beta is None else found + beta.negative().dot(self.excess)


@dataclass(frozen=True, eq=False)
class FirstLayer:
    """The first activation of a network: its planes, the layer before it, and the boxes."""

    weights: Weights
    planes: Folded  # with the means at the middle of the boxes in the constants
    spread: SpreadAtMiddle | None  # None if the weights are not random
    underflow: Tensor  # (batch, 1)
    middle: Tensor  # (batch, n_in): of the boxes
    half: Tensor  # (batch, n_in): at least half the widths

    def __getitem__(self, at: Tensor) -> FirstLayer:
        """The same for some of the boxes, if all of them have the same weights."""
        planes, tensors = selected(self.planes, at), (self.underflow[at], self.middle[at], self.half[at])
        if self.spread is None or not bool(self.sloped[at].any()):
            return FirstLayer(self.weights, replace(planes, beta=None), None, *tensors)
        return FirstLayer(self.weights, planes, selected(self.spread, at), *tensors)

    @cached_property
    def sloped(self) -> Tensor:  # (batch,) of booleans
        """The boxes on which a plane has a slope in s, at the cost of a product with the matrix of variances."""
        if self.planes.beta is None:
            return torch.zeros_like(self.underflow[:, 0], dtype=torch.bool)
        low, step = self.planes.beta
        return ((low != 0) | (step != 0)).any(-1)

    @property
    def shared(self) -> bool:
        """Whether all boxes have the same weights: those of stacked members are their own."""
        return self.weights.bias.ndim == 1

    def least(self, rows: Rows, constant: Tensor) -> Tensor:  # constant (batch, rows)
        """What ``rows . E z + constant`` is at least on the boxes, z after the activation: (batch, rows).

        A few boxes at a time, so that the coefficients of x stay in the caches; those without slopes in s together.
        """
        size = max(1, cache_size(NUMBERS, constant.device) // (rows.count * self.half.shape[1]))
        if self.half.shape[0] <= size or rows.batch == 1 or not self.shared or not isinstance(rows, DenseRows):
            return self.least_before(self.planes.apply(rows, constant))
        found = torch.empty_like(constant)
        for at in self.sloped.byte().argsort(stable=True).split(size):
            found[at] = self[at].least(DenseRows(rows.values[at]), constant[at])
        return found

    def least_before(self, before: Before) -> Tensor:
        r"""Of a bound in terms of what goes into the activation, with the means at the middle in its constant.

        So the coefficients of x, the largest matrix of a pass, are read once: they add at most :math:`|A|` times half
        the widths. Half a width is at most the magnitude, so their errors are in units of the same sizes.
        """
        weights, both = self.weights, before.both
        found = weights.pull(before.alpha)
        constant = before.constant - self.underflow - gamma(8) * before.constant.abs()
        if both is not None and self.spread is not None:
            constant = constant + self.spread.met_by(both, before.beta)
            if weights.coupled:
                found = found.plus(weights.spread_pull(both, self.middle))  # type: ignore[arg-type]
            else:
                found = found.add_times(weights.variance_pull(both), 2 * self.middle)  # type: ignore[arg-type]
        return constant - (1 + gamma(weights.n_in + 16)) * found.map(torch.Tensor.abs_).dot(self.half)
