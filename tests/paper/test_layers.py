"""Ranges of m(z) and r(z) over regions, against ball arithmetic at their points."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from support import oracles
from support.dice import Dice
from tests.paper.truth import gaussians, random_linear
from torch import Tensor

from bnndp.layers import Linear
from bnndp.paper.layers import Layer, Region

F64 = torch.float64


def regions(n: int, size: float, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Ends of boxes on one side of zero, around it, touching it and without width; (n,) each."""
    a, b = size * Dice(seed).uniform(shape=(2, n))
    low, high = torch.minimum(a, b), torch.maximum(a, b)
    zero = torch.zeros(n, dtype=F64)
    return [(low, high), (-high, -low), (-low, high), (-high, low), (zero, high), (-high, zero), (low, low)]


def points(low: Tensor, high: Tensor) -> Tensor:
    """Both corners, the middle, the point nearest to zero and others between: (count, n)."""
    share = torch.rand(6, len(low), generator=torch.Generator().manual_seed(0), dtype=F64).round()
    nearest = torch.zeros_like(low).clamp(low, high)
    return torch.cat([torch.stack([low, high, 0.5 * (low + high), nearest]), torch.where(share > 0, high, low)])


@pytest.mark.parametrize("size", [1e-3, 0.5, 1.0, 30.0, 1e6])
@pytest.mark.parametrize("n", [1, 3, 8])
def test_no_point_of_a_region_leaves_its_ranges(n: int, size: float) -> None:
    linear = random_linear(4, n, n, std=0.7)
    layer = Layer.of(linear)
    for seed in range(3):
        for low, high in regions(n, size, seed):
            found = layer.ranges(Region(*(end[None, None] for end in (low, high, 0.5 * (low + high)))))
            ends = (found.mean_lower, found.mean_upper, found.std_lower, found.std_upper)
            m_low, m_high, r_low, r_high = (end[0, 0].tolist() for end in ends)
            for z in points(low, high).tolist():
                for i, (m, r) in enumerate(gaussians(linear, z)):
                    assert oracles.below(m_low[i], m)
                    assert oracles.above(m_high[i], m)
                    assert oracles.below(r_low[i], r)
                    assert oracles.above(r_high[i], r)
            if torch.equal(low, high):  # a point: nothing is lost but rounding
                assert torch.allclose(found.std_lower, found.std_upper, rtol=1e-13)
                slack = 1e-13 * (1 + size * linear.weight_mean.abs().sum().item())
                assert (found.mean_upper - found.mean_lower).max().item() <= slack


# Where float64 underflows or cancels


@pytest.mark.parametrize("std", [1e-130, 1e-160, 1e-170, 1e-250, 5e-324])
@pytest.mark.parametrize("size", [1.0, 1e100, 1e150])
def test_tiny_deviations_are_not_lost(std: float, size: float) -> None:
    """r(z) = std z for one weight, and std for the bias alone: products of two floats, exact but for one rounding."""
    one, zero = torch.ones(1, 1, dtype=F64), torch.zeros(1, 1, dtype=F64)
    z = torch.tensor([size], dtype=F64)
    weight = Layer.of(Linear(one, std * one, zero[0], zero[0]))
    assert weight.std_upper(z).item() >= std * size
    assert weight.std_lower(z).item() <= std * size
    bias = Layer.of(Linear(one, zero, zero[0], std * one[0]))
    assert bias.std_upper(z).item() >= std
    assert bias.std_lower(z).item() <= std
    none = Layer.of(Linear(one, zero, zero[0], zero[0]))
    assert none.std_lower(z).item() == 0


def test_tails_that_underflow_are_not_zero() -> None:
    """E max(w, 0) is positive, however small."""
    one = torch.ones(1, 1, dtype=F64)
    layer = Layer.of(Linear(-60 * one, one, -60 * one[0], one[0]))
    assert (layer.rise > 0).all()
    assert (layer.bias_rise > 0).all()
    assert (Layer.of(Linear(60 * one, one, one[0], one[0])).fall > 0).all()


@pytest.mark.parametrize("seed", range(10))
def test_means_that_cancel_are_rounded_outward(seed: int) -> None:
    """At a point, in exact fractions: large terms of both signs leave a small mean."""
    dice = Dice(seed)
    z, weight = 1e6 * dice.uniform(shape=(1, 1, 40)), dice.normal(30, 40)
    weight[:, 20:] = -weight[:, :20] * (z[0, 0, :20] / z[0, 0, 20:])
    zero = torch.zeros_like(weight)
    found = Layer.of(Linear(weight, zero, zero[:, 0], zero[:, 0])).ranges(Region(z, z, z))
    point = [Fraction(x) for x in z[0, 0].tolist()]
    for i, row in enumerate(weight.tolist()):
        truth = sum((Fraction(w) * x for w, x in zip(row, point, strict=True)), Fraction(0))
        assert Fraction(found.mean_lower[0, 0, i].item()) <= truth <= Fraction(found.mean_upper[0, 0, i].item())
