r"""Splitting a box until no x of it can be unsafe: for few inputs the surest way to a decision.

On every cell, affine functions of x below :math:`a\cdot\mathbb Ef(x)` show for each polyhedron of the unsafe set that
one of its rows is above its bound. Cells on which they do not are halved, those farthest from a proof first, across the
edge along which the function that decides varies most. The cells cover the box, so that nothing is left once all of
them are proved.

The lowest points of these functions are where an unsafe x is likeliest: they are handed out, as suggestions.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bnndp.deadline import NEVER, Deadline
from bnndp.engine.mixture import plane_size
from bnndp.geometry.bounds import Affine
from bnndp.geometry.box import Box
from bnndp.geometry.unsafe_set import UnsafeSet
from bnndp.maths.rounding import TINY, gamma
from bnndp.network import Posterior
from bnndp.options import Options
from bnndp.tighten.pass_choice import chunked

__all__ = ["Cells", "Progress", "bounded", "split_until_proved"]

_MOST = 1024  # cells that are halved at a time
_SHARE, _LEAST_TIME, _GROWTH = 0.05, 0.3, 4  # of the time that is left, for a round; seconds; cells, times the last


@dataclass(frozen=True, slots=True)
class Cells:
    """Cells of a box, and what is known of them."""

    box: Box
    least: Tensor  # (cells, rows): lower bounds of the rows
    lead: Tensor  # (cells,): the least, over the polyhedra, of how far the best of their rows is above its bound
    axis: Tensor  # (cells,): the input to halve
    lowest: Tensor  # (cells, n): where the function that decides is least

    @property
    def count(self) -> int:
        """How many there are."""
        return self.lead.shape[0]

    def __getitem__(self, index: Tensor) -> Cells:
        return Cells(self.box[index], self.least[index], self.lead[index], self.axis[index], self.lowest[index])

    def joined(self, other: Cells) -> Cells:
        """Both."""
        box = Box(torch.cat([self.box.lower, other.box.lower]), torch.cat([self.box.upper, other.box.upper]))
        names = ("least", "lead", "axis", "lowest")
        return Cells(box, *(torch.cat([getattr(self, name), getattr(other, name)]) for name in names))


def bounded(
    network: Posterior, box: Box, unsafe: UnsafeSet, options: Options, known: Tensor | None = None
) -> tuple[Cells, Tensor]:
    """What one pass says of the cells, and which of them are proved: (cells,).

    ``known`` (cells, rows) are lower bounds of the rows from before. One cell alone keeps the deadline of the options:
    nothing is known of it if that has passed. Several are bounded whatever the time.
    """
    count, options = unsafe.rows.shape[0], options if box.batch == 1 else replace(options, deadline=NEVER)
    both = torch.cat([unsafe.rows, -unsafe.rows])
    parts = []
    for _, mixture in chunked(network, box, options, 2 * count):
        planes = mixture.affine(both)
        affine, least = planes.affine, planes.least
        if unsafe.inputs is not None:
            affine, least = _with_inputs(affine, torch.cat([unsafe.inputs, -unsafe.inputs]), mixture.box)
        parts.append((affine.matrix[:, :count], affine.matrix[:, count:], least[:, :count]))
    if not parts:
        flat = box.lower.new_zeros(1, count, box.n)
        parts.append((flat, flat, torch.full_like(flat[..., 0], -torch.inf)))
    lower, upper, least = (torch.cat(each) for each in zip(*parts, strict=True))
    least = least if known is None else torch.maximum(least, known)
    proved = (unsafe.largest((least > unsafe.bound).double()) > 0).all(-1)  # NaN is not above
    return _cells(box, (lower, upper), least, unsafe), proved


def _with_inputs(affine: Affine, inputs: Tensor, box: Box) -> tuple[Affine, Tensor]:
    """Functions below ``rows . E f + inputs . x``, and their least values."""
    matrix = affine.matrix + inputs
    size = plane_size(Affine(affine.matrix.abs() + inputs.abs(), affine.offset), box)
    lower = Affine(matrix, affine.offset - gamma(4) * size - TINY)
    return lower, box.minimum(lower.matrix, lower.offset)


def _cells(box: Box, planes: tuple[Tensor, Tensor], least: Tensor, unsafe: UnsafeSet) -> Cells:
    """By the row that decides: the best one of the polyhedron that is farthest from a proof.

    ``planes`` (cells, rows, n) are the coefficients of the functions below the rows and below their negatives. The edge
    to halve is the one along which both together vary most: where they are far apart, one alone may be flat in the
    inputs that matter (measured on ACAS Xu: up to 50 times as many cells).
    """
    lead = (least - unsafe.bound).nan_to_num(nan=-torch.inf)
    worst = unsafe.largest(lead).min(-1)
    own = unsafe.conjunct == worst.indices[:, None]
    row = torch.where(own, lead.clamp_min(-1e300), -torch.inf).argmax(-1)
    at = torch.arange(len(row), device=row.device)
    lower, upper = (matrix[at, row] for matrix in planes)
    slope, width = lower.abs() + upper.abs(), box.upper - box.lower
    axis = (width * (slope + 1e-12 * (1 + slope.amax(-1, keepdim=True)))).argmax(-1)
    return Cells(box, least, worst.values, axis, torch.where(lower > 0, box.lower, box.upper))


@dataclass(frozen=True, slots=True)
class Progress:
    """The cells that are not proved after a round, and those of them that are new."""

    left: Cells
    new: Cells
    bounded: int  # how many cells the round had


def split_until_proved(
    network: Posterior, box: Box, unsafe: UnsafeSet, options: Options, deadline: Deadline
) -> Iterator[Progress]:
    """What is left after every round; nothing at the end: no x of the boxes is unsafe.

    Ends early, with cells that are left, when the deadline passes or when a cell cannot be halved.
    """
    found, proved = bounded(network, box, unsafe, options)
    cells, size = found[~proved], 1
    yield Progress(cells, cells, box.batch)
    while cells.count and not deadline.passed:
        begun = time.monotonic()
        order = cells.lead.topk(min(size, cells.count), largest=False).indices
        rest = torch.ones_like(cells.lead, dtype=torch.bool).index_fill(0, order, False)
        chosen = cells[order]
        halves = chosen.box.split(chosen.axis)
        at, axis = torch.arange(halves.batch, device=order.device), chosen.axis.repeat(2)
        width, before = (box.upper - box.lower for box in (halves, chosen.box))
        if not bool((width[at, axis] < before.repeat(2, 1)[at, axis]).all()):
            return
        found, proved = bounded(network, halves, unsafe, options, chosen.least.repeat(2, 1))
        new = found[~proved]
        cells = cells[rest].joined(new)
        yield Progress(cells, new, halves.batch)
        size = _next(size, time.monotonic() - begun, deadline)


def _next(size: int, seconds: float, deadline: Deadline) -> int:
    """Cells of the next round."""
    if deadline.at is None:
        return min(_GROWTH * size, _MOST)
    aim = max(_LEAST_TIME, _SHARE * (deadline.at - time.monotonic()))
    return max(1, min(int(aim * size / max(seconds, 1e-6)), _GROWTH * size, _MOST))
