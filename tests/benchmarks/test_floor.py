"""The operations of a pass counted on paper are those that run."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from benchmarks.floor import Floor, on_paper
from benchmarks.gpu.counting import counted
from support.dice import Dice
from support.networks import make_network

from bnndp.engine.moment_pass import MomentPass
from bnndp.engine.nodes.bound import Bound
from bnndp.engine.propagation.backward import lower_bound
from bnndp.engine.propagation.outputs import mean_rows
from bnndp.engine.rows import DenseRows
from bnndp.geometry.box import Box


@pytest.mark.parametrize("sizes", [(30, 8, 4), (30, 8, 7, 4), (30, 8, 7, 6, 4)])
def test_operations_on_paper(sizes: tuple[int, ...]) -> None:
    """Rows carried down from each layer, one box: nothing else is a product of two matrices there."""
    network = make_network(sizes, seed=1)
    with torch.no_grad():
        passed = MomentPass.of(network, Box.ball(Dice(1).uniform(shape=(1, 30)), 0.01)).hidden

        def carried() -> None:
            for k, layer in enumerate(network.linears[1:-1]):
                for sign in (1, -1):
                    rows = sign * layer.weight_mean[None]
                    lower_bound(passed.nodes[: k + 2], Bound(DenseRows(rows), rows.new_zeros(rows.shape[:2])))
            mean_rows(passed, torch.eye(network.n_out, dtype=torch.float64)[None])

        carried()  # what the nodes compute once is no part of it
        found, paper = counted(carried).matrix, on_paper(network.sizes)
        assert _means(sizes) <= found <= paper


def _means(sizes: tuple[int, ...]) -> int:
    """The products with means of weights alone, which run for all rows."""
    total = 0
    for k, rows in enumerate(sizes[2:], 2):
        last = k + 1 == len(sizes)
        total += (2 if last else 4) * rows * sum(a * b for a, b in pairwise(sizes[:k]))
        total += 2 * rows * rows * sizes[k - 1] if last else 0
    return total


def test_the_ratio_is_of_one_image() -> None:
    found = Floor(images=10, threads=1, seconds=2.0, balls=5.0, on_paper=2e8, operations=5e8, rate=1e10)
    assert found.floor == 0.1
    assert found.ratio == 2.0
    assert found.ratio_as_run == 4.0
