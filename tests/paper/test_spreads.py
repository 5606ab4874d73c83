"""Standard deviations behind a random layer: exact at points of the region, second moments in balls, and sampled."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest
import torch
from flint import arb
from support import oracles
from tests.paper.truth import gaussians, random_linear

from bnndp.geometry.bounds import Affine
from bnndp.layers import Linear
from bnndp.paper.layers import Layer, Ranges, Region
from bnndp.paper.spreads import chord_square, lipschitz_excess, mean_square

D = torch.float64


def at(form: Affine, row: int, z: list[float]) -> Fraction:
    terms = zip(form.matrix[0, row].tolist(), z, strict=True)
    return sum((Fraction(a) * Fraction(x) for a, x in terms), Fraction(form.offset[0, row].item()))


@pytest.mark.parametrize("std", [0.0, 1e-150, 1e-3, 1.0, 1e6])
def test_chords_are_above_the_variance_in_exact_arithmetic(std: float) -> None:
    linear, rng = random_linear(4, 5, 3, std=std), random.Random(1)
    lower = torch.tensor([[[0.0, 0.5, 0.0, 2.0, 1.0]]], dtype=D)
    upper = torch.tensor([[[0.0, 1.5, 3.0, 2.0, 1.1]]], dtype=D)
    form = chord_square(Layer.of(linear), Region(lower, upper, lower))
    for share in (0.0, 1.0, None, None):
        z = [
            a + (rng.random() if share is None else share) * (b - a)
            for a, b in zip(lower[0, 0].tolist(), upper[0, 0].tolist(), strict=True)
        ]
        for h in range(4):
            truth = sum(
                Fraction(s) ** 2 * Fraction(x) ** 2 for s, x in zip(linear.weight_std[h].tolist(), z, strict=True)
            )
            truth += Fraction(linear.bias_std[h].item()) ** 2
            assert at(form, h, z) >= truth
            if share is not None:  # at the ends of the region the chord touches
                assert at(form, h, z) <= truth * (1 + Fraction(1, 10**10)) + Fraction(1, 10**278)


@pytest.mark.parametrize("std", [0.0, 1e-3, 0.5, 20.0])
@pytest.mark.parametrize("width", [0.0, 0.1, 2.0])
def test_mean_squares_are_above_the_second_moments(std: float, width: float) -> None:
    first, second, rng = random_linear(6, 3, 1, std=std), random_linear(4, 6, 2, std=0.7), random.Random(5)
    lower = torch.tensor([[[-0.3, 0.4, 1.0]]], dtype=D)
    region = Region(lower, lower + width, lower)
    before, layer = Layer.of(first), Layer.of(second)
    form = mean_square(layer, before, before.ranges(region), region)
    for share in (0.0, 1.0, None):
        x = [a + (rng.random() if share is None else share) * width for a in lower[0, 0].tolist()]
        moments = [oracles.rectified(m, r).second for m, r in gaussians(first, x)]
        for h in range(4):
            truth = sum((arb(s) ** 2 * q for s, q in zip(second.weight_std[h].tolist(), moments, strict=True)), arb(0))
            truth += arb(second.bias_std[h].item()) ** 2
            value = at(form, h, x)
            assert arb(value.numerator) / arb(value.denominator) >= truth
            if width == 0:
                assert float(value) <= float(truth) * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("chance", [0.3, 0.05])
def test_the_excess_is_rare(seed: int, chance: float) -> None:
    first, second = random_linear(6, 2, seed, std=0.8), random_linear(5, 6, seed + 10, std=0.8)
    x = torch.tensor([0.4, -1.0], dtype=D)
    region = Region(x[None, None], x[None, None], x[None, None])
    mean, std = first.weight_mean @ x + first.bias_mean, (first.weight_std**2 @ x**2 + first.bias_std**2).sqrt()
    noise = torch.randn(40000, 6, generator=torch.Generator().manual_seed(seed), dtype=D)
    z = (mean + std * noise).clamp_min(0)
    r = (z**2 @ second.weight_std.T**2 + second.bias_std**2).sqrt()
    excess = lipschitz_excess(Layer.of(second), Layer.of(first).ranges(region), chance)[0]
    assert ((r > (r**2).mean(0).sqrt() + excess).double().mean(0) <= chance).all()


@pytest.mark.parametrize("chance", [0.3, 0.1, 1e-2, 1e-4, 1e-8])
@pytest.mark.parametrize("std", [0.5, 2.0])
def test_a_deviation_that_is_linear_in_the_noise(std: float, chance: float) -> None:
    """r(z) = |sigma z| with z = 1e6 + std xi: P(r > sqrt(E r^2) + excess) is a normal tail, and no Lipschitz bound."""
    one = torch.ones(1, 1, dtype=D)
    sigma = 0.7
    layer = Layer.of(Linear(one, sigma * one, torch.zeros(1, dtype=D), torch.zeros(1, dtype=D)))
    m, r = 1e6 * one[None], std * one[None]
    excess = lipschitz_excess(layer, Ranges(m, m, r, r), chance).item() / sigma
    t = (math.sqrt(1e12 + std**2) - 1e6 + excess) / std
    assert 0.5 * math.erfc(t / math.sqrt(2)) <= chance
    assert math.exp(-0.5 * t * t) >= 0.99 * chance  # and hardly more than that is asked for
