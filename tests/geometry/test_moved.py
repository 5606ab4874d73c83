"""A moved region holds every ``x - step`` of the old one: its ends, in exact fractions."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from bnndp.geometry.box import Box


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("norm", [2, float("inf")])
def test_the_ends_are_rounded_outward(seed: int, norm: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(3, 8, generator=generator, dtype=torch.float64)
    step = 10 ** (6 * torch.rand(8, generator=generator, dtype=torch.float64) - 3)
    box = Box.ball(x, 0.1, norm=norm)
    moved = box.moved(step)
    for b in range(3):
        for i in range(8):
            low, high, by = (Fraction(v.item()) for v in (box.lower[b, i], box.upper[b, i], step[i]))
            assert Fraction(moved.lower[b, i].item()) <= low - by
            assert Fraction(moved.upper[b, i].item()) >= high - by
