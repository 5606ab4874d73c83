r"""Branching on the signs of mean pre-activations: on each cell a neuron is known to be on one side of zero.

Where a mean M_i(x) may have either sign on the box, the chord above :math:`g(M_i,\rho)` is loose by up to its height at
zero. On the cell of the x with :math:`M_i(x)\ge0`, and on that with :math:`M_i(x)\le0`, the range of M_i is halved and
the relaxation is nearly exact, while the sign enters the bound through a multiplier (``engine/protocol.Slopes``). The
cells cover the box, so the least bound over them holds on the whole box. For nearly deterministic networks this is
branch and bound as in beta-CROWN (Wang et al. 2021), here for the mean of a Bayesian network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from bnndp.deadline import Deadline
from bnndp.engine.chunks import timed_chunks


@dataclass(frozen=True, slots=True)
class Branching:
    """How far to go: at most ``cells`` cells per box, ``chunk`` of them at a time.

    The ascent on a whole box takes ``first`` steps, that on a cell ``steps``: it begins where that of the larger cell
    ended.
    """

    cells: int
    first: int
    steps: int
    chunk: int
    deadline: Deadline


@dataclass(frozen=True, slots=True)
class Cells:
    """What was found on some cells, and the neuron to cut next."""

    value: Tensor  # (cells,): what is claimed is at least this there; infinite on empty cells
    layer: Tensor  # (cells,): hidden layer of the neuron to cut, -1 where there is none left
    neuron: Tensor  # (cells,)
    again: Tensor  # (cells,): whether the same cells are to be bounded once more before they are cut
    state: tuple[Tensor, ...]  # (cells, ...) each: what the claim needs to know on the cells that these are cut into

    def __getitem__(self, index: Tensor) -> Cells:
        state = tuple(tensor[index] for tensor in self.state)
        return Cells(self.value[index], self.layer[index], self.neuron[index], self.again[index], state)

    def with_cells(self, index: Tensor, other: Cells) -> Cells:
        """With what was found anew on the cells at ``index``."""
        pairs = zip(self._tensors, other._tensors, strict=True)
        value, layer, neuron, again, *state = [old.index_copy(0, index, new) for old, new in pairs]
        return Cells(value, layer, neuron, again, tuple(state))

    @property
    def _tensors(self) -> tuple[Tensor, ...]:
        return (self.value, self.layer, self.neuron, self.again, *self.state)


class Claim(Protocol):
    """Something that is to be positive on the boxes of a pass, and is bounded on cells of them."""

    @property
    def widths(self) -> Sequence[int]:
        """Numbers of neurons of the hidden layers."""
        ...

    def on_cells(self, owner: Tensor, signs: tuple[Tensor, ...], before: tuple[Tensor, ...] | None) -> Cells:
        """The bounds on cells of the boxes ``owner`` (cells,), signs (cells, n) of -1, 0 and 1 for each hidden layer.

        ``before`` is the state of the cells from which they were cut, or of the same cells; None: they are whole boxes.
        """
        ...


def branch(
    claim: Claim,
    boxes: Tensor,  # (batch,), the indices 0, 1, ...
    how: Branching,
    together: Tensor | None = None,  # (batch,)
) -> Tensor:
    """A lower bound (batch,) of what is claimed on each box.

    Cells that are decided are not cut, and a box is left alone once all its cells are. Of boxes with the same number in
    ``together`` all are asked for: when one of them is given up, so are the others. When the deadline passes, cells
    that were to be cut stay as they are.
    """
    batch, owner = boxes.shape[0], boxes
    signs = tuple(torch.zeros(batch, n, dtype=torch.int8, device=boxes.device) for n in claim.widths)
    found = _bounded(claim, owner, signs, None, how)
    if found is None:
        return torch.full((batch,), -torch.inf, dtype=torch.float64, device=boxes.device)
    least = found.value.new_full((batch,), torch.inf)  # over the cells that are not cut
    count, groups = torch.ones_like(boxes), 0 if together is None else int(together.max()) + 1
    while True:
        open_ = ~(found.value > 0)
        again = open_ & found.again
        split = open_ & ~again
        stuck = torch.bincount(owner[split & (found.layer < 0)], minlength=batch) > 0
        wanted = torch.bincount(owner[split], minlength=batch)
        lost = stuck | (count + wanted > how.cells)
        if together is not None:
            lost = (torch.bincount(together[lost], minlength=groups) > 0)[together]
        hopeful = ~lost[owner]
        again, split = again & hopeful, split & hopeful
        parts = (again.nonzero()[:, 0], split.nonzero()[:, 0], split.nonzero()[:, 0])
        at, halves = torch.cat(parts), None
        if at.numel():
            sides = [_cut(signs, index, found, side) for index, side in zip(parts, (0, 1, -1), strict=True)]
            new = tuple(torch.cat(same) for same in zip(*sides, strict=True))
            halves = _bounded(claim, owner[at], new, tuple(s[at] for s in found.state), how)
        if halves is None:
            return least.scatter_reduce(0, owner, found.value, "amin")
        done = ~(again | split)
        least = least.scatter_reduce(0, owner[done], found.value[done], "amin")
        count = count + torch.bincount(owner[split], minlength=batch)
        owner, signs, found = owner[at], new, halves


def _cut(signs: tuple[Tensor, ...], index: Tensor, found: Cells, side: int) -> tuple[Tensor, ...]:
    """The signs of the cells at ``index`` with their chosen neuron set to ``side``; zero: as they are."""
    cells, own = found[index], [every[index] for every in signs]
    if side == 0:
        return tuple(own)
    cut = []
    for k, every in enumerate(own):
        here = (cells.layer == k)[:, None] & (
            torch.arange(every.shape[1], device=every.device) == cells.neuron[:, None]
        )
        cut.append(torch.where(here, side, every).to(torch.int8))
    return tuple(cut)


def _bounded(
    claim: Claim, owner: Tensor, signs: tuple[Tensor, ...], before: tuple[Tensor, ...] | None, how: Branching
) -> Cells | None:
    """The bounds on all cells, a chunk at a time; None if the deadline passes before all are known."""
    parts, done = list[Cells](), 0
    for i in timed_chunks(owner.shape[0], how.chunk, owner.device, how.deadline):
        known = None if before is None else tuple(s[i] for s in before)
        parts.append(claim.on_cells(owner[i], tuple(s[i] for s in signs), known))
        done = i.stop
    if done < owner.shape[0]:
        return None
    names = ("value", "layer", "neuron", "again")
    value, layer, neuron, again = (torch.cat([getattr(part, name) for part in parts]) for name in names)
    states = zip(*(part.state for part in parts), strict=True)
    return Cells(value, layer, neuron, again, tuple(torch.cat(same) for same in states))


def largest(scores: list[Tensor], worst: Tensor) -> tuple[Tensor, Tensor]:
    """The layer and index of the neuron with the largest score; -1 where none is positive."""
    best = torch.cat(scores, -1).max(-1)
    offsets = torch.tensor([0, *(s.shape[1] for s in scores)], device=worst.device).cumsum(0)
    layer = torch.bucketize(best.indices, offsets[1:], right=True)
    neuron = best.indices - offsets[layer]
    return torch.where(best.values > 0, layer, -1), neuron
