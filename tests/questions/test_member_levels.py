"""Decisions of mixtures and of Gaussian heads on cells: never above the truth; more of them than in one pass."""

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
from bnndp.geometry.box import Box
from bnndp.layers import CorrelatedLinear, Linear
from bnndp.network import BayesianNetwork, Ensemble
from bnndp.options import Options
from bnndp.questions import member_levels
from bnndp.questions.margin_threshold import KnownMargins, turned_threshold
from bnndp.questions.softmax import one_pass_rows
from bnndp.tighten.branching import Branching
from bnndp.tighten.pass_choice import chunked
from bnndp.tighten.row_claim import RowClaim

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


@pytest.mark.parametrize("members", [2, 3])
@pytest.mark.parametrize("seed", slow_but(range(5), 0, 1))
def test_what_is_proved_of_single_margins_holds_on_a_grid(seed: int, members: int) -> None:
    """Whatever level is asked for, also one that no margin reaches; what failed leaves what its cells have proved."""
    net, dice, how = ensemble(seed, members), Dice(seed), Branching(12, 5, 1, 64, NEVER)
    centre, radius = dice.normal(8, 2), 0.05 + 0.5 * dice.uniform(shape=(8,))
    ((_, mixture),) = list(chunked(net, Box.ball(centre, radius), Options(), rows=3))
    points = centre + radius[:, None] * GRID[::5, None]
    each = [outputs(m, points)[0] for m in net.members]
    label = torch.einsum("k,kpbc->pbc", net.probabilities, torch.stack([f.softmax(-1) for f in each]))[0].argmax(-1)
    own, every = label[:, None] == torch.arange(3), torch.ones(8, dtype=torch.bool)
    raised = 0
    for member, f in zip(member_levels._members(mixture, decision_rows(label, 3)[0], label, how), each, strict=True):
        truth = (f.gather(-1, label.expand(f.shape[0], -1)[..., None]) - f).amin(0)
        assert bool((member.lowest >= truth - 0.5 * radius[:, None])[~own].all())  # of points of the box
        for share in (0.3, 0.9, 1.5):
            level = torch.where(own, member.proved, member.level(torch.full_like(radius, share)))
            found = member.after(level, every, how)
            assert bool((found.proved <= truth + 1e-12).all())
            assert bool((found.proved >= member.proved).all())
            assert bool((found.proved <= torch.maximum(level, member.proved) + 1e-12).all())
            raised += int((found.proved > member.proved).sum())
    assert raised > 0


@pytest.mark.parametrize("std", [0.01, 0.1])
@pytest.mark.parametrize("seed", slow_but(range(4), 0))
def test_random_members_against_draws(seed: int, std: float) -> None:
    own = []
    for k in range(3):
        member = certain_member((2, 7, 6, 3), 11 * seed + k, task="classification")
        noisy = [
            Linear(each.weight_mean, 0 * each.weight_mean + std, each.bias_mean, 0 * each.bias_mean + std)
            if isinstance(each, Linear)
            else each
            for each in member.layers
        ]
        own.append(BayesianNetwork(tuple(noisy), "classification"))
    net, centre = Ensemble(tuple(own), torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)), Dice(seed).normal(12, 2)
    radius = torch.logspace(-1.5, -0.3, 12, dtype=torch.float64)
    found = estimate_softmax(net, centre + radius[:, None] * GRID[::37, None], draw_softmax_noise(net, 2048, seed=seed))
    label = found.mean.mean(0).argmax(-1)
    rows = decision_rows(label, 3)[0]
    truth = torch.einsum("brc,pbc->pbr", rows, found.mean) + 12 * found.std_error.amax(-1, keepdim=True)
    for cells in (1, 8):
        proved = bounds(net, Box.ball(centre, radius), label, Options(optimise=5, branch=cells))
        assert bool((proved <= truth.amin(0) + 1e-9).all())


def test_cells_decide_what_one_pass_cannot() -> None:
    """Of members that are alike, as after training."""
    decided = torch.zeros(2, dtype=torch.int64)
    for seed in range(3):
        dice, first = Dice(seed), certain_member((2, 7, 6, 3), seed, task="classification")
        own = []
        for _ in range(3):
            moved = [
                Linear.fixed(each.weight_mean + 0.05 * dice.normal(*each.weight_mean.shape), each.bias_mean)
                if isinstance(each, Linear)
                else each
                for each in first.layers
            ]
            own.append(BayesianNetwork(tuple(moved), "classification"))
        net, centre = Ensemble(tuple(own)), dice.normal(24, 2)
        box = Box.ball(centre, torch.logspace(-1.3, 0, 24, dtype=torch.float64))
        p = torch.stack([outputs(m, centre)[0].softmax(-1) for m in own]).mean(0)
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
    claim = RowClaim.on_cells

    def late(self: RowClaim, *asked: object, last: bool) -> object:
        object.__setattr__(self.how, "deadline", Deadline(0.0))
        return claim(self, *asked, last=last)  # type: ignore[arg-type]

    monkeypatch.setattr(RowClaim, "on_cells", late)
    assert bool((bounds(net, box, label, Options(branch=16)) >= before).all())


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
