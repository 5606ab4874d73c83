"""Largest values of windows of dropped inputs, by all masks."""

from __future__ import annotations

import math

import pytest
import torch
from support import records
from support.layer_judge import node_layers
from support.passes import ends, holds
from tests.engine.cases import check_node, outcomes

from bnndp.engine.moment_pass import MomentPass
from bnndp.geometry.box import Box
from bnndp.layers import Dropout, Flatten, Linear, MaxPool
from bnndp.network import BayesianNetwork


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("stride", [1, 2])
def test_maxima_of_dropped_inputs(rate: float, stride: int) -> None:
    """Equal means with all the variance of dropout: the maximum of four ones is 1/keep but where all are dropped."""
    pool = MaxPool(2, stride)
    n = math.prod(pool.out_shape((1, 3, 3)))
    network = BayesianNetwork(
        (Dropout(rate), pool, Flatten(), Linear.fixed(torch.ones(1, n) / n)), input_shape=(1, 3, 3)
    )
    for x in (torch.ones(1, 9, dtype=torch.float64), 1 + records.uniform(1, 9, seed=3), records.normal(1, 9, seed=4)):
        chance, values = outcomes(network, x[0])
        mean = chance @ values[-1]
        if bool((x == 1).all()):
            assert mean.item() == pytest.approx((1 - rate**4) / (1 - rate))
        bounds = MomentPass.of(network, Box(x, x))
        assert holds(ends(bounds, 1), mean, 1e-12)
        for index, node in zip(node_layers(network), bounds.hidden.nodes[1:], strict=True):
            check_node(f"after layer {index}", node, chance, values[index])
