"""The noise E exp(f) of a heteroscedastic head, in closed form and by draws."""

from __future__ import annotations

import math

import pytest
import torch
from support.ensembles import outputs, points_of
from support.passes import holds
from support.records import linear, normal
from tests.questions.cases import interval

from bnndp.activations import Tanh
from bnndp.errors import UnsupportedLayerError
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork, Ensemble
from bnndp.questions.certify import certify

DRAWS = 20_000


def test_noise_of_a_heteroscedastic_head() -> None:
    first, last = Linear.fixed(normal(5, 2, seed=41)), linear(2, 5, 42, 0.2)
    network = BayesianNetwork((first, Tanh(), last))
    box = Box.ball(normal(3, 2, seed=43), 0.1)
    bounds = certify(network, box, quantity="noise")
    x = points_of(box, 100)
    z = torch.tanh(x @ first.weight_mean.T)
    mean = z @ last.weight_mean.T + last.bias_mean
    spread = z.square() @ last.weight_std.square().T + last.bias_std.square()
    truth = torch.exp(mean + 0.5 * spread)
    assert holds(interval(bounds), truth, 0.0)
    assert bool((bounds.upper < 3 * truth.amax(0)).all())
    drawn = outputs(network, box.centre, DRAWS).exp()
    assert holds(interval(bounds), drawn.mean(0), 5 * drawn.std(0) / DRAWS**0.5)
    pair = certify(Ensemble((network, network)), box, quantity="noise")
    assert torch.allclose(pair.upper, bounds.upper, rtol=1e-12)
    assert bool((pair.upper >= bounds.upper * (1 - 1e-15)).all())


def test_noise_that_may_be_infinite_is_refused() -> None:
    network = BayesianNetwork.from_linears([linear(3, 2, 1), linear(2, 3, 2)])
    for asked in (network, Ensemble((network,))):
        with pytest.raises(UnsupportedLayerError, match="not known to be finite: something before its last layer"):
            certify(asked, Box.ball([[0.0, 0.0]], 0.1), quantity="noise")


def test_very_large_noise_is_infinite_above_and_finite_below() -> None:
    layer = Linear(torch.zeros(2, 1), torch.zeros(2, 1), torch.tensor([5000.0, -5000.0]), torch.ones(2))
    bounds = certify(BayesianNetwork((layer,)), Box([[0.0]], [[0.0]]), quantity="noise")
    assert bounds.upper[0, 0].item() == math.inf
    assert 1e307 < bounds.lower[0, 0].item() < math.inf
    assert bounds.lower[0, 1].item() == 0.0
    assert bounds.upper[0, 1].item() < 1e-280
