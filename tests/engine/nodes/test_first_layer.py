"""What is found for a box does not depend on the others, on how the work is cut, or on which of them are asked."""

from __future__ import annotations

import pytest
import torch
from support.dice import Dice
from support.networks import make_network

from bnndp.activations import Relu, Tanh
from bnndp.engine.moment_pass import MomentPass
from bnndp.engine.nodes import first_layer
from bnndp.engine.nodes.activation import Activated
from bnndp.engine.propagation import mean_range
from bnndp.engine.protocol import both_signs
from bnndp.engine.rows import DenseRows
from bnndp.geometry.box import Box
from bnndp.layers import Dropout
from bnndp.network import BayesianNetwork

F64 = torch.float64


def _boxes(n: int, count: int = 23) -> Box:
    """Of very different widths, so that very different numbers of rows are asked for."""
    dice = Dice(3)
    return Box.ball(dice.normal(count, n), torch.logspace(-4, 0, count, dtype=F64))


def _network(hidden: int, std: float) -> BayesianNetwork:
    return make_network((6, *(16,) * hidden, 3), seed=hidden, std=std)


@pytest.mark.parametrize("hidden", [2, 3])
@pytest.mark.parametrize("std", [0.002, 0.2])
def test_boxes_do_not_depend_on_each_other(hidden: int, std: float) -> None:
    network, box = _network(hidden, std), _boxes(6)
    rows = both_signs(3, box)
    together = MomentPass.of(network, box)
    found, variance = together.least(rows), together.variance(rows)
    for i in range(box.batch):
        alone = MomentPass.of(network, box[torch.tensor([i])])
        assert torch.allclose(alone.least(rows)[0], found[i], rtol=1e-11, atol=1e-11)
        assert torch.allclose(alone.variance(rows)[0], variance[i], rtol=1e-9, atol=0)


@pytest.mark.parametrize("numbers", [1, 2**30])
def test_how_the_work_is_cut_does_not_matter(monkeypatch: pytest.MonkeyPatch, numbers: int) -> None:
    network, box = _network(2, 0.05), _boxes(6)
    rows = both_signs(3, box).expand(box.batch, -1, -1)
    usual = MomentPass.of(network, box).least(rows)
    for module in (first_layer, mean_range):
        monkeypatch.setattr(module, "NUMBERS", numbers)
    assert torch.allclose(MomentPass.of(network, box).least(rows), usual, rtol=1e-11, atol=1e-11)


def _networks() -> dict[str, BayesianNetwork]:
    plain, others = {f"{k} hidden": _network(k, 0.1) for k in (1, 2, 3)}, {}
    layers = _network(2, 0.1).layers
    others["tanh"] = BayesianNetwork(tuple(Tanh() if isinstance(layer, Relu) else layer for layer in layers))
    others["dropout"] = BayesianNetwork((*layers[:2], Dropout(0.2), *layers[2:]))
    others["fixed up to the last"] = make_network((6, 16, 16, 3), seed=4, std=0.0)
    return plain | others


NETWORKS = _networks()


@pytest.mark.parametrize("name", NETWORKS)
def test_variances_of_rows_of_some_boxes(name: str) -> None:
    box = _boxes(6)
    at = torch.tensor([20, 3, 11, 4])
    rows = Dice(1).normal(box.batch, 5, 3)
    found = MomentPass.of(NETWORKS[name], box)
    assert torch.allclose(found.variance(rows[at], at), found.variance(rows)[at], rtol=1e-9, atol=1e-300)


def test_slopes_in_s_are_left_out_only_where_there_are_none() -> None:
    network, box = _network(2, 0.05), _boxes(6)
    first = MomentPass.of(network, box).hidden.nodes[1]
    whole = first.first_layer if isinstance(first, Activated) else None
    assert whole is not None
    rows = Dice(2).normal(box.batch, 4, 16)
    assert bool(whole.sloped.any())
    for at in (whole.sloped.nonzero()[:, 0], (~whole.sloped).nonzero()[:, 0]):
        if at.numel():
            part = whole[at]
            assert part.planes.beta is None or bool(part.sloped.all())
            exact = whole.least_before(whole.planes.apply(DenseRows(rows), rows[..., 0]))[at]
            found = part.least(DenseRows(rows[at]), rows[at][..., 0])
            assert torch.allclose(found, exact, rtol=1e-12, atol=1e-12)
