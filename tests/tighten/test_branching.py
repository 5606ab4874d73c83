"""Branching on signs: the least bound over the cells holds on the whole box, and cells decide more."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from support.dice import Dice
from support.ensembles import outputs
from tests.marks import slow_but
from torch import Tensor

from bnndp.attack.draws import evaluate
from bnndp.attack.violation import drawn_mean
from bnndp.deadline import NEVER, Deadline
from bnndp.engine.moment_pass import MomentPass
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork
from bnndp.tighten.branching import Branching, Cells, branch
from bnndp.tighten.row_claim import RowClaim


def network(sizes: tuple[int, ...], std: float, seed: int) -> BayesianNetwork:
    dice, linears = Dice(seed), []
    for n_in, n_out in pairwise(sizes):
        weight, spread = 1.5 * dice.normal(n_out, n_in) / n_in**0.5, std * dice.normal(n_out, n_in).abs()
        linears.append(Linear(weight, spread, 0.3 * dice.normal(n_out), std * dice.normal(n_out).abs()))
    return BayesianNetwork.from_linears(linears)


def branched(
    net: BayesianNetwork,
    box: Box,
    row: Tensor,  # (outputs,)
    cells: int,
    level: float = 0.0,
    deadline: Deadline = NEVER,
) -> Tensor:
    """The least of ``row . E f - level`` on each box, with at most ``cells`` cells."""
    bounds, how = MomentPass.of(net, box), Branching(cells, 10, 3, 7, deadline)
    rows, levels = row.expand(box.batch, 1, -1), torch.full((box.batch,), level, dtype=torch.float64)
    every = torch.arange(box.batch)
    return branch(RowClaim(bounds, every, rows, levels, how), every, how).least


MODELS = [((2, 6, 6, 3), 0.0), ((3, 8, 4), 0.02)]
FAR = 100.0  # a level that nothing reaches


@pytest.mark.parametrize("seed", slow_but(range(8), 0))
@pytest.mark.parametrize(("sizes", "std"), slow_but([*MODELS, ((2, 5, 3), 0.0), ((2, 5, 5, 3), 0.02)], *MODELS))
def test_the_least_cell_bounds_the_box_and_is_no_worse_than_the_box_alone(
    sizes: tuple[int, ...], std: float, seed: int
) -> None:
    net, dice = network(sizes, std, seed), Dice(seed)
    box, row = Box.ball(dice.normal(2, sizes[0]), torch.tensor([0.2, 0.7], dtype=torch.float64)), dice.normal(sizes[-1])
    found = [branched(net, box, row, cells, FAR) + FAR for cells in (1, 4, 12)]
    assert all((found[0] <= more).all() for more in found)
    share = dice.uniform(shape=(40, *box.lower.shape))
    share[:10] = share[:10].round()
    at = (box.lower + share * (box.upper - box.lower)).flatten(0, 1)
    drawn = evaluate(drawn_mean(net, seed), at) @ row  # (draws, points)
    error = 6 * drawn.std(0) / drawn.shape[0] ** 0.5 if std else 0.0
    truth = (drawn.mean(0) + error).unflatten(0, (40, -1)).amin(0)
    assert all((each <= truth + 1e-12).all() for each in found)


@pytest.mark.parametrize(("sizes", "std"), MODELS)
def test_cells_raise_the_bound(sizes: tuple[int, ...], std: float) -> None:
    """Of most networks: that of one cell is sometimes exact."""
    raised = 0
    for seed in range(8):
        net, dice = network(sizes, std, seed), Dice(seed)
        box, row = Box.ball(dice.normal(1, sizes[0]), 0.7), dice.normal(sizes[-1])
        one, some = (branched(net, box, row, cells, FAR) for cells in (1, 12))
        raised += int(some > one + 1e-6)
    assert raised >= 5


def test_cells_decide_what_one_pass_cannot() -> None:
    """Without variance the truth is known on a fine grid of two inputs: nothing false is decided, more with cells."""
    decided, box = torch.zeros(2, dtype=torch.int64), Box.ball(torch.zeros(1, 2, dtype=torch.float64), 0.3)
    axis = torch.linspace(-0.3, 0.3, 141, dtype=torch.float64)
    for seed in range(12):
        values = outputs(net := network((2, 8, 2), 0.0, seed), torch.cartesian_prod(axis, axis))[0]
        margin = values[:, 0] - values[:, 1]
        row = margin.mean().sign() * torch.tensor([1.0, -1.0], dtype=torch.float64)
        found = [branched(net, box, row, cells) > 0 for cells in (1, 16)]
        decided += torch.cat(found)
        if bool(found[1]):
            assert bool((margin * margin.mean() > 0).all())
    assert 0 < int(decided[0]) < int(decided[1]) < 12


@dataclass(frozen=True)
class Told:
    """A claim of one layer of two neurons: of the box itself nothing is known, of its cells what is said."""

    values: tuple[float, float]
    widths: tuple[int, ...] = (2,)

    def on_cells(
        self, owner: Tensor, signs: tuple[Tensor, ...], before: tuple[Tensor, ...] | None, *, last: bool
    ) -> Cells:
        side = signs[0][:, 0]
        value = torch.tensor([*self.values, -1.0], dtype=torch.float64)[torch.where(side == 0, 2, (side > 0).long())]
        known = side != 0
        return Cells(value, torch.where(known, -1, 0), 0 * owner, torch.zeros_like(known), (value,))


@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
def test_a_cell_without_a_bound_is_not_decided(value: float) -> None:
    """Not even one of them, where the other is."""
    how, box = Branching(4, 0, 0, 7, NEVER), torch.tensor([0])
    assert branch(Told((1.0, 2.0)), box, how).least.item() == 1.0
    for values in ((value, 1.0), (1.0, value)):
        assert not branch(Told(values), box, how).least.item() > 0


@pytest.mark.parametrize("level", [torch.nan, -torch.inf, torch.inf])
def test_a_level_that_is_no_number_is_not_reached(level: float) -> None:
    box, row = Box.ball([[0.1, 0.2]], 0.3), torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64)
    for cells in (1, 8):
        assert branched(network((2, 6, 3), 0.05, 2), box, row, cells, level).item() == -torch.inf


def test_when_the_time_is_over_nothing_more_is_claimed() -> None:
    box, row = Box.ball([[0.1, 0.2]], 0.3), torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64)
    assert branched(network((2, 6, 3), 0.0, 2), box, row, 32, deadline=Deadline(0.0)).item() == -torch.inf
