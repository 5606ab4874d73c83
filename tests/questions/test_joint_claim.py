"""Decisions of mixtures on cells: never above the truth, which is known on a grid; more of them than in one pass."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from support.dice import Dice
from support.ensembles import certain_member, outputs
from tests.marks import slow_but
from torch import Tensor

from bnndp.activations import Relu
from bnndp.attack import decision_rows
from bnndp.attack.sampled_softmax import draw_softmax_noise, estimate_softmax
from bnndp.deadline import NEVER, Deadline
from bnndp.engine.side_by_side import side_by_side
from bnndp.geometry.box import Box
from bnndp.layers import CorrelatedLinear, Linear
from bnndp.network import BayesianNetwork, Ensemble
from bnndp.options import Options
from bnndp.questions import joint_claim
from bnndp.questions.joint_claim import ENOUGH
from bnndp.questions.known_margins import KnownMargins
from bnndp.questions.margin_threshold import turned_threshold
from bnndp.questions.member_lines import as_rows
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
    rows = decision_rows(label, 3)[0][:, :1]
    claim = joint_claim.JointClaim(*found, rows, label, torch.full_like(label, -1), how)
    margins = claim._margins(found[0], label, rows, None)
    _, asked, constant = claim.lines(found[0], label, rows, margins)
    lines = torch.einsum("brn,pbn->pbr", asked, torch.cat(each, -1)) + constant
    truth = torch.einsum("brc,pbc->pbr", rows, p)
    assert bool(((lines <= truth + 1e-12) | (truth > ENOUGH)).all())
    if seed < 2:
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
    zero = torch.zeros(50, 10)
    known = KnownMargins(-dice.uniform(shape=(50, 10)), 9 * dice.uniform(shape=(50, 10)), zero, zero)
    rows, lost = as_rows(weight, tilt, label, known)
    assert bool((rows.sum(-1) == 0).all())
    own = label[:, None, None] == torch.arange(10)
    error = (rows + weight[:, None, None] * tilt).masked_fill(own, 0.0).abs()
    worst = (error * torch.maximum(known.least.abs(), known.most.abs())[:, None]).sum(-1)
    assert bool((worst <= lost).all())


@pytest.mark.parametrize("seed", slow_but(range(12), 0, 1, 2))
def test_one_gaussian_margin_decides_whatever_the_others_are(seed: int) -> None:
    """At the threshold, for random covariances and means of other logits that are far ahead or behind: by draws."""
    dice, classes, draws = Dice(seed), 4, 200_000
    factor = dice.normal(8, classes, classes) * torch.logspace(-1, 0.5, 8, dtype=torch.float64)[:, None, None]
    covariance = factor @ factor.mT
    one, label = torch.eye(classes, dtype=torch.float64), torch.zeros(8, dtype=torch.int64)
    left, right = one - 0.5 * one[0] - 0.5 * one[1], (one[0] - one[1]).expand(classes, -1)
    turned = torch.einsum("ja,bac,jc->bj", left, covariance, right)
    variance = torch.einsum("ja,bac,jc->bj", one[0] - one, covariance, one[0] - one)
    others = 4 * dice.normal(8, classes)
    rows = (one[0] - one[1]).expand(8, 1, -1)
    known = KnownMargins(others, others, variance, turned)
    threshold = turned_threshold(rows, label, known, random=True)
    fine = threshold[:, 0].isfinite()
    assert fine.tolist() == (variance <= 100).all(-1).tolist()
    assert bool((threshold > 0).all())
    mean = -others
    mean[:, 0], mean[:, 1:2] = 0.0, -threshold.nan_to_num(posinf=1e3)
    noise = dice.normal(draws, 8, classes)
    logits = mean + torch.einsum("bij,pbj->pbi", factor, noise)
    lead = logits.softmax(-1)[..., 0] - logits.softmax(-1)[..., 1]
    assert bool((lead.mean(0) > -6 * lead.std(0) / draws**0.5).all())
    for broken in (
        KnownMargins(others - 400, others, variance, turned),
        KnownMargins(others, others, variance, turned * torch.nan),
    ):
        assert bool(turned_threshold(rows, label, broken, random=True).isinf().all())


@pytest.mark.parametrize("turn", [0.0, 1.0, 2.0])
def test_a_rival_that_a_third_class_helps_is_not_behind(turn: float) -> None:
    r"""Logits :math:`(D,0,D/2+\kappa D)`, D Gaussian of a positive mean: with D the third class takes from the first.

    The lead :math:`2\sinh(D/2)/(2\cosh(D/2)+e^{\kappa D})` is integrated over D.
    """
    mean, sd = 0.9, 2.0
    below = Linear.fixed(0.01 * torch.eye(2, dtype=torch.float64))
    direction = torch.tensor([1.0, 0.0, 0.5 + turn], dtype=torch.float64)
    factor = torch.zeros(3, 3, 1, dtype=torch.float64)
    factor[:, -1, 0] = sd * direction
    none = torch.zeros(3, 2, dtype=torch.float64)
    head = CorrelatedLinear(none, none, mean * direction, 0 * direction, factor, shared=True)
    net = BayesianNetwork((below, Relu(), head), "classification")
    d = mean + sd * torch.linspace(-9, 9, 20_001, dtype=torch.float64)
    density = torch.exp(-0.5 * ((d - mean) / sd) ** 2)
    lead = 2 * torch.sinh(0.5 * d) / (2 * torch.cosh(0.5 * d) + torch.exp(turn * d))
    truth = float((density * lead).sum() / density.sum())
    found = bounds(net, Box([[-1.0, -1.0]], [[1.0, 1.0]]), torch.tensor([0]), Options(optimise=5, branch=16))
    least = found.flatten()[decision_rows(torch.tensor([0]), 3)[0][0, :, 1].argmin()]
    assert float(least) <= truth + 1e-9
    assert (turn == 0) == (truth > 0) == (float(least) > 0)


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_members_that_are_hardly_behind(seed: int) -> None:
    """Two members of low confidence: the mixture fails where one is a little behind and the other hardly ahead."""
    own = []
    for k in range(2):
        member = certain_member((2, 7, 6, 3), 57 * seed + k, task="classification")
        last = cast("Linear", member.layers[-1])
        calm = Linear.fixed(0.1 * last.weight_mean, 0.1 * last.bias_mean)
        own.append(BayesianNetwork((*member.layers[:-1], calm), "classification"))
    net, centre = Ensemble(tuple(own), torch.tensor([0.5, 0.5], dtype=torch.float64)), Dice(seed).normal(40, 2)
    points = centre + 0.3 * GRID[::3, None]
    p = torch.stack([outputs(m, points)[0].softmax(-1) for m in own]).mean(0)
    label = torch.stack([outputs(m, centre)[0].softmax(-1) for m in own]).mean(0).argmax(-1)
    truth = torch.einsum("brc,pbc->pbr", decision_rows(label, 3)[0], p).amin(0)
    assert bool((truth < 0).any())
    for cells in (2, 32):
        found = bounds(net, Box.ball(centre, 0.3), label, Options(optimise=5, branch=cells))
        assert bool((found <= truth + 1e-12).all())


def test_only_rows_of_one_rival_turn() -> None:
    one, label = torch.eye(4, dtype=torch.float64), torch.tensor([0])
    zero, still = torch.zeros(1, 4, dtype=torch.float64), torch.ones(1, 4, dtype=torch.float64)
    known = KnownMargins(zero, zero, still, zero)
    for row in (one[0] - one[1] - one[2], 2 * one[0] - one[1], one[0] - 2 * one[1], one[2] - one[1]):
        for random in (True, False):
            assert bool(turned_threshold(row[None, None], label, known, random=random).isinf().all())
