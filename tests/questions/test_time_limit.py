"""No question works on after its time is over: what was not reached is not claimed, and what was reached holds."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import pytest
import torch
from support.classifiers import classifier
from support.ensembles import outputs, points_of
from support.networks import make_network
from support.passes import holds
from support.records import normal
from tests.questions.cases import CLASSIFIER, POINTS, interval

from bnndp.deadline import Deadline
from bnndp.geometry.box import Box
from bnndp.network import Ensemble, Posterior
from bnndp.options import Options
from bnndp.questions import robustness
from bnndp.questions.assertions import NotRobust, assert_robust
from bnndp.questions.certify import certify, probability
from bnndp.questions.decision import robust_decision
from bnndp.questions.evaluate import evaluate
from bnndp.questions.radius import Search, certified_radius
from bnndp.questions.robustness import adversarial_robustness
from bnndp.questions.verdict import Verdict

INF = math.inf
OVER = replace(Options(), deadline=Deadline.after(-1.0))  # the time was over before the question was asked
HARD = replace(OVER, effort="high", refine=8)
REGRESSION = make_network((1, 8, 8, 2), 1)
CLASSES = classifier((1, 8, 8, 3), 1)
BOX = Box.ball(POINTS, 0.05)


def networks(network: Posterior) -> list[Posterior]:
    return [network, Ensemble((*network.members, *network.members))]


@pytest.mark.parametrize("options", [OVER, HARD], ids=["one pass", "high effort"])
@pytest.mark.parametrize("network", networks(REGRESSION), ids=["one", "several"])
def test_regression_after_the_deadline(monkeypatch: pytest.MonkeyPatch, network: Posterior, options: Options) -> None:
    monkeypatch.delattr(robustness, "inside_range")  # no attack begins
    found = certify(network, BOX, options)
    assert bool((found.lower == -INF).all() & (found.upper == INF).all())
    assert found.method == ("none",) * 3
    spread = certify(network, BOX, options, quantity="variance")
    assert bool((spread.lower == 0).all() & (spread.upper == INF).all())
    chance = probability(network, BOX, -1.0, 1.0, options)
    assert bool((chance.lower == 0).all() & (chance.upper == 1).all())
    change = adversarial_robustness(network, POINTS, BOX, 1e9, options=options)
    assert change.verdict == (Verdict.UNDECIDED,) * 3


@pytest.mark.parametrize("options", [OVER, HARD], ids=["one pass", "high effort"])
@pytest.mark.parametrize("network", [*networks(CLASSES), *networks(CLASSIFIER)], ids=["a", "a, a", "line", "lines"])
def test_classification_after_the_deadline(network: Posterior, options: Options) -> None:
    """Also of a line, of which everything is certified at once if there is any time."""
    found = certify(network, BOX, options)
    assert bool((found.lower == 0).all() & (found.upper == 1).all())
    assert found.method == ("none",) * 3
    decision = robust_decision(network, POINTS, BOX, options=options)
    assert decision.verdict == (Verdict.UNDECIDED,) * 3
    assert not any(decision.proved)
    radius = certified_radius(network, POINTS, options=options)
    assert bool(radius.radius.isnan().all())
    assert not bool((radius.attack < INF).any())  # nothing was broken, and nothing is said to withstand
    curve = evaluate(network, POINTS, options=options)
    assert bool(curve.radius.isnan().all())
    assert curve.curve([0.0]).certified == (0,)
    with pytest.raises(NotRobust, match="0 of 3 inputs certified"):
        assert_robust(network, POINTS, eps=0.01, options=options)


@pytest.mark.parametrize("ask", ["mean", "softmax", "decision", "radius"])
def test_a_heavy_question_ends_in_time_and_holds(ask: str) -> None:
    """Six hidden layers of 64 and the highest effort, for eight boxes: it would take minutes."""
    limit, sizes = 0.4, (8, *(64,) * 6, 3)
    x = normal(8, 8, seed=1)
    box, options = Box.ball(x, 0.02), Options(effort="high", time_limit=limit)
    task = "regression" if ask == "mean" else "classification"
    network = make_network(sizes, 1, std=0.02, task=task)
    drawn = outputs(network, points_of(box, 2), 400)
    start = time.monotonic()
    if ask in ("mean", "softmax"):
        found = certify(network, box, options)
        truth = drawn if ask == "mean" else drawn.softmax(-1)
        assert holds(interval(found), truth.mean(0), 6 * truth.std(0) / 20 + 1e-9)
    elif ask == "decision":
        decided = robust_decision(network, x, box, options=options)
        lead = drawn.softmax(-1).mean(0).amin(0).gather(1, decided.label[:, None])[:, 0]
        assert all(verdict is not Verdict.CERTIFIED or lead[i] > 0.2 for i, verdict in enumerate(decided.verdict))
    else:
        radii = certified_radius(network, x, search=Search(upper=0.5), options=options)
        assert not bool((radii.radius > radii.attack).any())
    assert time.monotonic() - start < 20 * limit  # a machine under load is slow to stop


def test_a_limit_that_is_not_reached_changes_nothing() -> None:
    with_limit, without = (certify(REGRESSION, BOX, Options(refine=4, time_limit=limit)) for limit in (1e6, None))
    assert torch.allclose(with_limit.lower, without.lower, rtol=1e-12, atol=1e-12)  # other chunks: other orders of sums
    search = Search(attack=False)
    radii = [
        certified_radius(CLASSES, POINTS, search=search, options=Options(time_limit=t)).radius for t in (1e6, None)
    ]
    assert torch.equal(radii[0].nan_to_num(-1.0), radii[1].nan_to_num(-1.0))
