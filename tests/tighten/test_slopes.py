"""Any tangent points are sound; the ascent is never worse than one pass, ignores NaN, and has a right gradient."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from flint import arb
from support.oracles import exact_mean
from tests.engine.dense import truth
from torch import Tensor

from bnndp.engine.dense import optimise
from bnndp.engine.dense.backward import Choice, lower_bound
from bnndp.engine.dense.forward import HiddenLayers, Parameters, hidden_layers
from bnndp.engine.dense.optimise import best_choice
from bnndp.geometry.box import Box
from bnndp.network import BayesianNetwork

NetworkFactory = Callable[..., BayesianNetwork]


def relaxed(network: BayesianNetwork, box: Box) -> HiddenLayers:
    return hidden_layers(network.linears[:-1], box, Parameters())


def value_at(network: BayesianNetwork, layers: HiddenLayers, choice: Choice | None = None) -> Tensor:
    """Lower bounds of the outputs on each box: (batch, outputs)."""
    last = network.linears[-1]
    found = lower_bound(last.weight_mean, last.bias_mean, layers.relaxed, layers.first, layers.box, choice)
    return layers.box.minimum(found.matrix, found.offset)


def wild(network: BayesianNetwork, batch: int, seed: int) -> list[Tensor]:
    """Tangent points of every layer for every output: from near zero to far beyond what a slope can tell."""
    generator = torch.Generator().manual_seed(seed)
    result = []
    for layer in network.linears[:-1]:
        shape = (batch, network.n_out, layer.n_out)
        size = 10 ** (4 * torch.rand(shape, generator=generator, dtype=torch.float64) - 2)
        result.append(size * torch.randn(shape, generator=generator, dtype=torch.float64))
    result[0][0, 0, 0] = math.inf
    result[-1][-1, -1, -1] = -math.inf
    return result


@pytest.mark.parametrize("std", [0.0, 0.3, 2.0])
@pytest.mark.parametrize("radius", [0.0, 0.1, 1.0])
def test_any_tangents_are_sound_with_one_hidden_layer(
    random_network: NetworkFactory, std: float, radius: float
) -> None:
    """Against exact means in Arb at points of the box, without tolerance."""
    network = random_network((2, 6, 3), seed=1, std=std)
    box = Box.ball([[0.3, -0.5], [0.0, 0.0]], radius)
    layers = relaxed(network, box)
    share = torch.tensor([[0.5, 0.5], [0, 0], [0, 1], [1, 0], [1, 1], [0.1, 0.7]], dtype=torch.float64)
    for seed in range(5):
        low = value_at(network, layers, Choice(wild(network, 2, seed)))
        assert not low.isnan().any()
        for b in range(2):
            for x in ((1 - share) * box.lower[b] + share * box.upper[b]).clamp(box.lower[b], box.upper[b]):
                means = exact_mean(network, x.tolist())
                assert all(arb(value) <= mean for value, mean in zip(low[b].tolist(), means, strict=True))


@pytest.mark.parametrize("sizes", [(2, 6, 5, 3), (2, 5, 5, 4, 2)])
@pytest.mark.parametrize("std", [0.1, 1.0])
def test_any_tangents_are_sound_deeper(random_network: NetworkFactory, sizes: tuple[int, ...], std: float) -> None:
    network = random_network(sizes, seed=2, std=std)
    box = Box.ball([0.3, -0.5], 0.2)
    layers = relaxed(network, box)
    last = network.linears[-1]
    lows = [value_at(network, layers, Choice(wild(network, 1, seed)))[0] for seed in range(5)]
    for index, x in enumerate((box.centre[0], box.lower[0], box.upper[0])):
        h = truth.draw(network, x, seed=index, samples=20_000)[-1].h  # the last hidden layer integrated out
        estimate = truth.mean(h @ last.weight_mean.T + last.bias_mean)
        for low in lows:
            truth.at_least(estimate, low, "an output with random tangents")


@pytest.mark.parametrize("sizes", [(3, 8, 4), (3, 7, 6, 4), (3, 6, 5, 5, 3)])
@pytest.mark.parametrize("radius", [0.0, 0.05, 0.5])
def test_more_steps_are_never_worse(random_network: NetworkFactory, sizes: tuple[int, ...], radius: float) -> None:
    network = random_network(sizes, seed=3, std=0.3)
    box = Box.ball([[0.3, -0.5, 0.2], [-1.0, 0.4, 0.0]], radius)
    layers = relaxed(network, box)
    last = network.linears[-1]
    before = value_at(network, layers)
    for steps in (1, 4, 16):
        found = best_choice(last.weight_mean, last.bias_mean, layers, steps)
        now = value_at(network, layers, found)
        assert (now >= before).all()
        before = now
    if radius == 0.5:
        assert (before > value_at(network, layers) + 1e-3).any()  # and they do gain


def test_rows_and_boxes_do_not_mix(random_network: NetworkFactory) -> None:
    network = random_network((3, 7, 6, 4), seed=4, std=0.3)
    box = Box.ball([[0.3, -0.5, 0.2], [-1.0, 0.4, 0.0]], 0.3)
    last = network.linears[-1]
    together = best_choice(last.weight_mean, last.bias_mean, relaxed(network, box), 5)
    for b in range(2):
        one = Box(box.lower[b : b + 1], box.upper[b : b + 1])
        for row in range(4):
            alone = best_choice(
                last.weight_mean[row : row + 1], last.bias_mean[row : row + 1], relaxed(network, one), 5
            )
            for ours, theirs in zip(together.tangents, alone.tangents, strict=True):
                assert torch.allclose(ours[b, row], theirs[0, 0], rtol=1e-6, atol=1e-6)


def test_tangents_that_are_not_numbers_never_win(
    random_network: NetworkFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ascent of one row starts at NaN: that row keeps the planes of one pass, the others are optimised."""
    network = random_network((3, 7, 6, 4), seed=5, std=0.3)
    box = Box.ball([0.3, -0.5, 0.2], 0.4)
    layers, last = relaxed(network, box), network.linears[-1]
    within = optimise._within

    def spoiled(*args: object) -> Tensor:
        u = within(*args).clone()
        u[:, 1, 0] = math.nan
        return u

    good = best_choice(last.weight_mean, last.bias_mean, layers, 6)
    monkeypatch.setattr(optimise, "_within", spoiled)
    found = best_choice(last.weight_mean, last.bias_mean, layers, 6)
    assert not any(u.isnan().any() for u in found.tangents)
    plain, now = value_at(network, layers), value_at(network, layers, found)
    assert torch.equal(now[:, 1], plain[:, 1])
    others = [0, 2, 3]
    assert torch.allclose(now[:, others], value_at(network, layers, good)[:, others])


