"""What is no number is no bound: a size that is NaN is not fine, a cell whose bound is NaN is not decided."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from bnndp.attack import decision_rows
from bnndp.engine.dense.forward import Hidden, HiddenLayers, Parameters, hidden_layers
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box
from bnndp.maths.rounding import LARGE
from bnndp.network import BayesianNetwork
from bnndp.tighten import branching

NetworkFactory = Callable[..., BayesianNetwork]


def with_spread(layers: HiddenLayers, value: float) -> HiddenLayers:
    """The same with one entry of S of the second box in the second hidden layer replaced."""
    (hidden,) = layers.chain
    high = hidden.before.spread.upper.clone()
    high[1, 2] = value
    before = replace(hidden.before, spread=Interval(hidden.before.spread.lower, high))
    return replace(layers, chain=[Hidden(before, hidden.mean, hidden.relaxation, hidden.latent, hidden.scale)])


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 4 * LARGE**2])
def test_a_size_that_is_no_number_is_not_fine(random_network: NetworkFactory, value: float) -> None:
    network = random_network((2, 4, 5, 3), seed=1)
    box = Box.ball([[0.1, 0.2], [0.3, 0.4]], 0.05)
    layers = hidden_layers(network.linears[:-1], box, Parameters())
    assert layers.fine.tolist() == [[True], [True]]
    assert with_spread(layers, value).fine.tolist() == [[True], [False]]


@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
def test_a_cell_without_a_bound_is_not_decided(
    random_network: NetworkFactory, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    network = random_network((2, 6, 3), seed=2, std=0.05, task="classification")
    box, label = Box.ball([[0.1, 0.2]], 0.3), torch.tensor([0])
    rows = decision_rows(label, 3, None)[0]

    def nothing(rows: Tensor, *_: object) -> Tensor:
        return torch.full(rows.shape[:2], value, dtype=torch.float64)

    monkeypatch.setattr(branching, "row_bound", nothing)
    claim = branching.Claim(network, box, rows, label)
    found = branching.branch(claim, cells=4, steps=1, piece=8)
    assert found.item() < -1e300
