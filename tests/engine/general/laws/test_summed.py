"""Residual blocks: the block and its input move together."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import records
from support.layer_draws import draw_layers
from support.passes import ends, holds

from bnndp.activations import Gelu, Relu, Tanh
from bnndp.engine.general.general_pass import GeneralPass
from bnndp.geometry.box import Box
from bnndp.layers import Flatten, Linear, Residual
from bnndp.network import BayesianNetwork

PHIS = (Relu(), Tanh(), Gelu())


def block_network(seed: int, std: float, phi: Any, *, image: bool) -> BayesianNetwork:
    def dense(o: int, i: int, more: int) -> Linear:
        return records.linear(o, i, 20 * seed + more, std)

    def kernel(o: int, i: int, more: int) -> Any:
        return records.conv(o, i, 20 * seed + more, std=std, padding=1)

    if image:
        block = Residual((kernel(2, 2, 0), phi, kernel(2, 2, 5)))
        layers = (kernel(2, 1, 10), phi, block, phi, Flatten(), dense(2, 32, 15))
        return BayesianNetwork(layers, input_shape=(1, 4, 4))
    block = Residual((dense(7, 5, 0), phi, dense(5, 7, 5)))
    return BayesianNetwork((dense(5, 3, 10), phi, block, phi, Residual((phi,)), dense(2, 5, 15)))


@pytest.mark.parametrize("image", [False, True])
@pytest.mark.parametrize("phi", PHIS, ids=lambda phi: phi.kind)
def test_without_variance_the_bounds_are_the_network(phi: Any, image: bool) -> None:
    network = block_network(0, 0.0, phi, image=image)
    x = records.uniform(3, network.n_in, seed=1)
    value = draw_layers(network, x, 1, torch.Generator())[-1][0]
    found = ends(GeneralPass.of(network, Box(x, x)), 2)
    assert holds(found, value, 1e-12)
    assert float((found.upper - found.lower).max()) < 1e-7


@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 9))])
@pytest.mark.parametrize("image", [False, True])
def test_bounds_hold_for_samples(seed: int, image: bool) -> None:
    network = block_network(seed, (0.02, 0.4)[seed % 2], PHIS[seed % 3], image=image)
    box = Box.ball(records.uniform(1, network.n_in, seed=seed), (0.0, 0.02, 0.3)[seed % 3])
    points = torch.cat([box.lower, box.upper, box.centre])
    outputs = draw_layers(network, points, 3000, torch.Generator().manual_seed(seed))[-1]
    bounds = GeneralPass.of(network, box)
    assert holds(ends(bounds, 2), outputs.mean(0), 6 * outputs.std(0) / 3000**0.5 + 1e-9)
    assert (outputs.var(0) <= 1.25 * bounds.variance(torch.eye(2, dtype=torch.float64))[0] + 1e-9).all()


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
    found = GeneralPass.of(network, Box(x, x)).variance(rows)[0]
    total = rows[0] @ last.weight_mean @ (eye + weight)
    truth = torch.einsum("ri,ik,rk->r", total, records.law(first, x[0])[1], total)
    assert (found >= truth * (1 - 1e-9)).all()
    if kind == "same":
        assert torch.allclose(found, truth, rtol=1e-6)
