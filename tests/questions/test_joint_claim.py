"""Decisions of mixtures on cells: never above the truth, which is known on a grid; more of them than in one pass."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from support.dice import Dice
from support.ensembles import certain_member, outputs
from tests.marks import slow_but
from torch import Tensor

from bnndp.attack import decision_rows
from bnndp.attack.sampled_softmax import draw_softmax_noise, estimate_softmax
from bnndp.deadline import NEVER, Deadline
from bnndp.engine.side_by_side import side_by_side
from bnndp.geometry.box import Box
from bnndp.layers import CorrelatedLinear, Linear
from bnndp.network import BayesianNetwork, Ensemble
from bnndp.options import Options
from bnndp.questions import joint_claim
from bnndp.questions.joint_claim import _as_rows, _Known
from bnndp.questions.softmax import one_pass_rows
from bnndp.tighten.branching import Branching
from bnndp.tighten.pass_choice import chunked

AXIS = torch.linspace(-1, 1, 81, dtype=torch.float64)
GRID = torch.cartesian_prod(AXIS, AXIS)


def ensemble(seed: int, members: int) -> Ensemble:
    own = (
        certain_member((2, 7, 6, 3), 31 * seed + k, task="classification", shift=bool(seed % 2)) for k in range(members)
    )
    weights = 0.2 + Dice(seed).uniform(shape=(members,))
    return Ensemble(tuple(own), weights / weights.sum())


def laplace(seed: int, size: float) -> BayesianNetwork:
    below = certain_member((2, 8, 6, 3), seed, task="classification")
    last, dice = cast("Linear", below.layers[-1]), Dice(seed)
    factor = size * dice.normal(21, 21)
    head = CorrelatedLinear.whole(last.weight_mean, last.bias_mean, factor @ factor.T)
    return BayesianNetwork((*below.layers[:-1], head), "classification")


def bounds(net: BayesianNetwork | Ensemble, box: Box, label: Tensor, options: Options) -> Tensor:
    rows = decision_rows(label, net.n_out)[0]
    with torch.no_grad():
        return one_pass_rows(net, box, rows, label, options)[0]


@pytest.mark.parametrize("members", [1, 2, 4])
@pytest.mark.parametrize("seed", slow_but(range(6), 0, 1))
def test_ensembles_against_a_grid(seed: int, members: int) -> None:
    """The truth is at most the least lead on the grid; more cells prove no less, and nothing false."""
    net, radius = ensemble(seed, members), 0.15 + 0.1 * (seed % 4)
    centre = Dice(seed).normal(3, 2)
    box = Box.ball(centre, radius)
    points = centre + radius * GRID[:, None]
    leads = torch.stack([outputs(m, points)[0].softmax(-1) for m in net.members])
    p = torch.einsum("k,kpbc->pbc", net.probabilities, leads)
    label = p.mean(0).argmax(-1)
    truth = torch.einsum("brc,pbc->pbr", decision_rows(label, 3)[0], p).amin(0)
    one, few, many = (bounds(net, box, label, Options(optimise=5, branch=cells)) for cells in (1, 4, 32))
    for found in (one, few, many):
        assert bool((found <= truth + 1e-12).all())
    assert bool((many >= one - 1e-12).all())
    assert not bool((one > 0).all(-1).logical_and(~(many > 0).all(-1)).any())


@pytest.mark.parametrize("members", [1, 2, 4])
@pytest.mark.parametrize("seed", slow_but(range(6), 0, 1))
def test_lines_are_below_wherever_the_claim_may_fail(seed: int, members: int) -> None:
    """At every point of a grid: below the row, or the row is above what is enough."""
    net, dice, how = ensemble(seed, members), Dice(seed), Branching(1, 0, 0, 64, NEVER)
    centre, radius = dice.normal(12, 2), 0.05 + dice.uniform(shape=(12,))
    box = Box.ball(centre, radius)
    ((_, mixture),) = list(chunked(net, box, Options(), rows=3))
    found = side_by_side(mixture)
    assert found is not None
    points = centre + radius[:, None] * GRID[::7, None]
    each = [outputs(m, points)[0] for m in net.members]
    p = torch.einsum("k,kpbc->pbc", net.probabilities, torch.stack([f.softmax(-1) for f in each]))
    label = p[0].argmax(-1)
    rows = decision_rows(label, 3)[0]
    claim = joint_claim.JointClaim(*found, rows, label, how)
    _, chosen, asked, constant = claim.lines(found[0], label, rows, claim._margins(found[0], label, None), None)
    lines = torch.einsum("brn,pbn->pbr", asked, torch.cat(each, -1)) + constant
    truth = torch.einsum("brc,pbc->pbr", rows, p).gather(2, chosen.expand(len(p), -1, -1)).repeat(1, 1, 2)
    assert bool(((lines <= truth + 1e-12) | (truth > joint_claim._ENOUGH)).all())
    assert bool((lines > truth).any())  # the ranges do end before the box does


def test_cells_decide_what_one_pass_cannot() -> None:
    decided = torch.zeros(2, dtype=torch.int64)
    for seed in range(6):
        net, centre = ensemble(seed, 3), Dice(seed).normal(6, 2)
        box = Box.ball(centre, 0.4)
        p = torch.einsum(
            "k,kbc->bc", net.probabilities, torch.stack([outputs(m, centre)[0].softmax(-1) for m in net.members])
        )
        for i, cells in enumerate((1, 32)):
            decided[i] += (bounds(net, box, p.argmax(-1), Options(branch=cells)) > 0).all(-1).sum()
    assert 0 < int(decided[0]) < int(decided[1])


@pytest.mark.parametrize("size", [0.0, 0.02, 0.1, 0.4])
@pytest.mark.parametrize("seed", slow_but(range(8), 0, 1))
def test_gaussian_heads_against_draws(seed: int, size: float) -> None:
    net, centre = laplace(seed, size), Dice(seed).normal(3, 2)
    box = Box.ball(centre, 0.2)
    points = centre + 0.2 * GRID[::37, None]
    noise = draw_softmax_noise(net, 4096, seed=seed)
    found = estimate_softmax(net, points, noise)
    label = found.mean.mean(0).argmax(-1)
    rows = decision_rows(label, 3)[0]
    truth = torch.einsum("brc,pbc->pbr", rows, found.mean) + 12 * found.std_error.amax(-1, keepdim=True)
    for cells in (1, 16):
        proved = bounds(net, box, label, Options(optimise=5, branch=cells))
        assert bool((proved <= truth.amin(0) + 1e-9).all())


def test_when_the_time_is_over_nothing_more_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    net, box = ensemble(3, 3), Box.ball([[0.1, 0.2]], 0.3)
    label = torch.tensor([0])
    before = bounds(net, box, label, Options())
    claim = joint_claim.JointClaim.on_cells

    def late(self: joint_claim.JointClaim, *asked: object) -> object:
        object.__setattr__(self.how, "deadline", Deadline(0.0))
        return claim(self, *asked)  # type: ignore[arg-type]

    monkeypatch.setattr(joint_claim.JointClaim, "on_cells", late)
    assert bool((bounds(net, box, label, Options(branch=16)) >= before).all())


def test_coefficients_of_rows_add_up_exactly() -> None:
    """Sums of rounded tilts have no error, and each is within what is said to be lost."""
    dice = Dice(5)
    tilt, weight, label = dice.uniform(shape=(50, 4, 10)) ** 8, dice.uniform(shape=(50,)), torch.arange(50) % 10
    tilt[0] = 0.0
    known = _Known(-dice.uniform(shape=(50, 10)), 9 * dice.uniform(shape=(50, 10)), torch.zeros(50, 10))
    rows, lost = _as_rows(weight, tilt, label, known)
    assert bool((rows.sum(-1) == 0).all())
    own = label[:, None, None] == torch.arange(10)
    error = (rows + weight[:, None, None] * tilt).masked_fill(own, 0.0).abs()
    worst = (error * torch.maximum(known.least.abs(), known.most.abs())[:, None]).sum(-1)
    assert bool((worst <= lost).all())
