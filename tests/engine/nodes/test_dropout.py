"""Networks with Bernoulli dropout, whose means and variances are sums over all masks."""

from __future__ import annotations

import math

import pytest
import torch
from support import records
from support.layer_judge import node_layers
from support.layer_networks import ACTS
from support.passes import ends, holds
from tests.engine.cases import check_node, dropouts, outcomes
from tests.marks import slow_but

from bnndp.deadline import NEVER
from bnndp.engine.moment_pass import MomentPass
from bnndp.geometry.box import Box
from bnndp.layers import Dropout, Linear
from bnndp.network import BayesianNetwork
from bnndp.tighten.slopes import climb

FEW = {"one", "signal", "channels"}
USUAL = {("relu", 0.9, name) for name in dropouts("relu", 0.9)} | {("gelu", 0.1, name) for name in FEW}
MASKED = [
    pytest.param(act, rate, name, marks=() if (act, rate, name) in USUAL else pytest.mark.slow)
    for act in ACTS
    for rate in (0.1, 0.9)
    for name in dropouts("relu", rate)
    if name in FEW or (act in {"relu", "hard_tanh", "gelu"} and rate > 0.5)
]


@pytest.mark.parametrize(("act", "rate", "name"), MASKED)
def test_means_and_variances_by_all_masks(act: str, rate: float, name: str) -> None:
    network = dropouts(act, rate)[name]
    centre = records.normal(1, network.n_in, seed=12)
    box = Box(centre - 0.05, centre + 0.05)
    bounds = MomentPass.of(network, box)
    interval, rows = ends(bounds, network.n_out), records.normal(1, 3, network.n_out, seed=4)
    claim = bounds.variance(rows)[0]
    for x in (box.lower[0], box.upper[0], box.centre[0]):
        chance, values = outcomes(network, x)
        assert float(chance.sum()) == pytest.approx(1)
        assert holds(interval, chance @ values[-1])
        along = values[-1] @ rows[0].T
        assert bool((claim >= chance @ (along - chance @ along).square() * (1 - 1e-9)).all())
        for index, node in zip(node_layers(network), bounds.hidden.nodes[1:], strict=True):
            check_node(f"after layer {index}", node, chance, values[index])


def test_dropout_alone_is_exact() -> None:
    """Mean and variance of one layer of dropout are known: nothing is lost on a point."""
    network = BayesianNetwork((Dropout(0.7), Linear.fixed(torch.tensor([[1.0, -2.0, 0.5]]))))
    x = torch.tensor([[1.0, 0.5, -3.0]], dtype=torch.float64)
    found = MomentPass.of(network, Box(x, x)).variance(torch.ones(1, 1, dtype=torch.float64)).item()
    assert found == pytest.approx(0.7 / 0.3 * (1 + 1 + 1.5**2), rel=1e-7)


@pytest.mark.parametrize("norm", [1.0, 2.0])
@pytest.mark.parametrize("act", ["relu", "gelu", "hard_tanh"])
def test_balls_by_all_masks(act: str, norm: float) -> None:
    """On l1 and l2 balls the bounds hold for points of the ball, and are inside those of the box around it."""
    network = dropouts(act, 0.3)["one"]
    centre = records.normal(1, 2, seed=12)
    ball = Box.ball(centre, 0.4, norm=norm)
    interval, around = (
        ends(MomentPass.of(network, region), network.n_out) for region in (ball, Box(ball.lower, ball.upper))
    )
    assert float((interval.upper - interval.lower).sum()) < float((around.upper - around.lower).sum())
    for angle in range(8):
        step = torch.tensor([math.cos(angle * math.pi / 4), math.sin(angle * math.pi / 4)], dtype=torch.float64)
        chance, values = outcomes(network, centre[0] + 0.4 * step / torch.linalg.vector_norm(step, ord=norm))
        assert holds(interval, chance @ values[-1])


@pytest.mark.parametrize("act", ["relu", "leaky_relu"])
@pytest.mark.parametrize("name", slow_but(("one", "input", "signal", "channels"), "one", "channels"))
def test_searched_planes_hold_by_all_masks(act: str, name: str) -> None:
    network = dropouts(act, 0.4)[name]
    centre = records.normal(1, network.n_in, seed=12)
    box, rows = Box(centre - 0.2, centre + 0.2), records.normal(1, 3, network.n_out, seed=6)
    bounds = MomentPass.of(network, box)
    found, slopes = climb(bounds, rows, 10, NEVER)
    assert slopes is not None
    assert bool((found.least >= bounds.affine(rows).least).all())
    for seed in range(5):
        x = box.lower[0] + 0.4 * records.uniform(network.n_in, seed=seed)
        chance, values = outcomes(network, x)
        mean = rows[0] @ (chance @ values[-1])
        assert bool((found.affine.matrix[0] @ x + found.affine.offset[0] <= mean + 1e-11).all())
        assert bool((found.least[0] <= mean + 1e-11).all())
