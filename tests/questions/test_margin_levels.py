"""Levels of margins on cells: what they prove holds on a grid of draws, also where a box is hardly too large."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from flint import arb
from support.dice import Dice
from tests.marks import slow_but
from torch import Tensor

from bnndp.activations import Relu
from bnndp.attack import decision_rows
from bnndp.attack.sampled_softmax import draw_softmax_noise, estimate_softmax
from bnndp.deadline import NEVER
from bnndp.engine.margins import margin_rows
from bnndp.engine.moment_pass import MomentPass
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box
from bnndp.layers import CorrelatedLinear, Linear
from bnndp.network import BayesianNetwork
from bnndp.options import Options
from bnndp.questions import margin_levels
from bnndp.questions.chance import Chance
from bnndp.questions.margin_levels import branched_rows
from bnndp.questions.softmax import one_pass_rows
from bnndp.tighten.branching import Branched, Branching
from bnndp.tighten.row_claim import RowClaim

CLASSES, IMAGES, DRAWS = 4, 3, 512
AXIS = torch.linspace(-1, 1, 9, dtype=torch.float64)
GRID = torch.cartesian_prod(AXIS, AXIS)  # (points, 2)
SCALES = torch.logspace(-1.5, 0.3, 8, dtype=torch.float64)
KINDS = ("fixed", "calm", "random", "wild head", "Gaussian head", "shared head")


def network(kind: str, seed: int) -> BayesianNetwork:
    dice, sizes = Dice(seed), (2, 8, 6, CLASSES)
    spread = {"calm": 0.01, "random": 0.1}.get(kind, 0.0)
    layers: list[Linear | CorrelatedLinear | Relu] = []
    for n_in, n_out in pairwise(sizes):
        weight, bias = 1.5 * dice.normal(n_out, n_in) / n_in**0.5, 0.3 * dice.normal(n_out)
        layers += [Linear(weight, torch.full_like(weight, spread), bias, torch.full_like(bias, spread)), Relu()]
    last = layers[-2]
    assert isinstance(last, Linear)
    head: Linear | CorrelatedLinear = last
    if kind in ("wild head", "Gaussian head"):
        size = 1.0 if kind == "wild head" else 0.1
        head = Linear(last.weight_mean, torch.full_like(last.weight_mean, size), last.bias_mean, last.bias_std)
    if kind == "shared head":
        factor = 0.05 * dice.normal(last.weight_mean.numel() + CLASSES, 12)
        head = CorrelatedLinear.whole(last.weight_mean, last.bias_mean, factor @ factor.T)
    return BayesianNetwork((*layers[:-2], head), "classification")


def truth(net: BayesianNetwork, rows: Tensor, points: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """The rows at points (points, batch, 2) by draws, and six standard errors: (points, batch, rows) both."""
    found = estimate_softmax(net, points, draw_softmax_noise(net, DRAWS, seed=seed))
    return torch.einsum("brc,pbc->pbr", rows, found.mean), 6 * torch.einsum("brc,pbc->pbr", rows.abs(), found.std_error)


def branched(net: BayesianNetwork, box: Box, rows: Tensor, label: Tensor, cells: int) -> Tensor:
    return branched_rows(MomentPass.of(net, box), rows, label, Branching(cells, 10, 1, 1024, NEVER))


def only_for_most_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the levels are, and what bounds of means have proved is not counted."""
    by_rounds = margin_levels._by_rounds

    def found(known: margin_levels.Known, how: Branching) -> Tensor:
        proved = by_rounds(known, how)
        return torch.full_like(proved, -torch.inf) if known.chance is None else proved

    monkeypatch.setattr(margin_levels, "_HIGH", -1.0)
    monkeypatch.setattr(margin_levels, "_by_rounds", found)


