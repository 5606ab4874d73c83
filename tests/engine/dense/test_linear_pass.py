"""A single layer: its outputs are Gaussian, with mean and variance known exactly."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.dice import Dice
from tests.engine.dense.truth import all_margins, enclosed, exact_margins

from bnndp.attack.inside import candidates
from bnndp.engine.dense.linear_pass import LinearPass
from bnndp.engine.general.general_pass import GeneralPass
from bnndp.geometry.box import Box
from bnndp.network import BayesianNetwork

NetworkFactory = Callable[..., BayesianNetwork]


def linear(network: BayesianNetwork, box: Box) -> LinearPass:
    return LinearPass(GeneralPass.of(network, box), network.linears[0])


def test_the_mean_is_the_layer(random_network: NetworkFactory) -> None:
    network, box = random_network((3, 2), seed=1, std=5.0), Box([-1.0, 0.0, 2.0], [1.0, 0.5, 2.0])
    planes, ends = enclosed(linear(network, box), 2)
    layer = network.linears[0]
    for side in (planes.lower, planes.upper):
        assert torch.equal(side.matrix[0], layer.weight_mean)
        assert torch.equal(side.offset[0], layer.bias_mean)
    x = torch.where(layer.weight_mean > 0, box.lower, box.upper)  # where each output is least
    assert torch.allclose(ends.lower[0], (layer.weight_mean * x).sum(-1) + layer.bias_mean, rtol=1e-13)


@pytest.mark.parametrize(("sizes", "std", "zeros"), [((3, 4), 0.3, 0.0), ((1, 2), 2.0, 0.3), ((40, 3), 1e-6, 0.0)])
@pytest.mark.parametrize("radius", [0.0, 1e-3, 0.1, 1.0])
def test_exact_margins_lie_within(
    random_network: NetworkFactory, sizes: tuple[int, ...], std: float, zeros: float, radius: float
) -> None:
    """At the centre, vertices and random points, on both sides of zero; no tolerance. At a point nothing is lost."""
    network = random_network(sizes, seed=sum(sizes), std=std, zeros=zeros)
    box = Box.ball(Dice(1).normal(2, sizes[0]), radius)
    found = all_margins(linear(network, box), sizes[-1])
    for b in range(2):
        for x in candidates(box, seed=3, points=3, vertices=4)[:8, b].tolist():
            exact = exact_margins(network, x)
            assert exact.holds(found, b)
            if radius == 0:
                for got, want in ((found.mean, exact.mean), (found.variance, exact.variance)):
                    flat = [float(ball) for row in want for ball in row]
                    assert got[b].flatten().tolist() == pytest.approx(flat, rel=1e-9, abs=1e-12)


def test_what_overflows_has_no_bound(random_network: NetworkFactory) -> None:
    calm = random_network((2, 3), seed=1, std=0.3).linears[0]
    loud = type(calm)(*(1e200 * part for part in (calm.weight_mean, calm.weight_std, calm.bias_mean, calm.bias_std)))
    box = Box.ball(torch.tensor([[1e150, -1e150]], dtype=torch.float64), 1.0)
    found, other = all_margins(linear(BayesianNetwork((loud,)), box), 3), ~torch.eye(3, dtype=torch.bool)
    assert (found.mean[0][other] == -torch.inf).all()
    assert (found.variance[0][other] == torch.inf).all()
