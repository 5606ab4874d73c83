"""Correlated weights: factors whose parts cancel."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import torch
from support.passes import ends

from bnndp.activations import Relu
from bnndp.engine.moment_pass import MomentPass
from bnndp.geometry.box import Box
from bnndp.layers import CorrelatedLinear, Linear, MatrixNormalLinear
from bnndp.network import BayesianNetwork

ROW = torch.ones(1, 1, dtype=torch.float64)


@pytest.mark.parametrize("kind", ["shared", "rows", "matrix"])
@pytest.mark.parametrize("scale", [1.0, 1e20])
def test_loadings_that_cancel(kind: str, scale: float) -> None:
    """3 x - 1 at the float next to 1/3: computed it is 0, in truth 2^-54, and so is the deviation of the weights."""
    zero, one = torch.zeros(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
    factor = torch.tensor([[[3.0], [-1.0]]], dtype=torch.float64) * scale
    if kind == "matrix":
        layer: Any = MatrixNormalLinear(zero, zero[0], one, factor[0])
    else:
        layer = CorrelatedLinear(zero, zero, zero[0], zero[0], factor, kind == "shared")
    network = BayesianNetwork((layer, Relu(), Linear.fixed(one)))
    deviation = abs(float(3 * Fraction(1 / 3) - 1)) * scale
    x = one / 3
    bounds = MomentPass.of(network, Box(x, x))
    interval = ends(bounds, 1)
    assert interval.lower.item() <= deviation * 0.3989422804 <= interval.upper.item()
    assert bounds.variance(ROW).item() >= deviation**2 * 0.3408
    assert MomentPass.of(BayesianNetwork((layer,)), Box(x, x)).variance(ROW).item() >= deviation**2
