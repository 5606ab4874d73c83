"""Parabolas above L and above the rectified mean: every remainder is bounded, and for some sharply."""

from __future__ import annotations

import math

import pytest
import torch
from support.dice import Dice
from support.oracles import cdf, expected_relu
from tests.marks import slow_but
from torch import Tensor

from bnndp.maths.exponential import tilted
from bnndp.maths.exponential_majorants import harmful_curvature, harmful_parabola, relu_curvature, square_majorant

F64 = torch.float64


def t(*values: float) -> Tensor:
    return torch.tensor(values, dtype=F64)


def test_relu_curvature_is_the_least_one() -> None:
    for u0 in (0.0, 1e-5, 0.3, -1.0, 2.0, -4.0, 9.0):
        bend = relu_curvature(t(u0)).item()
        touch = float(expected_relu(u0, 1.0)), float(cdf(u0))
        for d in [k / 8 for k in range(-200, 201)]:
            parabola = touch[0] + touch[1] * d + 0.5 * bend * d * d
            assert parabola >= float(expected_relu(u0 + d, 1.0)) - 1e-12
        d = -2 * u0
        assert touch[0] + touch[1] * d + 0.5 * bend * d * d == pytest.approx(float(expected_relu(-u0, 1.0)), abs=1e-9)


@pytest.mark.parametrize("touching", [True, False])
def test_parabolas_of_harmful_neurons_lie_above(touching: bool) -> None:
    """The one that touches at m0, and the one about a usual distance from it; all sizes of r, a and steps."""
    dice, least, shape = Dice(70 + touching), math.inf, (4000,)
    r = dice.log_uniform(1e-3, 100, shape)
    m0, a = r * dice.uniform(-9, 9, shape), dice.log_uniform(1e-3, 30, shape) / r
    spread = r * dice.log_uniform(1e-3, 30, shape)
    zero = torch.zeros_like(a)
    at, touch, bend = tilted(m0, r, a, zero), harmful_curvature(m0, r, a), harmful_parabola(m0, r, a, spread)
    for _ in range(40):
        step = dice.normal(*shape) * dice.log_uniform(0.1, 20, shape)
        step = step * torch.where(dice.uniform(shape=shape) < 0.5, r, spread)
        remainder = tilted(m0 + step, r, a, zero).log - at.log - at.in_mean * step
        allowed = bend.constant + bend.slope * step + 0.5 * bend.curvature * step.square()
        allowed = 0.5 * touch * step.square() if touching else allowed
        slack = 1e-10 * (1 + at.log + (at.in_mean * step).abs())
        assert (remainder <= allowed + slack).all()
        least = min(least, (allowed / remainder.clamp_min(1e-3 * allowed + slack)).min().item())
    assert least <= 1.05
    assert (bend.curvature <= touch * (1 + 1e-9)).all()
    # Nearly always lower on average at m0 - spread and m0 + spread than the one that touches.
    usual = bend.constant + 0.5 * bend.curvature * spread.square()
    assert (usual <= 0.5 * touch * spread.square() + 1e-9 * (1 + a * r)).double().mean() > 0.95


@pytest.mark.parametrize("a", [0.05, 0.4, 1.5, 6.0])
def test_without_a_usual_distance_the_parabola_touches(a: float) -> None:
    for r in (1e-3, 0.5, 2.0):
        for u0 in (-8.0, -1.0, -0.3, 0.0, 0.1, 1.0, 7.0):
            bend = harmful_parabola(t(u0 * r), t(r), t(a), t(0.0))
            assert bend.constant.item() == pytest.approx(0, abs=1e-10 * (1 + (a * r) ** 2))
            assert bend.slope.item() == pytest.approx(0, abs=1e-8 * (1 + a * a * r * (10 + a * r)))


@pytest.mark.parametrize("m0", slow_but([-3.0, -0.5, 0.0, 0.4, 2.5], -3.0, 0.4))
@pytest.mark.parametrize("share", [0.01, 0.2, 0.6, 0.9])
@pytest.mark.parametrize("level", [0.2, 0.6])
def test_square_majorant_lies_above(m0: float, share: float, level: float) -> None:
    top = 2.0
    c = share / (2 * top)
    found = square_majorant(t(m0), t(level * top), t(top), t(c), t(0.5))
    m = torch.linspace(-9, 9, 145, dtype=F64)[:, None]
    s = torch.linspace(1e-9, top, 81, dtype=F64)
    truth = tilted(m, s.sqrt().expand(145, 81), torch.zeros(1, dtype=F64), t(c)).log
    d = m - m0
    bound = found.constant + found.slope * d + found.in_variance * s + 0.5 * found.curvature * d * d
    assert (bound >= truth).all()
    at = tilted(t(m0), t(math.sqrt(level * top)), t(0.0), t(c)).log.item()
    gap = (found.constant + found.in_variance * level * top).item() - at
    if share <= 0.2:  # and close where it should be: c E Z^2 is at most c (m0^2 + s0)
        assert gap <= 0.5 * c * top
