"""How central moments of a hinge vary: explicit laws, and the suprema against a grid with a bound of its error."""

from __future__ import annotations

import pytest
import torch
from support.layer_networks import activation
from tests.engine.explicit_laws import given, laws

from bnndp.activations import LeakyRelu, Relu
from bnndp.engine.inequalities import hinge_drift as module
from bnndp.engine.inequalities.hinge_drift import hinge_drift
from bnndp.maths.normal import cdf, pdf, tail

HINGES = [Relu(), LeakyRelu(0.1), LeakyRelu(-0.7), LeakyRelu(3.0), LeakyRelu(1e-12)]


@pytest.mark.parametrize("phi", HINGES, ids=str)
@pytest.mark.parametrize("wide", [0.0, 0.4])
def test_the_drift_holds(phi: Relu | LeakyRelu, wide: float) -> None:
    for seed, scale in enumerate((0.05, 0.5, 1.0, 4.0)):
        law = laws(300, seed, source=seed % 2 == 0, scale=scale, wide=wide, fluctuation=3.0 * seed)
        found, x = hinge_drift(phi, law.pre), law.pre
        assert found is not None
        middle, s0 = 0.5 * (x.mean.lower + x.mean.upper), 0.5 * (x.spread.lower + x.spread.upper)
        values, weight, mean = given(phi, torch.cat([law.m, middle], -1), torch.cat([law.s, s0], -1))
        for power, drift, deviation in (
            (2, found.variance, found.variance_deviation),
            (3, *found.thirds()),
        ):
            moment = (values - mean[..., None]) ** power @ weight  # (laws, outcomes and the middle)
            change = moment[:, :-1] - moment[:, -1:]
            blur = 1e-5 * law.mean(law.s ** (power / 2)) + 1e-12  # of the quadrature
            assert bool((law.mean(change).abs() <= drift * (1 + 1e-4) + blur).all()), power
            assert bool((law.mean(change.square()).sqrt() <= deviation * (1 + 1e-4) + blur).all()), power


def test_closed_forms_of_the_moments() -> None:
    """v = a^2 s + 2 a c s P + c^2 s nu, and the third moment, against quadrature."""
    u = torch.linspace(-4, 4, 41, dtype=torch.float64)
    p, f, e1 = cdf(u), pdf(u), u * cdf(u) + pdf(u)
    e2, e3 = (u * u + 1) * p + u * f, (u * u + 3) * u * p + (u * u + 2) * f
    nu, k, slope = e2 - e1**2, e3 - 3 * e1 * e2 + 2 * e1**3, 2 * e1 * tail(u)
    for a, right in ((0.0, 1.0), (0.3, 1.0), (-0.5, 1.0), (2.0, 1.0)):
        c, s = right - a, 0.49
        values, weight, mean = given(LeakyRelu(a), u * s**0.5, torch.full_like(u, s))
        variance, third = ((values - mean[..., None]) ** n @ weight for n in (2, 3))
        assert torch.allclose(variance, s * (a * a + 2 * a * c * p + c * c * nu), rtol=0, atol=5e-5)
        closed = s**1.5 * (3 * a * a * c * f + 3 * a * c * c * slope + c**3 * k)
        assert torch.allclose(third, closed, rtol=0, atol=5e-5)


def test_suprema_of_the_second_derivatives() -> None:
    """On a grid of step h the suprema are missed by at most h times half the largest slope, below 1e-5 here."""
    u = torch.linspace(-9, 9, 1_800_001, dtype=torch.float64)
    p, q, f = cdf(u), tail(u), pdf(u)
    e1 = (u * p + f).clamp_min(0)
    e2 = ((u * u + 1) * p + u * f).clamp_min(0)
    k = (u * u + 3) * u * p + (u * u + 2) * f - 3 * e1 * e2 + 2 * e1**3
    nu1, nu2, nu3 = 2 * e1 * q, 2 * p * q - 2 * e1 * f, 2 * f * (1 - 3 * p + u * e1)
    k1, k2 = 3 * q * (e2 - 2 * e1**2), -3 * f * (e2 - 2 * e1**2) + 6 * q * e1 * (1 - 2 * p)
    for name, d, (w, w1, w2) in (
        ("_PROBABILITY", 1.0, (p, f, -u * f)),
        ("_VARIANCE", 1.0, (e2 - e1**2, nu1, nu2)),
        ("_DENSITY", 1.5, (f, -u * f, (u * u - 1) * f)),
        ("_SLOPE", 1.5, (nu1 / 2, nu2 / 2, nu3 / 2)),
        ("_THIRD", 1.5, (k, k1, k2)),
    ):
        found = (
            w2,
            (d - 0.5) * w1 - 0.5 * u * w2,
            d * (d - 1) * w - (d - 0.75) * u * w1 + 0.25 * u * u * w2,
        )
        step = 1e-5
        for values, claim in zip(found, getattr(module, name), strict=True):
            largest = values.abs().max()
            missed = 0.5 * step * (values.diff().abs().max() / step * 1.1)
            assert float(largest + missed) <= claim + 1e-5, name
            assert float(largest) <= claim <= float(largest) * 1.001, name
        steps = torch.stack([w1 - torch.gradient(w, spacing=step)[0], w2 - torch.gradient(w1, spacing=step)[0]])
        assert float(steps[:, 1000:-1000].abs().max()) < 1e-4, name  # they are the derivatives


def test_only_hinges_at_zero_have_it() -> None:
    law = laws(3, 1, source=True, scale=1.0)
    for act in ("tanh", "gelu", "hard_tanh", "piecewise_affine", "identity"):
        assert hinge_drift(activation(act), law.pre) is None
