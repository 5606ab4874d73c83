"""What is known of the margins of the label on cells, and bounds of a row of the expected softmax from it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.engine.margins import gaussian_tails
from bnndp.engine.protocol import BranchablePass, Margins
from bnndp.engine.side_by_side import Group
from bnndp.maths.logistic import logistic_tail
from bnndp.maths.rounding import ELEMENTARY
from bnndp.maths.softmax import second_order_bound, union_bound

__all__ = ["KnownMargins", "for_members", "margin_tails", "row_bound"]


@dataclass(frozen=True, slots=True)
class KnownMargins:
    """Margins of the label for the members of a group: (members * cells, classes) each."""

    least: Tensor  # E D_j is at least this
    most: Tensor  # and at most this
    variance: Tensor  # Var D_j is at most this
    turned: Tensor  # Cov(f_j - (f_c + f_k) / 2, f_c - f_k) is at most this, k the rival

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """In the order of the fields."""
        return self.least, self.most, self.variance, self.turned


def for_members(group: Group, values: Tensor) -> Tensor:  # (cells, ...) -> (members * cells, ...)
    """Values of cells, repeated for each member of the group."""
    return values.repeat(group.members, *(1,) * (values.ndim - 1))


def margin_tails(bounds: BranchablePass, least: Tensor, variance: Tensor) -> Tensor:
    """Upper bounds of E sigma(-D_j) from the mean and the variance of the margins D_j."""
    found = logistic_tail(least, variance) if bounds.random else (torch.sigmoid(-least) + ELEMENTARY).clamp_max(1.0)
    return torch.minimum(found, gaussian_tails(bounds, Margins(least, variance)))


def row_bound(bounds: BranchablePass, rows: Tensor, label: Tensor, known: KnownMargins) -> Tensor:
    """Lower bounds (members * cells, rows) for each member from its margins."""
    tails = margin_tails(bounds, known.least, known.variance)
    found = torch.maximum(union_bound(rows, tails, label), second_order_bound(rows, known.least, known.variance, label))
    return torch.fmax(found, rows.amin(-1))
