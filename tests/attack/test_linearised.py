"""The linearised radius of a linear classifier is its radius."""

from __future__ import annotations

import math

import pytest
import torch

from bnndp import BayesianNetwork, Ensemble
from bnndp.attack import decision_rows
from bnndp.attack.linearised import linear_radius
from bnndp.layers import Linear

F64 = torch.float64


def classifier(seed: int, classes: int = 4, n: int = 6) -> BayesianNetwork:
    generator = torch.Generator().manual_seed(seed)
    weight, bias = (torch.randn(size, generator=generator, dtype=F64) for size in ((classes, n), (classes,)))
    zero = torch.zeros_like
    return BayesianNetwork((Linear(weight, zero(weight), bias, zero(bias)),), task="classification")


@pytest.mark.parametrize("norm", [1.0, 2.0, math.inf])
@pytest.mark.parametrize("seed", range(3))
def test_it_is_exact_where_the_network_is_linear(norm: float, seed: int) -> None:
    network, x = classifier(seed), torch.randn(5, 6, generator=torch.Generator().manual_seed(seed + 9), dtype=F64)
    layer = network.linears[0]
    logits = x @ layer.weight_mean.mT + layer.bias_mean
    label = logits.argmax(-1)
    found = linear_radius(network, x, decision_rows(label, 4, None)[0], norm)
    dual = {1.0: math.inf, 2.0: 2.0, math.inf: 1.0}[norm]
    for i in range(5):
        c = int(label[i])
        slopes = torch.linalg.vector_norm(layer.weight_mean[c] - layer.weight_mean, ord=dual, dim=-1)
        radii = [float((logits[i, c] - logits[i, j]) / slopes[j]) for j in range(4) if j != c]
        assert found[i].item() == pytest.approx(min(radii), rel=1e-9)


def test_a_decision_that_is_not_the_label_has_no_radius() -> None:
    network, x = classifier(1), torch.zeros(1, 6, dtype=F64)
    worst = (network.linears[0].bias_mean).argmin()[None]
    assert linear_radius(network, x, decision_rows(worst, 4, None)[0], math.inf).item() == 0


def test_pieces_and_ensembles(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(7, 6, generator=torch.Generator().manual_seed(3), dtype=F64)
    network = classifier(2)
    label = (x @ network.linears[0].weight_mean.mT + network.linears[0].bias_mean).argmax(-1)
    rows = decision_rows(label, 4, None)[0]
    whole = linear_radius(network, x, rows, math.inf)
    monkeypatch.setattr("bnndp.attack.linearised._MOST", 40)
    assert torch.allclose(linear_radius(network, x, rows, math.inf), whole, rtol=1e-12, atol=0)
    twice = linear_radius(Ensemble((network, network)), x, rows, math.inf)
    assert torch.allclose(twice, whole, rtol=1e-9, atol=0)
