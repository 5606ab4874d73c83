"""Without variance the moment method is a plain bound propagation: on a point it is the network, on a box it holds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from bnndp.engine.dense.forward import bound
from bnndp.geometry.box import Box
from bnndp.network import BayesianNetwork

NetworkFactory = Callable[..., BayesianNetwork]
SIZES = [(2, 3), (3, 6, 2), (2, 5, 4, 3), (3, 5, 5, 4, 2), (2, 4, 4, 4, 4, 2)]


def value(network: BayesianNetwork, x: Tensor) -> Tensor:
    """The network of the means."""
    for layer in network.linears[:-1]:
        x = (x @ layer.weight_mean.T + layer.bias_mean).clamp_min(0)
    last = network.linears[-1]
    return x @ last.weight_mean.T + last.bias_mean


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_bounds_are_those_of_the_network(random_network: NetworkFactory, sizes: tuple[int, ...], seed: int) -> None:
    network = random_network(sizes, seed=seed, std=0.0)
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(6, sizes[0], generator=generator, dtype=torch.float64)
    point = bound(network, Box(x, x)).interval()
    truth = value(network, x)
    assert torch.allclose(point.lower, truth, rtol=1e-10, atol=1e-10)
    assert torch.allclose(point.upper, truth, rtol=1e-10, atol=1e-10)
    assert ((point.lower <= truth) & (truth <= point.upper)).all()
    box = Box.ball(x, 0.4)
    found, ends = bound(network, box), bound(network, box).interval()
    for _ in range(50):
        inside = box.lower + (box.upper - box.lower) * torch.rand(x.shape, generator=generator, dtype=torch.float64)
        truth = value(network, inside)
        for low, high in ((found.lower(inside), found.upper(inside)), (ends.lower, ends.upper)):
            assert (low <= truth + 1e-12).all()
            assert (high >= truth - 1e-12).all()
