"""Ranges of means: least values by the centre are those of the affine functions, and rows left out change nothing."""

from __future__ import annotations

import math

import pytest
import torch
from support import records
from support.layer_networks import KINDS, make_case
from support.passes import ends

from bnndp.activations import Relu
from bnndp.engine.moment_pass import MomentPass
from bnndp.engine.propagation import mean_range
from bnndp.engine.protocol import both_signs
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork


@pytest.mark.parametrize("index", range(4))
@pytest.mark.parametrize("kind", KINDS)
def test_least_values_are_those_of_the_functions(kind: str, index: int) -> None:
    """Two ways to the same number, which rounding alone keeps apart."""
    case = make_case(3, kind, index)
    bounds = MomentPass.of(case.network.unshifted() if case.network.shift is not None else case.network, case.box)
    rows = both_signs(case.network.n_out, case.box)
    least, planes = bounds.least(rows), bounds.affine(rows).least
    slack = 1e-8 * (least.abs() + 1)
    assert torch.equal(least.isfinite(), planes.isfinite())
    assert bool(((least - planes).abs() <= slack)[least.isfinite()].all())


@pytest.mark.parametrize("std", [1e-4, 1e-2, 0.1])
def test_neurons_far_below_a_kink_need_no_better_range(monkeypatch: pytest.MonkeyPatch, std: float) -> None:
    """Their means and moments are zero up to what no sum notices; bounds hold for sampled means in both cases."""
    layers = [
        records.linear(o, i, seed, std=std / math.sqrt(i)) for seed, (o, i) in enumerate([(30, 4), (40, 30), (3, 40)])
    ]
    middle = layers[1]
    bias = middle.bias_mean - 6.0 * (torch.arange(40) % 2)  # every second neuron of the second layer is dead
    layers[1] = Linear(middle.weight_mean, middle.weight_std, bias, middle.bias_std)
    network = BayesianNetwork.from_linears(layers)
    x = records.normal(5, 4, seed=9)
    box = Box.ball(x, 0.05)
    found = ends(MomentPass.of(network, box), 3)
    monkeypatch.setattr(mean_range, "_DEAD", math.inf)
    every = ends(MomentPass.of(network, box), 3)
    slack = 1e-6 * (every.upper - every.lower)
    assert bool(((found.lower - every.lower).abs() <= slack).all())
    assert bool(((found.upper - every.upper).abs() <= slack).all())
    draws, value, generator = 4000, x.expand(4000, -1, -1), torch.Generator().manual_seed(3)
    for layer in layers:
        weight = layer.weight_mean + layer.weight_std * torch.randn(
            draws, *layer.weight_mean.shape, generator=generator
        )
        noise = layer.bias_std * torch.randn(draws, 1, layer.n_out, generator=generator)
        value = value @ weight.mT + layer.bias_mean + noise
        value = value if layer is layers[-1] else value.relu()
    error = 6 * value.std(0) / math.sqrt(draws)
    assert bool(((value.mean(0) >= found.lower - error) & (value.mean(0) <= found.upper + error)).all())


def test_what_is_wanted() -> None:
    """A kink at an end is not inside; what is no number is asked for."""
    ends_of = [(-1.0, 1.0), (0.0, 2.0), (-2.0, 0.0), (math.nan, 1.0), (-40.0, -33.0), (-40.0, -31.0)]
    low, high = torch.tensor(ends_of, dtype=torch.float64).T[:, None]
    coarse = Interval(low, high)
    assert mean_range.with_kink_inside([0.0])(coarse)[0].tolist() == [True, False, False, True, False, False]
    wanted = mean_range.not_far_below(0.0, torch.ones_like(low))(coarse)[0].tolist()
    assert wanted == [True, True, True, True, False, True]
    assert mean_range.not_far_below(0.0, torch.full_like(low, math.nan))(coarse).all()


def test_no_rows_are_carried_down_where_no_kink_is_inside() -> None:
    """On a tiny box every ReLU is a line, and so is the network: the bounds are its two values at the ends."""
    layers = [
        Linear.fixed(records.normal(o, i, seed=o + i), records.normal(o, seed=o)) for o, i in ((6, 2), (5, 6), (2, 5))
    ]
    network = BayesianNetwork((layers[0], Relu(), layers[1], Relu(), layers[2]))
    box = Box.ball(records.normal(1, 2, seed=4), 1e-7)
    found = ends(MomentPass.of(network, box), 2)
    corners = torch.cartesian_prod(*torch.stack([box.lower[0], box.upper[0]], -1))
    value = corners
    for layer in layers:
        value = value @ layer.weight_mean.T + layer.bias_mean
        value = value.relu() if layer is not layers[-1] else value
    assert bool((found.lower[0] - value.amin(0)).abs().max() <= 1e-11)  # what is granted to rounding
    assert bool((found.upper[0] - value.amax(0)).abs().max() <= 1e-11)  # what is granted to rounding
