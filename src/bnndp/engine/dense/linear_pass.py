"""A single layer with independent weights behind the protocol: its outputs are Gaussian, with moments known exactly."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bnndp.engine.dense.output import lowered_bias, output_rows
from bnndp.engine.protocol import Planes, Wrapped, known
from bnndp.geometry.bounds import Affine, Interval
from bnndp.geometry.box import apply_rows
from bnndp.layers import Linear
from bnndp.maths.rounding import up

__all__ = ["LinearPass"]


@dataclass(frozen=True)
class LinearPass(Wrapped):
    """No hidden layer; the general pass serves for whatever is not exact here."""

    linear: Linear

    @property
    def gaussian(self) -> bool:
        """Always."""
        return True

    def affine(self, rows: Tensor) -> Planes:
        """``rows . (W x + b)``, up to the rounding of the rows."""
        outputs, box = output_rows(self.linear, rows), self.box
        matrix = outputs.weight.expand(box.batch, -1, -1)
        found = Affine(matrix, lowered_bias(outputs, Interval(box.lower, box.magnitude)).expand(box.batch, -1))
        return Planes(found, known(box.minimum(found.matrix, found.offset)), (self.name,) * box.batch)

    def least(self, rows: Tensor) -> Tensor:
        """The least values of these functions."""
        return self.affine(rows).least

    def variance(self, rows: Tensor) -> Tensor:
        """At the largest values of x."""
        outputs, box = output_rows(self.linear, rows), self.box
        found = apply_rows(outputs.variance, box.magnitude.square()) + outputs.bias_variance
        return up(found, box.n + 2 * self.linear.n_out + 8)
