"""Verdicts on decisions: certified below the exact radius, falsified above it by a witness, or undecided."""

from __future__ import annotations

import math

import pytest
import torch
from support.classifiers import classifier, exact_radius, linear, random_linear, sampled_softmax

from bnndp.errors import InputError, MagnitudeError
from bnndp.geometry.box import Box
from bnndp.network import BayesianNetwork
from bnndp.questions.decision import decide, robust_decision
from bnndp.questions.verdict import Verdict

X = torch.zeros(2, 2)


def points(count: int, n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def probabilities(network: BayesianNetwork, x: torch.Tensor) -> torch.Tensor:
    """Softmax of a linear network whose weights are not random."""
    (layer,) = network.linears
    return torch.softmax(x @ layer.weight_mean.T + layer.bias_mean, -1)


@pytest.mark.parametrize("norm", [math.inf, 2, 1])
@pytest.mark.parametrize("classes", [2, 4])
def test_an_ordinary_linear_classifier_on_both_sides_of_its_radius(classes: int, norm: float) -> None:
    network, x = random_linear(3, classes, 3), points(4, 3)
    label = probabilities(network, x).argmax(-1)
    exact = exact_radius(network, x, label, norm=norm)
    inner = robust_decision(network, x, Box.ball(x, 0.99 * exact, norm=norm))
    assert inner.verdict == (Verdict.CERTIFIED,) * 4
    assert torch.equal(inner.label, label)
    assert bool((inner.bound > 0).all())
    assert torch.equal(inner.witness, x)
    assert bool(inner.margin.isnan().all())
    ball = Box.ball(x, 1.02 * exact, norm=norm)
    outer = robust_decision(network, x, ball)
    assert outer.verdict == (Verdict.FALSIFIED,) * 4
    assert not bool((outer.bound > 0).any())
    assert bool(ball.contains(outer.witness).all())
    there = probabilities(network, outer.witness)
    lead = there.gather(1, label[:, None]) - there.gather(1, outer.rival[:, None])
    assert bool((lead < 0).all())
    assert torch.allclose(lead[:, 0], outer.margin, atol=1e-12)
    assert outer.error.tolist() == [0.0] * 4  # nothing is random
    assert outer.proved == (True,) * 4


def test_the_certified_lead_is_below_the_lead_at_every_corner() -> None:
    network, x = classifier((2, 6, 3), 4, std=0.05, gain=2.0), points(5, 2, 1)
    box = Box.ball(x, 0.02)
    found = robust_decision(network, x, box)
    assert Verdict.CERTIFIED in found.verdict
    for sign in torch.cartesian_prod(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0])).double():
        mean, error = sampled_softmax(network, box.lower + sign * (box.upper - box.lower), 20_000, seed=2)
        own, blur = (value.gather(1, found.label[:, None]) for value in (mean, error))
        lead = (own - mean + 5 * (error + blur)).masked_fill(torch.nn.functional.one_hot(found.label, 3).bool(), 9.0)
        assert bool((found.bound <= lead.amin(1)).all())


def test_what_bounds_cannot_prove_and_attacks_cannot_break_is_undecided() -> None:
    """Very uncertain weights of a hidden layer: the decision is clear at the input, but the bounds do not say so."""
    network, x = classifier((2, 8, 3), 2, std=4.0, gain=2.0), torch.tensor([[0.4, 0.2]], dtype=torch.float64)
    mean, error = sampled_softmax(network, x, 20_000, seed=1)
    label = mean.argmax(-1)
    lead = mean.topk(2).values
    assert lead[0, 0] - lead[0, 1] > 10 * error.max()
    found = robust_decision(network, x, Box.ball(x, 1e-3), label)
    assert found.verdict == (Verdict.UNDECIDED,)
    assert not found.bound > 0
    assert found.margin + found.error >= 0  # the attack found no change, and there is none
    assert found.proved == (False,)


