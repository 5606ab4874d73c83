"""The oracles themselves: rigorous comparison, and the exact mean of a network against plain sampling."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from flint import arb, ctx
from support.ensembles import outputs
from support.networks import make_network
from support.oracles import PRECISION, above, all_above, all_below, below, down, exact, exact_mean, rectified, up


def test_up_and_down_round_outward_where_float_does_not() -> None:
    careless = 0
    with ctx.workprec(PRECISION):
        for k in range(1, 1000):
            ball = arb(k).sqrt()
            high, low = up(ball), down(ball)
            assert above(high, ball)
            assert below(low, ball)
            assert high - low <= 2 * math.ulp(high)
            careless += not above(float(ball.upper()), ball)
    assert careless > 300  # the trap: conversion rounds to nearest


def test_comparisons_are_true_only_where_they_are_proved() -> None:
    ball = arb(1, 1e-30)  # from 1 - 1e-30 to 1 + 1e-30
    assert not above(1.0, ball)
    assert not below(1.0, ball)
    assert above(math.nextafter(1, 2), ball)
    assert below(math.nextafter(1, 0), ball)
    assert above(1.0, arb(1))
    assert below(1.0, arb(1))
    assert above(math.inf, ball)
    assert below(-math.inf, ball)
    assert not above(math.nan, ball)
    assert not below(math.nan, ball)
    assert not above(1.0, arb("nan"))
    assert all_above(torch.tensor([[1.0, 2.0]]), [arb(1), arb(0)])
    assert not all_below(torch.tensor([[1.0, 2.0]]), [arb(1), arb(0)])
    with pytest.raises(ValueError, match="argument 2"):
        all_above(torch.zeros(2), [arb(1)])


def test_fractions_and_floats_are_taken_as_they_are() -> None:
    assert exact(0.1) == arb(0.1)
    assert exact(Fraction(0.1)) == arb(0.1)
    with ctx.workprec(PRECISION):
        assert abs(3 * exact(Fraction(1, 3)) - 1) < 1e-70
    assert exact(Fraction(2) ** 5000 + 1) > exact(Fraction(2) ** 5000)


@pytest.mark.parametrize("m", [-3.0, -0.4, 0.0, 1.1, 4.0])
def test_moments_agree_with_quadrature(m: float) -> None:
    x = torch.linspace(0, m + 14, 200_001, dtype=torch.float64)
    density = torch.exp(-0.5 * (x - m) ** 2) / math.sqrt(2 * math.pi)
    got = rectified(m, 1.0)
    for k, value in ((1, got.mean), (2, got.second), (3, got.third), (4, got.fourth)):
        assert float(value) == pytest.approx(torch.trapezoid(x**k * density, x).item(), rel=1e-7)


def test_exact_mean_agrees_with_sampling() -> None:
    network, samples = make_network((3, 6, 2), 4, std=1.0), 100_000
    x = [0.3, -1.2, 0.7]
    z = outputs(network, torch.tensor(x, dtype=torch.float64), samples, seed=1)
    error = z.std(0) / math.sqrt(samples)
    for value, mean, deviation in zip(exact_mean(network, x), z.mean(0).tolist(), error.tolist(), strict=True):
        assert abs(float(value) - mean) < 5 * deviation


def test_exact_mean_of_linear_networks_and_refusal_of_deep_ones() -> None:
    network = make_network((3, 2), 1)
    layer, x = network.linears[0], [0.5, -0.25, 2.0]
    for value, row, b in zip(exact_mean(network, x), layer.weight_mean.tolist(), layer.bias_mean.tolist(), strict=True):
        total = sum((Fraction(w) * Fraction(z) for w, z in zip(row, x, strict=True)), Fraction(b))
        assert value.contains(exact(total))
    with pytest.raises(ValueError, match="at most one hidden layer"):
        exact_mean(make_network((1, 2, 2, 1)), [0.0])