@pytest.mark.parametrize("losses", [False, True])
@pytest.mark.parametrize("seed", slow_but(range(4), 0))
@pytest.mark.parametrize("kind", [*KINDS, "calm, for most weights"])
def test_nothing_false_is_proved_of_boxes_of_all_sizes(
    kind: str, seed: int, monkeypatch: pytest.MonkeyPatch, *, losses: bool
) -> None:
    """Balls of 8 sizes around each input, those among them at which the decision is hardly wrong in a corner."""
    kind, *others = kind.split(", ")
    if others:
        only_for_most_weights(monkeypatch)
    net, dice = network(kind, seed), Dice(100 + seed)
    weights = 1 - torch.eye(CLASSES, dtype=torch.float64)
    weights = weights * (0.5 + dice.uniform(shape=(CLASSES, CLASSES))) if losses else weights
    centre = dice.normal(IMAGES, 2)
    mean = estimate_softmax(net, centre, draw_softmax_noise(net, DRAWS, seed=seed)).mean
    label = (mean @ weights.mT).argmin(-1)
    centre, label = centre.repeat(len(SCALES), 1), label.repeat(len(SCALES))
    size = SCALES.repeat_interleave(IMAGES)
    rows = decision_rows(label, CLASSES, weights)[0]
    points = centre + size[:, None] * GRID[:, None]
    values, error = truth(net, rows, points, seed)
    one, few, many = (branched(net, Box.ball(centre, size), rows, label, cells) for cells in (1, 4, 16))
    for found in (one, few, many):
        assert bool((found <= values + error + 1e-9).all())
    proved = [(found > 0).all(-1) for found in (one, few, many)]
    assert not bool((proved[0] & ~proved[1]).any())
    assert not bool((proved[1] & ~proved[2]).any())
    if seed == 0 and kind != "wild head":
        assert bool((values + error < 0).any())
        assert bool(proved[2].any())


@pytest.mark.parametrize("kind", ["fixed", "calm", "random", "Gaussian head", "shared head"])
def test_cells_prove_more_than_one_pass(kind: str) -> None:
    count, size = torch.zeros(2, dtype=torch.int64), torch.logspace(-1.2, 0, 40, dtype=torch.float64)
    for seed in range(2):
        net, centre = network(kind, seed), Dice(seed).normal(40, 2)
        label = estimate_softmax(net, centre, draw_softmax_noise(net, DRAWS, seed=0)).mean.argmax(-1)
        box, rows = Box.ball(centre, size), decision_rows(label, CLASSES)[0]
        plain = one_pass_rows(net, box, rows, label, Options())[0]
        for i, found in enumerate((plain, branched(net, box, rows, label, 32))):
            count[i] += int((found > 0).all(-1).sum())
    assert 0 < int(count[0]) < int(count[1])


