"""Halving boxes until a claim is proved on every cell: for few inputs the surest way to a decision.

A bound that holds on cells that cover a box holds on the box. Only cells on which the claim is not proved yet are cut,
so most of the work goes to where the claim is tightest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from bnndp.deadline import Deadline
from bnndp.geometry.box import Box
from bnndp.tighten.cells import least_of

RowBound = Callable[[Box, Tensor], Tensor]
"""Lower bounds (cells, rows) on cells of the boxes with these indices (cells,)."""


def halve(bound: RowBound, box: Box, whole: Tensor, cells: int, deadline: Deadline) -> Tensor:  # whole (batch, rows)
    """Lower bounds (batch, rows) from at most ``cells`` cells per box, at least ``whole``, which holds on whole boxes.

    Boxes whose rows are all positive are left alone. A box is given up when its next round would need more cells, or
    when the bound at the centre of one of them is not positive: no cut can help there. So are all when the deadline
    passes.
    """
    owner = (~(whole > 0).all(-1)).nonzero()[:, 0]  # (cells,), as are the first axes of the next two
    part, value = box[owner], whole[owner]
    count = torch.ones(box.batch, dtype=torch.int64, device=owner.device)
    least = torch.full_like(whole, torch.inf)  # over all cells of a box that are not cut further

    def settled(least: Tensor, which: Tensor) -> Tensor:
        return torch.minimum(least, least_of(value[which], owner[which], box.batch))

    while owner.numel():
        wanted = torch.bincount(owner, minlength=box.batch)
        full = count + wanted > cells
        hopeless = torch.bincount(owner[_hopeless(bound, part, owner, full)], minlength=box.batch) > 0
        stop = (full | hopeless)[owner] | deadline.passed
        least = settled(least, stop)
        owner, part, value = owner[~stop], part[~stop], value[~stop]
        if owner.numel() == 0:
            break
        count = count + torch.bincount(owner, minlength=box.batch)
        part, owner = part.split((part.upper - part.lower).argmax(-1)), owner.repeat(2)
        value = torch.maximum(bound(part, owner), value.repeat(2, 1))
        proved = (value > 0).all(-1)
        least = settled(least, proved)
        owner, part, value = owner[~proved], part[~proved], value[~proved]
    return torch.where(least < torch.inf, torch.maximum(whole, least), whole)


def _hopeless(bound: RowBound, part: Box, owner: Tensor, full: Tensor) -> Tensor:
    """Cells (cells,) that are points, or fail at their centre; boxes that are full are not asked."""
    found = ~(part.upper > part.lower).any(-1)
    at = (~found & ~full[owner]).nonzero()[:, 0]
    if at.numel():
        centre = part[at].centre
        inside = part[at].contains(centre)  # a cell may lie outside the ball it was cut from
        found[at] = inside & ~(bound(replace(part[at], lower=centre, upper=centre, within=None), owner[at]) > 0).all(-1)
    return found
