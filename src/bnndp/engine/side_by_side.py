r"""Members of a mixture as one pass, whose outputs are those of all members, one member after the other.

A row :math:`(u_1,\dots,u_K)` stands for :math:`\sum_ku_k\cdot\mathbb Ef_k(x)`. The functions of x below the terms are
added before they are minimised, and their slopes are chosen for the sum: what is best for each member by itself is not
best for all. A cell is a conjunction of signs of neurons of any members. A single network is a mixture of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.engine.mixture import LowerSum, Mixture, of_affine
from bnndp.engine.protocol import BranchablePass, Planes, Slopes
from bnndp.geometry.bounds import Affine
from bnndp.geometry.box import Box
from bnndp.geometry.half_space import HalfSpace

__all__ = ["Group", "SideBySide", "side_by_side"]


@dataclass(frozen=True, slots=True)
class Group:
    """Members that go through a pass together: its batch holds all boxes of the first, then of the second."""

    members: int
    bounds: BranchablePass

    def spread(self, values: Tensor) -> Tensor:  # (batch, ..., members * n) -> (members * batch, ..., n)
        """What stands side by side for each box, member by member."""
        return torch.cat(values.chunk(self.members, -1))

    def joined(self, values: Tensor) -> Tensor:  # (members * batch, ..., n) -> (batch, ..., members * n)
        """The other way."""
        return torch.cat(values.chunk(self.members, 0), -1)


@dataclass(frozen=True, slots=True)
class SideBySide:
    """All members of a mixture on some boxes, or on cells of them."""

    box: Box
    outputs: int  # of each member
    groups: tuple[Group, ...]

    @property
    def members(self) -> int:
        """Of all groups."""
        return sum(group.members for group in self.groups)

    @property
    def widths(self) -> Sequence[int]:
        """Numbers of neurons of the hidden layers: of all members of a group together, group by group."""
        return [group.members * n for group in self.groups for n in group.bounds.widths]

    @property
    def empty(self) -> Tensor:
        """Cells (batch,) that provably hold no x."""
        each = [group.bounds.empty.unflatten(0, (group.members, -1)).any(0) for group in self.groups]
        return torch.stack(each).any(0)

    def restricted(self, owner: Tensor, signs: tuple[Tensor, ...], cut: HalfSpace | None = None) -> SideBySide:
        """The same on cells (cells,) of the boxes ``owner``, of which only x in the half-spaces ``cut`` are asked."""
        groups, left = [], list(signs)
        for group in self.groups:
            own = [left.pop(0) for _ in group.bounds.widths] if signs else []
            at = torch.cat([owner + k * self.box.batch for k in range(group.members)])
            cells = tuple(group.spread(sign) for sign in own)
            groups.append(
                Group(
                    group.members,
                    group.bounds.restricted(at, cells, None if cut is None else cut.repeated(group.members)),
                )
            )
        return SideBySide(self.box[owner], self.outputs, tuple(groups))

    def affine(self, rows: Tensor) -> Planes:  # (batch, rows, members * outputs)
        """Functions of x below the rows, at the usual slopes of every member."""
        names = "+".join(sorted({group.bounds.name for group in self.groups}))
        found = self._sum(rows, lambda index, own: self.groups[index].bounds.affine(own).affine)
        return Planes(found, self.box.minimum(found.matrix, found.offset), (names,) * self.box.batch)

    def slopes(self, rows: Tensor) -> tuple[Slopes, Slopes] | None:
        """Those of all members; None where no member has a choice."""
        both = [group.bounds.slopes(own) for group, own in zip(self.groups, self._own(rows), strict=True)]
        if all(each is None for each in both):
            return None
        pairs = [(_NONE, _NONE) if each is None else each for each in both]
        usual, start = (self._joined([pair[i] for pair in pairs]) for i in (0, 1))
        return usual, start

    def multiplier_scale(self, rows: Tensor) -> float:
        """The largest of all members."""
        return max(g.bounds.multiplier_scale(own) for g, own in zip(self.groups, self._own(rows), strict=True))

    def affine_at(self, rows: Tensor, slopes: Slopes) -> Affine:
        """Functions of x below the rows, with these slopes."""
        each = self._slopes_of(rows, slopes)
        return self._sum(rows, lambda index, own: self._at(index, own, each[index]))

    def least_of(self, plane: Affine) -> Tensor:
        """On the boxes."""
        return self.box.minimum(plane.matrix, plane.offset)

    def branching_scores(self, rows: Tensor, slopes: Slopes, worst: Tensor) -> list[Tensor]:
        """What an unknown sign costs: (batch, members * n) for each hidden layer of each group."""
        scores = []
        for group, own, slope in zip(self.groups, self._own(rows), self._slopes_of(rows, slopes), strict=True):
            found = group.bounds.branching_scores(own, slope, worst.repeat(group.members))
            scores += [group.joined(each) for each in found]
        return scores

    def _at(self, index: int, own: Tensor, slopes: Slopes) -> Affine:
        bounds = self.groups[index].bounds
        return bounds.affine_at(own, slopes) if slopes.tensors else bounds.affine(own).affine

    def _own(self, rows: Tensor) -> list[Tensor]:
        """The rows of each group: (members * batch, rows, outputs)."""
        parts = rows.split([group.members * self.outputs for group in self.groups], -1)
        return [group.spread(part) for group, part in zip(self.groups, parts, strict=True)]

    def _sum(self, rows: Tensor, planes: Callable[[int, Tensor], Affine]) -> Affine:
        total = LowerSum.zero(self.box, rows.shape[-2])
        for index, (group, own) in enumerate(zip(self.groups, self._own(rows), strict=True)):
            ones = rows.new_ones(group.members)
            total = total.plus(ones, of_affine(planes(index, own), group.bounds.box))
        return total.rounded()

    def _joined(self, slopes: Sequence[Slopes]) -> Slopes:
        tangents, multipliers = list[Tensor](), list[Tensor]()
        for group, each in zip(self.groups, slopes, strict=True):
            tangents += [group.joined(tensor) for tensor in each.tangents]
            multipliers += [group.joined(tensor) for tensor in each.multipliers]
        return Slopes(tangents, multipliers)

    def _slopes_of(self, rows: Tensor, slopes: Slopes) -> list[Slopes]:
        """Those of each group."""
        both, found = (list(slopes.tangents), list(slopes.multipliers)), list[Slopes]()
        for group, own in zip(self.groups, self._own(rows), strict=True):
            usual = group.bounds.slopes(own[:, :1])
            counts = (0, 0) if usual is None else (len(usual[0].tangents), len(usual[0].multipliers))
            mine, signed = ([group.spread(left.pop(0)) for _ in range(n)] for left, n in zip(both, counts, strict=True))
            found.append(Slopes(mine, signed))
        return found


_NONE = Slopes(())


def side_by_side(mixture: Mixture) -> tuple[SideBySide, Tensor] | None:
    """All members of a mixture and their weights (members,); None if one of them cannot be branched."""
    groups, weights = list[Group](), list[Tensor]()
    for part in mixture.parts():
        bounds = part.bounds.branchable if part.bounds.moments else None
        if bounds is None:
            return None
        groups.append(Group(len(part.weights), bounds))
        weights.append(part.weights)
    return SideBySide(mixture.box, mixture.outputs, tuple(groups)), torch.cat(weights)
