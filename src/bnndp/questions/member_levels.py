r"""Rows of the expected softmax of a mixture by branching: a level for every mean margin of every member.

A row of the mean over members is :math:`\sum_kw_kA\cdot\mathbb Ep_k`, and all bounds of :math:`A\cdot\mathbb Ep_k` rise
in the mean margins :math:`M_{ki}` of member k (``from_margins.py``). So lower bounds :math:`M_{ki}(x)\ge t_{ki}` for
all members, rivals and x of a box bound the rows on the box. Each is a claim about one row of the outputs of one
member, proved on cells of its own (``tighten/row_claim.py``): signs of neurons of other members have no part in it.
Where a worst x of one member is nearly one of the others, as for networks that were trained alike, little is lost by
taking each at its own.

Which levels to try is a guess, and whatever is proved holds. What is known at first, :math:`l_{ki}`, is raised by the
same share of its distance to the value at a point of the box where :math:`M_{ki}` is small, and the share is the least
for which the rows are positive. A claim that fails leaves a lower level that its cells have proved; in the next round
it is asked again, with more cells, and the others are to make up for what it can hardly reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bnndp.engine.margins import margin_rows
from bnndp.engine.mixture import Mixture
from bnndp.geometry.box import Box
from bnndp.maths.rounding import TINY, gamma
from bnndp.questions.margin_levels import Known, least_level, margin_planes
from bnndp.questions.margin_threshold import CUT
from bnndp.tighten.branching import Branching, branch
from bnndp.tighten.hidden_ranges import with_optimised_ranges
from bnndp.tighten.row_claim import RowClaim

__all__ = ["branched_mixture_rows"]

_ROUNDS, _MORE = 3, 4  # of claims, and times as many cells from each to the next
_LESS = 2  # times fewer in the first
_GAIN = 0.5  # of what is not known: what a claim that has failed may gain in the next round
_MOST = 0.98  # of what is not known: more is hardly ever proved


@dataclass(frozen=True, slots=True)
class _Member:
    """What is known of a member on the boxes, and about how small its margins get."""

    weight: float
    known: Known
    lowest: Tensor  # (batch, classes)
    proved: Tensor  # (batch, classes): the margins are at least this
    reach: Tensor  # (batch, classes): no more is asked of them

    def level(self, share: Tensor) -> Tensor:  # (batch,) -> (batch, classes)
        """What is asked for: this share of what is not known, where it is within reach."""
        least = self.known.margins.mean[:, 0]
        asked = least + share[:, None] * (self.lowest - least).clamp_min(0)
        return torch.maximum(self.proved, torch.minimum(self.reach, asked))

    def rows_at(self, mean: Tensor) -> Tensor:  # (batch, classes) -> (batch, rows)
        """Times the weight."""
        return self.weight * self.known.rows_at(mean)

    def after(self, level: Tensor, open_: Tensor, how: Branching) -> _Member:
        """With what is proved of the levels (batch, classes) on the boxes that are open (batch,)."""
        known, classes = self.known, level.shape[1]
        box, rival = (open_[:, None] & (level > self.proved)).nonzero().unbind(-1)
        if box.numel() == 0:
            return self
        pairs, asked = margin_rows(known.label[:, None], classes), level[box, rival]
        claim = RowClaim(known.bounds, box, pairs[box, rival][:, None], asked, how)
        lead = branch(claim, torch.arange(box.numel(), device=box.device), how).least.clamp_max(0)
        found = asked + lead - gamma(8) * (asked.abs() + lead.abs())
        proved, reach = self.proved.clone(), self.reach.clone()
        proved[box, rival] = torch.fmax(found, proved[box, rival])
        more = proved + _GAIN * (self.lowest - known.margins.mean[:, 0]).clamp_min(0)
        reach[box, rival] = torch.where(lead < 0, more[box, rival], reach[box, rival])
        return replace(self, proved=proved, reach=reach)


def branched_mixture_rows(passes: Mixture, rows: Tensor, label: Tensor, how: Branching) -> Tensor:
    """Lower bounds (batch, rows) of the rows (batch, rows, classes); minus infinity where nothing was proved."""
    members = _members(passes, rows, label, how)
    if not members:
        return torch.full_like(rows[..., 0], -torch.inf)
    rivals = torch.nn.functional.one_hot(rows.argmin(-1), rows.shape[-1]).bool()  # (batch, rows, classes)
    for cells in (max(2, how.cells // _LESS) * _MORE**number for number in range(_ROUNDS)):
        proved = _sum([each.rows_at(each.proved) for each in members]) > CUT
        done = ~(rivals & ~proved[..., None]).any(1)  # (batch, classes): no row asks for more of them
        members = [replace(each, reach=torch.where(done, each.proved, each.reach)) for each in members]
        share = _least_share(members)
        open_ = (share <= _MOST) & ~proved.all(-1)
        if not bool(open_.any()) or how.deadline.passed:
            break
        for k, member in enumerate(members):
            members[k] = member.after(member.level(share), open_, replace(how, cells=cells))
            open_ &= _enough(members, torch.full_like(share, _MOST))
    return _sum([each.rows_at(each.proved) for each in members])


def _members(passes: Mixture, rows: Tensor, label: Tensor, how: Branching) -> list[_Member]:
    """What one pass and optimised slopes say of every member; none if one of them cannot be branched."""
    found, points, box = list[_Member](), list[Tensor](), passes.box
    for part in passes.one_by_one():
        bounds = part.bounds.branchable if part.bounds.moments else None
        if bounds is None:
            return []
        bounds = with_optimised_ranges(bounds, how.first, how.deadline)
        planes = margin_planes(bounds, label, rows.shape[-1], how)
        corners = torch.where(planes.affine.matrix > 0, box.lower[:, None], box.upper[:, None])
        points.append(torch.cat([box.centre[:, None], corners], 1))
        known = replace(
            Known.of(bounds, rows, label, planes), middles=None
        )  # too many levels are tried for joint leads
        least = known.margins.mean[:, 0]
        reach = torch.full_like(least, torch.inf).masked_fill(known.own, 0.0)
        found.append(_Member(float(part.weights), known, least, least, reach))
    count = points[0].shape[1]
    pairs = margin_rows(label.repeat_interleave(count)[:, None], rows.shape[-1])
    for k, (member, at) in enumerate(zip(found, points, strict=True)):
        point = Box(at.flatten(0, 1), at.flatten(0, 1))
        part = next(part for i, part in enumerate(replace(passes, box=point).one_by_one()) if i == k)
        lowest = part.bounds.least(pairs).unflatten(0, (-1, count)).amin(1)
        found[k] = replace(member, lowest=lowest.nan_to_num(-torch.inf))
    return found


def _sum(values: Sequence[Tensor]) -> Tensor:  # (batch, rows) each
    """The sum over members, rounded down."""
    each = torch.stack(list(values))
    return each.sum(0) - gamma(2 * len(values) + 32) * each.abs().sum(0) - TINY


def _enough(members: Sequence[_Member], share: Tensor) -> Tensor:  # (batch,) both
    """Whether the rows are positive if this share of what is not known is proved."""
    return (_sum([each.rows_at(each.level(share)) for each in members]) > CUT).all(-1)


def _least_share(members: Sequence[_Member]) -> Tensor:  # (batch,)
    """About the least share for which all rows are positive; infinite where none is enough."""
    none = torch.zeros_like(members[0].lowest[:, 0])
    return least_level(lambda share: _enough(members, share), none, none + 1)
