"""Rounding with multipliers of any size: the plane of a cell is evaluated exactly, in fractions."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from torch import Tensor

from bnndp.engine.dense.backward import Choice, lower_bound
from bnndp.engine.dense.forward import Parameters, hidden_layers
from bnndp.geometry.box import Box
from bnndp.layers import Linear


def fractions(values: Tensor) -> list[Fraction]:
    return [Fraction(value) for value in values.tolist()]


def dot(a: list[Fraction], b: list[Fraction]) -> Fraction:
    return sum((x * y for x, y in zip(a, b, strict=True)), Fraction(0))


@pytest.mark.parametrize("size", [1.0, 1e6, 1e12])
@pytest.mark.parametrize("seed", range(4))
def test_large_multipliers_are_rounded_down(seed: int, size: float) -> None:
    """On the face of a cell its multiplier counts for nothing, however large: there the rounding shows."""
    generator = torch.Generator().manual_seed(seed)

    def rand(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    n_in, n = 5, 4
    first = Linear.fixed(2 * rand(n, n_in) - 1, 2 * rand(n) - 1)
    weight, bias = 2 * rand(3, n) - 1, rand(3)
    box = Box(torch.full((1, n_in), -1.0), torch.full((1, n_in), 1.0))
    for side in (1, -1):
        signs = torch.zeros(1, n, dtype=torch.int8)
        signs[0, 1] = side
        layers = hidden_layers([first], box, Parameters(signs=(signs,)), take_last_apart=True)
        multiplier = torch.zeros(1, 3, n, dtype=torch.float64)
        multiplier[..., 1] = side * size * (0.5 + rand(1, 3))
        found = lower_bound(weight, bias, [], layers.first, box, Choice(multipliers=[multiplier]))
        for _ in range(20):
            x = fractions(2 * rand(n_in) - 1)
            rows, offsets = [fractions(row) for row in first.weight_mean], fractions(first.bias_mean)
            # Onto the face M_1(x) = 0, along the first input, if that stays in the box.
            x[0] -= (dot(rows[1], x) + offsets[1]) / rows[1][0]
            if abs(x[0]) > 1:
                continue
            z = [max(dot(row, x) + b, Fraction(0)) for row, b in zip(rows, offsets, strict=True)]
            for k in range(3):
                truth = dot(fractions(weight[k]), z) + Fraction(bias[k].item())
                plane = dot(fractions(found.matrix[0, k]), x) + Fraction(found.offset[0, k].item())
                assert plane <= truth
