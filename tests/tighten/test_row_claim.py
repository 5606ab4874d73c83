"""Rows of the outputs on cells, against exact minima of small networks by mixed-integer programmes."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import Bounds, LinearConstraint, milp  # type: ignore[import-untyped]
from support import records
from torch import Tensor

from bnndp.activations import Relu, Tanh
from bnndp.attack.draws import evaluate
from bnndp.attack.violation import drawn_mean
from bnndp.deadline import NEVER
from bnndp.engine.moment_pass import MomentPass
from bnndp.engine.protocol import BranchablePass
from bnndp.geometry.bounds import Affine, Interval
from bnndp.geometry.box import Box
from bnndp.layers import Concatenate, Linear, Residual
from bnndp.network import BayesianNetwork
from bnndp.options import Options
from bnndp.tighten.branching import Branching, branch
from bnndp.tighten.hidden_ranges import with_branched_ranges, with_optimised_ranges
from bnndp.tighten.pass_choice import pass_over
from bnndp.tighten.row_claim import RowClaim
from bnndp.tighten.slopes import climb

SMALL = 1e-6  # relative to the size of the outputs: far above the tolerance of the solver
NEAR = 0.02  # what a few steps of ascent leave on cells on which all signs are known
SEEDS = int(os.environ.get("BNNDP_SEEDS", "60"))  # 300 for the whole campaign
SLOW = dict.fromkeys((20, 76, 89, 178, 253), 0.1)  # seeds at which the ascent comes to a halt


def network(seed: int, *, std: float = 0.0) -> BayesianNetwork:
    """Two or three hidden layers of a few neurons."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [3, *([5] * (2 + seed % 2)), 2]
    layers: list[Linear | Relu] = []
    for n_in, n_out in pairwise(sizes):
        weight = torch.randn(n_out, n_in, generator=generator, dtype=torch.float64) / n_in**0.5
        bias = 0.3 * torch.randn(n_out, generator=generator, dtype=torch.float64)
        spread = torch.full_like(weight, std)
        layers += [Linear(weight, spread, bias, torch.full_like(bias, std)), Relu()]
    return BayesianNetwork(tuple(layers[:-1]))


def exact_minimum(net: BayesianNetwork, box: Box, row: Tensor) -> float:  # row (outputs,)
    """The least ``row . f`` on the box: a mixed-integer programme with one binary variable for each neuron (HiGHS)."""
    linears = [(each.weight_mean.numpy(), each.bias_mean.numpy()) for each in net.linears]
    low, high = box.lower[0].numpy(), box.upper[0].numpy()
    n, hidden = len(low), sum(len(bias) for _, bias in linears[:-1])
    total = n + 2 * hidden  # inputs, values z after the activations, signs s
    least, most = np.zeros(total), np.ones(total)
    least[:n], most[:n] = low, high
    lines, floors, ceilings = [], [], []

    def add(line: np.ndarray, floor: float, ceiling: float) -> None:
        lines.append(line)
        floors.append(floor)
        ceilings.append(ceiling)

    below, at, unit = np.arange(n), n, np.eye(total)
    for weight, bias in linears[:-1]:
        top = np.maximum(weight.clip(0) @ high + weight.clip(None, 0) @ low + bias, 0)
        bottom = np.minimum(weight.clip(0) @ low + weight.clip(None, 0) @ high + bias, 0)
        own = at + np.arange(len(bias))
        most[own] = top
        for i, z in enumerate(own):
            y = weight[i] @ unit[below]  # less the bias
            add(unit[z] - y, bias[i], np.inf)  # z >= y
            add(unit[z] - y - bottom[i] * unit[z + hidden], -np.inf, bias[i] - bottom[i])  # z <= y - l (1 - s)
            add(unit[z] - top[i] * unit[z + hidden], -np.inf, 0.0)  # z <= u s
        low, high, below, at = np.zeros(len(bias)), top, own, at + len(bias)
    weight, bias = linears[-1]
    cost = row.numpy() @ weight @ unit[below]
    whole = np.concatenate([np.zeros(n + hidden), np.ones(hidden)])
    every = LinearConstraint(np.array(lines), floors, ceilings)
    found = milp(cost, constraints=every, bounds=Bounds(least, most), integrality=whole)
    return float(found.fun + row.numpy() @ bias)


