"""The forward pass: any units and parameters are sound, powers that overflow say nothing, and the pass is tight."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest
import torch
from support.quadrature import rectified_law
from tests.engine.dense.cases import gaussian_network
from tests.engine.dense.truth import Run, bounds, draw, relu_mean, run
from tests.marks import slow_but
from tests.paper.truth import narrow_mean

from bnndp.engine.dense.dense_pass import DensePass
from bnndp.engine.dense.slope import slope
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.maths.rounding import LARGE
from bnndp.network import BayesianNetwork

NetworkFactory = Callable[..., BayesianNetwork]


def scaled(layer: Linear, weight: float, bias: float) -> Linear:
    return Linear(weight * layer.weight_mean, weight * layer.weight_std, bias * layer.bias_mean, bias * layer.bias_std)


# Units


@pytest.mark.parametrize("power", slow_but([-900, -300, -120, 120, 300, 900], -300, 900))
@pytest.mark.parametrize("sizes", [(2, 1, 4, 2), (2, 1, 1, 3, 1)])
def test_units_of_a_layer_do_not_matter(sizes: tuple[int, ...], power: int) -> None:
    """A layer times 2^power and the next one divided by it is the same network, at the ends of float64 too."""
    for seed, k in product(range(2), range(len(sizes) - 2)):
        net, c = gaussian_network(sizes, seed, 0.3, shift=0.5), 2.0**power
        layers = list(net.linears)
        layers[k], layers[k + 1] = scaled(layers[k], c, c), scaled(layers[k + 1], 1 / c, 1)
        x = torch.full((1, 2), 0.3, dtype=torch.float64)
        truth = torch.from_numpy(narrow_mean(net, x[0].tolist()))
        _, ends = bounds(BayesianNetwork.from_linears(layers), Box(x, x))
        assert (ends.lower <= truth + 1e-10 * (1 + truth.abs())).all()  # not bounded at all is an answer
        assert (ends.upper >= truth - 1e-10 * (1 + truth.abs())).all()


@pytest.mark.parametrize("power", [-130, -60, -45, -30, 30, 45, 60, 150])
@pytest.mark.parametrize("seed", slow_but(range(4), 0, 1))
def test_bounds_do_not_tighten_with_the_scale(random_network: NetworkFactory, power: int, seed: int) -> None:
    """Multiplying the first layer and all biases by c multiplies the mean by c; the bounds may only get looser."""
    net = random_network((2, 12, 12, 12, 1) if seed % 2 else (2, 12, 12, 1), seed)
    box, c = Box.ball([0.3, -0.4], 0.05 * (seed % 2)), 2.0 ** round(power * math.log2(10))
    layers = (scaled(layer, 1 if k else c, c) for k, layer in enumerate(net.linears))
    (_, plain), (_, found) = bounds(net, box), bounds(BayesianNetwork.from_linears(layers), box)
    room = 1e-6 * (plain.upper - plain.lower).item() + 1e-12
    assert found.lower.item() / c <= plain.lower.item() + room
    assert found.upper.item() / c >= plain.upper.item() - room


@pytest.mark.parametrize("scale", [1e-200, 1e-110, 1e-60, 1e-41, 1.0, 1e41, 1e52, 1e60, 1e150])
@pytest.mark.parametrize("sources", [1, 16])
def test_powers_that_overflow_or_underflow_give_no_false_bound(scale: float, sources: int) -> None:
    """One neuron of one rectified Gaussian. At 1e52 an overflow became a replacement error of zero."""
    z, p = rectified_law(0.0, 1.0)
    truth = scale * (p * relu_mean(z - 1, torch.full_like(z, 0.3))).sum().item()
    weight, zero = torch.eye(1, sources, dtype=torch.float64), torch.zeros(sources, 1, dtype=torch.float64)
    first = Linear(zero, zero, zero[:, 0], zero[:, 0] + scale)
    second = Linear(weight, 0 * weight, zero[0] - scale, zero[0] + 0.3 * scale)
    layers = [first, second, Linear.fixed(torch.ones(1, 1, dtype=torch.float64))]
    _, found = bounds(BayesianNetwork.from_linears(layers), Box([[0.0]], [[0.0]]))
    assert found.lower.item() <= truth * (1 + 1e-6)
    assert found.upper.item() >= truth * (1 - 1e-6)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 4 * LARGE**2])
def test_a_size_that_is_no_number_is_not_fine(random_network: NetworkFactory, value: float) -> None:
    box = Box.ball([[0.1, 0.2], [0.3, 0.4]], 0.05)
    layers = run(random_network((2, 4, 5, 3), seed=1), box).layers
    assert layers.fine.tolist() == [[True], [True]]
    (hidden,) = layers.chain
    high = hidden.before.spread.upper.clone()
    high[1, 2] = value
    before = replace(hidden.before, spread=Interval(hidden.before.spread.lower, high))
    assert replace(layers, chain=[replace(hidden, before=before)]).fine.tolist() == [[True], [False]]


# Cells


def test_a_cell_without_any_input_is_empty(random_network: NetworkFactory) -> None:
    hidden = random_network((2, 3, 3), 0, std=0.01).linears[:-1]
    box = Box.ball(torch.ones(1, 2, dtype=torch.float64), 1e-3)
    signs = (box.centre @ hidden[0].weight_mean.T + hidden[0].bias_mean).sign().to(torch.int8)
    for told, empty in ((signs, False), (-signs, True), (0 * signs, False)):
        assert DensePass((*hidden, hidden[-1]), box, (told,)).layers.empty.tolist() == [empty]


# Tightness: a bound that silently fell back to a crude one would pass every test of soundness


def typical(depth: int) -> Run:
    layers = (
        Linear(
            k.weight_mean / k.n_in**0.5, 0 * k.weight_std + 0.1 / k.n_in**0.5, 0.2 * k.bias_mean, 0 * k.bias_std + 0.05
        )
        for k in gaussian_network((2, *(20,) * depth, 1), 5, 0.0).linears
    )
    return run(BayesianNetwork.from_linears(layers), Box([0.5, -0.3], [0.5, -0.3]))


def test_quantities_of_an_ordinary_network_are_near_the_truth() -> None:
    found = typical(3)
    draws = draw(found.network, found.layers.box.lower[0], seed=0)
    second, third = found.hidden
    mu = third.before.layer.weight_mean.T
    noise, middle = (draws[1].v @ mu**2).mean(0), (draws[1].h @ mu).var(0)
    cdf = 0.5 * torch.special.erfc(-draws[1].m / second.before.spread.upper[0].sqrt() / 2**0.5)
    ratios = {
        "Var m": (third.before.mean_variance[0] / draws[2].m.var(0), 2.6),  # 2.2 when this was written, and so on
        "N above": (third.before.noise.upper[0] / noise, 1.2),  # 1.13
        "N below": (noise / third.before.noise.lower[0], 1.35),  # 1.23
        "Vc": (third.before.central[0] / middle, 8.0),  # 6.1
        "Vs of the second layer": (second.before.spread_variance[0] / draws[1].s.var(0), 1.06),  # 1
        "Vs": (third.before.spread_variance[0] / draws[2].s.var(0), 3.5),  # 2.8
        "Var Phi": (slope(second.before, second.mean).variance[0].sum() / cdf.var(0).sum(), 9.0),
    }
    assert {name: ratio.max().item() for name, (ratio, most) in ratios.items() if not (ratio <= most).all()} == {}


@pytest.mark.parametrize(("depth", "most"), [(1, 1e-9), (2, 3e-3), (3, 4e-2)])
def test_gap_at_a_point(depth: int, most: float) -> None:
    _, ends = bounds(typical(depth).network, Box([0.5, -0.3], [0.5, -0.3]))
    assert (ends.upper - ends.lower).item() <= most
