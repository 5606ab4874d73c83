"""Where float64 underflows or cancels: ranges of means and deviations, and tails, stay on the safe side."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from bnndp.layers import Linear
from bnndp.paper.concentration import dominated_tail
from bnndp.paper.layers import Layer, Region

F64 = torch.float64


@pytest.mark.parametrize("std", [1e-130, 1e-160, 1e-170, 1e-250, 5e-324])
@pytest.mark.parametrize("size", [1.0, 1e100, 1e150])
def test_tiny_deviations_are_not_lost(std: float, size: float) -> None:
    """r(z) = std z for one weight, and std for the bias alone: products of two floats, exact but for one rounding."""
    one, zero = torch.ones(1, 1, dtype=F64), torch.zeros(1, 1, dtype=F64)
    z = torch.tensor([size], dtype=F64)
    weight = Layer.of(Linear(one, std * one, zero[0], zero[0]))
    assert weight.std_upper(z).item() >= std * size
    assert weight.std_lower(z).item() <= std * size
    bias = Layer.of(Linear(one, zero, zero[0], std * one[0]))
    assert bias.std_upper(z).item() >= std
    assert bias.std_lower(z).item() <= std
    none = Layer.of(Linear(one, zero, zero[0], zero[0]))
    assert none.std_lower(z).item() == 0


def test_tails_that_underflow_are_not_zero() -> None:
    """E max(w, 0) and P(M >= t) are positive, however small."""
    one = torch.ones(1, 1, dtype=F64)
    layer = Layer.of(Linear(-60 * one, one, -60 * one[0], one[0]))
    assert (layer.rise > 0).all()
    assert (layer.bias_rise > 0).all()
    assert (Layer.of(Linear(60 * one, one, one[0], one[0])).fall > 0).all()
    assert (dominated_tail(torch.tensor([40.0, 60.0, 1e3], dtype=F64)) > 0).all()


@pytest.mark.parametrize("seed", range(10))
def test_means_that_cancel_are_rounded_outward(seed: int) -> None:
    """At a point, in exact fractions: large terms of both signs leave a small mean."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.rand(1, 1, 40, generator=generator, dtype=F64) * 1e6
    weight = torch.randn(30, 40, generator=generator, dtype=F64)
    weight[:, 20:] = -weight[:, :20] * (z[0, 0, :20] / z[0, 0, 20:])
    zero = torch.zeros_like(weight)
    found = Layer.of(Linear(weight, zero, zero[:, 0], zero[:, 0])).ranges(Region(z, z, z))
    point = [Fraction(x) for x in z[0, 0].tolist()]
    for i, row in enumerate(weight.tolist()):
        truth = sum((Fraction(w) * x for w, x in zip(row, point, strict=True)), Fraction(0))
        assert Fraction(found.mean_lower[0, 0, i].item()) <= truth <= Fraction(found.mean_upper[0, 0, i].item())
