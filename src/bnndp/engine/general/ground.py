"""Where rows end: an activation after weights on the input, as functions of x over the boxes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.engine.general.folded import Before, Folded
from bnndp.engine.general.of_boxes import of_boxes
from bnndp.engine.general.rows import Rows
from bnndp.engine.general.weights import Weights
from bnndp.maths.rounding import gamma

__all__ = ["Ground", "SpreadAtMiddle"]


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
        return found if beta is None else found + beta.map(_negative).dot(self.excess)


@dataclass(frozen=True, slots=True)
class Ground:
    """The first activation of a network: its planes, the layer before it, and the boxes."""

    weights: Weights
    planes: Folded  # with the means at the middle of the boxes in the constants
    spread: SpreadAtMiddle | None  # None if the weights are not random
    underflow: Tensor  # (batch, 1)
    middle: Tensor  # (batch, n_in): of the boxes
    half: Tensor  # (batch, n_in): at least half the widths

    def __getitem__(self, at: Tensor) -> Ground:
        """The same for some of the boxes, if all of them have the same weights."""
        tensors = self.underflow[at], self.middle[at], self.half[at]
        spread = None if self.spread is None else of_boxes(self.spread, at)
        return Ground(self.weights, of_boxes(self.planes, at), spread, *tensors)

    def least(self, rows: Rows, constant: Tensor) -> Tensor:  # constant (batch, rows)
        """What ``rows . E z + constant`` is at least on the boxes, z after the activation: (batch, rows)."""
        return self.least_before(self.planes.apply(rows, constant))

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


def _negative(values: Tensor) -> Tensor:
    return values.clamp_max(0)
