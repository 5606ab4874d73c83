"""Branching on signs: every cell's bound holds on its cell, and the least over the cells on the whole box."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from bnndp.attack import decision_rows
from bnndp.attack.sampled_softmax import draw_softmax_noise, estimate_softmax
from bnndp.attack.sampling import draw_noise, estimate
from bnndp.engine.dense.backward import Choice
from bnndp.engine.dense.forward import Parameters, hidden_layers
from bnndp.engine.dense.margins import margin_rows, mean_margins
from bnndp.engine.dense.optimise import best_choice
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork
from bnndp.tighten.branching import Claim, branch


def network(sizes: tuple[int, ...], std: float, seed: int) -> BayesianNetwork:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    linears = []
    for below, above in pairwise(sizes):
        weight = 1.5 * normal(above, below) / below**0.5
        linears.append(Linear(weight, std * normal(above, below).abs(), 0.3 * normal(above), std * normal(above).abs()))
    return BayesianNetwork.from_linears(linears, "classification")


def mean_logits(net: BayesianNetwork, x: Tensor) -> Tensor:
    return estimate(net, x, draw_noise(net, 1, seed=0, replicates=1)).mean  # exact for one random hidden layer


def points_of(box: Box, count: int, seed: int) -> Tensor:
    """Random points and vertices (count, batch, n)."""
    generator = torch.Generator().manual_seed(seed)
    share = torch.rand(count, *box.lower.shape, generator=generator, dtype=torch.float64)
    share[: count // 4] = share[: count // 4].round()
    return box.lower + share * (box.upper - box.lower)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("std", [0.0, 0.05])
def test_bounds_with_multipliers_hold_on_the_cell(seed: int, std: float) -> None:
    net = network((3, 6, 4), std, seed)
    *hidden, output = net.linears
    box = Box.ball(torch.randn(1, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64), 0.8)
    x = points_of(box, 400, seed)[:, 0]
    m = x @ hidden[0].weight_mean.T + hidden[0].bias_mean
    signs = m[seed].sign()  # the cell of one of the points
    signs[seed % 3 :: 2] = 0
    inside = (signs * m >= 0).all(-1)
    layers = hidden_layers(hidden, box, Parameters(signs=(signs[None].to(torch.int8),)), take_last_apart=True)
    rows = margin_rows(output, torch.tensor([[seed % 4]]))
    generator = torch.Generator().manual_seed(seed)
    random = Choice(
        tangents=[torch.randn(1, 4, 6, generator=generator, dtype=torch.float64)],
        multipliers=[torch.rand(1, 4, 6, generator=generator, dtype=torch.float64) * signs],
    )
    logits = mean_logits(net, x[inside])
    exact = logits[:, [seed % 4]] - logits
    for choice in (random, best_choice(rows.weight, rows.bias, layers, 20)):
        found = mean_margins(rows, layers, choice)
        assert bool((found(x[inside][:1]).isfinite()).all())
        below = torch.stack([found(point[None])[0] for point in x[inside]])
        assert bool((below <= exact + 1e-12).all())
        least = box.minimum(found.matrix, found.offset)
        assert bool((least <= exact.amin(0) + 1e-12).all())
    assert not bool(layers.empty)


def test_a_cell_without_any_input_is_empty() -> None:
    net = network((2, 3, 3), 0.01, 0)
    *hidden, _ = net.linears
    box = Box.ball(torch.ones(1, 2, dtype=torch.float64), 1e-3)
    m = (box.lower @ hidden[0].weight_mean.T + hidden[0].bias_mean)[0]
    against = -m.sign().to(torch.int8)[None]
    assert bool(hidden_layers(hidden, box, Parameters(signs=(against,))).empty)
    assert not bool(hidden_layers(hidden, box, Parameters(signs=(-against,))).empty)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    ("sizes", "std"), [((2, 5, 3), 0.0), ((2, 6, 6, 3), 0.0), ((3, 8, 4), 0.02), ((2, 5, 5, 3), 0.02)]
)
def test_the_least_cell_bounds_the_box_and_more_cells_are_tighter(
    sizes: tuple[int, ...], std: float, seed: int
) -> None:
    net = network(sizes, std, seed)
    generator = torch.Generator().manual_seed(seed)
    centre = torch.randn(4, sizes[0], generator=generator, dtype=torch.float64)
    box = Box.ball(centre, torch.tensor([0.05, 0.2, 0.5, 1.0], dtype=torch.float64))
    noise = draw_softmax_noise(net, 4096, seed=seed)
    label = estimate_softmax(net, centre, noise).mean.argmax(-1)
    rows = decision_rows(label, sizes[-1])[0]
    few, more, most = (branch(Claim(net, box, rows, label), cells=n, steps=10, piece=7) for n in (1, 4, 32))
    at = estimate_softmax(net, points_of(box, 60, seed), noise)
    margin = torch.einsum("brc,pbc->pbr", rows, at.mean).amin(-1)
    error = 6 * 2 * at.std_error.amax(-1) + 1e-12
    assert bool((most <= (margin + error).amin(0)).all())
    assert bool((few <= more + 1e-9).all() & (more <= most + 1e-9).all())


def test_cells_decide_what_one_pass_cannot() -> None:
    """Without variance the truth is known on a fine grid of two inputs: nothing false is decided, more with cells."""
    decided = torch.zeros(2, dtype=torch.int64)
    for seed in range(30):
        net = network((2, 12, 2), 0.0, seed)
        box = Box.ball(torch.zeros(1, 2, dtype=torch.float64), 0.7)
        axis = torch.linspace(-0.7, 0.7, 141, dtype=torch.float64)
        logits = mean_logits(net, torch.cartesian_prod(axis, axis))
        margin = logits[:, 0] - logits[:, 1]
        label = torch.tensor([int(margin.mean() < 0)])
        rows = decision_rows(label, 2)[0]
        found = [branch(Claim(net, box, rows, label), cells=n, steps=20, piece=64) > 0 for n in (1, 32)]
        decided += torch.cat(found)
        if bool(found[1]):
            assert bool(((1 - 2 * label) * margin > 0).all())
    assert 0 < int(decided[0]) < int(decided[1]) < 30
