"""Branching for networks of any layers without variance: never above the least lead at points of the box."""

from __future__ import annotations

import pytest
import torch
from support.dice import Dice
from support.ensembles import outputs
from support.records import normal

from bnndp.activations import Gelu, Relu, Tanh
from bnndp.attack import decision_rows
from bnndp.geometry.box import Box
from bnndp.layers import AveragePool, Conv2d, Flatten, Linear, MaxPool, Residual
from bnndp.network import BayesianNetwork, Layer
from bnndp.options import Options
from bnndp.questions.softmax import one_pass_rows


def fixed(n_out: int, n_in: int, seed: int) -> Linear:
    return Linear.fixed(normal(n_out, n_in, seed=seed) / n_in**0.5, 0.2 * normal(n_out, seed=seed + 1))


def layers(kind: str, seed: int) -> tuple[Layer, ...]:
    kernel = Conv2d.fixed(0.5 * normal(4, 1, 3, 3, seed=seed), stride=2, padding=1)
    block = Residual((fixed(8, 8, seed + 2), Relu()))
    return {
        "relu": (kernel, Relu(), Flatten(), fixed(3, 64, seed + 1)),
        "gelu": (kernel, Gelu(), Flatten(), fixed(12, 64, seed + 3), Relu(), fixed(3, 12, seed + 4)),
        "pools": (kernel, Relu(), MaxPool(2), AveragePool(2), Flatten(), fixed(3, 4, seed + 5)),
        "residual": (Flatten(), fixed(8, 64, seed), Relu(), block, fixed(3, 8, seed + 7)),
        "no activation": (Flatten(), fixed(8, 64, seed), fixed(6, 8, seed + 1), Tanh(), fixed(3, 6, seed + 2)),
    }[kind]


@pytest.mark.parametrize("kind", ["relu", "gelu", "pools", "residual", "no activation"])
def test_cells_hold_for_every_kind(kind: str) -> None:
    better = 0
    for seed in range(3):
        net, dice = BayesianNetwork(layers(kind, 10 * seed), "classification", input_shape=(1, 8, 8)), Dice(seed)
        x = dice.uniform(shape=(6, 64))
        box = Box.ball(x, 0.1 if kind == "no activation" else 0.06, domain=(0, 1))
        label = outputs(net, x)[0].argmax(-1)
        rows = decision_rows(label, 3)[0]
        with torch.no_grad():
            one = one_pass_rows(net, box, rows, label, Options())[0]
            many = one_pass_rows(net, box, rows, label, Options(optimise=3, branch=8))[0]
        points = box.lower + dice.uniform(shape=(200, 6, 64)).round() * (box.upper - box.lower)
        truth = torch.einsum("brc,pbc->pbr", rows, outputs(net, points)[0].softmax(-1)).amin(0)
        assert bool((many <= truth + 1e-12).all())
        assert bool((many >= one - 1e-12).all())
        better += int((many > one + 1e-6).sum())
    assert better > 0
