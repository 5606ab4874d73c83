"""A residual block and its input move together: variances through linear blocks are known exactly."""

from __future__ import annotations

import pytest
import torch
from support import records

from bnndp.engine.general.forward import hidden, row_variance
from bnndp.geometry.box import Box
from bnndp.layers import Linear, Residual
from bnndp.network import BayesianNetwork


@pytest.mark.parametrize("kind", ["same", "opposite", "any"])
@pytest.mark.parametrize("seed", range(4))
def test_the_variance_through_a_linear_block(seed: int, kind: str) -> None:
    """z + W z for z of known covariance: with W = 1 the deviation doubles, with W = -1 nothing is left."""
    n, eye = 3, torch.eye(3, dtype=torch.float64)
    weight = {"same": eye, "opposite": -eye, "any": records.normal(n, n, seed=seed)}[kind]
    first, last = records.linear(n, 2, seed), Linear.fixed(records.normal(2, n, seed=seed + 9))
    network = BayesianNetwork((first, Residual((Linear.fixed(weight),)), last))
    x = records.normal(1, 2, seed=seed + 3)
    rows = records.normal(1, 4, 2, seed=seed + 5)
    found = row_variance(hidden(network, Box(x, x)), rows)[0]
    total = rows[0] @ last.weight_mean @ (eye + weight)
    truth = torch.einsum("ri,ik,rk->r", total, records.law(first, x[0])[1], total)
    assert (found >= truth * (1 - 1e-9)).all()
    if kind == "same":
        assert torch.allclose(found, truth, rtol=1e-6)
