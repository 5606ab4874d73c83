r"""Branching on the signs of mean pre-activations: on each cell a neuron is known to be on one side of zero.

Where a mean M_i(x) may have either sign on the box, the chord above :math:`g(M_i,\rho)` is loose by up to its height at
zero. On the cell of the x with :math:`M_i(x)\ge0`, and on that with :math:`M_i(x)\le0`, the range of M_i is halved and
the relaxation is nearly exact, while the sign enters the bound through a multiplier (``engine/protocol.Slopes``). The
cells cover the box, so the least bound over them holds on the whole box. For nearly deterministic networks this is
branch and bound as in beta-CROWN (Wang et al. 2021), here for the mean of a Bayesian network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.deadline import Deadline
from bnndp.engine.chunks import timed_chunks
from bnndp.engine.margins import by_class, margin_rows
from bnndp.engine.protocol import Branchable, Margins, Slopes
from bnndp.tighten.slopes import climb

_ROWS = 3  # margins of a cell that are bounded anew: the least ones of the cell it was cut from

Value = Callable[[Margins, Tensor], Tensor]
"""The least row bound (cells,) of what is claimed, from margins (cells, 1, classes) on cells of the boxes (cells,)."""


@dataclass(frozen=True, slots=True)
class Branching:
    """How far to go: at most ``cells`` cells per box, ``steps`` of ascent on each, ``chunk`` of them at a time."""

    cells: int
    steps: int
    chunk: int
    deadline: Deadline


@dataclass(frozen=True, slots=True)
class _Cells:
    """Cells of all boxes with the bounds found on them, and the neuron to cut next."""

    owner: Tensor  # (cells,)
    signs: tuple[Tensor, ...]  # (cells, n) of -1, 0, 1 for each hidden layer
    margins: Margins  # (cells, classes)
    value: Tensor  # (cells,): least row bound; infinite on empty cells
    layer: Tensor  # (cells,): hidden layer of the neuron to cut, -1 where there is none left
    neuron: Tensor  # (cells,)

    def __getitem__(self, index: Tensor) -> _Cells:
        signs = tuple(s[index] for s in self.signs)
        return _Cells(
            self.owner[index], signs, self.margins[index], self.value[index], self.layer[index], self.neuron[index]
        )


def _joined(parts: list[_Cells]) -> _Cells:
    signs = tuple(torch.cat(same) for same in zip(*(part.signs for part in parts), strict=True))
    margins = Margins(
        torch.cat([part.margins.mean for part in parts]), torch.cat([part.margins.variance for part in parts])
    )
    owner, value, layer, neuron = (
        torch.cat([getattr(part, name) for part in parts]) for name in ("owner", "value", "layer", "neuron")
    )
    return _Cells(owner, signs, margins, value, layer, neuron)


def branch(bounds: Branchable, label: Tensor, known: Margins, value: Value, how: Branching) -> Tensor:
    """Lower bound (batch,) of the least row on each box; ``known`` (batch, 1, classes) are its margins of ``label``.

    Cells that are decided are not cut, and a box is left alone once all its cells are. When the deadline passes, cells
    that were to be cut stay as they are.
    """
    claim = _Claim(bounds, label, known.mean.shape[-1], value, how)
    batch, device = label.shape[0], label.device
    owner = torch.arange(batch, device=device)
    signs = tuple(torch.zeros(batch, n, dtype=torch.int8, device=device) for n in bounds.widths)
    leaves = claim.bounded(owner, signs, None)
    while leaves is not None:
        count = torch.bincount(leaves.owner, minlength=batch)
        hopeless = torch.bincount(leaves.owner[~(leaves.value > 0) & (leaves.layer < 0)], minlength=batch) > 0
        ready = ~(leaves.value > 0) & ~hopeless[leaves.owner]
        wanted = torch.bincount(leaves.owner[ready], minlength=batch)
        ready &= (count + wanted <= how.cells)[leaves.owner]
        if not bool(ready.any()):
            break
        cut = leaves[ready]
        halves = [_cut(cut, side) for side in (1, -1)]
        signs = tuple(torch.cat(pair) for pair in zip(*halves, strict=True))
        before = Margins(cut.margins.mean.repeat(2, 1), cut.margins.variance.repeat(2, 1))
        found = claim.bounded(cut.owner.repeat(2), signs, before)
        if found is None:
            break
        leaves = _joined([leaves[~ready], found])
    if leaves is None:
        return known.mean.new_full((batch,), -torch.inf)
    return leaves.value.new_full((batch,), torch.inf).scatter_reduce(0, leaves.owner, leaves.value, "amin")


def _cut(cells: _Cells, side: int) -> tuple[Tensor, ...]:
    """The signs of the cells with their chosen neuron set to ``side``."""
    found = []
    for k, signs in enumerate(cells.signs):
        own = (cells.layer == k)[:, None] & (torch.arange(signs.shape[1], device=signs.device) == cells.neuron[:, None])
        found.append(torch.where(own, side, signs).to(torch.int8))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Claim:
    """What is to be bounded on cells of the boxes of a pass."""

    bounds: Branchable
    label: Tensor  # (batch,)
    classes: int
    value: Value
    how: Branching

    def bounded(self, owner: Tensor, signs: tuple[Tensor, ...], before: Margins | None) -> _Cells | None:
        """The bounds on all cells, a chunk at a time; None if the deadline passes before all are known."""
        parts, done = [], 0
        for i in timed_chunks(owner.shape[0], self.how.chunk, owner.device, self.how.deadline):
            parts.append(self._chunk(owner[i], tuple(s[i] for s in signs), None if before is None else before[i]))
            done = i.stop
        return _joined(parts) if done == owner.shape[0] else None

    def _chunk(self, owner: Tensor, signs: tuple[Tensor, ...], before: Margins | None) -> _Cells:
        bounds, label = self.bounds.restricted(owner, signs), self.label[owner]
        rows = margin_rows(label[:, None], self.classes)
        classes = torch.arange(self.classes, device=label.device).expand(label.shape[0], -1)
        if before is not None:
            classes = _least(before, label)
            rows = rows.gather(1, classes[..., None].expand(-1, -1, self.classes))
        planes, slopes = climb(bounds, rows, self.how.steps, self.how.deadline)
        with torch.no_grad():
            found = Margins(planes.least, bounds.variance(rows))
            margins = _merged(before, found, classes) if before is not None else found
            margins = by_class(margins.mean, margins.variance, label[:, None])
            value = torch.where(bounds.empty, torch.inf, self.value(margins, owner).nan_to_num(-torch.inf))
        layer, neuron = _next(bounds, rows, slopes, found.mean)
        return _Cells(owner, signs, margins.reshape(owner.shape[0], -1), value, layer, neuron)


def _least(before: Margins, label: Tensor) -> Tensor:
    """The classes (cells, few) with the least margins."""
    rank = before.mean.scatter(1, label[:, None], torch.inf)
    return rank.topk(min(_ROWS, rank.shape[1]), largest=False).indices


def _merged(before: Margins, found: Margins, classes: Tensor) -> Margins:
    """What held on the larger cell, and what was found on this one."""
    mean = before.mean.scatter(1, classes, torch.maximum(found.mean, before.mean.gather(1, classes)))
    variance = before.variance.scatter(1, classes, torch.minimum(found.variance, before.variance.gather(1, classes)))
    return Margins(mean, variance)


def _next(bounds: Branchable, rows: Tensor, slopes: Slopes | None, mean: Tensor) -> tuple[Tensor, Tensor]:
    """The neuron whose sign costs the least margin most: its layer and index (cells,); -1 where all are known."""
    if slopes is None:
        nothing = torch.full_like(mean[:, 0], -1, dtype=torch.int64)
        return nothing, nothing
    own = (rows == 0).all(-1)  # the margin of a class with itself
    worst = mean.masked_fill(own, torch.inf).argmin(-1)
    scores = bounds.branching_scores(rows, slopes, worst)
    best = torch.cat(scores, -1).max(-1)
    offsets = torch.tensor([0, *(s.shape[1] for s in scores)], device=mean.device).cumsum(0)
    layer = torch.bucketize(best.indices, offsets[1:], right=True)
    neuron = best.indices - offsets[layer]
    return torch.where(best.values > 0, layer, -1), neuron
