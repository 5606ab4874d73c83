"""The paper's partition method behind the protocol: means of the outputs and of their softmax, no moments of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bnndp.engine.protocol import BranchablePass, Margins, Planes, both_signs, finite, known
from bnndp.errors import InputError
from bnndp.geometry.bounds import Affine, Interval
from bnndp.geometry.box import Box, apply_rows
from bnndp.maths.rounding import TINY, gamma
from bnndp.network import BayesianNetwork
from bnndp.paper import recursion, softmax


@dataclass(frozen=True, eq=False)
class PaperPass:
    """Bounds by Algorithms 1 to 4 of the paper on the boxes; ``mass`` and ``cells`` are options of the method."""

    name: ClassVar[str] = "partition"
    moments: ClassVar[bool] = False
    tailed: ClassVar[bool] = False
    costly_tails: ClassVar[bool] = False
    branchable: ClassVar[BranchablePass | None] = None

    network: BayesianNetwork  # of Linear and Relu, without a shift
    box: Box
    mass: float
    cells: int

    @property
    def random(self) -> bool:
        """Whether any layer has a variance."""
        return self.network.random

    @property
    def gaussian(self) -> bool:
        """Whether nothing is random before the last layer."""
        return not any(layer.random for layer in self.network.layers[:-1])

    def affine(self, rows: Tensor) -> Planes:
        """Sums of the functions below every output and below its negative, the only ones that the method knows."""
        found = recursion.bound(self.network, self.box, mass=self.mass, cells=self.cells)
        low, high = found.lower, found.upper
        plane = finite(Affine(torch.cat([low.matrix, -high.matrix], 1), torch.cat([low.offset, -high.offset], 1)))
        if not torch.equal(rows, both_signs(self.network.n_out, self.box)):
            plane = finite(_sums(plane, torch.cat([rows.clamp_min(0), (-rows).clamp_min(0)], -1), self.box))
        least = known(self.box.minimum(plane.matrix, plane.offset))
        return Planes(plane, least, (self.name,) * self.box.batch)

    def least(self, rows: Tensor) -> Tensor:
        """The least values of these functions."""
        return self.affine(rows).least

    def variance(self, rows: Tensor, at: Tensor | None = None) -> Tensor:
        """Refused: the method knows means only."""
        raise InputError("method 'partition' bounds the mean only; use method 'moment'.")

    def output_variance(self) -> Interval:
        """Refused: the method knows means only."""
        raise InputError("method 'partition' bounds the mean only; use method 'moment'.")

    def tails(self, at: Tensor, label: Tensor, margins: Margins) -> Tensor:
        """None are known."""
        return torch.ones_like(margins.mean)

    def softmax(self, rows: Tensor) -> Tensor | None:
        """By the partition of the logits."""
        return softmax.bound_rows(self.network, self.box, rows, cells=self.cells)


def _sums(plane: Affine, weights: Tensor, box: Box) -> Affine:
    """Sums of the functions with weights >= 0 (rows, n) or (batch, rows, n), rounded down on the boxes."""
    weights = weights.expand(plane.offset.shape[0], -1, -1)
    most = box.centre.abs() + box.half
    size = apply_rows(plane.matrix.abs(), most) + plane.offset.abs()  # (batch, n)
    lost = gamma(2 * weights.shape[-1] + 2 * box.n + 8) * apply_rows(weights, size) + TINY
    return Affine(weights @ plane.matrix, apply_rows(weights, plane.offset) - lost)