def test_uncertain_weights_are_falsified_with_confidence() -> None:
    network, x = random_linear(2, 2, 1, std=1.0), torch.tensor([[0.4, 0.2]], dtype=torch.float64)
    label = probabilities(network, x).argmax(-1)
    ball = Box.ball(x, 2 * exact_radius(network, x, label))
    found = robust_decision(network, x, ball, label)
    assert found.verdict == (Verdict.FALSIFIED,)
    assert bool(ball.contains(found.witness).all())
    assert found.margin + found.error < 0
    mean, error = sampled_softmax(network, found.witness, 200_000, seed=1)
    own = int(label)
    assert mean[0, own] - mean[0, 1 - own] + 5 * (error[0, own] + error[0, 1 - own]) < 0


def test_a_given_label_that_is_wrong_at_the_input_is_falsified_there() -> None:
    network, x = random_linear(3, 3, 0), points(3, 3)
    right = probabilities(network, x).argmax(-1)
    found = robust_decision(network, x, Box(x, x), (right + 1) % 3)
    assert found.verdict == (Verdict.FALSIFIED,) * 3
    assert torch.equal(found.witness, x)
    assert torch.equal(found.rival, right)


def test_weights_change_what_is_decided() -> None:
    """At even odds a loss of 3 for missing class 0 decides for class 0."""
    network = linear(torch.tensor([[1.0], [-1.0]]), torch.zeros(2))
    x = torch.tensor([[-0.2]])
    weights = torch.tensor([[0.0, 1.0], [3.0, 0.0]])
    assert decide(network, x).tolist() == [1]
    assert decide(network, x, losses=weights).tolist() == [0]
    boundary = -math.log(3) / 2  # 2 x = -log 3
    for reach, verdict in ((0.99, Verdict.CERTIFIED), (1.02, Verdict.FALSIFIED)):
        box = Box.ball(x, reach * (-0.2 - boundary))
        assert robust_decision(network, x, box, losses=weights).verdict == (verdict,)


def test_decide_is_the_largest_sampled_probability() -> None:
    network, x = classifier((2, 8, 4), 5, std=1.0), points(30, 2, 4)
    mean, error = sampled_softmax(network, x, 20_000, seed=3)
    top = mean.topk(2, dim=-1)
    clear = top.values[:, 0] - top.values[:, 1] > 10 * error.amax(-1)
    assert int(clear.sum()) > 20
    assert torch.equal(decide(network, x)[clear], top.indices[:, 0][clear])


def test_where_float64_ends_nothing_is_certified() -> None:
    weight = torch.tensor([[1e200, 0.0], [0.0, 1e200]], dtype=torch.float64)
    layer = linear(weight, torch.zeros(2), std=1e200).linears[0]
    network = BayesianNetwork.from_linears([layer, layer], "classification")
    x = torch.tensor([[1.0, 0.5]])
    with pytest.raises(MagnitudeError, match="layer 2"):
        robust_decision(network, x, Box.ball(x, 0.1), 0)


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_a_bound_that_is_not_a_number_proves_nothing(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    network, x = random_linear(2, 2, 0), points(1, 2)
    monkeypatch.setattr(
        "bnndp.questions.decision.bound_rows",
        lambda network, box, rows, *rest: torch.full(rows.shape[:2], value).double(),
    )
    assert robust_decision(network, x, Box.ball(x, 1e-6)).verdict == (Verdict.UNDECIDED,)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"label": torch.tensor([0, 7])}, "label 1 is 7"),
        ({"label": torch.tensor([0.0, 1.0])}, "integer"),
        ({"label": torch.tensor([0, 1, 2])}, "2 inputs"),
        ({"x": X[:1]}, "give one point per region"),
        ({"x": X + 1}, "must lie in its region"),
        ({"network": BayesianNetwork(random_linear(2, 3, 0).layers)}, "needs a classifier"),
        ({"network": torch.nn.Linear(2, 3)}, r"bnndp\.from_module\(module, task='classification'\)"),
        ({"label": 0, "losses": torch.zeros(2, 2)}, r"losses must be \(3, 3\)"),
    ],
)
def test_refusals(change: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        robust_decision(**{"network": random_linear(2, 3, 0), "x": X, "box": Box.ball(X, 0.1)} | change)


def test_a_decision_needs_all_inputs() -> None:
    with pytest.raises(InputError, match="x has 3 inputs, the network takes 2"):
        decide(random_linear(2, 3, 0), torch.zeros(1, 3))
