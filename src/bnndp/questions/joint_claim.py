r"""A decision of a mixture as a claim to be proved on cells of known signs, for all margins and members at one x.

A row :math:`A\cdot\mathbb Ep` of the expected softmax is at least :math:`\sum_kw_k(\alpha_k+\sum_i\beta_{ki}M_{ki}(x))`
with lines in the mean margins :math:`M_{ki}` of the members on their ranges (``softmax_sums.py``). That is one row of
the outputs of all members (``engine/side_by_side.py``): its planes are carried to x together, and their slopes are
chosen for it, so that no margin is taken at a worst x of its own.

**Only where the claim may fail.** Lines are tight on short ranges. Let :math:`B_k\le A\cdot\mathbb Ep_k` be what is
known of the members by themselves. If the bound of member k is more than
:math:`(\ell-\sum_{l\ne k}w_lB_l)/w_k` whenever its largest rival is at least g behind, then
:math:`A\cdot\mathbb Ep>\ell` at every x with :math:`M_{kj}(x)\ge g`. All others have :math:`M_{kj}(x)<g`, so the lines
need to hold up to g only, and :math:`A\cdot\mathbb Ep\ge\min(\ell,\text{bound})` everywhere.

**Only the x that are left.** A line carried to x is a plane :math:`\pi(x)\le A\cdot\mathbb Ep(x)`. Where it is
positive nothing is left to prove, so a cell is bounded again, or cut, with the half-space :math:`\pi(x)\le\epsilon`: on
it the ranges of all layers are shorter (as with the output constraints of Kotha et al. 2023). The mean over members is
positive where all of them are, so of a mixture only the x are asked about at which some member may be behind, one claim
for each. A single network needs no lines: each of its margins must be above a level (``margin_levels.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bnndp.engine.margins import by_class, margin_rows
from bnndp.engine.side_by_side import SideBySide
from bnndp.geometry.half_space import HalfSpace
from bnndp.maths.rounding import ELEMENTARY, TINY, gamma
from bnndp.questions.known_margins import KnownMargins, for_members, row_bound
from bnndp.questions.margin_threshold import CUT, POSITIVE, threshold
from bnndp.questions.member_lines import as_rows, lines_of_members
from bnndp.questions.softmax_lines import SHARES
from bnndp.tighten.branching import Branching, Cells, costliest
from bnndp.tighten.slopes import climb
from bnndp.tighten.unproved_points import deeper, not_above, worthwhile

ENOUGH = 0.01
"""More than this of a row need not be proved: the number l above."""
_CLEAR = 1e-9  # by which a member must be above what is needed


@dataclass(frozen=True, slots=True)
class _State:
    """What is known of cells, for the cells that they are cut into."""

    reached: Tensor  # (cells,): the best of the lines so far
    cut: HalfSpace  # the x of a cell that are still asked about
    margins: list[Tensor]  # (cells, members * classes) four times for each group
    slopes: list[Tensor]  # (cells, shares, n) each

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.reached, self.cut.normal, self.cut.level, *self.margins, *self.slopes)

    @classmethod
    def of(cls, tensors: Sequence[Tensor], groups: int) -> _State:
        reached, normal, level, *others = tensors
        return cls(reached, HalfSpace(normal, level), others[: 4 * groups], others[4 * groups :])


@dataclass(frozen=True, slots=True)
class JointClaim:
    """That a row of the expected softmax is positive on each box of a mixture."""

    whole: SideBySide
    weights: Tensor  # (members,)
    rows: Tensor  # (batch, 1, classes)
    label: Tensor  # (batch,)
    behind: Tensor  # (batch,): the member whose own row may not be positive at the x that are asked about; -1: all x
    how: Branching

    @property
    def widths(self) -> Sequence[int]:
        """Numbers of neurons of the hidden layers."""
        return self.whole.widths

    def on_cells(self, owner: Tensor, signs: tuple[Tensor, ...], before: tuple[Tensor, ...] | None) -> Cells:
        """By the lines of the row, on what the lines of the larger cell have left of it."""
        label, rows = self.label[owner], self.rows[owner]
        known = None if before is None else _State.of(before, len(self.whole.groups))
        cells = self.whole.restricted(owner, signs, None if known is None else known.cut)
        with torch.no_grad():
            margins = self._margins(cells, label, rows, known)
            cut = None if known is None else known.cut
            if known is None:
                cut, margins = self._where_behind(cells, owner, margins)
            value, asked, constant = self.lines(cells, label, rows, margins)
            begin = None
            if known is not None and (usual := cells.slopes(asked)) is not None:
                begin = usual[0].map(known.slopes)
        steps = self.how.first if known is None else self.how.steps
        planes, slopes = climb(cells, asked, steps, self.how.deadline, begin)
        with torch.no_grad():
            lowered = constant - gamma(64) * (planes.least.abs() + constant.abs())
            lowered = torch.where(lowered.isfinite(), lowered, -torch.inf)
            reached = planes.least + lowered  # (cells, shares)
            reached = torch.where(reached.isfinite(), reached, -torch.inf)
            best = reached.max(-1)
            layer, neuron = costliest(cells, asked, slopes, best.indices)
            value = torch.maximum(value[:, 0], best.values).nan_to_num(-torch.inf, neginf=-torch.inf)
            value = value.clamp_max(POSITIVE)  # more is not known of all other x
            value = torch.where(cells.empty | _void(cells, margins), POSITIVE, value)
            cut = deeper(not_above(planes.affine, lowered, best, CUT), cut, cells.box)
            again = worthwhile(best.values, None if known is None else known.reached, ENOUGH)
            top = best.values if known is None else torch.maximum(best.values, known.reached)
        parts = [group.joined(each) for group, own in zip(cells.groups, margins, strict=True) for each in own.tensors]
        state = _State(top, cut, parts, [] if slopes is None else slopes.tensors)
        return Cells(value, layer, neuron, again, state.tensors)

    def _shares(self, cells: SideBySide) -> tuple[Tensor, ...]:
        """The weights (members,) of each group."""
        return self.weights.split([group.members for group in cells.groups])

    def _margins(self, cells: SideBySide, label: Tensor, rows: Tensor, known: _State | None) -> list[KnownMargins]:
        """What one pass says of the margins of each group, and what held on the larger cell."""
        classes, found = rows.shape[-1], list[KnownMargins]()
        for i, group in enumerate(cells.groups):
            reference, bounds = for_members(group, label)[:, None], group.bounds
            margins = margin_rows(reference, classes)
            own = reference == torch.arange(classes, device=label.device)
            ends = bounds.least(torch.cat([margins, -margins], 1))
            least, most = ends[:, :classes], (-ends[:, classes:]).masked_fill(own, 0.0)
            if known is None:
                least = torch.fmax(least, climb(bounds, margins, self.how.first, self.how.deadline)[0].least)
                here = by_class(least, bounds.variance(margins), reference)
                turned = torch.full_like(least, torch.inf)
                held = KnownMargins(here.mean[:, 0], most, here.variance[:, 0], turned)
            else:
                held = KnownMargins(*(group.spread(each) for each in known.margins[4 * i : 4 * i + 4]))
            variance = held.variance
            if bounds.random and known is not None:
                variance = torch.fmin(variance, bounds.variance(margins))
            least, most = torch.fmax(least, held.least), torch.fmin(most, held.most)
            found.append(KnownMargins(least, most, variance, held.turned))
        return found

    def _by_members(self, cells: SideBySide, rows: Tensor, label: Tensor, known: list[KnownMargins]) -> list[Tensor]:
        """Lower bounds of the members by themselves, times their weights."""
        found = []
        for group, weight, own in zip(cells.groups, self._shares(cells), known, strict=True):
            bound = row_bound(group.bounds, for_members(group, rows), for_members(group, label), own)
            found.append(weight[:, None, None] * bound.unflatten(0, (group.members, -1)))
        return found

    def lines(
        self,
        cells: SideBySide,
        label: Tensor,  # (cells,)
        rows: Tensor,  # (cells, 1, classes)
        known: list[KnownMargins],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Bounds of the rows by members alone, and lines below them in the outputs of all members.

        These are (cells, 1), rows (cells, shares, members * outputs) and their constants. Where the lines are above
        what they bound, that is above ``ENOUGH``.
        """
        each = self._by_members(cells, rows, label, known)  # of every group: (members, cells, 1)
        every = torch.cat(each)
        value = every.sum(0) - gamma(2 * len(every) + 32) * every.abs().sum(0) - TINY
        spare = [ENOUGH - (value - own) for own in each]  # what a member needs if all others are at their least
        joint, constant = list[Tensor](), rows.new_zeros(rows.shape[0], len(SHARES))
        for group, weight, own, left in zip(cells.groups, self._shares(cells), known, spare, strict=True):
            need = left / weight[:, None, None]
            part = lines_of_members(
                group, for_members(group, rows), for_members(group, label), own, need.flatten(0, 1) + _CLEAR
            )
            share = weight.repeat_interleave(rows.shape[0])
            outputs, lost = as_rows(share, part.tilt, for_members(group, label), own)
            low = share[:, None] * (part.constant - ELEMENTARY * part.size)
            low = low - lost - ELEMENTARY * low.abs()
            joint.append(group.joined(outputs))
            constant = constant + low.unflatten(0, (group.members, -1)).sum(0)
        return value, torch.cat(joint, -1), constant

    def _where_behind(
        self, cells: SideBySide, owner: Tensor, known: list[KnownMargins]
    ) -> tuple[HalfSpace | None, list[KnownMargins]]:
        """The x at which the row of the member ``behind`` may not be positive, and the margins there.

        If the rows of all members are positive, so is their mean: what is left to prove are these x for every member.
        """
        label, rows, behind = self.label[owner], self.rows[owner], self.behind[owner]
        one = torch.eye(rows.shape[-1], dtype=rows.dtype, device=rows.device)
        rival = rows[:, 0].argmin(-1)
        duel, count = one[label] - one[rival], owner.shape[0]
        asked, level, found, start = list[Tensor](), torch.full_like(rows[:, 0, 0], torch.inf), list[KnownMargins](), 0
        for group, own in zip(cells.groups, known, strict=True):
            members = torch.arange(start, start + group.members, device=label.device).repeat_interleave(count)
            mine = (members == behind.repeat(group.members))[:, None]  # (members * cells, 1)
            enough = threshold(group, for_members(group, rows), for_members(group, label), own)
            short = mine & (for_members(group, one[rival]) > 0)
            found.append(replace(own, most=torch.where(short, torch.minimum(own.most, enough), own.most)))
            level = torch.minimum(level, torch.where(mine, enough, torch.inf).unflatten(0, (-1, count)).amin(0)[:, 0])
            asked.append(group.joined(torch.where(mine, for_members(group, duel), 0.0)))
            start += group.members
        planes = climb(cells, torch.cat(asked, -1)[:, None], self.how.first, self.how.deadline)[0].affine
        normal, offset = planes.matrix[:, 0], planes.offset[:, 0]
        level = level - offset + gamma(8) * (level.abs() + offset.abs())
        fine = level.isfinite() & normal.isfinite().all(-1) & (behind >= 0)
        return HalfSpace(torch.where(fine[:, None], normal, 0.0), torch.where(fine, level, 0.0)), found


def _void(cells: SideBySide, known: list[KnownMargins]) -> Tensor:  # (cells,)
    """Cells that hold no x: the bounds of a margin cross."""
    pairs = zip(cells.groups, known, strict=True)
    each = [(own.least > own.most).any(-1).unflatten(0, (group.members, -1)).any(0) for group, own in pairs]
    return torch.stack(each).any(0)
