"""Deviations whose squares underflow: the standard deviation of a pre-activation is still bounded from both sides."""

from __future__ import annotations

import pytest
import torch

from bnndp.network import Linear
from bnndp.partition.layers import Layer

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
