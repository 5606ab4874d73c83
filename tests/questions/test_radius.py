"""Certified and attacked radii against exact ones: linear classifiers, all norms, domains, weighted losses."""

from __future__ import annotations

import math
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from support.classifiers import classifier, exact_radius, linear, random_linear, sampled_softmax
from tests.marks import slow_but

from bnndp.errors import InputError, MagnitudeError
from bnndp.geometry.box import Box
from bnndp.network import BayesianNetwork, Posterior
from bnndp.options import Options
from bnndp.questions import radius
from bnndp.questions.radius import Search, certified_radius
from bnndp.questions.softmax import bound_rows, one_pass_rows

BLIND = Search(attack=False)


def points(count: int, n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def own_labels(network: BayesianNetwork, x: torch.Tensor) -> torch.Tensor:
    (layer,) = network.linears
    return (x @ layer.weight_mean.T + layer.bias_mean).argmax(-1)


@pytest.mark.parametrize("norm", [math.inf, 2, 1])
@pytest.mark.parametrize("classes", slow_but([2, 3, 5], 3))
def test_an_ordinary_linear_classifier_is_exact(classes: int, norm: float) -> None:
    network, x = random_linear(3, classes, classes), points(6, 3)
    label = own_labels(network, x)
    exact = exact_radius(network, x, label, norm=norm)
    found = certified_radius(network, x, search=Search(norm=norm, upper=20.0, tolerance=0.01))
    assert torch.equal(found.label, label)
    assert bool((found.radius <= exact * (1 + 1e-9)).all())
    assert bool((found.radius >= exact / 1.011).all())
    assert bool((found.attack >= exact * (1 - 1e-9)).all())
    assert bool((found.attack <= exact * 1.03).all())
    distance = torch.linalg.vector_norm(found.witness - x, ord=norm, dim=-1)
    assert bool((distance <= found.attack).all())
    assert not torch.equal(own_labels(network, found.witness), label)
    assert bool((own_labels(network, found.witness) != label).all())


@pytest.mark.parametrize("std", [0.01, 0.3, 1.0])
def test_two_classes_with_random_weights_never_exceed_the_exact_radius(std: float) -> None:
    """The decision changes where the mean margin does: an exact radius whatever the variance."""
    network, x = random_linear(3, 2, 4, std=std), points(8, 3, 1)
    label = own_labels(network, x)
    exact = exact_radius(network, x, label)
    found = certified_radius(network, x, label, search=Search(upper=10.0))
    certified = found.radius.nan_to_num(0.0)
    assert bool((certified <= exact * (1 + 1e-9)).all())
    assert bool((found.attack >= exact * (1 - 1e-9)).all())
    if std == 0.01:
        assert bool((certified >= 0.9 * exact).all())
    if std == 0.3:
        assert bool((certified > 0).any())


def test_the_domain_cuts_the_ball() -> None:
    """Inputs at the edge of the domain move one way only; the least margin over the cut ball is a sum by hand."""
    network = linear(torch.tensor([[2.0, -1.0], [-1.0, 1.0]]), torch.tensor([0.5, 0.0]))
    x = torch.tensor([[0.9, 0.05], [0.1, 0.0], [1.0, 1.0]], dtype=torch.float64)
    slope, shift = torch.tensor([3.0, -2.0], dtype=torch.float64), 0.5

    def least(eps: torch.Tensor) -> torch.Tensor:
        worst = torch.where(slope > 0, (x - eps[:, None]).clamp_min(0), (x + eps[:, None]).clamp_max(1))
        return (worst * slope).sum(-1) + shift

    label = torch.zeros(3, dtype=torch.int64)
    found = certified_radius(network, x, label, (0.0, 1.0), search=Search(tolerance=0.005, attack=False))
    assert bool((least(found.radius) > -1e-9).all())
    assert bool((least(found.radius * 1.006) < 0).all())
    free = certified_radius(network, x, label, search=Search(tolerance=0.005, attack=False))
    assert bool((free.radius <= 1.006 * found.radius).all())
    assert bool((free.radius < 0.9 * found.radius).any())


def test_weighted_losses_move_the_boundary() -> None:
    """Losses 1 and 3: class 0 is chosen while p_1 < 3 p_0, that is while the margin is above -log 3."""
    network, x = random_linear(3, 2, 1), points(6, 3, 2)
    weights = torch.tensor([[0.0, 1.0], [3.0, 0.0]])
    (layer,) = network.linears
    difference = layer.weight_mean[0] - layer.weight_mean[1]
    margin = x @ difference + layer.bias_mean[0] - layer.bias_mean[1] + math.log(3)
    exact = margin.abs() / difference.abs().sum()
    found = certified_radius(network, x, search=Search(upper=20.0, losses=weights))
    assert torch.equal(found.label, (margin < 0).long())
    assert bool(((found.radius <= exact * (1 + 1e-9)) & (found.radius >= exact / 1.011)).all())
    assert bool(((found.attack >= exact * (1 - 1e-9)) & (found.attack <= exact * 1.03)).all())


HOW = {"usual": Options(), "optimised": Options(optimise=5), "best": Options(method="best")}
NETWORKS = [((3, 3), 0.4), ((2, 8, 3), 0.05), ((2, 8, 3), 0.5), ((2, 6, 6, 3), 0.05), ((2, 6, 6, 4), 0.5)]
KEPT = [("usual", (2, 8, 3), 0.05), ("best", (2, 8, 3), 0.5), ("optimised", (3, 3), 0.4)]


@pytest.mark.parametrize(
    ("how", "sizes", "std"), slow_but([(how, *network) for how in HOW for network in NETWORKS], *KEPT)
)
def test_no_attack_breaks_a_certified_decision(how: str, sizes: tuple[int, ...], std: float) -> None:
    network, x = classifier(sizes, 11, std=std, gain=2.0), points(3, sizes[0], 3)
    found = certified_radius(network, x, options=HOW[how])
    assert not bool((found.radius > found.attack).any())
    assert not bool((found.ratio > 1).any())
    if std == 0.05:
        assert bool((found.radius > 0).any())
    # and at random points of the certified ball, drawn weight by weight, the label stays ahead
    certified = found.radius.nan_to_num(0.0)
    ball = Box.ball(x, certified)
    share = torch.rand(8, *x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    known = found.radius >= 0
    for inside in ball.lower + share * (ball.upper - ball.lower):
        mean, error = sampled_softmax(network, inside, 4000, seed=1)
        lead = mean.gather(1, found.label[:, None]) - mean
        assert bool((lead + 5 * (error + error.gather(1, found.label[:, None])) >= 0)[known].all())


def test_a_decision_that_never_changes_is_certified_up_to_the_largest_radius() -> None:
    network = linear(torch.zeros(3, 2), torch.tensor([1.0, 0.0, -1.0]))
    found = certified_radius(network, points(4, 2), search=Search(upper=0.7))
    assert found.radius.tolist() == [0.7] * 4
    assert found.attack.tolist() == [math.inf] * 4
    assert found.ratio.tolist() == [0.0] * 4


def test_a_wrong_label_has_no_radius_and_is_broken_at_once() -> None:
    network, x = random_linear(3, 3, 0), points(5, 3)
    wrong = (own_labels(network, x) + 1) % 3
    found = certified_radius(network, x, wrong)
    assert bool(found.radius.isnan().all())
    assert found.attack.tolist() == [0.0] * 5
    assert bool(found.ratio.isnan().all())
    assert torch.equal(found.witness, x)


def test_a_finer_tolerance_certifies_no_less_and_stays_below_the_truth() -> None:
    network, x = classifier((2, 8, 3), 2, std=0.1), points(6, 2, 5)
    coarse, fine = (
        certified_radius(network, x, search=Search(attack=False, tolerance=tolerance)).radius.nan_to_num(-1.0)
        for tolerance in (0.3, 0.001)
    )
    assert bool((fine >= coarse / 1.001 - 1e-12).all())
    assert bool((coarse >= fine / 1.31 - 1e-12).all())


def test_a_batch_is_its_inputs_one_by_one() -> None:
    network, x = classifier((2, 6, 3), 6, std=0.1), points(4, 2, 7)
    together = certified_radius(network, x, search=BLIND)
    for i in range(4):
        alone = certified_radius(network, x[i], search=BLIND)
        assert torch.allclose(alone.radius, together.radius[i : i + 1], rtol=1e-9, equal_nan=True)


@pytest.mark.parametrize("size", [1e160, 1e300])
def test_where_float64_ends_nothing_is_certified(size: float) -> None:
    weight = torch.tensor([[size, 0.0], [0.0, size]], dtype=torch.float64)
    hidden = linear(weight, torch.zeros(2), std=size).linears[0]
    network = BayesianNetwork.from_linears([hidden, hidden], "classification")
    with pytest.raises(MagnitudeError, match="layer 2"):
        certified_radius(network, torch.tensor([[1.0, 0.5]]), 0, search=BLIND)


@pytest.mark.parametrize(
    ("x", "more", "words"),
    [
        (torch.zeros(2, 2), {"label": torch.tensor([0, 3])}, "label 1 is 3, but the classes are 0 to 2"),
        (torch.zeros(2, 2), {"label": -1}, "label 0 is -1"),
        (torch.zeros(2, 2), {"label": torch.tensor([0.0, 1.0])}, "label must be one integer for each input"),
        (torch.zeros(2, 2), {"label": torch.tensor([0, 1, 2])}, "2 inputs"),
        (torch.zeros(2, 3), {}, "x has 3 inputs, the network takes 2"),
        (torch.tensor([[0.0, math.nan]]), {}, "nan"),
        (torch.full((1, 2), 2.0), {"domain": (0.0, 1.0)}, "outside the domain"),
        (torch.zeros(2, 2), {"label": 0, "search": Search(norm=3)}, "norm must be 1, 2 or inf"),
    ],
)
def test_refusals(x: torch.Tensor, more: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        certified_radius(random_linear(2, 3, 0), x, **more)


def test_other_refusals() -> None:
    with pytest.raises(InputError, match="needs a classifier"):
        certified_radius(BayesianNetwork(random_linear(2, 3, 0).layers, "regression"), torch.zeros(2, 2))
    for change in ({"upper": 0.0}, {"upper": math.inf}, {"tolerance": 1.0}):
        with pytest.raises(InputError, match=next(iter(change))):
            Search(**change)


@pytest.mark.slow
def test_costly_bounds_at_the_end_find_what_they_find_at_every_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uncertain margins, for which exponential moments say more than two: the radii are the same to the tolerance."""
    network, x = classifier((4, 12, 12, 3), 5, std=0.25, gain=3.0), points(6, 4, 8)
    spy = Mock(wraps=bound_rows)
    monkeypatch.setattr("bnndp.questions.radius.bound_rows", spy)
    found = certified_radius(network, x, search=BLIND)
    assert 0 < min(call.args[1].batch for call in spy.call_args_list) < 6  # not of all, each time

    def every(*args: Any, costly: bool) -> tuple[torch.Tensor, torch.Tensor]:
        return bound_rows(*args), torch.zeros(args[1].batch, dtype=torch.bool)

    monkeypatch.setattr("bnndp.questions.radius.one_pass_rows", every)
    usual = certified_radius(network, x, search=BLIND)

    def never(*args: Any, costly: bool) -> tuple[torch.Tensor, torch.Tensor]:
        return one_pass_rows(*args, costly=costly)[0], torch.zeros(args[1].batch, dtype=torch.bool)

    monkeypatch.setattr("bnndp.questions.radius.one_pass_rows", never)
    weak = certified_radius(network, x, search=BLIND)
    assert torch.equal(found.radius.isnan(), usual.radius.isnan())
    known = ~usual.radius.isnan()
    assert torch.allclose(found.radius[known], usual.radius[known], rtol=0.0101, atol=2e-6)
    assert bool((found.radius[known] >= weak.radius.nan_to_num(0.0)[known] * (1 - 1e-12)).all())
    assert bool((found.radius[known] > 1.02 * weak.radius.nan_to_num(0.0)[known]).any())  # or it would test nothing


@pytest.mark.parametrize("hopeful", [False, True])
@pytest.mark.parametrize("value", [math.nan, -math.inf, 0.0])
def test_a_radius_without_a_bound(monkeypatch: pytest.MonkeyPatch, value: float, hopeful: bool) -> None:
    """Neither at the input itself nor further out, also where only larger balls have no bound."""
    network, x = classifier((2, 4, 3), 1, std=0.01), points(2, 2)

    def nothing(_: Posterior, box: Box, rows: torch.Tensor, *__: object) -> torch.Tensor:
        wide = (box.upper - box.lower).amax(-1) > reach
        return torch.where(wide[:, None], value, torch.ones(rows.shape[:2], dtype=torch.float64))

    def quickly(
        network: Posterior, box: Box, rows: torch.Tensor, *rest: object, costly: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return nothing(network, box, rows, *rest), torch.full((box.batch,), hopeful)

    monkeypatch.setattr(radius, "bound_rows", nothing)
    monkeypatch.setattr(radius, "one_pass_rows", quickly)
    reach = -1.0
    found = certified_radius(network, x, search=BLIND)
    assert found.radius.isnan().all()
    reach = 0.25
    found = certified_radius(network, x, search=BLIND)
    assert (found.radius <= 0.125).all()
    assert (found.radius >= 0.12).all()
