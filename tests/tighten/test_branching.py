"""Branching on signs: the least bound over the cells holds on the whole box, and more cells decide more."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from support.dice import Dice
from support.ensembles import outputs
from tests.marks import slow_but
from torch import Tensor

from bnndp.attack import decision_rows
from bnndp.attack.sampled_softmax import draw_softmax_noise, estimate_softmax
from bnndp.deadline import NEVER, Deadline
from bnndp.engine.moment_pass import MomentPass
from bnndp.engine.protocol import BranchablePass, Margins
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork
from bnndp.questions.from_margins import row_bound
from bnndp.tighten.branching import Branching, branch
from bnndp.tighten.margin_claim import MarginClaim, Value


def network(sizes: tuple[int, ...], std: float, seed: int) -> BayesianNetwork:
    dice, linears = Dice(seed), []
    for n_in, n_out in pairwise(sizes):
        weight, spread = 1.5 * dice.normal(n_out, n_in) / n_in**0.5, std * dice.normal(n_out, n_in).abs()
        linears.append(Linear(weight, spread, 0.3 * dice.normal(n_out), std * dice.normal(n_out).abs()))
    return BayesianNetwork.from_linears(linears, "classification")


def branched(
    net: BayesianNetwork,
    box: Box,
    label: Tensor,
    cells: int,
    value: Value | None = None,
    deadline: Deadline = NEVER,
) -> Tensor:
    """The least row of the decision for ``label`` on each box, with at most ``cells`` cells."""
    bounds = MomentPass.of(net, box)
    rows = decision_rows(label, net.n_out)[0]

    def least(_: BranchablePass, found: Margins, owner: Tensor) -> Tensor:
        return row_bound(rows[owner], found, label[owner]).amin(-1)

    how = Branching(cells, 10, 3, 7, deadline)
    return branch(MarginClaim(bounds, label, net.n_out, value or least, how), torch.arange(box.batch), how)


MODELS = [((2, 6, 6, 3), 0.0), ((3, 8, 4), 0.02)]


@pytest.mark.parametrize("seed", slow_but(range(8), 0))
@pytest.mark.parametrize(("sizes", "std"), slow_but([*MODELS, ((2, 5, 3), 0.0), ((2, 5, 5, 3), 0.02)], *MODELS))
def test_the_least_cell_bounds_the_box_and_more_cells_are_tighter(
    sizes: tuple[int, ...], std: float, seed: int
) -> None:
    net, dice = network(sizes, std, seed), Dice(seed)
    centre = dice.normal(2, sizes[0])
    box = Box.ball(centre, torch.tensor([0.2, 0.7], dtype=torch.float64))
    noise = draw_softmax_noise(net, 4096 if std else 1, seed=seed)
    label = estimate_softmax(net, centre, noise).mean.argmax(-1)
    found = [branched(net, box, label, cells) for cells in (1, 4, 12)]
    assert all((few <= more + 1e-9).all() for few, more in pairwise(found))
    share = dice.uniform(shape=(40, *box.lower.shape))
    share[:10] = share[:10].round()
    at = estimate_softmax(net, box.lower + share * (box.upper - box.lower), noise)
    margin = torch.einsum("brc,pbc->pbr", decision_rows(label, sizes[-1])[0], at.mean).amin(-1)
    error = 6 * 2 * at.std_error.amax(-1) if std else 0.0
    assert bool((found[-1] <= (margin + error + 1e-12).amin(0)).all())


def test_cells_decide_what_one_pass_cannot() -> None:
    """Without variance the truth is known on a fine grid of two inputs: nothing false is decided, more with cells."""
    decided, box = torch.zeros(2, dtype=torch.int64), Box.ball(torch.zeros(1, 2, dtype=torch.float64), 0.3)
    axis = torch.linspace(-0.3, 0.3, 141, dtype=torch.float64)
    for seed in range(12):
        net = network((2, 8, 2), 0.0, seed)
        logits = outputs(net, torch.cartesian_prod(axis, axis))[0]
        margin = logits[:, 0] - logits[:, 1]
        label = torch.tensor([int(margin.mean() < 0)])
        found = [branched(net, box, label, cells) > 0 for cells in (1, 16)]
        decided += torch.cat(found)
        if bool(found[1]):
            assert bool(((1 - 2 * label) * margin > 0).all())
    assert 0 < int(decided[0]) < int(decided[1]) < 12


@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
def test_a_cell_without_a_bound_is_not_decided(value: float) -> None:
    """Not even one of them, where all others are."""
    net, box, asked = network((2, 6, 3), 0.05, 2), Box.ball([[0.1, 0.2]], 0.3), []

    def nothing(_: BranchablePass, found: Margins, owner: Tensor) -> Tensor:
        asked.append(owner)
        bounds = torch.full((len(owner),), float(len(asked) > 1), dtype=torch.float64)  # the box itself is cut
        return bounds if len(asked) == 1 else bounds.index_fill(0, torch.tensor([-1]), value)

    assert branched(net, box, torch.tensor([0]), 4, nothing).item() < -1e300
    assert len(asked) > 1


def test_when_the_time_is_over_nothing_more_is_claimed() -> None:
    net, box, label = network((2, 6, 3), 0.0, 2), Box.ball([[0.1, 0.2]], 0.3), torch.tensor([0])
    assert branched(net, box, label, 32, deadline=Deadline(0.0)).item() == -torch.inf
