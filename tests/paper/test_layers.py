"""Ranges of m(z) and r(z) over regions, against ball arithmetic at their points."""

from __future__ import annotations

import pytest
import torch
from support import oracles
from tests.paper.truth import gaussians, random_linear
from torch import Tensor

from bnndp.paper.layers import Layer, Region

F64 = torch.float64


def regions(n: int, size: float, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Ends of boxes on one side of zero, around it, touching it and without width; (n,) each."""
    generator = torch.Generator().manual_seed(seed)
    a, b = size * torch.rand(2, n, generator=generator, dtype=F64)
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
                room = 1e-13 * (1 + size * linear.weight_mean.abs().sum().item())
                assert (found.mean_upper - found.mean_lower).max().item() <= room
