"""Anytime refinement: split the boxes where their bounds are decided, until they are tight enough.

Every cell keeps its affine bounds; the union of the cells is a piecewise-affine bound of the box. The upper bound at
any point of a cell is above the smallest mean of the box, so it says how far the lower end can still move: cells whose
lower bound lies above it cannot matter for the lower end and are left alone (and the same above).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bnndp.geometry.bounds import Affine, AffineBounds, Interval, PiecewiseAffine
from bnndp.geometry.box import Ball, Box
from bnndp.options import Options
from bnndp.tighten.cells import largest_of, least_of, union

OnePass = Callable[[Box], tuple[AffineBounds, Interval]]
"""Affine bounds of the mean output and their interval, of one pass over some boxes."""


@dataclass(frozen=True, slots=True)
class _Cells:
    """All cells of all boxes."""

    affine: AffineBounds
    interval: Interval  # (cells, outputs)
    owner: Tensor  # (cells,)
    reach: (
        Interval  # (boxes, outputs): the lower end cannot rise above its upper, the upper end not fall below its lower
    )

    @property
    def boxes(self) -> int:
        """Number of boxes."""
        return self.reach.lower.shape[0]

    def ends(self) -> Interval:
        """Smallest lower and largest upper bound over the cells of each box: (boxes, outputs)."""
        return union(self.interval, self.owner, self.boxes)


def refine(one_pass: OnePass, affine: AffineBounds, interval: Interval, options: Options) -> Iterator[PiecewiseAffine]:
    """Split until every box has ``options.refine`` cells or is within the tolerance: the cells after every round.

    Cells are within their parents' bounds, so each answer is at least as tight as those before it; the first is after
    one round of splitting. A larger ``options.refine`` splits the same cells first, and then more.
    """
    owner = torch.arange(affine.region.batch, device=interval.lower.device)
    cells = _Cells(affine, interval, owner, Interval(interval.lower, interval.upper))
    while True:
        cells = replace(cells, reach=_reach(cells))
        chosen = _choose(cells, options)
        if not bool(chosen.any()) or options.deadline.passed:
            break
        cells = _split(one_pass, cells, chosen)
        yield PiecewiseAffine(cells.affine, cells.interval, cells.owner)


def _choose(cells: _Cells, options: Options) -> Tensor:
    """Which cells to split next: those that decide an end of their box, the worst first, within the number allowed."""
    region, ends = cells.affine.region, cells.ends()
    floor, ceiling = cells.reach.upper, cells.reach.lower
    low_gap, high_gap = floor - ends.lower, ends.upper - ceiling  # (boxes, outputs)
    low = _excess(floor[cells.owner] - cells.interval.lower, low_gap[cells.owner], options.tolerance)
    high = _excess(cells.interval.upper - ceiling[cells.owner], high_gap[cells.owner], options.tolerance)
    score = torch.maximum(low, high).amax(-1)  # (cells,), positive where the cell is worth splitting
    score = torch.where((region.upper > region.lower).any(-1), score, 0.0)
    spare = options.refine - torch.bincount(cells.owner, minlength=cells.boxes)
    order = torch.argsort(score, descending=True, stable=True)
    order = order[torch.argsort(cells.owner[order], stable=True)]  # by box, worst first
    counts = torch.bincount(cells.owner, minlength=cells.boxes)
    first = torch.cumsum(counts, 0) - counts
    rank = torch.empty_like(order)
    rank[order] = torch.arange(order.numel(), device=order.device) - first[cells.owner[order]]
    return (score > 0) & (rank < spare[cells.owner])


def _reach(cells: _Cells) -> Interval:
    """The bounds at points of each cell: the mean there is a value of the box, so no end can pass them.

    The points are the centre and, for each output, where its planes are lowest and highest: the end cannot be far from
    there, so that only the gap between the planes counts and not the slope of the mean.
    """
    region, (low, high) = cells.affine.region, (cells.affine.lower, cells.affine.upper)
    lower, upper, centre = region.lower[:, None], region.upper[:, None], region.centre[:, None]
    lowest = torch.where(low.matrix > 0, lower, torch.where(low.matrix < 0, upper, centre))  # (cells, outputs, n)
    highest = torch.where(high.matrix > 0, upper, torch.where(high.matrix < 0, lower, centre))
    middle = centre.expand_as(lowest)
    above = torch.minimum(_value(high, region, lowest, torch.inf), _value(high, region, middle, torch.inf))
    below = torch.maximum(_value(low, region, highest, -torch.inf), _value(low, region, middle, -torch.inf))
    return Interval(
        torch.maximum(cells.reach.lower, largest_of(below, cells.owner, cells.boxes)),
        torch.minimum(cells.reach.upper, least_of(above, cells.owner, cells.boxes)),
    )


def _value(plane: Affine, region: Box, x: Tensor, outside: float) -> Tensor:  # x (cells, outputs, n)
    """Values (cells, outputs) near these points of the cells, ``outside`` where a cell lies outside its ball."""
    inner = region.project(x.movedim(1, 0))  # (outputs, cells, n)
    known = region.contains(inner).mT  # (cells, outputs)
    return torch.where(known, (plane.matrix * inner.movedim(0, 1)).sum(-1) + plane.offset, outside)


def _excess(gap: Tensor, largest: Tensor, tolerance: float) -> Tensor:
    """How much of the box's gap a cell is responsible for, 0 below half of it or within the tolerance."""
    share = gap / largest.clamp_min(1e-300)
    return torch.where((gap > tolerance) & (share > 0.5), share, 0.0)


def _split(one_pass: OnePass, cells: _Cells, chosen: Tensor) -> _Cells:
    """Replace the chosen cells by their halves, cut across the longest edge weighted by the slopes."""
    affine, interval = cells.affine, cells.interval
    parents = affine.region[chosen]
    slope = (affine.lower.matrix[chosen].abs() + affine.upper.matrix[chosen].abs()).amax(1)
    width = parents.upper - parents.lower
    axis = (width * (slope + 1e-12 * (1 + slope.amax(-1, keepdim=True)))).argmax(-1)
    halves = parents.split(axis)
    fine, inner = one_pass(halves)
    twice = Interval(interval.lower[chosen].repeat(2, 1), interval.upper[chosen].repeat(2, 1))
    inner = Interval(torch.maximum(inner.lower, twice.lower), torch.minimum(inner.upper, twice.upper))
    keep = ~chosen
    return _Cells(
        affine=AffineBounds(
            _join(_at(affine.lower, keep), fine.lower),
            _join(_at(affine.upper, keep), fine.upper),
            _join_boxes(affine.region[keep], halves),
        ),
        interval=Interval(
            torch.cat([interval.lower[keep], inner.lower]), torch.cat([interval.upper[keep], inner.upper])
        ),
        owner=torch.cat([cells.owner[keep], cells.owner[chosen].repeat(2)]),
        reach=cells.reach,
    )


def _at(affine: Affine, index: Tensor) -> Affine:
    return Affine(affine.matrix[index], affine.offset[index])


def _join(a: Affine, b: Affine) -> Affine:
    return Affine(torch.cat([a.matrix, b.matrix]), torch.cat([a.offset, b.offset]))


def _join_boxes(a: Box, b: Box) -> Box:
    within = None
    if a.within is not None and b.within is not None:
        within = Ball(
            torch.cat([a.within.centre, b.within.centre]), torch.cat([a.within.radius, b.within.radius]), a.within.norm
        )
    return Box(torch.cat([a.lower, b.lower]), torch.cat([a.upper, b.upper]), within)
