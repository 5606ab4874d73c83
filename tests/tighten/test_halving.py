"""Halving on functions whose least value is known: bounds hold, cells are counted, and what is proved is left alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bnndp.deadline import NEVER, Deadline
from bnndp.geometry.box import Box
from bnndp.tighten.halving import halve


def square(cells: Box) -> Tensor:
    """The least value of |x|^2 on each cell, loose by the squared length of its diagonal: (cells,)."""
    near = torch.zeros_like(cells.lower).clamp(cells.lower, cells.upper)
    return near.square().sum(-1) - (cells.upper - cells.lower).square().sum(-1)


class Counted:
    """The bound of ``|x|^2 - level`` and of a second row, with the cells that were asked for."""

    def __init__(self, level: Tensor) -> None:  # (boxes,)
        self.level = level
        self.cells: list[tuple[Box, Tensor]] = []

    def __call__(self, cells: Box, owner: Tensor) -> Tensor:
        if bool((cells.upper > cells.lower).any()):
            self.cells.append((cells, owner))
        value = square(cells) - self.level[owner]
        return torch.stack([value, value + 0.5], -1)


BOX = Box(torch.tensor([[0.5, 0.5], [1.0, -1.0], [-1.0, -1.0]]), torch.tensor([[1.5, 1.5], [2.0, 1.0], [1.0, 1.0]]))
EXACT = torch.tensor([0.5, 1.0, 0.0], dtype=torch.float64)  # least |x|^2 on each


@pytest.mark.parametrize("cells", [1, 2, 3, 8, 50, 400])
@pytest.mark.parametrize("share", [0.2, 0.7, 0.95, 1.05])
def test_a_bound_holds_and_improves_within_its_cells(cells: int, share: float) -> None:
    level = share * EXACT + 0.01 * (share - 1)
    bound = Counted(level)
    whole = bound(BOX, torch.arange(3))
    bound.cells.clear()
    found = halve(bound, BOX, whole, cells, NEVER)
    assert bool((found >= whole).all())
    exact = torch.stack([EXACT - level, EXACT - level + 0.5], -1)
    assert bool((found <= exact + 1e-12).all())
    made = torch.zeros(3, dtype=torch.int64)
    for part, owner in bound.cells:
        made += torch.bincount(owner, minlength=3)
        assert bool((part.lower >= BOX.lower[owner]).all() & (part.upper <= BOX.upper[owner]).all())
    assert bool((1 + made // 2 <= cells).all())  # every cut makes two cells of one
    if share > 1:
        assert not bool((found > 0).all(-1).any())


def test_enough_cells_prove_what_is_true() -> None:
    level = torch.tensor([0.45, 0.9, -0.05], dtype=torch.float64)
    bound = Counted(level)
    found = halve(bound, BOX, bound(BOX, torch.arange(3)), 1000, NEVER)
    assert bool((found > 0).all())


def test_boxes_that_are_proved_are_not_cut() -> None:
    bound = Counted(torch.tensor([-9.0, 0.9, -9.0], dtype=torch.float64))
    whole = bound(BOX, torch.arange(3))
    bound.cells.clear()
    found = halve(bound, BOX, whole, 64, NEVER)
    assert {int(i) for _, owner in bound.cells for i in owner} == {1}
    assert torch.equal(found[[0, 2]], whole[[0, 2]])


def test_a_failure_at_a_centre_ends_it_at_once() -> None:
    bound = Counted(torch.full((3,), 9.0, dtype=torch.float64))
    whole = bound(BOX, torch.arange(3))
    bound.cells.clear()
    assert torch.equal(halve(bound, BOX, whole, 64, NEVER), whole)
    assert not bound.cells


@pytest.mark.parametrize("fault", [float("nan"), -float("inf")])
def test_a_cell_without_a_bound_proves_nothing(fault: float) -> None:
    level = torch.tensor([0.45, 0.9, -0.05], dtype=torch.float64)
    plain = Counted(level)

    def faulty(cells: Box, owner: Tensor) -> Tensor:
        value = plain(cells, owner)
        small = (cells.upper[:, 0] > cells.lower[:, 0]) & (cells.lower[:, 0] == BOX.lower[owner, 0])
        return torch.where(small[:, None], fault, value)

    whole = plain(BOX, torch.arange(3))
    found = halve(faulty, BOX, whole, 64, NEVER)
    assert torch.equal(found, whole)


def test_a_point_is_not_cut() -> None:
    point = Box([[0.5, 0.5]], [[0.5, 0.5]])
    whole = torch.tensor([[-1.0, 1.0]], dtype=torch.float64)
    bound = Counted(torch.zeros(1, dtype=torch.float64))
    assert torch.equal(halve(bound, point, whole, 64, NEVER), whole)


@pytest.mark.parametrize("norm", [1, 2])
def test_cells_of_a_ball_prove_the_ball(norm: float) -> None:
    """The box around the ball reaches a corner where the claim fails; the ball itself does not."""
    ball = Box.ball([[1.0, 1.0]], 1.0, norm=norm)

    def bound(cells: Box, _owner: Tensor) -> Tensor:
        matrix = torch.ones(cells.batch, 1, 2, dtype=torch.float64)
        return cells.minimum(matrix, torch.full((cells.batch, 1), -0.5, dtype=torch.float64))

    loose = torch.full((1, 1), -1.0, dtype=torch.float64)
    assert bool((halve(bound, ball, loose, 8, NEVER) > 0).all())


def test_when_the_time_is_over_what_is_known_stays() -> None:
    bound = Counted(torch.tensor([0.45, 0.9, -0.05], dtype=torch.float64))
    whole = bound(BOX, torch.arange(3))
    bound.cells.clear()
    assert torch.equal(halve(bound, BOX, whole, 1000, Deadline(0.0)), whole)
    assert not bound.cells