@pytest.mark.parametrize("sizes", [(2, 4, 3), (2, 4, 3, 2)])
def test_the_gradient_is_that_of_the_bound(random_network: NetworkFactory, sizes: tuple[int, ...]) -> None:
    network = random_network(sizes, seed=6, std=0.3)
    box = Box.ball([0.3, -0.5], 0.3)
    layers = relaxed(network, box)
    generator = torch.Generator().manual_seed(0)
    points = tuple(
        torch.randn(1, network.n_out, k.n_out, generator=generator, dtype=torch.float64, requires_grad=True)
        for k in network.linears[:-1]
    )
    assert torch.autograd.gradcheck(lambda *u: value_at(network, layers, Choice(u)), points, eps=1e-6, atol=1e-6)
    slopes = torch.autograd.grad(value_at(network, layers, Choice(points)).sum(), points)
    assert all(slope.abs().max() > 1e-4 for slope in slopes)


def test_it_works_without_gradients_around_it(random_network: NetworkFactory) -> None:
    network = random_network((2, 5, 3), seed=7, std=0.3)
    layers, last = relaxed(network, Box.ball([0.3, -0.5], 0.5)), network.linears[-1]
    with torch.no_grad():
        found = best_choice(last.weight_mean, last.bias_mean, layers, 4)
    assert not any(u.requires_grad for u in found.tangents)
    assert (value_at(network, layers, found) > value_at(network, layers)).any()


