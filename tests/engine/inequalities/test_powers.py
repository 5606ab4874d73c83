"""Even moments of a hinge of a Gaussian with a random mean and variance, for explicit laws."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.layer_networks import activation
from tests.engine.explicit_laws import given, laws

from bnndp.activations import LeakyRelu, Relu
from bnndp.engine.inequalities.powers import _norm, hinge_slopes, powers
from bnndp.engine.moments.pre_activation import PreActivation
from bnndp.geometry.bounds import Interval

HINGES = [Relu(), LeakyRelu(0.1), LeakyRelu(-0.7), LeakyRelu(3.0), LeakyRelu(1e-12)]
SLACK = 1 + 2e-4  # the quadrature at kinks


@pytest.mark.parametrize("phi", HINGES, ids=str)
@pytest.mark.parametrize("wide", [0.0, 0.4])
def test_even_moments_hold(phi: Relu | LeakyRelu, wide: float) -> None:
    for seed, scale in enumerate((0.05, 1.0, 4.0)):
        law = laws(200, seed, source=seed % 2 == 0, scale=scale, wide=wide, fluctuation=3.0 * seed)
        found = powers(phi, law.pre)
        assert found is not None
        values, weight, _ = given(phi, law.m, law.s)
        fourth = values**4 @ weight  # E[z^4 | y]: (laws, outcomes)
        assert bool((law.mean(fourth) <= found.fourth * SLACK).all())
        for k, q in enumerate((2, 4)):
            assert bool((law.mean(fourth**q) ** (1 / q) <= found.fourth_norms[..., k] * SLACK).all()), q
        for k, q in enumerate((8, 16)):
            assert bool((law.mean(values**q @ weight) ** (1 / q) <= found.norms[..., k] * SLACK).all()), q


def test_even_moments_are_exact_without_randomness_below() -> None:
    law = laws(100, 1, source=True, scale=1e-9, fluctuation=0.0)
    found = powers(Relu(), law.pre)
    assert found is not None
    at = law.pre.mean.lower.clamp_min(0) ** 4
    assert torch.allclose(found.fourth, at, rtol=1e-6, atol=1e-30)


def test_only_hinges_at_zero_have_them() -> None:
    law = laws(3, 1, source=True, scale=1.0)
    for act in ("tanh", "gelu", "hard_tanh", "piecewise_affine", "identity"):
        assert powers(activation(act), law.pre) is None
    assert hinge_slopes(LeakyRelu(3.0)) == (3.0, 1.0)
    assert hinge_slopes(LeakyRelu(-0.5)) == (-0.5, 1.0)


def test_norms_between_those_that_are_known() -> None:
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(500, 6, generator=generator, dtype=torch.float64).exp()
    chance = torch.rand(500, 6, generator=generator, dtype=torch.float64) ** 4
    chance = chance / chance.sum(-1, keepdim=True)

    def norm(q: float) -> torch.Tensor:
        return (chance * values**q).sum(-1) ** (1 / q)

    known = [norm(q) for q in (2, 4, 8, 16)]
    for order in (0.5, 1, 2, 2.5, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16):
        assert bool((norm(order) <= _norm(known, order) * (1 + 1e-12)).all()), order


def test_tiny_and_huge_scales_do_not_vanish() -> None:
    law = laws(50, 4, source=False, scale=1.0)
    one = powers(Relu(), law.pre)
    assert one is not None
    for unit in (2.0**-90, 2.0**50):
        other = powers(Relu(), _scaled(law.pre, unit))
        assert other is not None
        assert bool((other.fourth >= one.fourth * unit**4 * (1 - 1e-9)).all())
        assert bool((other.norms >= one.norms * unit * (1 - 1e-9)).all())


def _scaled(x: PreActivation, unit: float) -> PreActivation:
    return replace(
        x,
        mean=Interval(x.mean.lower * unit, x.mean.upper * unit),
        spread=Interval(x.spread.lower * unit**2, x.spread.upper * unit**2),
        spread_deviation=x.spread_deviation * unit**2,
        noise=Interval(x.noise.lower * unit**2, x.noise.upper * unit**2),
        central=x.central * unit**2,
        norms=x.norms * unit,
        spread_deltas=x.spread_deltas * unit**2,
    )
