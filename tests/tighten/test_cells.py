"""Unions over cells by their owners, and equal cells: they cover the boxes, within their number."""

from __future__ import annotations

import itertools

import pytest
import torch
from support.dice import Dice
from torch import Tensor

from bnndp.deadline import Deadline
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box
from bnndp.options import Options
from bnndp.tighten.cells import equal_cells, largest_of, least_of, union

BOX = Box([[-1.0, 0.5, 0.0], [2.0, -1.0, 0.0]], [[1.0, 1.5, 0.0], [2.0, 3.0, 0.5]])


def test_the_union_of_the_cells_of_each_box() -> None:
    dice, owner = Dice(0), torch.tensor([2, 0, 2, 2, 0])
    low, high = dice.normal(5, 3), dice.normal(5, 3)
    found = union(Interval(low, high), owner, 4)
    for box in (0, 2):
        assert torch.equal(found.lower[box], low[owner == box].amin(0))
        assert torch.equal(found.upper[box], high[owner == box].amax(0))
    for box in (1, 3):  # without cells
        assert (found.lower[box] == torch.inf).all()
        assert (found.upper[box] == -torch.inf).all()
    assert least_of(low[:, 0], owner, 4)[2] == low[owner == 2, 0].min()
    assert largest_of(low[:, 0], owner, 4)[2] == low[owner == 2, 0].max()


def square(seen: list[Box]) -> object:
    def bounds(cells: Box) -> Interval:  # (cells, 1)
        """Of |x|^2, loose by the squared length of the diagonal."""
        seen.append(cells)
        near = torch.zeros_like(cells.lower).clamp(cells.lower, cells.upper).square().sum(-1, keepdim=True)
        slack = (cells.upper - cells.lower).square().sum(-1, keepdim=True)
        return Interval(near - slack, cells.magnitude.square().sum(-1, keepdim=True) + slack)

    return bounds


@pytest.mark.parametrize("cells", [1, 2, 3, 8, 50])
def test_equal_cells_cover_the_boxes_and_bounds_get_better(cells: int) -> None:
    seen: list[Box] = []
    answers = list(equal_cells(square(seen), BOX, Options(refine=cells)))
    exact = Interval(torch.tensor([[0.25], [4.0]]), torch.tensor([[3.25], [13.25]]))
    for found in answers:
        assert (found.lower <= exact.lower).all()
        assert (found.upper >= exact.upper).all()
    for worse, better in itertools.pairwise(answers):
        assert (better.lower >= worse.lower).all()
        assert (better.upper <= worse.upper).all()
    assert len(answers) == len(seen) == {1: 1, 2: 2, 3: 2, 8: 3, 50: 4}[cells]
    x: Tensor = BOX.lower + Dice(1).uniform(shape=(200, 2, 3)) * (BOX.upper - BOX.lower)
    for part in seen:
        assert part.batch <= cells * BOX.batch
        for b in range(2):  # every point lies in a cell, and the cells in the boxes
            inside = ((x[:, b, None] >= part.lower) & (x[:, b, None] <= part.upper)).all(-1)
            assert inside.any(-1).all()


def test_when_the_time_is_over_whole_boxes_are_the_answer() -> None:
    seen: list[Box] = []
    assert len(list(equal_cells(square(seen), BOX, Options(refine=64, deadline=Deadline(0.0))))) == 1
