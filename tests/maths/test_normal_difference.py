"""Differences of the normal distribution function, relative to their length, against Arb; and the remainder's bound."""

from __future__ import annotations

import torch
from flint import arb, arb_poly, ctx

from bnndp.maths.normal_difference import cdf_difference
from bnndp.maths.rounding import UNIT


def test_relative_to_the_length_for_short_and_long_ways() -> None:
    steps = [1e-200, 1e-12, 1e-6, 1e-3, 0.02, 0.0999, 0.1001, 0.3, 1.0, 5.0, 60.0]
    m, delta = torch.cartesian_prod(
        torch.tensor([-40.0, -9.0, -3.3, -1.0, -0.05, 0.0, 0.2, 1.7, 4.0, 8.5, 37.0], dtype=torch.float64),
        torch.tensor([*steps, *[-s for s in steps]], dtype=torch.float64),
    ).T
    with ctx.workprec(1000):
        for a, d, value in zip(m.tolist(), delta.tolist(), cdf_difference(m, delta).tolist(), strict=True):
            root = arb(2).sqrt()
            exact = ((-arb(a) - d) / root).erfc() / 2 - (-arb(a) / root).erfc() / 2
            assert abs(arb(value) - exact) <= 64 * UNIT * abs(arb(d)), (a, d)
    assert not cdf_difference(m, torch.zeros_like(m)).any()


def test_remainder_of_the_series() -> None:
    """|phi He_10| <= 380 everywhere: on [0, 12] by subdivision, beyond as x^10 phi(x) falls there."""
    with ctx.workprec(100):
        he = [arb_poly([1]), arb_poly([0, 1])]
        for n in range(1, 10):
            he.append(arb_poly([0, 1]) * he[n] - n * he[n - 1])
        root = (2 * arb.pi()).sqrt()
        todo = [(0.0, 12.0)]
        while todo:
            a, b = todo.pop()
            x = arb((a + b) / 2, (b - a) / 2)
            if abs(he[10](x)) * (-x * x / 2).exp() / root <= 380:
                continue
            assert b - a > 1e-6
            todo += [(a, (a + b) / 2), ((a + b) / 2, b)]
        coefficients = sum((abs(c) for c in he[10].coeffs()), arb(0))
        assert coefficients * arb(12) ** 10 * (-arb(72)).exp() / root < 380
        assert 2 * arb(380) * arb("0.05") ** 10 / arb(39916800) < 2e-18
