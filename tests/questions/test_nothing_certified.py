"""Where a bound is no number nothing is certified: not a row, not a decision, not a radius."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from bnndp.attack import decision_rows
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box
from bnndp.network import BayesianNetwork, Ensemble, Posterior
from bnndp.options import Options
from bnndp.questions import decision, radius
from bnndp.questions import softmax as classify
from bnndp.questions.quantities import Between, _Law, _probability
from bnndp.questions.verdict import Verdict

NetworkFactory = Callable[..., BayesianNetwork]
F64 = torch.float64
X = torch.tensor([[0.2, -0.4], [0.5, 0.1]], dtype=F64)


def no_numbers(_: Posterior, __: Box, rows: Tensor, *___: object, **____: object) -> Tensor:
    """In place of bounds of rows: NaN for all of them."""
    return torch.full(rows.shape[:2], torch.nan, dtype=F64)


@pytest.mark.parametrize("several", [False, True])
def test_rows_without_a_bound(random_network: NetworkFactory, monkeypatch: pytest.MonkeyPatch, several: bool) -> None:
    network: Posterior = random_network((2, 4, 3), seed=1, task="classification")
    if several:
        network = Ensemble((random_network((2, 4, 3), seed=1, task="classification"),) * 2)
    monkeypatch.setattr(classify, "mixture_bound" if several else "_rows", no_numbers)
    label = torch.tensor([0, 1])
    rows = decision_rows(label, 3, None)[0]
    found = classify.bound_rows(network, Box.ball(X, 0.01), rows, label, Options())
    assert (found == -torch.inf).all()


def test_a_decision_without_a_bound(random_network: NetworkFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    network = random_network((2, 4, 3), seed=1, std=0.01, task="classification")
    box = Box.ball(X, 1e-3)
    assert Verdict.CERTIFIED in decision.robust_decision(network, X, box).verdict
    monkeypatch.setattr(decision, "bound_rows", no_numbers)
    assert Verdict.CERTIFIED not in decision.robust_decision(network, X, box).verdict


@pytest.mark.parametrize("hopeful", [False, True])
@pytest.mark.parametrize("value", [math.nan, -math.inf, 0.0])
def test_a_radius_without_a_bound(
    random_network: NetworkFactory, monkeypatch: pytest.MonkeyPatch, value: float, hopeful: bool
) -> None:
    """Neither at the input itself nor further out, also where only larger balls have no bound."""
    network = random_network((2, 4, 3), seed=1, std=0.01, task="classification")
    search = radius.Search(attack=False)

    def nothing(_: Posterior, box: Box, rows: Tensor, *__: object) -> Tensor:
        wide = (box.upper - box.lower).amax(-1) > reach
        return torch.where(wide[:, None], value, torch.ones(rows.shape[:2], dtype=F64))

    def quickly(network: Posterior, box: Box, rows: Tensor, *rest: object) -> tuple[Tensor, Tensor]:
        return nothing(network, box, rows, *rest), torch.full((box.batch,), hopeful)

    monkeypatch.setattr(radius, "bound_rows", nothing)
    monkeypatch.setattr(radius, "quick_rows", quickly)
    reach = -1.0
    found = radius.certified_radius(network, X, search=search)
    assert found.radius.isnan().all()
    reach = 0.25
    found = radius.certified_radius(network, X, search=search)
    assert (found.radius <= 0.125).all()
    assert (found.radius >= 0.12).all()


@pytest.mark.parametrize("mean", [math.nan, 0.0])
def test_a_probability_of_what_is_no_number(mean: float) -> None:
    nothing = torch.full((1, 1), mean, dtype=F64)
    spread = torch.full((1, 1), math.nan, dtype=F64)
    law = _Law(exactly(nothing), exactly(spread), gaussian=True)
    found = _probability(law, Between(-1.0, 1.0))
    assert (found.lower.item(), found.upper.item()) == (0.0, 1.0)


def exactly(value: Tensor) -> Interval:
    return Interval(value, value)
