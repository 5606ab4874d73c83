"""The moment pass on cells of known signs: planes hold at every x of a cell, for any slopes and multipliers."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from support.dice import Dice
from support.ensembles import certain_member, outputs
from torch import Tensor

from bnndp.activations import Gelu, HardTanh, LeakyRelu, Relu, Tanh
from bnndp.activations.activation import Activation
from bnndp.engine.moment_pass import MomentPass
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork, Ensemble
from bnndp.options import Options
from bnndp.tighten.pass_choice import chunked

ACTIVATIONS = [Relu(), LeakyRelu(0.2), Tanh(), HardTanh(), Gelu()]
SIZES = (3, 6, 5, 2)


def means(net: BayesianNetwork, x: Tensor) -> list[Tensor]:
    """What goes into the activations at x (batch, n)."""
    z, found = x if net.shift is None else x - net.shift, []
    for layer in net.layers[:-1]:
        if isinstance(layer, Linear):
            z = z @ layer.weight_mean.mT + layer.bias_mean
            found.append(z)
        else:
            z = cast("Activation", layer)(z)
    return found


def inside(box: Box, dice: Dice) -> Tensor:
    share = dice.uniform(shape=(box.batch, box.n))
    share[::4] = share[::4].round()
    return box.lower + share * (box.upper - box.lower)


def some_signs(values: list[Tensor], dice: Dice) -> tuple[Tensor, ...]:
    """Half of the signs of these values, the others unknown."""
    return tuple(torch.where(dice.uniform(shape=v.shape) < 0.5, v.sign(), 0.0).to(torch.int8) for v in values)


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda a: a.kind)
@pytest.mark.parametrize("seed", range(3))
def test_planes_hold_on_the_cell_for_any_slopes(activation: Any, seed: int) -> None:
    """The cell is that of a point, so the point is in it; any tangents and any multipliers >= 0 must do there."""
    net, dice = certain_member(SIZES, seed, activation=activation), Dice(seed)
    box = Box.ball(dice.normal(40, 3), 0.8)
    x = inside(box, dice)
    whole = MomentPass.of(net, box)
    cells = whole.restricted(torch.arange(40), some_signs(means(net, x), dice))
    assert not bool(cells.empty.any())
    rows = dice.normal(3, 2)
    truth = outputs(net, x)[0] @ rows.T
    choice = cells.slopes(rows)
    assert choice is not None
    tries = [cells.affine(rows).affine, cells.affine_at(rows, choice[0])]
    for size in (0.1, 1.0, 10.0):
        drawn = choice[0].map([size * dice.normal(*tensor.shape) for tensor in choice[0].tensors])
        tries.append(cells.affine_at(rows, drawn))
    for plane in tries:
        assert bool((plane(x) <= truth + 1e-12).all())
    assert bool((cells.least(rows) <= truth).all())
    scores = cells.branching_scores(rows, choice[0], torch.zeros(40, dtype=torch.int64))
    known = torch.cat([s != 0 for s in cells.signs], -1)
    assert bool((torch.cat(scores, -1)[known] == -torch.inf).all())


def test_a_multiplier_of_the_wrong_sign_would_be_found() -> None:
    """The test above can fail: with the signs reversed after the fact, planes pass above the function."""
    net, dice = certain_member(SIZES, 1), Dice(1)
    box = Box.ball(dice.normal(40, 3), 0.8)
    x = inside(box, dice)
    signs = some_signs(means(net, x), dice)
    cells, rows = MomentPass.of(net, box).restricted(torch.arange(40), signs), dice.normal(3, 2)
    object.__setattr__(cells, "signs", tuple(-s for s in signs))
    _ = cells.hidden
    choice = cells.slopes(rows)
    assert choice is not None
    drawn = choice[0].map([10 * torch.ones_like(tensor) for tensor in choice[0].tensors])
    truth = outputs(net, x)[0] @ rows.T
    assert not bool((cells.affine_at(rows, drawn)(x) <= truth + 1e-12).all())


def test_cells_that_hold_no_point_are_known() -> None:
    """With biases of 100 every mean of the first layer is positive: the other side of each is empty."""
    net = certain_member(SIZES, 2)
    first = cast("Linear", net.layers[0])
    high = BayesianNetwork((Linear.fixed(first.weight_mean, first.bias_mean + 100.0), *net.layers[1:]))
    signs = (torch.zeros(2, 6, dtype=torch.int8), torch.zeros(2, 5, dtype=torch.int8))
    signs[0][1, 3] = -1
    cells = MomentPass.of(high, Box.ball([[0.0, 0.0, 0.0]], 0.5)).restricted(torch.tensor([0, 0]), signs)
    assert cells.empty.tolist() == [False, True]


@pytest.mark.parametrize("shift", [False, True])
def test_members_one_by_one_are_those_together(*, shift: bool) -> None:
    """Members that are stacked have no cells of their own; one by one all have."""
    members = [certain_member(SIZES, k, shift=shift) for k in range(3)]
    box, rows = Box.ball(Dice(1).normal(5, 3), 0.4), Dice(2).normal(1, 2, 2).expand(15, -1, -1)
    ((_, mixture),) = list(chunked(Ensemble(tuple(members)), box, Options(), rows=2))
    (together,), each = list(mixture.parts()), list(mixture.one_by_one())
    assert together.bounds.branchable is None
    assert torch.equal(together.weights, torch.cat([part.weights for part in each]))
    assert torch.allclose(
        together.bounds.least(rows), torch.cat([part.bounds.least(rows[:5]) for part in each]), rtol=1e-9
    )
    assert all(part.bounds.branchable is not None for part in each)
