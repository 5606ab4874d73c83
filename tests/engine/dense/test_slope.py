"""The slope of a neuron as a random variable: against a Gaussian mean, whose slope has a variance of one integral."""

from __future__ import annotations

import pytest
import torch
from flint import arb

from bnndp.engine.dense.records import Energy, PreActivation
from bnndp.engine.dense.slope import slope
from bnndp.geometry.bounds import Interval
from bnndp.layers import Linear


@pytest.mark.parametrize("centre", [0.0, 0.4, -1.3])
def test_the_variance_of_a_gaussian_mean(centre: float) -> None:
    """For m ~ N(M, N) exactly and small N, Var Phi(m) is phi(M)^2 N to first order: no bound may be below it."""
    n, one = 1e-4, torch.ones(1, 1, dtype=torch.float64)
    zero = 0 * one
    before = PreActivation(
        layer=Linear(one, zero, zero[0], one[0]), jensen=one, spread=Interval(one, one), spread_variance=zero,
        spread_fourth=zero, noise=Interval(n * one, n * one), noise_variance=zero, central=zero,
        fourth=3 * n * n * one, norm8=one / zero, replacement=Interval(zero, zero), tail=None,
        energy=Energy(n * one, zero, zero, n * one, zero),
    )  # fmt: skip
    found = slope(before, Interval(centre * one, centre * one))
    # Var Phi(m + sqrt(n) xi) = P(both of two standard normals below) - Phi^2 = int_0^rho of the bivariate density
    rho, x, steps = arb(n) / (1 + arb(n)), arb(centre) / (1 + arb(n)).sqrt(), 64
    total = arb(0)
    for i in range(steps):  # the density rises or falls by less than a thousandth: its smallest value on each step
        r = (rho * i / steps).union(rho * (i + 1) / steps)
        total += rho / steps * (-x * x / (1 + r)).exp() / (2 * arb.pi() * (1 - r * r).sqrt())
    assert arb(found.variance.item()) >= total.lower()
    assert arb(found.variance.item()) <= 1.1 * total
