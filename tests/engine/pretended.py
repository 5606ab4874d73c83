"""A pass whose answers are given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from bnndp.engine.protocol import Margins, Planes
from bnndp.geometry.bounds import Affine, Interval
from bnndp.geometry.box import Box

F64 = torch.float64


@dataclass(frozen=True)
class Pretended:
    """``matrix x + offset`` below every row, whichever they are; and whatever else is given."""

    box: Box
    offset: Any  # (rows,) or (batch, rows)
    matrix: Tensor | float = 0.0  # (batch, rows, n) or one number
    name: str = "moment"
    moments: bool = True
    probabilities: Tensor | None = None

    random: ClassVar[bool] = True
    gaussian: ClassVar[bool] = False
    tailed: ClassVar[bool] = False
    costly_tails: ClassVar[bool] = False
    branchable: ClassVar[None] = None

    def affine(self, rows: Tensor) -> Planes:
        offset = torch.as_tensor(self.offset, dtype=F64).expand(self.box.batch, rows.shape[-2])
        matrix = torch.as_tensor(self.matrix, dtype=F64).expand(*offset.shape, self.box.n)
        least = self.box.minimum(matrix, offset)
        return Planes(Affine(matrix, offset), least, (self.name,) * self.box.batch)

    def least(self, rows: Tensor) -> Tensor:
        return self.affine(rows).least

    def variance(self, rows: Tensor, at: Tensor | None = None) -> Tensor:
        return torch.ones_like(rows[..., 0] if at is not None else self.least(rows))

    def output_variance(self) -> Interval:
        raise NotImplementedError

    def tails(self, at: Tensor, label: Tensor, margins: Margins) -> Tensor:
        return torch.ones_like(margins.mean)

    def softmax(self, rows: Tensor) -> Tensor | None:
        return self.probabilities