# Cells of known signs


def signs_at(network: BayesianNetwork, x: Tensor, share: float, seed: int) -> tuple[Tensor, ...]:
    """Signs of the mean pre-activations at x (n,), with only a share of them told: (1, n) of each hidden layer."""
    generator = torch.Generator().manual_seed(seed)
    signs, z = [], x
    for layer in network.linears[:-1]:
        mean = layer.weight_mean @ z + layer.bias_mean
        told = torch.rand(layer.n_out, generator=generator) < share
        signs.append(torch.where(told, mean.sign(), 0.0).to(torch.int8)[None])
        z = mean.clamp_min(0)
    return tuple(signs)


@pytest.mark.parametrize("sizes", [(2, 6, 3), (2, 6, 5, 3)])
@pytest.mark.parametrize("share", [0.4, 1.0])
def test_any_multipliers_are_sound_on_their_cell(
    random_network: NetworkFactory, sizes: tuple[int, ...], share: float
) -> None:
    """Without variance the mean is the network itself and the cell of a point is known: look at points of that cell."""
    network = random_network(sizes, seed=8, std=0.0)
    box = Box.ball([0.3, -0.5], 0.8)
    generator = torch.Generator().manual_seed(0)
    points = box.lower + (box.upper - box.lower) * torch.rand(400, 2, generator=generator, dtype=torch.float64)
    looked_at = 0
    for seed in range(6):
        signs = signs_at(network, points[seed], share, seed)
        layers = hidden_layers(network.linears[:-1], box, Parameters(signs=signs))
        assert not layers.empty.any()
        tangents = wild(network, 1, seed)
        multipliers = [
            torch.rand(t.shape, generator=generator, dtype=torch.float64) * 3 * s[:, None]
            for t, s in zip(tangents, signs, strict=True)
        ]
        z, inside = points, torch.ones(len(points), dtype=torch.bool)
        for layer, sign in zip(network.linears, signs, strict=False):
            mean = z @ layer.weight_mean.T + layer.bias_mean
            inside &= (mean * sign >= 0).all(-1)
            z = mean.clamp_min(0)
        last = network.linears[-1]
        value = (z @ last.weight_mean.T + last.bias_mean)[inside]
        for choice in (Choice(tangents, multipliers), best_choice(last.weight_mean, last.bias_mean, layers, 5)):
            found = lower_bound(last.weight_mean, last.bias_mean, layers.relaxed, layers.first, box, choice)
            low = points[inside] @ found.matrix[0].T + found.offset[0]
            assert (low <= value + 1e-12).all()
        looked_at += int(inside.sum())
    assert looked_at > 50


def test_a_cell_is_bounded_better_than_the_box(random_network: NetworkFactory) -> None:
    """The signs and their multipliers gain what they are for."""
    network = random_network((2, 8, 3), seed=9, std=0.0)
    box = Box.ball([0.3, -0.5], 0.8)
    last, x = network.linears[-1], torch.tensor([0.3, -0.5], dtype=torch.float64)
    plain = relaxed(network, box)
    cell = hidden_layers(network.linears[:-1], box, Parameters(signs=signs_at(network, x, 1.0, 0)))
    whole = value_at(network, plain, best_choice(last.weight_mean, last.bias_mean, plain, 20))
    part = value_at(network, cell, best_choice(last.weight_mean, last.bias_mean, cell, 20))
    assert (part >= whole - 1e-9).all()
    assert (part > whole + 0.1).any()
