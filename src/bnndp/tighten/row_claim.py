r"""A row of the mean outputs as a claim: :math:`a\cdot\mathbb Ef(x)>t` for every x of a box (``branching.py``).

The row is carried to x with slopes of its own. Where the plane that comes out is above t nothing is left to prove: a
cell is bounded again, or cut, on the half-space of the other x only (as with the output constraints of Kotha et al.
2023), on which the ranges of all layers are shorter. Deep cells keep the ranges of the cell that they were cut from:
one row costs a fraction of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.engine.protocol import BranchablePass, Slopes, known
from bnndp.geometry.bounds import Interval
from bnndp.geometry.half_space import HalfSpace
from bnndp.maths.rounding import gamma
from bnndp.tighten.branching import Branching, Cells, largest
from bnndp.tighten.slopes import climb
from bnndp.tighten.unproved_points import POSITIVE, deeper, not_above, worthwhile

__all__ = ["RowClaim"]

_LEAST = 1e-6  # what is missing counts as, when a cell is asked for again
_BELOW = 1e-9  # how far below the bound of a row a level is to be, where that is enough
_FEW = 8  # neurons of a layer whose ranges are bounded anew on a cell


@dataclass(frozen=True, slots=True)
class _State:
    """What is known of cells, for the cells that they are cut into."""

    level: Tensor  # (cells,): what the row is to be above
    reached: Tensor  # (cells,): the best lead so far
    cut: HalfSpace  # the x that are left
    ranges: tuple[Interval, ...]  # of the means before each activation
    costly: tuple[Tensor, ...]  # (cells, n) each: the neurons whose range costs the row most
    slopes: Sequence[Tensor]  # (cells, 1, n) each

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        ends = [end for each in self.ranges for end in (each.lower, each.upper)]
        return (self.level, self.reached, self.cut.normal, self.cut.level, *ends, *self.costly, *self.slopes)

    @classmethod
    def of(cls, tensors: Sequence[Tensor], layers: int) -> _State:
        level, reached, normal, edge, *others = tensors
        ends, costly, slopes = others[: 2 * layers], others[2 * layers : 3 * layers], others[3 * layers :]
        ranges = tuple(Interval(low, high) for low, high in zip(ends[::2], ends[1::2], strict=True))
        return cls(level, reached, HalfSpace(normal, edge), ranges, tuple(costly), slopes)

    def begin(self, cells: BranchablePass, rows: Tensor) -> Slopes | None:
        """The slopes found before, for rows on these cells; None: there is no choice."""
        usual = cells.slopes(rows)
        return None if usual is None else usual[0].map(self.slopes)


@dataclass(frozen=True, slots=True)
class RowClaim:
    """That ``rows . E f > level``: a row on a box for each claim. The value of a cell is the lead up to ``POSITIVE``.

    ``lower`` gives lower levels (cells,) that are enough at the x of cells of the claims (cells,), where not all x of a
    box are left: as low as the bound of the row if it can, and no higher than the level so far.
    """

    bounds: BranchablePass
    box: Tensor  # (claims,): which one of the pass
    rows: Tensor  # (claims, 1, outputs)
    level: Tensor  # (claims,)
    how: Branching
    lower: Callable[[BranchablePass, Tensor, Interval], Tensor] | None = None

    @property
    def widths(self) -> Sequence[int]:
        """Numbers of neurons of the hidden layers."""
        return self.bounds.widths

    def used(self, cells: Tensor) -> Tensor:  # (claims,) -> (boxes, 2)
        """How many bounds of hidden values and of rows are behind what so many cells of each claim have proved."""
        rows = torch.zeros(self.bounds.box.batch, dtype=torch.int64, device=cells.device).index_add(0, self.box, cells)
        return torch.stack([2 * _FEW * len(self.widths) * rows, rows], -1)

    def on_cells(
        self, owner: Tensor, signs: tuple[Tensor, ...], before: tuple[Tensor, ...] | None, *, last: bool
    ) -> Cells:
        """By the plane of the row, on what the plane of the larger cell has left of it."""
        if before is None:
            return self._bounded(owner, signs, None)
        return self._bounded(owner, signs, _State.of(before, len(self.widths)), last=last)

    def _bounded(self, owner: Tensor, signs: tuple[Tensor, ...], parent: _State | None, *, last: bool = False) -> Cells:
        """The bounds on cells, by so many steps of the slopes from those of the larger cells."""
        rows, level, begin = self.rows[owner], self.level[owner], None
        if parent is None:
            cells = self.bounds.restricted(self.box[owner], signs)
        else:
            cells = self.bounds.restricted(self.box[owner], signs, parent.cut, parent.ranges, parent.costly)
            level, begin = parent.level, parent.begin(cells, rows)
        steps = self.how.first if parent is None else self.how.last if last else self.how.steps
        planes, slopes = climb(cells, rows, steps, self.how.deadline, begin)
        with torch.no_grad():
            level = self._lower_level(cells, owner, signs, level, planes.least[:, 0])
            scores = _scores(cells, rows, slopes)
            layer, neuron = largest(scores, owner)
            lowered = -level - gamma(8) * (level.abs() + planes.least[:, 0].abs())
            reached = known(planes.least[:, 0] + lowered)
            cut = not_above(planes.affine, lowered[:, None], reached[:, None].max(-1), 0.0)
            cut = deeper(cut, None if parent is None else parent.cut, cells.box)
            again = worthwhile(reached, None if parent is None else parent.reached, _LEAST)
            top = reached if parent is None else torch.maximum(reached, parent.reached)
            value = torch.where(cells.empty, POSITIVE, top.clamp_max(POSITIVE))  # more is not known of all other x
        costly = tuple(_most(each) for each in scores)
        state = _State(level, top, cut, cells.ranges_of_means, costly, [] if slopes is None else slopes.tensors)
        return Cells(value, layer, neuron, again, state.tensors)

    def _lower_level(
        self, cells: BranchablePass, owner: Tensor, signs: tuple[Tensor, ...], level: Tensor, least: Tensor
    ) -> Tensor:
        """The level on cells, lower where that may decide: where the row is positive, but not above the level."""
        at = ((least > 0) & ~(least > level)).nonzero()[:, 0]
        if self.lower is None or at.numel() == 0:
            return level
        ranges = tuple(Interval(each.lower[at], each.upper[at]) for each in cells.ranges_of_means)
        cut = None if cells.cut is None else cells.cut[at]
        some = self.bounds.restricted(self.box[owner[at]], tuple(sign[at] for sign in signs), cut, ranges)
        between = Interval(least[at] - _BELOW * (1 + least[at].abs()), level[at])
        return level.index_copy(0, at, torch.fmin(level[at], self.lower(some, owner[at], between)))


def _scores(cells: BranchablePass, rows: Tensor, slopes: Slopes | None) -> list[Tensor]:
    """What unknown signs cost the rows, by layer: (cells, n) each."""
    if slopes is None:
        return [torch.full_like(each.lower, -torch.inf) for each in cells.ranges_of_means]
    return cells.branching_scores(rows, slopes, rows.new_zeros(len(rows), dtype=torch.int64))


def _most(scores: Tensor) -> Tensor:  # (cells, n)
    """The few neurons that cost most."""
    best = scores.topk(min(_FEW, scores.shape[1]))
    return torch.zeros_like(scores, dtype=torch.bool).scatter(1, best.indices, best.values > 0)