def proved(net: BayesianNetwork, box: Box, rows: Tensor, level: Tensor, *, cells: int, steps: int = 0) -> Tensor:
    """Whether each row (claims, outputs) is proved to be above its level (claims,) on the only box."""
    bounds = pass_over(net, box, Options()).branchable
    assert bounds is not None
    if steps:
        bounds = with_optimised_ranges(bounds, steps, NEVER)
    how = Branching(cells, 10, 3, 256, NEVER, last=100)
    claim = RowClaim(bounds, torch.zeros(len(level), dtype=torch.int64), rows[:, None], level, how)
    return branch(claim, torch.arange(len(level)), how).least > 0


@pytest.mark.parametrize("seed", [*range(12), *(pytest.param(i, marks=pytest.mark.slow) for i in range(12, SEEDS))])
def test_proves_what_is_true_and_nothing_else(seed: int) -> None:
    net, generator = network(seed), torch.Generator().manual_seed(1000 + seed)
    centre = torch.randn(1, 3, generator=generator, dtype=torch.float64)
    box = Box(centre - 0.7, centre + 0.7)
    row = torch.randn(2, generator=generator, dtype=torch.float64)
    least = exact_minimum(net, box, row)
    size = 1 + abs(least)
    near = SLOW.get(seed, NEAR) * size
    rows, level = row.expand(2, -1), torch.tensor([least - near, least + SMALL * size], dtype=torch.float64)
    assert proved(net, box, rows, level, cells=4096, steps=5 * (seed % 2)).tolist() == [True, False]


def test_the_programme_is_the_network() -> None:
    net = network(3)
    point = Box([[0.1, -0.2, 0.3]], [[0.1, -0.2, 0.3]])
    row = torch.tensor([1.0, -2.0], dtype=torch.float64)
    value = evaluate(drawn_mean(net, 0), point.lower).mean(0)[0] @ row
    assert exact_minimum(net, point, row) == pytest.approx(value.item(), abs=1e-7)


@pytest.mark.parametrize("seed", range(8))
def test_random_networks_are_not_proved_above_what_an_input_has(seed: int) -> None:
    net, generator = network(seed, std=0.2), torch.Generator().manual_seed(seed)
    box = Box([[-0.5, -0.5, -0.5]], [[0.5, 0.5, 0.5]])
    row = torch.randn(2, generator=generator, dtype=torch.float64)
    x = box.lower + torch.rand(64, 3, generator=generator, dtype=torch.float64)
    drawn = evaluate(drawn_mean(net, seed), x) @ row  # (draws, points)
    mean, error = drawn.mean(0), 6 * drawn.std(0) / drawn.shape[0] ** 0.5
    level = (mean + error).amin()
    assert not proved(net, box, row[None], level[None], cells=64, steps=5)
    assert proved(net, box, row[None], level[None] - 10, cells=1)


