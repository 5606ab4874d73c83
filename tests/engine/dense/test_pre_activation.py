"""Moments of the pre-activations of the second layer, whose inputs are independent: closed forms in ball arithmetic."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from flint import arb, ctx
from support import oracles
from support.dice import Dice
from support.oracles import Rectified, above, below
from support.quadrature import rectified_law
from tests.engine.dense.cases import gaussian_network
from tests.engine.dense.truth import behind, run, sources
from tests.marks import slow_but
from torch import Tensor

from bnndp.engine.dense.pre_activation import _cross as sums_of
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box
from bnndp.layers import Linear

POINT = [0.4, -0.7]


def combined(weights: list[arb], values: list[arb], constant: float | arb = 0) -> arb:
    return sum((w * v for w, v in zip(weights, values, strict=True)), arb(constant))


def fourth_central(z: Rectified) -> arb:
    return z.fourth - 4 * z.mean * z.third + 6 * z.mean**2 * z.second - 3 * z.mean**4


@pytest.mark.parametrize("shift", [0.0, 4.0])
@pytest.mark.parametrize("std", [0.0, 1e-6, 0.3, 2.0])
@oracles.precise
def test_at_a_point_everything_is_exact(std: float, shift: float) -> None:
    network = gaussian_network((2, 6, 5, 1), 3, std, shift)
    z = [oracles.rectified(m, r) for m, r in oracles.pre_activation(network, POINT)]
    found, layer = run(network, Box(POINT, POINT)).hidden[0], network.linears[1]
    before = found.before
    for i in range(layer.n_out):
        mu, s2 = [arb(w) for w in layer.weight_mean[i].tolist()], [arb(w) ** 2 for w in layer.weight_std[i].tolist()]
        b2, mu2 = arb(layer.bias_std[i].item()) ** 2, [w * w for w in mu]
        for interval, truth in (
            (before.spread, combined(s2, [t.second for t in z], b2)),
            (before.noise, combined(mu2, [t.variance for t in z])),
            (found.mean, combined(mu, [t.mean for t in z], layer.bias_mean[i].item())),
        ):
            low, high = interval.lower[0, i].item(), interval.upper[0, i].item()
            assert low == 0 or below(low, truth)  # a truth of zero has a ball around it
            assert above(high, truth)
            assert high - low <= 1e-10 * (1 + abs(float(truth)))
        spread_variance = combined([a * a for a in s2], [t.square_variance for t in z])
        assert above(before.spread_variance[0, i].item(), spread_variance)
        assert before.spread_variance[0, i].item() <= float(spread_variance) * (1 + 1e-9) + 1e-11
        jensen, found_jensen = combined(s2, [t.mean**2 for t in z], b2), before.jensen[0, i].item() ** 2
        assert below(found_jensen, jensen + arb("1e-290"))
        assert found_jensen >= float(jensen) * (1 - 1e-9) - 1e-12
        # E (m - M)^4 = sum of mu^4 (c_4 - 3 v^2) + 3 V^2: the bound leaves out the negative part only
        fourth = combined([w * w for w in mu2], [fourth_central(t) for t in z])
        fourth += 3 * combined(mu2, [t.variance for t in z]) ** 2
        assert before.fourth[0, i].item() == pytest.approx(float(fourth), rel=1e-9, abs=1e-30)
    assert not before.central.any()
    assert not before.noise_variance.any()


# Cov(m, s), and what bounds the rests of its use: sums over the sources


@pytest.mark.parametrize("scale", [1.0, 1e33])
@pytest.mark.parametrize("seed", slow_but(range(6), 0, 1))
def test_sums_over_the_sources(seed: int, scale: float) -> None:
    """Large z and small weights in the second case: powers of the weights underflow, and the rests must not vanish."""
    dice, n = random.Random(seed), 12
    m, r = ([scale * dice.uniform(*ends) for _ in range(n)] for ends in ((-1.5, 2.0), (0.3, 1.0)))
    small = 1.0 if scale == 1 else 1e-65
    mu, sigma = ([small * dice.uniform(*ends) for _ in range(n)] for ends in ((-1.0, 1.0), (0.1, 1.0)))
    if seed % 2:  # pairs that cancel but for the last one
        half = n // 2
        m, r, sigma = m[:half] * 2, r[:half] * 2, sigma[:half] * 2
        mu = mu[:half] + [-w for w in mu[:half]]
        mu[-1] *= 1 + 1e-13
    found = behind(sources(m, r), mu, sigma, 0.0).cross
    with ctx.workprec(2 * oracles.PRECISION):
        parts = []
        for a, b, w, s in zip(m, r, mu, sigma, strict=True):
            z, weight, s2 = oracles.rectified(a, b), arb(w), arb(s) ** 2
            c = z.third - z.mean * z.second  # Cov(z, z^2)
            mixed = (fourth_central(z) * z.square_variance).sqrt()
            parts.append(
                (weight * s2 * c, abs(weight) * s2 * c, weight**2 * s2 * mixed, abs(weight) ** 3 * s2 * z.variance * c)
            )
        covariance, *others = (sum(column, arb(0)) for column in zip(*parts, strict=True))
        assert below(found.covariance.lower.item(), covariance)
        assert above(found.covariance.upper.item(), covariance)
        for value, truth in zip((found.absolute, found.second, found.third), others, strict=True):
            assert above(value.item(), truth)
            assert scale > 1 or value.item() == pytest.approx(float(truth), rel=1e-9)
        if scale == 1:
            assert arb((found.covariance.upper - found.covariance.lower).item()) <= others[0] * arb("1e-11")


def test_the_rounding_of_the_sums() -> None:
    """With Cov(z, z^2) known exactly, the sums alone: exact ones by fractions, none on the wrong side."""
    dice, first, bias = Dice(7), sources([1.0] * 9, [1.0] * 9).sources, torch.zeros(1, dtype=torch.float64)
    for _ in range(40):
        c, mu, sigma = dice.normal(1, 9).abs(), dice.normal(1, 9), dice.normal(1, 9).abs()
        found = sums_of(Linear(mu, sigma, bias, bias), replace(first, cross=Interval(c, c)))
        columns = zip(mu[0].tolist(), sigma[0].tolist(), c[0].tolist(), strict=True)
        parts = [Fraction(w) * Fraction(s) ** 2 * Fraction(k) for w, s, k in columns]
        assert Fraction(found.covariance.lower.item()) <= sum(parts) <= Fraction(found.covariance.upper.item())
        assert Fraction(found.absolute.item()) >= sum(abs(part) for part in parts)


def test_eighth_powers_of_tiny_weights() -> None:
    """||s - E s||_4 with a rare, huge source and tiny deviations, against quadrature."""
    scale, std = 1e34, 1.5e-42
    before = behind(sources([-3.7 * scale], [scale]), [0.0], [std], 1e-8)
    nodes, weight = rectified_law(-3.7, 1.0)
    spread: Tensor = (std * scale * nodes) ** 2
    truth = (weight * (spread - (weight * spread).sum()) ** 4).sum().item()
    assert before.spread_fourth.item() >= truth
