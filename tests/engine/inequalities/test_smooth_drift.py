"""Moments of smooth activations given few outcomes (m, s), by quadrature."""

from __future__ import annotations

import math

import pytest
import torch
from support.layer_networks import activation
from tests.engine.inequalities.test_given import moments, norm, pre_of, row
from tests.marks import slow_but
from torch import Tensor

from bnndp.engine.inequalities.smooth_drift import _Sizes, smooth_drift

SMOOTH = ["tanh", "sigmoid", "softplus", "silu", "gelu"]
BLUR = 1e-9  # of the quadrature


def _laws(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Chances, means and variances (1, 3); rare outcomes, of all scales."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(count: int) -> Tensor:
        return torch.rand(1, count, generator=generator, dtype=torch.float64)

    chance = 10 ** (-4 * uniform(3) * (uniform(1) < 0.6))
    m = 6 * uniform(1) - 3 + 10 ** (2 * uniform(1) - 2) * (2 * uniform(3) - 1) * (uniform(1) < 0.8)
    s = 10 ** (2.5 * uniform(1) - 2.5) * (1 + 10 ** (1.5 * uniform(1) - 1) * uniform(3) * (uniform(1) < 0.8))
    return chance / chance.sum(), m, s


@pytest.mark.parametrize("act", slow_but(SMOOTH, "tanh", "gelu"))
def test_drifts_hold(act: str) -> None:
    phi, sharp = activation(act), math.inf
    for seed in range(120):
        chance, m, s = _laws(seed)
        half = 0.05 * (seed % 3 == 2)
        x = pre_of(chance, m, s, half=half)
        middle, spread = 0.5 * (x.mean.lower + x.mean.upper), x.spread.lower
        found = smooth_drift(phi, x, phi.central(middle, spread.sqrt()))
        assert found is not None
        at = moments(phi, middle, spread)
        for k, (values, value) in enumerate(zip(moments(phi, m, s), at, strict=True)):
            away = values - value
            mean = (chance * away).sum().abs()
            blur = BLUR * (1 + float(value.abs().max()))
            assert float(mean) <= float(found.mean[k]) + blur, (seed, k)
            for q, claim in ((2, found.deviation[k]), (4, found.norm4[k])):
                truth = float(norm(chance, away, q))
                assert truth <= float(claim) + blur, (seed, k, q)
                if truth > 1e-6:
                    sharp = min(sharp, float(claim) / truth)
    assert sharp < 1.05  # somewhere the first order alone counts


@pytest.mark.parametrize("act", SMOOTH)
def test_derivatives_are_within_their_sizes(act: str) -> None:
    """By differences of the moments, everywhere: none of the sizes is below one of them."""
    phi = activation(act)
    m = torch.linspace(-4, 4, 33, dtype=torch.float64)[None]
    for r in (0.1, 0.5, 1.5):
        s, h, k = torch.full_like(m, r * r), 0.02 * (0.3 + r), 0.02 * r * r
        sizes = _Sizes(phi.shape, torch.tensor([[r * (1 + 0.02)]], dtype=torch.float64))
        for n in (2, 3, 4):

            def at(i: int, j: int, n: int = n, s: Tensor = s, h: float = h, k: float = k) -> Tensor:
                return moments(phi, m + i * h, s + j * k)[n - 2]

            steep, bend = (at(1, 0) - at(-1, 0)) / (2 * h), (at(1, 0) - 2 * at(0, 0) + at(-1, 0)) / h**2
            third = (at(2, 0) - 2 * at(1, 0) + 2 * at(-1, 0) - at(-2, 0)) / (2 * h**3)
            fourth = (at(2, 0) - 4 * at(1, 0) + 6 * at(0, 0) - 4 * at(-1, 0) + at(-2, 0)) / h**4
            in_s, twice = (at(0, 1) - at(0, -1)) / (2 * k), (at(0, 1) - 2 * at(0, 0) + at(0, -1)) / k**2
            mixed = (at(1, 1) - at(1, -1) - at(-1, 1) + at(-1, -1)) / (4 * h * k)
            claims = (*sizes.in_m(n)[1:], sizes.in_s(n), sizes.mixed(n), sizes.in_s_twice(n))
            for truth, claim in zip((steep, bend, third, fourth, in_s, mixed, twice), claims, strict=True):
                assert float(truth.abs().max()) <= float(claim) * (1 + 1e-3) + 1e-6


def test_the_derivative_in_s_is_exact() -> None:
    """Of the heat equation: over a tiny change of s alone, all but the first order vanishes."""
    tanh, chance = activation("tanh"), row(0.5, 0.5)
    for at in (0.3, 1.0, 2.0):
        m, s = row(at, at), row(0.5 - 1e-4, 0.5 + 1e-4)
        x = pre_of(chance, m, s)
        found = smooth_drift(tanh, x, tanh.central(x.mean.lower, x.spread.lower.sqrt()))
        assert found is not None
        for values, claim in zip(moments(tanh, m, s), found.deviation, strict=True):
            truth = 0.5 * float((values[0, 1] - values[0, 0]).abs())
            assert truth * (1 - 1e-9) <= float(claim)


def test_nothing_is_said_of_kinks_and_user_functions() -> None:
    x = pre_of(row(0.5, 0.5), row(0.0, 1.0), row(1.0, 2.0))
    for act in ("relu", "leaky_relu", "hard_tanh", "elu", "piecewise_affine"):
        phi = activation(act)
        assert smooth_drift(phi, x, phi.central(x.mean.lower, x.spread.lower.sqrt())) is None