@pytest.mark.parametrize("seed", slow_but(range(2), 0))
@pytest.mark.parametrize("kind", ["random", "Gaussian head"])
def test_a_box_is_proved_only_if_all_its_claims_are(kind: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one of the claims is lost, whichever it is, nothing is raised; where none is, the box is proved."""
    monkeypatch.setattr(margin_levels, "_HIGH", torch.inf)
    net, centre = network(kind, seed), Dice(seed).normal(24, 2)
    label = estimate_softmax(net, centre, draw_softmax_noise(net, DRAWS, seed=0)).mean.argmax(-1)
    rows, box = decision_rows(label, CLASSES)[0], Box.ball(centre, torch.logspace(-1.2, -0.4, 24, dtype=torch.float64))
    asked = list[Tensor]()  # the boxes of the claims, for each of the calls

    def told(lost: tuple[int, int] | None) -> Tensor:
        asked.clear()

        def answer(_: RowClaim, boxes: Tensor, how: Branching, together: Tensor | None = None) -> Branched:
            assert together is not None
            asked.append(together)
            found = torch.ones(boxes.shape, dtype=torch.float64)
            if lost is not None and len(asked) == lost[0] + 1:
                found[lost[1]] = -1.0
            return Branched(found, torch.ones_like(boxes))

        monkeypatch.setattr(margin_levels, "branch", answer)
        return branched(net, box, rows, label, 8)

    whole, calls = told(None), list(asked)
    assert len(calls) == 2  # the hardest claim of every box, then the others
    assert all(bool((whole[call] > 0).all()) for call in calls)
    for number, call in enumerate(calls):
        for lost, own in enumerate(call.tolist()):
            left, others = told((number, lost)), torch.arange(24) != own
            assert not bool((left[own] > 0).all())
            assert bool((left[others] == whole[others]).all())
            assert number == 1 or all(own not in later.tolist() for later in asked[1:])  # not worth its cells


@pytest.mark.parametrize("seed", slow_but(range(8), 0))
@pytest.mark.parametrize("kind", ["random", "Gaussian head", "shared head"])
def test_rows_are_positive_wherever_the_margins_are_above_their_level(kind: str, seed: int) -> None:
    """At points of boxes so large that the decision fails: both kinds of levels, by draws."""
    net, dice, how = network(kind, seed), Dice(seed), Branching(1, 5, 1, 1024, NEVER)
    centre = dice.normal(8, 2)
    label = estimate_softmax(net, centre, draw_softmax_noise(net, DRAWS, seed=0)).mean.argmax(-1)
    size = torch.tensor([0.2, 1.0], dtype=torch.float64).repeat(4)
    rows, box = decision_rows(label, CLASSES)[0], Box.ball(centre, size)
    bounds = MomentPass.of(net, box)
    known = margin_levels.Known.of(bounds, rows, label, margin_levels.margin_planes(bounds, label, CLASSES, how))
    points = centre + size[:, None] * GRID[:, None]
    values, error = truth(net, rows, points, seed)
    flat = points.flatten(0, 1)
    at = Box(flat, flat)
    pairs = margin_rows(label[:, None].repeat(len(GRID), 1), CLASSES)
    mean = MomentPass.of(net, at).least(pairs).unflatten(0, (len(GRID), -1)).masked_fill(known.own, torch.inf)
    together = known.level_together()
    for level in (together, known.level_between(Interval(together - 1, together))):
        above = (mean > level[:, None]).all(-1)
        assert bool((values + error > 0)[above].all())
    if known.bounds.gaussian:
        count = 0
        for rival in range(CLASSES):
            level = known.level_alone(torch.full_like(label, rival))
            assert bool((level == -torch.inf).eq(label == rival).all())
            above = (mean[..., rival] > level) & (label != rival)
            own = (rows[..., rival] < 0).double().argmax(-1)
            row = (values + error).gather(-1, own.expand(len(GRID), -1)[..., None])[..., 0]
            assert bool((row > 0)[above].all())
            count += int(above.sum())
        assert count > 0


def test_what_overflows_proves_nothing() -> None:
    net = network("calm", 0)
    first, *others = net.layers
    assert isinstance(first, Linear)
    huge = replace(first, weight_mean=1e300 * first.weight_mean)
    for size in (1e-3, 1e8, 1e300):
        box = Box.ball([[0.3, -0.2]], size)
        rows, label = decision_rows(torch.tensor([0]), CLASSES)[0], torch.tensor([0])
        found = branched(BayesianNetwork((huge, *others), "classification"), box, rows, label, 8)
        assert not bool((found > 0).all())


def test_a_proof_for_most_weights_may_not_use_more_bounds_than_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more of either kind, and what it has proved does not count."""
    only_for_most_weights(monkeypatch)
    net, centre = network("calm", 0), Dice(0).normal(16, 2)
    label = estimate_softmax(net, centre, draw_softmax_noise(net, DRAWS, seed=0)).mean.argmax(-1)
    rows, box = decision_rows(label, CLASSES)[0], Box.ball(centre, torch.logspace(-1.5, -0.5, 16, dtype=torch.float64))
    used = list[Tensor]()

    def noted(self: Chance, asked: Tensor) -> Tensor:
        used.append(asked)
        return allows(self, asked)

    allows = Chance.allows
    monkeypatch.setattr(Chance, "allows", noted)
    assert bool((branched(net, box, rows, label, 16) > 0).all(-1).any())
    most = torch.cat(used).amax(0).tolist()
    chance = Chance(*most)
    assert bool(chance.allows(torch.tensor([most])).all())
    for kind in range(2):
        more = torch.tensor([most])
        more[:, kind] += 1
        assert not bool(chance.allows(more).any())
    monkeypatch.setattr(Chance, "allows", lambda self, asked: torch.zeros(len(asked), dtype=torch.bool))
    assert not bool((branched(net, box, rows, label, 16) > 0).any())


def test_claims_count_every_bound_of_their_cells() -> None:
    """A row for each cell, and at most both ends of a few neurons of each layer."""
    net = network("calm", 0)
    bounds = MomentPass.of(net, Box.ball(Dice(0).normal(3, 2), 0.1))
    pairs = margin_rows(torch.zeros(3, 1, dtype=torch.int64), CLASSES)[:, 1:2]
    how = Branching(4, 10, 1, 1024, NEVER)
    claim = RowClaim(bounds, torch.tensor([0, 2, 2]), pairs, torch.zeros(3, dtype=torch.float64), how)
    used = claim.used(torch.tensor([5, 1, 2]))
    assert used[:, 1].tolist() == [5, 0, 3]
    assert used[:, 0].tolist() == [count * 2 * 8 * len(bounds.widths) for count in (5, 0, 3)]


@pytest.mark.parametrize("hidden", [10, 10**4, 10**7])
def test_all_bounds_together_fail_for_no_more_than_their_share(hidden: int) -> None:
    """Twice the share of a Gaussian below minus so many deviations, times their number: in ball arithmetic."""
    chance = Chance(hidden, 100)
    total = arb(0)
    for count, deviations in ((chance.hidden, chance.deviations.hidden), (chance.rows, chance.deviations.rows)):
        total += count * (arb(deviations) / arb(2).sqrt()).erfc()
    assert total <= arb(chance.failure)
    assert total >= arb(chance.failure) * 0.99
