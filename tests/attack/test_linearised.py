"""The linearised radius of a linear classifier is its radius."""

from __future__ import annotations

import math

import pytest
import torch
from support.classifiers import exact_radius, random_linear
from support.ensembles import outputs
from support.records import normal

from bnndp import Ensemble
from bnndp.attack import decision_rows
from bnndp.attack.linearised import linear_radius


@pytest.mark.parametrize("norm", [1.0, 2.0, math.inf])
@pytest.mark.parametrize("seed", range(3))
def test_it_is_exact_where_the_network_is_linear(norm: float, seed: int) -> None:
    network, x = random_linear(6, 4, seed), normal(5, 6, seed=seed + 9)
    label = outputs(network, x)[0].argmax(-1)
    found = linear_radius(network, x, decision_rows(label, 4, None)[0], norm)
    torch.testing.assert_close(found, exact_radius(network, x, label, norm=norm), rtol=1e-9, atol=0)


def test_a_decision_that_is_not_the_label_has_no_radius() -> None:
    network, x = random_linear(6, 4, 1), torch.zeros(1, 6, dtype=torch.float64)
    worst = (network.linears[0].bias_mean).argmin()[None]
    assert linear_radius(network, x, decision_rows(worst, 4, None)[0], math.inf).item() == 0


def test_pieces_and_ensembles(monkeypatch: pytest.MonkeyPatch) -> None:
    network, x = random_linear(6, 4, 2), normal(7, 6, seed=3)
    rows = decision_rows(outputs(network, x)[0].argmax(-1), 4, None)[0]
    whole = linear_radius(network, x, rows, math.inf)
    monkeypatch.setattr("bnndp.attack.linearised._MOST", 40)
    assert torch.allclose(linear_radius(network, x, rows, math.inf), whole, rtol=1e-12, atol=0)
    twice = linear_radius(Ensemble((network, network)), x, rows, math.inf)
    assert torch.allclose(twice, whole, rtol=1e-9, atol=0)
