"""Intervals of moments hold, and are wider than ours."""

from __future__ import annotations

import math

import pytest
import torch
from benchmarks.baselines import intervals
from benchmarks.timing import sample_local
from support.networks import make_network

from bnndp import Box, certify


def _box(n: int, eps: float, batch: int = 4) -> Box:
    return Box.ball(torch.randn(batch, n, generator=torch.Generator().manual_seed(1), dtype=torch.float64), eps)


@pytest.mark.parametrize("sizes", [(3, 6, 2), (2, 8, 8, 2), (3, 6, 6, 6, 1)], ids=str)
@pytest.mark.parametrize("std", [0.0, 0.3])
def test_intervals_of_moments_hold(sizes: tuple[int, ...], std: float) -> None:
    network, box = make_network(sizes, 3, std=std), _box(sizes[0], 0.1)
    found = intervals.outputs(network, box)
    torch.manual_seed(0)
    for i in range(box.batch):
        for x in (box.lower[i], box.centre[i], box.upper[i]):
            drawn = sample_local(network, x, 20_000, dtype=torch.float64)
            error = 5 * drawn.std(0) / math.sqrt(20_000) + 1e-9  # five standard errors, of a few hundred comparisons
            mean = drawn.mean(0)
            assert ((mean >= found.mean.lower[i] - error) & (mean <= found.mean.upper[i] + error)).all()
            assert (drawn.var(0) <= found.variance[i] * 1.1 + 1e-12).all()  # 1 % is its standard error, tails heavier


def test_intervals_of_moments_are_wider_than_ours() -> None:
    network, box = make_network((3, 12, 12, 3), 3, std=0.1, task="classification"), _box(3, 0.02)
    wide, ours = intervals.probabilities(network, box), certify(network, box)
    assert (wide.upper - wide.lower > ours.width).all()
    assert (wide.lower <= ours.upper).all()
    assert (wide.upper >= ours.lower).all()


def test_one_hidden_layer_by_intervals_is_exact_at_a_point() -> None:
    network, box = make_network((3, 12, 2), 3, std=0.3), _box(3, 0.0)
    found, ours = intervals.outputs(network, box).mean, certify(network, box)
    assert torch.allclose(found.lower, ours.lower, atol=1e-10)
    assert torch.allclose(found.upper, ours.upper, atol=1e-10)
