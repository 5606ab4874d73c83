"""The operations of a pass counted on paper are those that run."""

from __future__ import annotations

import torch
from benchmarks.floor import Floor, on_paper
from benchmarks.gpu.counting import counted
from support.networks import make_network

from bnndp.engine.dense.backward import least, lower_bound
from bnndp.engine.dense.dense_pass import DensePass
from bnndp.geometry.box import Box


def test_operations_on_paper() -> None:
    """Rows carried down from each layer, one box: nothing else is a product of two matrices there."""
    network = make_network((30, 8, 7, 6, 4), seed=1)
    *hidden, output = network.linears
    box = Box.ball(torch.rand(1, 30, dtype=torch.float64), 0.01)
    with torch.no_grad():
        passed = DensePass((*hidden, hidden[-1]), box).layers

        def carried() -> None:
            for k, layer in enumerate(hidden[1:]):
                for sign in (1, -1):
                    least(sign * layer.weight_mean, sign * layer.bias_mean, passed.relaxed[:k], passed.ground)
            lower_bound(output.weight_mean, output.bias_mean, passed.relaxed, passed.first, box)

        assert counted(carried).matrix == on_paper(network.sizes)


def test_the_ratio_is_of_one_image() -> None:
    found = Floor(images=10, threads=1, seconds=2.0, balls=5.0, on_paper=2e8, operations=5e8, rate=1e10)
    assert found.floor == 0.1
    assert found.ratio == 2.0
    assert found.ratio_as_run == 4.0
