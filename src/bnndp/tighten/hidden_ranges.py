r"""Ranges of hidden means by slopes that are optimised for them: alpha-CROWN for the rows of every layer.

The planes of a neuron are as good as the range of its mean. From the second hidden layer on, the rows of the neurons
whose range holds a kink are carried to x with slopes of their own, layer by layer, each on the ranges found below. Of
deep networks these ranges decide everything: cells of signs of all layers below make them shorter still.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bnndp.deadline import Deadline
from bnndp.engine.chunks import cache_size, indices_of
from bnndp.engine.protocol import BranchablePass, Climbable, known
from bnndp.engine.rows import single_rows
from bnndp.geometry.bounds import Interval
from bnndp.tighten.branching import Branching, branch
from bnndp.tighten.row_claim import RowClaim
from bnndp.tighten.slopes import climb

__all__ = ["with_branched_ranges", "with_optimised_ranges"]

_NUMBERS = 2**22  # in the rows that are carried to x at a time, each with all that its gradient keeps


def with_optimised_ranges(bounds: BranchablePass, steps: int, deadline: Deadline) -> BranchablePass:
    """The pass with better ranges of the means that have either sign, found in ``steps`` steps for each layer."""
    for number in range(1, len(bounds.widths)):
        part = bounds.before(number)
        if part is None or deadline.passed:
            continue
        ranges = list(bounds.ranges_of_means)
        ranges[number] = _optimised(part, ranges[number], steps, deadline)
        bounds = bounds.with_ranges(tuple(ranges))
    return bounds


def with_branched_ranges(bounds: BranchablePass, how: Branching) -> tuple[BranchablePass, Tensor]:
    """The pass with better ranges of the means that have either sign, found on cells of the signs of layers below.

    Each end is a claim of its own: that the mean is on one side of zero. Where it is not proved the range is shorter.
    The second is how many bounds are behind them, by box: (batch,).
    """
    used = torch.zeros(bounds.box.batch, dtype=torch.int64, device=bounds.box.lower.device)
    for number in range(1, len(bounds.widths)):
        part = bounds.before(number)
        if part is None or len(part.widths) != number or how.deadline.passed:
            continue
        ranges = list(bounds.ranges_of_means)
        ranges[number], more = _branched(part, _optimised(part, ranges[number], how.first, how.deadline), how)
        bounds, used = bounds.with_ranges(tuple(ranges)), used + more
    return bounds, used


def _branched(part: BranchablePass, before: Interval, how: Branching) -> tuple[Interval, Tensor]:
    """The range of the outputs of ``part``, where it holds zero."""
    box, neuron = ((before.lower < 0) & (before.upper > 0)).nonzero().unbind(-1)
    if box.numel() == 0:
        return before, torch.zeros_like(before.lower[:, 0], dtype=torch.int64)
    rows = single_rows(neuron[:, None], before.lower.shape[1]).values
    claim = RowClaim(part, box.repeat(2), torch.cat([rows, -rows]), rows.new_zeros(2 * len(box)), how)
    found = branch(claim, torch.arange(2 * len(box), device=box.device), how)
    low, negated = known(found.least).clamp_max(0).chunk(2)  # a claim says no more than that it holds
    at = (box, neuron)
    lower, upper = before.lower.clone(), before.upper.clone()
    lower[at] = torch.maximum(lower[at], low)
    upper[at] = torch.minimum(upper[at], -negated)
    return Interval(lower, upper), claim.used(found.cells).sum(-1)


def _optimised(part: Climbable, before: Interval, steps: int, deadline: Deadline) -> Interval:
    """The range of the outputs of ``part``, where it holds zero."""
    at = indices_of((before.lower < 0) & (before.upper > 0))  # (batch, k)
    if at.shape[1] == 0:
        return before
    widest = max(part.box.n, before.lower.shape[1])
    size = max(1, cache_size(_NUMBERS, at.device) // (2 * part.box.batch * widest))
    found = []
    for some in at.split(size, 1):
        rows = single_rows(some, before.lower.shape[1]).values
        found.append(known(climb(part, torch.cat([rows, -rows], 1), steps, deadline)[0].least).chunk(2, 1))
    low, negated = (torch.cat(each, 1) for each in zip(*found, strict=True))
    lower, upper = before.lower.scatter_reduce(1, at, low, "amax"), before.upper.scatter_reduce(1, at, -negated, "amin")
    return Interval(lower, upper)
