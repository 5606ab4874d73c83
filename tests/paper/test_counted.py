"""Every probability of leaving a rectangle is counted: against sampling, quadrature and the normal law itself."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.maths.normal import rectangle_quantile
from bnndp.network import BayesianNetwork
from bnndp.paper.chain import _link, links_of
from bnndp.paper.layers import Layer, Ranges, Region
from bnndp.paper.softmax import bound_rows
from bnndp.paper.spreads import lipschitz_excess

F64 = torch.float64
NetworkFactory = Callable[..., BayesianNetwork]


@pytest.mark.parametrize("chance", [0.3, 0.1, 1e-2, 1e-4, 1e-8])
@pytest.mark.parametrize("std", [0.5, 2.0])
def test_a_deviation_that_is_linear_in_the_noise(std: float, chance: float) -> None:
    """r(z) = |sigma z| with z = 1e6 + std xi: P(r > sqrt(E r^2) + excess) is a normal tail, and no Lipschitz bound."""
    one = torch.ones(1, 1, dtype=F64)
    sigma = 0.7
    layer = Layer.of(Linear(one, sigma * one, torch.zeros(1, dtype=F64), torch.zeros(1, dtype=F64)))
    m, r = 1e6 * one[None], std * one[None]
    excess = lipschitz_excess(layer, Ranges(m, m, r, r), chance).item() / sigma
    t = (math.sqrt(1e12 + std**2) - 1e6 + excess) / std
    assert 0.5 * math.erfc(t / math.sqrt(2)) <= chance
    assert math.exp(-0.5 * t * t) >= 0.99 * chance  # and hardly more than that is asked for


@pytest.mark.parametrize("mass", [0.05, 0.3])
def test_all_neurons_stay_in_their_ranges_at_once(random_network: NetworkFactory, mass: float) -> None:
    """Means and deviations of a wide layer whose inputs are random: drawn 2000 times at one x."""
    network = random_network((3, 120, 150, 2), seed=4, std=1.5)
    first, second = network.linears[:2]
    x = torch.tensor([[0.4, -0.7, 0.9]], dtype=F64)
    chain = links_of(BayesianNetwork.from_linears([first, network.linears[1]], "classification"), Box(x, x), mass)
    found = chain.ranges(Layer.of(second), mass)
    draws = 2000
    mean = x @ first.weight_mean.T + first.bias_mean
    std = (x.square() @ first.weight_std.square().T + first.bias_std.square()).sqrt()
    noise = torch.randn(draws, first.n_out, generator=torch.Generator().manual_seed(0), dtype=F64)
    z = (mean + std * noise).clamp_min(0)
    m = z @ second.weight_mean.T + second.bias_mean
    r = (z.square() @ second.weight_std.square().T + second.bias_std.square()).sqrt()
    inside = (m >= found.mean_lower[0]) & (m <= found.mean_upper[0]) & (r <= found.std_upper[0])
    failed = 1 - inside.all(-1).double().mean().item()
    allowed = min(mass + chain.outside, 1.0)
    assert failed <= allowed + 5 * math.sqrt(allowed / draws)


@pytest.mark.parametrize("cells", [2, 4])
@pytest.mark.parametrize("mass", [0.5, 0.2, 0.02])
@pytest.mark.parametrize("lead", [0.3, 1.0, 1.3, 2.0, 3.0])
def test_logits_that_are_nothing_but_noise(lead: float, mass: float, cells: int) -> None:
    """Two logits of a wide difference D ~ N(lead s, s^2): E[p_1 - p_2] = E tanh(D / 2), by a fine sum."""
    s = 200.0
    bias = torch.tensor([lead * s, 0.0], dtype=F64)
    zero = torch.zeros(2, 1, dtype=F64)
    layer = Linear(zero, zero, bias, torch.full((2,), s / math.sqrt(2), dtype=F64))
    network = BayesianNetwork((layer,), "classification")
    x = torch.zeros(1, 1, dtype=F64)
    rows = torch.tensor([[[1.0, -1.0], [1.0, 0.0], [0.0, -1.0]]], dtype=F64)
    found = bound_rows(network, Box(x, x), rows, mass=mass, cells=cells)[0]
    xi = torch.linspace(-10, 10, 200_001, dtype=F64)
    weight = torch.exp(-0.5 * xi**2)
    p = (torch.sigmoid(s * (lead + xi)) * weight).sum() / weight.sum()
    truth = torch.stack([2 * p - 1, p, p - 1])
    assert (found <= truth + 1e-4).all()  # the step of the sum, where the sigmoid is steep


@pytest.mark.parametrize("mass", [1e-2, 1e-5])
@pytest.mark.parametrize("u", [-0.2, -0.7, -1.0, -1.6, -2.5])
def test_the_gaussian_of_a_link_dominates_its_clipped_neuron(u: float, mass: float) -> None:
    """One neuron N(u, 1) with its noise cut at c: E(z - E z - t)_+ is at most that of N(0, std^2), for t >= 0."""
    one, zero = torch.ones(1, 1, dtype=F64), torch.zeros(1, 1, dtype=F64)
    layer = Layer.of(Linear(zero, zero, u * one[0], one[0]))
    at = Region(zero[None], zero[None], zero[None])
    link = _link(layer, at, layer.ranges(at), mass)
    std, c = link.std.item(), rectangle_quantile(mass, 1)

    def g(t: float) -> float:
        return t * 0.5 * math.erfc(-t / math.sqrt(2)) + math.exp(-0.5 * t * t) / math.sqrt(2 * math.pi)

    mean = g(u) - g(-c)
    for k in range(200):
        t = k / 200 * (u + c - mean)
        assert g(u - mean - t) - g(-c) <= std * g(-t / std) * (1 + 1e-9) + 1e-15
    assert link.loss.item() >= g(-c)


@pytest.mark.parametrize("cells", [2, 4, 8])
@pytest.mark.parametrize("mass", [0.4, 0.1, 0.01])
@pytest.mark.parametrize("lead", [0.5, 1.0, 1.5, 2.5, 4.0])
def test_logits_whose_noise_comes_from_below(lead: float, mass: float, cells: int) -> None:
    """The same difference from a hidden neuron that is always active; the last layer has next to no noise itself."""
    s = 200.0
    none, bias = torch.zeros(1, 1, dtype=F64), torch.tensor([lead * s - 10 * s, 0.0], dtype=F64)
    hidden = Linear(none, none, none[0] + 10 * s, none[0] + s)
    output = Linear(torch.tensor([[1.0], [0.0]]), torch.zeros(2, 1), bias, torch.full((2,), 1e-3, dtype=F64))
    network = BayesianNetwork.from_linears([hidden, output], "classification")
    x = torch.zeros(1, 1, dtype=F64)
    rows = torch.tensor([[[1.0, -1.0], [1.0, 0.0], [0.0, -1.0]]], dtype=F64)
    found = bound_rows(network, Box(x, x), rows, mass=mass, cells=cells)[0]
    xi = torch.linspace(-9.9, 9.9, 200_001, dtype=F64)
    weight = torch.exp(-0.5 * xi**2)
    p = (torch.sigmoid(s * (lead + xi)) * weight).sum() / weight.sum()
    assert (found <= torch.stack([2 * p - 1, p, p - 1]) + 1e-4).all()
