"""Cells that cover a box: unions of what is known on them, and splitting into equal ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box
from bnndp.options import Options


def least_of(values: Tensor, owner: Tensor, boxes: int) -> Tensor:  # (cells, n), (cells,) -> (boxes, n)
    """The least value over the cells of each box; infinite for a box without cells."""
    start = values.new_full((boxes, *values.shape[1:]), torch.inf)
    return start.scatter_reduce(0, _index(values, owner), values, "amin")


def largest_of(values: Tensor, owner: Tensor, boxes: int) -> Tensor:
    """The largest value over the cells of each box; minus infinity for a box without cells."""
    start = values.new_full((boxes, *values.shape[1:]), -torch.inf)
    return start.scatter_reduce(0, _index(values, owner), values, "amax")


def union(interval: Interval, owner: Tensor, boxes: int) -> Interval:
    """The ends (boxes, outputs) of the union of the intervals of each box's cells."""
    return Interval(least_of(interval.lower, owner, boxes), largest_of(interval.upper, owner, boxes))


def _index(values: Tensor, owner: Tensor) -> Tensor:
    return owner.reshape(-1, *(1,) * (values.ndim - 1)).expand_as(values)


def equal_cells(bounds: Callable[[Box], Interval], box: Box, options: Options) -> Iterator[Interval]:
    """Bounds on whole boxes, then of the union of equal cells, about four times as many each time.

    At most ``options.refine`` cells per box.
    """
    cells, owner = box, torch.arange(box.batch, device=box.lower.device)
    while True:
        yield union(bounds(cells), owner, box.batch)
        before = cells.batch
        for _ in range(2):
            if 2 * cells.batch <= options.refine * box.batch and bool((cells.upper > cells.lower).any()):
                cells, owner = cells.split((cells.upper - cells.lower).argmax(-1)), owner.repeat(2)
        if cells.batch == before or options.deadline.passed:
            return
