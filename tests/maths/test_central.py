"""Central moments of the standard rectified Gaussian against ball arithmetic, their shape included."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import lru_cache

import pytest
import torch
from flint import arb, ctx
from support.oracles import PRECISION, above, rectified
from torch import Tensor

from bnndp.maths.central import fourth_central, third_central
from bnndp.maths.rounding import ELEMENTARY

GRID = [-1000.0, -300.0, -60.0, -39.0, -20.0, *(i / 8 for i in range(-96, 97)), 20.0, 39.0, 60.0, 300.0, 1000.0]
MODE = 0.6074743  # where the deviation equals the mean, to seven digits


@pytest.fixture(autouse=True)
def many_bits() -> Iterator[None]:
    with ctx.workprec(2 * PRECISION):
        yield


@lru_cache
def third(u: float) -> arb:
    truth = rectified(u, 1.0)
    return truth.third - 3 * truth.mean * truth.second + 2 * truth.mean**3


@lru_cache
def fourth(u: float) -> arb:
    truth = rectified(u, 1.0)
    return truth.fourth - 4 * truth.mean * truth.third + 6 * truth.mean**2 * truth.second - 3 * truth.mean**4


def scalar(u: float) -> Tensor:
    return torch.tensor(u, dtype=torch.float64)


@pytest.mark.parametrize("u", GRID)
def test_a_single_point_is_enclosed_and_tight(u: float) -> None:
    for found, truth in ((third_central(scalar(u), scalar(u)), third(u)), (fourth_central(scalar(u)), fourth(u))):
        assert above(found.item(), truth)
        assert arb(found.item()) <= truth + 2 * ELEMENTARY


def test_an_interval_has_the_largest_value_of_its_points() -> None:
    dice = random.Random(5)
    for _ in range(200):
        a, b = sorted(dice.choice([dice.gauss(0, 2), dice.uniform(-40, 40), MODE]) for _ in range(2))
        points = [a + (b - a) * i / 12 for i in range(12)] + [b]
        high3, high4 = third_central(scalar(a), scalar(b)).item(), fourth_central(scalar(b)).item()
        assert all(above(high3, third(u)) and above(high4, fourth(u)) for u in points)
        if a <= MODE <= b:
            assert arb(high3) <= third(MODE) + 1e-12
        else:
            assert arb(high3) <= max(float(third(a)), float(third(b))) + 1e-12
