"""Ranges of the mean and deviation of the first layer against ball arithmetic at points of boxes, vertices included."""

from __future__ import annotations

import pytest
import torch
from support import oracles
from support.dice import Dice

from bnndp.attack.inside import candidates
from bnndp.engine.tails.first_layer import first_ranges
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork


@pytest.mark.parametrize("centre", [-2.0, 0.0, 0.5])
@pytest.mark.parametrize("radius", [0.0, 1e-3, 0.7, 3.0])
@pytest.mark.parametrize("std", [0.0, 1e-170, 1e-6, 0.3, 3.0])
@oracles.precise
def test_ranges_hold_at_points_of_the_box(std: float, radius: float, centre: float) -> None:
    """Without tolerance from below; a deviation of zero has a small ball, and squares of 1e-170 underflow."""
    for n_in in (1, 3, 6):
        dice, n = Dice(n_in), 5
        layer = Linear(
            dice.normal(n, n_in), std * dice.uniform(shape=(n, n_in)), dice.normal(n), std * dice.uniform(shape=(n,))
        )
        layer.bias_std[:2] = 0.0
        box = Box.ball(centre + 0.2 * dice.normal(n_in), radius)
        found = first_ranges(layer, box)
        for x in candidates(box, seed=1, points=4, vertices=6)[:, 0].tolist():
            for i, (m, r) in enumerate(oracles.pre_activation(BayesianNetwork((layer,)), x)):
                for interval, truth in ((found.m, m), (found.r, r)):
                    assert interval.lower[0, i].item() == 0 or oracles.below(interval.lower[0, i].item(), truth)
                    assert oracles.above(interval.upper[0, i].item(), truth)
        if radius == 0:
            assert torch.allclose(found.r.lower, found.r.upper, rtol=1e-12, atol=2e-30)
            assert torch.allclose(found.m_centre, found.m.lower, rtol=1e-12, atol=1e-12)
            assert torch.allclose(found.r_centre, found.r.upper, rtol=1e-12, atol=2e-30)
