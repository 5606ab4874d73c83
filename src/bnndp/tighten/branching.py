r"""Branching on the signs of mean pre-activations: on each cell a neuron is known to be on one side of zero.

Where a mean M_i(x) may have either sign on the box, the chord above :math:`g(M_i,\rho)` is loose by up to its height at
zero. On the cell of the x with :math:`M_i(x)\ge0`, and on that with :math:`M_i(x)\le0`, the range of M_i is halved and
the relaxation is nearly exact, while the sign enters the bound through a multiplier (``engine/protocol.Slopes``). The
cells cover the box, so the least bound over them holds on the whole box. For nearly deterministic networks this is
branch and bound as in beta-CROWN (Wang et al. 2021), here for the mean of a Bayesian network.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from bnndp.deadline import Deadline
from bnndp.engine.chunks import Pace, device_size

_MANY = 2**14  # open cells, on a CPU


@dataclass(frozen=True, slots=True)
class Branching:
    """How far to go: at most ``cells`` cells per box, ``chunk`` of them at a time.

    The ascent on a whole box takes ``first`` steps, that on a cell ``steps``: it begins where that of the larger cell
    ended. On a cell on which nothing is left to cut it takes ``last`` steps more.
    """

    cells: int
    first: int
    steps: int
    chunk: int
    deadline: Deadline
    last: int = 30


@dataclass(frozen=True, slots=True)
class Cells:
    """What was found on some cells, and the neuron to cut next."""

    value: Tensor  # (cells,): what is claimed is at least this there; infinite on empty cells
    layer: Tensor  # (cells,): hidden layer of the neuron to cut, -1 where there is none left
    neuron: Tensor  # (cells,)
    again: Tensor  # (cells,): whether the same cells are to be bounded once more before they are cut
    state: tuple[Tensor, ...]  # (cells, ...) each: what the claim needs to know on the cells that these are cut into

    def __getitem__(self, index: Tensor | slice) -> Cells:
        state = tuple(tensor[index] for tensor in self.state)
        return Cells(self.value[index], self.layer[index], self.neuron[index], self.again[index], state)


class Claim(Protocol):
    """Something that is to be positive on the boxes of a pass, and is bounded on cells of them."""

    @property
    def widths(self) -> Sequence[int]:
        """Numbers of neurons of the hidden layers."""
        ...

    def on_cells(
        self, owner: Tensor, signs: tuple[Tensor, ...], before: tuple[Tensor, ...] | None, *, last: bool
    ) -> Cells:
        """The bounds on cells of the boxes ``owner`` (cells,), signs (cells, n) of -1, 0 and 1 for each hidden layer.

        ``before`` is the state of the cells from which they were cut, or of the same cells; None: they are whole boxes.
        ``last``: there is nothing left to cut, and these cells are not asked for again.
        """
        ...


@dataclass(frozen=True, slots=True)
class Branched:
    """What was found on boxes, by cells of them."""

    least: Tensor  # (batch,): what is claimed is at least this
    cells: Tensor  # (batch,): how many were bounded; the same ones count every time


def branch(
    claim: Claim,
    boxes: Tensor,  # (batch,), the indices 0, 1, ...
    how: Branching,
    together: Tensor | None = None,  # (batch,)
) -> Branched:
    """A lower bound of what is claimed on each box.

    Cells that are decided are not cut, and a box is left alone once all its cells are. The worst cells are cut first, a
    chunk at a time; the newest where very many are open. Of boxes with the same number in ``together`` all are asked
    for: when one of them is given up, so are the others. When the deadline passes, cells that were to be cut stay as
    they are.
    """
    group = boxes if together is None else together.unique(return_inverse=True)[1]
    search = _Search.of(boxes, group, claim, how)
    while not how.deadline.passed and search.step():
        pass
    return Branched(search.result(), search.asked)


@dataclass(frozen=True, slots=True)
class _Block:
    """Cells that were bounded together."""

    owner: Tensor  # (cells,)
    signs: tuple[Tensor, ...]  # (cells, n) each, of -1, 0 and 1
    found: Cells | None  # None: of whole boxes, nothing yet
    worst: float = -math.inf  # the least value, about

    @property
    def count(self) -> int:
        """How many cells."""
        return self.owner.shape[0]

    def __getitem__(self, index: Tensor | slice) -> _Block:
        found = None if self.found is None else self.found[index]
        return _Block(self.owner[index], tuple(every[index] for every in self.signs), found, self.worst)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All of what is known."""
        found = self.found
        known = () if found is None else (found.value, found.layer, found.neuron, found.again, *found.state)
        return (self.owner, *self.signs, *known)

    @classmethod
    def joined(cls, blocks: Sequence[_Block]) -> _Block:
        """The cells of blocks that know as much."""
        if len(blocks) == 1:
            return blocks[0]
        owner, *others = (torch.cat(same) for same in zip(*(block.tensors for block in blocks), strict=True))
        layers = len(blocks[0].signs)
        signs, known = tuple(others[:layers]), others[layers:]
        if not known:
            return cls(owner, signs, None)
        value, layer, neuron, again, *state = known
        return cls(owner, signs, Cells(value, layer, neuron, again, tuple(state)))

    def parts(self) -> _Block:
        """The cells to be bounded next, with what is known of those that they are cut from: the same again, or both."""
        if self.found is None:
            return self
        again, cut = self.found.again.nonzero()[:, 0], (~self.found.again).nonzero()[:, 0]
        sides = [self[cut]._side(self.found[cut], side) for side in (-1, 1)]
        return _Block.joined([self[again], *sides])

    def _side(self, found: Cells, side: int) -> _Block:
        """The part of each cell on one side of the neuron to cut."""
        signs = []
        for k, every in enumerate(self.signs):
            here = torch.arange(every.shape[1], device=every.device) == found.neuron[:, None]
            here &= (found.layer == k)[:, None]
            signs.append(torch.where(here, side, every).to(torch.int8))
        return _Block(self.owner, tuple(signs), found)


