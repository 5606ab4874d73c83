"""Units of networks of Linear and Relu: any are sound, powers that overflow say nothing; and the pass is tight."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from support.networks import make_network
from support.quadrature import rectified_law
from tests.engine.plain_cases import gaussian_network
from tests.engine.truth import bounds, draw, relu_mean
from tests.marks import slow_but
from tests.paper.truth import narrow_mean

from bnndp.engine.moment_pass import MomentPass
from bnndp.engine.propagation.forward import activations_of
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork


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
def test_bounds_do_not_tighten_with_the_scale(power: int, seed: int) -> None:
    """Multiplying the first layer and all biases by c multiplies the mean by c; the bounds may only get looser."""
    net = make_network((2, 12, 12, 12, 1) if seed % 2 else (2, 12, 12, 1), seed)
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


# Tightness: a bound that silently fell back to a crude one would pass every test of soundness


POINT = Box([0.5, -0.3], [0.5, -0.3])


def typical(depth: int) -> BayesianNetwork:
    layers = (
        Linear(
            k.weight_mean / k.n_in**0.5, 0 * k.weight_std + 0.1 / k.n_in**0.5, 0.2 * k.bias_mean, 0 * k.bias_std + 0.05
        )
        for k in gaussian_network((2, *(20,) * depth, 1), 5, 0.0).linears
    )
    return BayesianNetwork.from_linears(layers)


def test_moments_of_an_ordinary_network_are_near_the_truth() -> None:
    network = typical(3)
    draws = draw(network, POINT.lower[0], seed=0)
    _, second, third = activations_of(MomentPass.of(network, POINT).hidden.nodes).values()
    mu = network.linears[2].weight_mean.T
    noise, middle = (draws[1].v @ mu**2).mean(0), (draws[1].h @ mu).var(0)
    ratios = {
        "Var m": (third.pre.mean_variance[0] / draws[2].m.var(0), 1.8),  # 1.64 when this was written, and so on
        "N above": (third.pre.noise.upper[0] / noise, 1.1),  # 1.06
        "N below": (noise / third.pre.noise.lower[0], 1.3),  # 1.20
        "Var E[m | y]": (third.pre.central[0] / middle, 5.0),  # 4.2
        "Var s of the second layer": ((second.pre.spread_deviation[0] / draws[1].s.std(0)) ** 2, 1.03),  # 1
        "Var s": ((third.pre.spread_deviation[0] / draws[2].s.std(0)) ** 2, 2.2),  # 1.77
    }
    assert {name: ratio.max().item() for name, (ratio, most) in ratios.items() if not (ratio <= most).all()} == {}


@pytest.mark.parametrize(("depth", "most"), [(1, 1e-9), (2, 4e-4), (3, 2e-2)])
def test_gap_at_a_point(depth: int, most: float) -> None:
    _, ends = bounds(typical(depth), POINT)
    assert (ends.upper - ends.lower).item() <= most
