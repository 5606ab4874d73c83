r"""A row of the mean outputs as a claim: :math:`a\cdot\mathbb Ef(x)>t` for every x of a box (``branching.py``).

The row is carried to x with slopes of its own. Where the plane that comes out is above t nothing is left to prove: a
cell is bounded again, or cut, on the half-space of the other x only (as with the output constraints of Kotha et al.
2023), on which the ranges of all layers are shorter. Deep cells keep the ranges of the cell that they were cut from:
one row costs a fraction of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.engine.protocol import BranchablePass, known
from bnndp.geometry.bounds import Interval
from bnndp.geometry.half_space import HalfSpace
from bnndp.maths.rounding import gamma
from bnndp.tighten.branching import Branching, Cells, costliest
from bnndp.tighten.hidden_ranges import with_optimised_ranges
from bnndp.tighten.slopes import climb
from bnndp.tighten.unproved_points import POSITIVE, deeper, not_above, worthwhile

__all__ = ["RowClaim"]

_LAST = 100  # steps of slopes on cells without unknown signs, where nothing else is left
_LEAST = 1e-6  # what is missing counts as, when a cell is asked for again
_ANEW = 2  # neurons of known sign up to which all ranges of a cell are bounded anew


@dataclass(frozen=True, slots=True)
class _State:
    """What is known of cells, for the cells that they are cut into."""

    reached: Tensor  # (cells,): the best lead so far
    cut: HalfSpace  # the x that are left
    ranges: tuple[Interval, ...]  # of the means before each activation
    slopes: Sequence[Tensor]  # (cells, 1, n) each

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        ends = [end for each in self.ranges for end in (each.lower, each.upper)]
        return (self.reached, self.cut.normal, self.cut.level, *ends, *self.slopes)

    @classmethod
    def of(cls, tensors: Sequence[Tensor], layers: int) -> _State:
        reached, normal, level, *others = tensors
        ends, slopes = others[: 2 * layers], others[2 * layers :]
        ranges = tuple(Interval(low, high) for low, high in zip(ends[::2], ends[1::2], strict=True))
        return cls(reached, HalfSpace(normal, level), ranges, slopes)


@dataclass(frozen=True, slots=True)
class RowClaim:
    """That ``rows . E f > level`` on each box of a pass. The value of a cell is the lead, at most ``POSITIVE``."""

    bounds: BranchablePass
    rows: Tensor  # (batch, 1, outputs)
    level: Tensor  # (batch,)
    how: Branching

    @property
    def widths(self) -> Sequence[int]:
        """Numbers of neurons of the hidden layers."""
        return self.bounds.widths

    def on_cells(self, owner: Tensor, signs: tuple[Tensor, ...], before: tuple[Tensor, ...] | None) -> Cells:
        """By the plane of the row, on what the plane of the larger cell has left of it."""
        rows, level = self.rows[owner], self.level[owner]
        parent = None if before is None else _State.of(before, len(self.widths))
        deep = parent is not None and bool(torch.cat(signs, -1).abs().sum(-1).amin() > _ANEW)
        ranges = parent.ranges if parent is not None and deep else ()
        cells = self.bounds.restricted(owner, signs, None if parent is None else parent.cut, ranges)
        if parent is not None and not any(bool(each.any()) for each in signs):
            cells = with_optimised_ranges(cells, self.how.first, self.how.deadline)
        begin, steps = None, self.how.first
        if parent is not None:
            steps = self.how.steps
            if (usual := cells.slopes(rows)) is not None:
                begin = usual[0].map(parent.slopes)
        planes, slopes = climb(cells, rows, steps, self.how.deadline, begin)
        with torch.no_grad():
            layer, neuron = costliest(cells, rows, slopes, torch.zeros_like(owner))
            stuck = (layer < 0) & ~(planes.least[:, 0] > level)
        if bool(stuck.any()):
            planes, slopes = climb(cells, rows, _LAST, self.how.deadline, slopes)
        with torch.no_grad():
            lowered = -level - gamma(8) * (level.abs() + planes.least[:, 0].abs())
            reached = known(planes.least[:, 0] + lowered)
            value = torch.where(cells.empty, POSITIVE, reached.clamp_max(POSITIVE))  # more is not known of all other x
            cut = not_above(planes.affine, lowered[:, None], reached[:, None].max(-1), 0.0)
            cut = deeper(cut, None if parent is None else parent.cut, cells.box)
            again = worthwhile(reached, None if parent is None else parent.reached, _LEAST)
            again &= not deep  # on deep cells nothing but slopes would be better
            top = reached if parent is None else torch.maximum(reached, parent.reached)
        state = _State(top, cut, cells.ranges_of_means, [] if slopes is None else slopes.tensors)
        return Cells(value, layer, neuron, again, state.tensors)
