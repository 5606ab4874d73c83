"""Which x of a box may be unsafe: the one place that chooses how the proof is made tighter until there is none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import torch
from torch import Tensor

from bnndp.engine.protocol import BranchablePass
from bnndp.geometry.box import Box
from bnndp.geometry.unsafe_set import UnsafeSet
from bnndp.network import Posterior, normal_form
from bnndp.options import Options
from bnndp.tighten.branching import Branching, branch
from bnndp.tighten.hidden_ranges import with_branched_ranges, with_optimised_ranges
from bnndp.tighten.input_splitting import Cells, Progress, bounded, split_until_proved
from bnndp.tighten.pass_choice import pass_over
from bnndp.tighten.row_claim import RowClaim

__all__ = ["unproved"]

_FEW = 16  # inputs up to which boxes are split into cells of the inputs
_CELLS, _OF_RANGES, _MORE = 256, 4, 4  # of signs: for a row, for an end of a range, and times those of the last round
_ROUNDS = {"medium": 2, "high": 4}  # without a time limit
_FIRST, _STEPS, _CHUNK = 10, 3, 256  # steps of slopes on a box and on a cell; cells at a time
_LAST = 30  # steps on a cell on which nothing is left to cut, in the first round
_OPTIMISE = {"low": 0, "medium": 10, "high": 40}  # steps of the slopes on boxes that are not split


def unproved(network: Posterior, box: Box, unsafe: UnsafeSet, options: Options) -> Iterator[Progress]:
    """The cells of the boxes that may hold an unsafe x, fewer and smaller; none are left in the end if none does.

    An x is unsafe if for some polyhedron no row of ``rows . E f(x)`` is above its bound. What is not left is proved.
    """
    if network.n_in <= _FEW:
        yield from split_until_proved(network, box, unsafe, options, options.deadline)
        return
    found, proved = bounded(network, box, unsafe, options)
    left = found[~proved]
    yield Progress(left, left, box.batch)
    steps = _OPTIMISE[options.effort]
    if left.count and steps and not options.deadline.passed:
        found, proved = bounded(network, left.box, unsafe, replace(options, optimise=steps), left.least)
        found, left = left, found[~proved]
        yield Progress(left, left, found.count)
    if left.count and steps and unsafe.inputs is None and not options.deadline.passed:
        for fewer in _on_cells_of_signs(network, left, unsafe, steps, options):
            yield Progress(fewer, fewer, 0)


def _on_cells_of_signs(
    network: Posterior, left: Cells, unsafe: UnsafeSet, steps: int, options: Options
) -> Iterator[Cells]:
    """The boxes on which the best row of some polyhedron is not proved by branching on signs of neurons, in rounds.

    Each round has more cells, for the rows and for the ranges of the hidden means. Nothing is proved for ensembles, and
    where there is no neuron.
    """
    members = normal_form(network).members
    bounds = pass_over(members[0], left.box, options).branchable if len(members) == 1 else None
    if bounds is None:
        return
    bounds = with_optimised_ranges(bounds, steps, options.deadline)
    for number in count() if options.deadline.at is not None else range(_ROUNDS[options.effort]):
        if number:
            of_ranges = Branching(_OF_RANGES * _MORE**number, _FIRST, _STEPS, _CHUNK, options.deadline)
            bounds, _ = with_branched_ranges(bounds, of_ranges)
        last = _LAST * _MORE**number
        how = Branching(_CELLS * _MORE**number, _FIRST, _STEPS, _CHUNK, options.deadline, last)
        open_ = (~_proved(bounds, left, unsafe, how)).nonzero()[:, 0]
        bounds, left = bounds.restricted(open_, ()), left[open_]
        yield left
        if not left.count or options.deadline.passed:
            return


def _proved(bounds: BranchablePass, left: Cells, unsafe: UnsafeSet, how: Branching) -> Tensor:  # (cells,) of booleans
    """Whether the best row of every polyhedron is above its bound."""
    lead = left.least - unsafe.bound
    owner, conjunct = (~(unsafe.largest(lead.nan_to_num(-torch.inf)) > 0)).nonzero().unbind(-1)
    own = unsafe.conjunct == conjunct[:, None]
    row = torch.where(own, lead.nan_to_num(-torch.inf)[owner].clamp_min(-sys.float_info.max), -torch.inf).argmax(-1)
    claim = RowClaim(bounds, owner, unsafe.rows[row][:, None], unsafe.bound[row], how)
    least = branch(claim, torch.arange(len(owner), device=owner.device), how, owner).least
    return torch.bincount(owner[~(least > 0)], minlength=left.count) == 0