def test_ranges_by_optimised_slopes_hold_and_are_no_wider() -> None:
    net = network(1)
    box = Box([[-0.5, -0.5, -0.5]], [[0.5, 0.5, 0.5]])
    bounds = pass_over(net, box, Options()).branchable
    assert bounds is not None
    found = with_optimised_ranges(bounds, 20, NEVER)
    x = box.lower + torch.rand(4096, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    shorter, values = 0, x
    for layer, old, new in zip(net.linears, bounds.ranges_of_means, found.ranges_of_means, strict=False):
        means = values @ layer.weight_mean.mT + layer.bias_mean
        assert bool((means >= new.lower).all() and (means <= new.upper).all())
        assert bool((new.lower >= old.lower).all() and (new.upper <= old.upper).all())
        shorter += int(((new.upper - new.lower) < 0.999 * (old.upper - old.lower)).sum())
        values = means.clamp_min(0)
    assert shorter


def branches(seed: int, *, std: float = 0.0, shift: bool = False) -> BayesianNetwork:
    """Branches that leave a fork, one of them a shortcut with weights, and layers of different widths."""
    generator = torch.Generator().manual_seed(seed)

    def linear(n_out: int, n_in: int) -> Linear:
        weight = torch.randn(n_out, n_in, generator=generator, dtype=torch.float64) / n_in**0.5
        bias = 0.3 * torch.randn(n_out, generator=generator, dtype=torch.float64)
        return Linear(weight, torch.full_like(weight, std), bias, torch.full_like(bias, std))

    body = (linear(7, 5), Relu(), linear(4, 7))
    block = Residual(body, shortcut=(linear(6, 5), Relu(), linear(4, 6)))
    found = BayesianNetwork((linear(5, 3), Relu(), block, Relu(), linear(8, 4), Relu(), linear(2, 8)))
    return replace(found, shift=torch.tensor([0.2, -0.1, 0.4], dtype=torch.float64)) if shift else found


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_branches_and_shifts(seed: int, *, shift: bool) -> None:
    net, generator = branches(seed, shift=shift), torch.Generator().manual_seed(seed)
    box = Box([[-0.6, -0.6, -0.6]], [[0.6, 0.6, 0.6]])
    row = torch.randn(2, generator=generator, dtype=torch.float64)
    steps = torch.linspace(-0.6, 0.6, 41, dtype=torch.float64)
    values = evaluate(drawn_mean(net, 0), torch.cartesian_prod(steps, steps, steps)).mean(0) @ row
    least = values.amin()
    level = torch.stack([least - 0.5 * (1 + least.abs()), least + 1e-9])
    assert proved(net, box, row.expand(2, -1), level, cells=512, steps=5).tolist() == [True, False]


@pytest.mark.parametrize("seed", range(6))
def test_levels_on_cells_are_those_of_the_box_and_are_kept(seed: int) -> None:
    """Two boxes with lower levels that are enough, one of which is true."""
    net, generator = network(seed), torch.Generator().manual_seed(seed)
    net = replace(net, layers=(*net.layers[:-1], replace(net.linears[-1], bias_mean=net.linears[-1].bias_mean + 50)))
    centre, row = torch.randn(2, 3, generator=generator, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    box = Box(centre - 0.7, centre + 0.7)
    least = torch.tensor([exact_minimum(net, box[torch.tensor([i])], row) for i in range(2)], dtype=torch.float64)
    true = int(least.argmin())  # the level of the other box is proved here if boxes are confused
    offset = torch.full((2,), SMALL * 50, dtype=torch.float64).index_fill(0, torch.tensor([true]), -0.3)
    enough = least + offset

    def lower(_: BranchablePass, owner: Tensor, between: Interval) -> Tensor:
        assert bool((between.lower <= between.upper).all())
        return enough[owner]

    bounds = pass_over(net, box, Options()).branchable
    assert bounds is not None
    how = Branching(4096, 10, 3, 256, NEVER, last=100)
    claim = RowClaim(bounds, torch.arange(2), row.expand(2, 1, -1), least + 1, how, lower)
    assert (branch(claim, torch.arange(2), how).least > 0).tolist() == [i == true for i in range(2)]


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("cells_of_signs", [False, True])
@pytest.mark.parametrize("branched", [False, True])
def test_optimised_ranges_of_branches_hold(*, shift: bool, cells_of_signs: bool, branched: bool) -> None:
    net = branches(2, shift=shift)
    bounds = pass_over(net, Box([[-0.6, -0.6, -0.6]], [[0.6, 0.6, 0.6]]), Options()).branchable
    assert bounds is not None
    if cells_of_signs:
        zeros = tuple(torch.zeros(1, n, dtype=torch.int8) for n in bounds.widths)
        bounds = bounds.restricted(torch.zeros(1, dtype=torch.int64), zeros)
    plain = with_optimised_ranges(bounds, 20, NEVER)
    better = with_branched_ranges(plain, Branching(16, 10, 3, 256, NEVER))[0] if branched else plain
    found = better.ranges_of_means
    x = -0.6 + 1.2 * torch.rand(4096, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = x if net.shift is None else x - net.shift
    first, _, block, _, after, *_ = net.layers
    assert isinstance(block, Residual)

    def through(layer: Any, values: Tensor) -> Tensor:
        return values @ layer.weight_mean.mT + layer.bias_mean

    means = [through(first, x)]
    z = means[0].clamp_min(0)
    ends = []
    for branch_ in block.branches:
        means.append(through(branch_[0], z))
        ends.append(through(branch_[2], means[-1].clamp_min(0)))
    means.append(ends[0] + ends[1])
    means.append(through(after, means[-1].clamp_min(0)))
    assert len(means) == len(found)
    for value, known in zip(means, found, strict=True):
        assert bool((value >= known.lower).all() and (value <= known.upper).all())


def test_branched_ranges_hold_and_some_are_shorter() -> None:
    shorter = 0
    for seed in range(12):
        net = network(2 * seed + 1)
        bounds = pass_over(net, Box([[-0.4] * 3], [[0.4] * 3]), Options()).branchable
        assert bounds is not None
        plain = with_optimised_ranges(bounds, 10, NEVER)
        found = with_branched_ranges(plain, Branching(16, 10, 3, 256, NEVER))[0].ranges_of_means
        x = -0.4 + 0.8 * torch.rand(4096, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        for layer, old, new in zip(net.linears, plain.ranges_of_means, found, strict=False):
            means = x @ layer.weight_mean.mT + layer.bias_mean
            assert bool((means >= new.lower).all() and (means <= new.upper).all())
            shorter += int(((new.lower > old.lower) | (new.upper < old.upper)).sum())
            x = means.clamp_min(0)
    assert shorter


def test_what_overflows_proves_nothing() -> None:
    net = network(0)
    bounds = pass_over(net, Box([[-0.5] * 3], [[0.5] * 3]), Options()).branchable
    assert isinstance(bounds, MomentPass)

    class Overflowing(MomentPass):
        def least_of(self, plane: Affine) -> Tensor:
            return plane.offset + torch.inf

    broken = Overflowing(bounds.layers, bounds.shapes, bounds.box)
    planes, _ = climb(broken, torch.tensor([[[1.0, 0.0]]], dtype=torch.float64), 3, NEVER)
    assert bool((planes.least <= bounds.least(torch.tensor([[1.0, 0.0]], dtype=torch.float64))).all())


def test_ranges_within_a_branch_that_ends_in_weights_are_those_of_the_branch() -> None:
    """The pass to a layer at the end of a branch stops there, also on cells."""
    branches_ = ((records.linear(3, 4, 21),), (records.linear(2, 4, 25), Tanh()))
    layers = (records.linear(4, 3, 1), Relu(), Concatenate(branches_), Relu(), records.linear(2, 5, 9))
    net = BayesianNetwork(layers, "classification")
    bounds = pass_over(net, Box.ball(records.normal(2, 3, seed=3), 0.2), Options()).branchable
    assert bounds is not None
    assert list(bounds.widths) == [4, 3, 2, 5]
    for number, width in enumerate(bounds.widths):
        part = bounds.before(number)
        if part is None or len(part.widths) != number:  # a signal, or behind another branch
            continue
        signs = tuple(torch.zeros(2, n, dtype=torch.int8) for n in part.widths)
        unit = torch.eye(width, dtype=torch.float64)[None].expand(2, -1, -1)
        on_cells, whole = part.restricted(torch.arange(2), signs).least(unit), part.least(unit)
        assert on_cells.shape == (2, width)
        assert torch.allclose(on_cells, whole, rtol=0.05, atol=0.05)
    how = Branching(4, 5, 3, 256, NEVER)
    better, _ = with_branched_ranges(bounds, how)
    for old, new in zip(bounds.ranges_of_means, better.ranges_of_means, strict=True):
        assert bool((new.lower >= old.lower - 1e-9).all() and (new.upper <= old.upper + 1e-9).all())