@dataclass(slots=True)
class _Search:
    """The cells of some boxes while they are cut."""

    claim: Claim
    how: Branching
    pace: Pace
    group: Tensor  # (batch,): boxes that are given up together
    least: Tensor  # (batch,): over the cells that are done
    count: Tensor  # (batch,): of cells that are not to be cut, and of all cuts to be made
    asked: Tensor  # (batch,): of cells that were bounded
    lost: Tensor  # (batch,): boxes that are given up
    open: list[_Block]  # cells to be bounded again or to be cut, the newest last
    waiting: list[_Block]  # cells on which nothing is left to cut

    @classmethod
    def of(cls, boxes: Tensor, group: Tensor, claim: Claim, how: Branching) -> _Search:
        """Before anything is bounded."""
        signs = tuple(torch.zeros(boxes.shape[0], n, dtype=torch.int8, device=boxes.device) for n in claim.widths)
        least = torch.full(boxes.shape, torch.inf, dtype=torch.float64, device=boxes.device)
        lost = torch.zeros_like(boxes, dtype=torch.bool)
        pace = Pace.of(how.chunk, boxes.device, how.deadline)
        one, none = torch.ones_like(boxes), torch.zeros_like(boxes)
        return cls(claim, how, pace, group, least, one, none, lost, [_Block(boxes, signs, None)], [])

    def step(self) -> bool:
        """Bound a chunk of cells; whether there was one."""
        whole = bool(self.open) and self.open[-1].found is None
        block, last = self._taken(self.open, self.pace.size if whole else max(1, self.pace.size // 2)), False
        if block is None:
            block, last = self._taken(self.waiting, self.pace.size), True
        if block is None:
            return False
        new = block if last else block.parts()
        before = None if new.found is None else new.found.state
        with self.pace.timed(new.count):
            self.asked = self.asked + torch.bincount(new.owner, minlength=len(self.asked))
            found = self.claim.on_cells(new.owner, new.signs, before, last=last)
            self._sort(_Block(new.owner, new.signs, found), found, last=last)
        return True

    def _taken(self, blocks: list[_Block], most: int) -> _Block | None:
        """The next cells, but for those of boxes that are given up; None: there are none."""
        taken, count = list[_Block](), 0
        if sum(block.count for block in blocks) <= device_size(_MANY, self.group.device):
            blocks.sort(key=lambda block: block.worst, reverse=True)
        while blocks and count < most and (not taken or (taken[0].found is None) == (blocks[-1].found is None)):
            block = blocks.pop()
            lost = self.lost[block.owner]
            if bool(lost.any()):
                self._settle(block[lost.nonzero()[:, 0]])
                block = block[(~lost).nonzero()[:, 0]]
            rest = block.count - (most - count)
            if rest > 0:
                blocks.append(block[:rest])
                block = block[rest:]
            if block.count:
                taken.append(block)
                count += block.count
        return _Block.joined(taken) if taken else None

    def _sort(self, block: _Block, found: Cells, *, last: bool) -> None:
        """By what is to be done with the cells of a block."""
        open_ = ~(found.value > 0)
        stuck = open_ & (found.again if last else ~found.again & (found.layer < 0))
        if last:
            self._give_up(block.owner[open_ & ~stuck])
            open_ = stuck
        self._settle(block[(~open_).nonzero()[:, 0]])
        cut = open_ & ~found.again & ~stuck
        wanted = torch.bincount(block.owner[cut], minlength=len(self.count))
        self.count = self.count + wanted
        self._give_up((self.count > self.how.cells).nonzero()[:, 0])
        for where, blocks in ((stuck, self.waiting), (open_ & ~stuck, self.open)):
            at = where.nonzero()[:, 0]
            if at.numel():
                left = block[at]
                blocks.append(replace(left, worst=float(found.value[at].nan_to_num(-torch.inf).amin())))

    def _give_up(self, boxes: Tensor) -> None:
        """These boxes, and those that are asked for together with them."""
        if boxes.numel():
            lost = torch.zeros_like(self.lost).index_fill(0, self.group[boxes], value=True)
            self.lost = self.lost | lost[self.group]

    def _settle(self, block: _Block) -> None:
        """Nothing more is asked of these cells."""
        value = torch.full_like(self.least[block.owner], -torch.inf) if block.found is None else block.found.value
        self.least = self.least.scatter_reduce(0, block.owner, value, "amin")

    def result(self) -> Tensor:
        """The least bound over the cells of each box."""
        for block in (*self.open, *self.waiting):
            self._settle(block)
        return self.least


def largest(scores: list[Tensor], worst: Tensor) -> tuple[Tensor, Tensor]:
    """The layer and index of the neuron with the largest score; -1 where none is positive."""
    best = torch.cat(scores, -1).max(-1)
    offsets = torch.tensor([0, *(s.shape[1] for s in scores)], device=worst.device).cumsum(0)
    layer = torch.bucketize(best.indices, offsets[1:], right=True)
    neuron = best.indices - offsets[layer]
    return torch.where(best.values > 0, layer, -1), neuron
