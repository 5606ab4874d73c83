"""Affine functions and intervals against exact rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from bnndp.geometry.bounds import Affine, AffineBounds, Interval
from bnndp.geometry.box import Box


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_interval_magnitude() -> None:
    interval = Interval(torch.tensor([[-3.0, 1.0, -1.0]]), torch.tensor([[1.0, 2.0, -0.5]]))
    assert interval.magnitude.tolist() == [[3, 2, 1]]


def test_affine_values_for_own_and_shared_matrices() -> None:
    matrix, offset, x = random(4, 3, 2), random(4, 3, seed=1), random(4, 2, seed=2)
    expected = torch.stack([matrix[b] @ x[b] + offset[b] for b in range(4)])
    assert torch.allclose(Affine(matrix, offset)(x), expected)
    shared = torch.stack([matrix[0] @ x[b] + offset[0] for b in range(4)])
    assert torch.allclose(Affine(matrix[0], offset[0])(x), shared)


@pytest.mark.parametrize("norm", [1, 2, math.inf])
def test_interval_of_affine_bounds_encloses_both_functions_exactly(norm: float) -> None:
    """On the box the ends are attained at vertices; all 2^n of them are tried, in rational arithmetic."""
    n, rows = 4, 3
    region = Box.ball(random(2, n), 0.3, norm=norm)
    low, high = (Affine(random(2, rows, n, seed=s), random(2, rows, seed=s + 1)) for s in (3, 5))
    interval = AffineBounds(low, high, region).interval()
    if norm == math.inf:
        points = [[(region.lower, region.upper)[bits >> i & 1][:, i] for i in range(n)] for bits in range(2**n)]
        tries = torch.stack([torch.stack(point, -1) for point in points])
    else:
        tries = region.project(region.centre + random(200, 2, n, seed=9))
    least: dict[tuple[int, int], Fraction] = {}
    for point in tries.tolist():
        for b in range(2):
            for r in range(rows):
                below, above = (
                    sum(
                        (Fraction(w) * Fraction(z) for w, z in zip(f.matrix[b, r].tolist(), point[b], strict=True)),
                        Fraction(f.offset[b, r].item()),
                    )
                    for f in (low, high)
                )
                assert Fraction(interval.lower[b, r].item()) <= below
                assert above <= Fraction(interval.upper[b, r].item())
                least[b, r] = min(below, least.get((b, r), below))
    if norm == math.inf:  # attained, up to rounding
        assert all(
            value - Fraction(interval.lower[b, r].item()) < Fraction(1, 10**12) for (b, r), value in least.items()
        )
