"""The chain of main rectangles: every probability of leaving it is counted, and Gaussians dominate its forms."""

from __future__ import annotations

import math

import pytest
import torch
from support import oracles
from support.dice import Dice
from support.networks import make_network
from tests.marks import slow_but
from tests.paper.truth import drawn, linear, moments, network_of, points_of, random_linear

from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.maths.normal import rectangle_quantile
from bnndp.network import BayesianNetwork
from bnndp.paper.chain import _link, links_of
from bnndp.paper.layers import Layer, Region

D = torch.float64


def test_a_form_counts_what_clipping_takes_from_the_mean() -> None:
    """-z with z = ReLU(-1 + min(xi, c)): its mean is above -g(-1, 1) by about E(xi - c)_+, here half of g."""
    hidden, last = linear([[0.0]], [[0.0]], [-1.0], [1.0]), linear([[1.0]], [[0.0]], [0.0], [0.0])
    chain = links_of(BayesianNetwork.from_linears([hidden, last]), Box([0.0], [0.0]), 0.5)
    reach = chain.end.upper.item() + 1.0
    mean = float(oracles.expected_relu(-1.0, 1.0) - oracles.expected_relu(-reach, 1.0))
    form = chain.form(torch.tensor([[[-1.0]]], dtype=D), torch.zeros(1, 1, dtype=D))
    assert -mean <= form.top.item() <= -mean + 1e-6
    assert -float(oracles.expected_relu(-1.0, 1.0)) < -mean - 0.03
    assert 0 < form.std.item() < 0.3


@pytest.mark.parametrize("seed", slow_but(range(4), 0))
def test_the_chain_is_left_no_more_often_than_it_says(seed: int) -> None:
    """Sampled hidden layers stay on the rectangles, at vertices of the box, and the bound on leaving is not idle."""
    network = network_of((2, 6, 5, 3), seed, 0.4)
    box = Box.ball(torch.tensor([0.4, -0.7], dtype=D), 0.05)
    chain = links_of(network, box, 0.3)
    dice = Dice(seed)
    regions = [link.region for link in chain.links[1:]] + [chain.end]
    for x in points_of(box, seed):
        z, stays = x.expand(20000, 2), torch.ones(20000, dtype=torch.bool)
        for layer, region in zip(network.linears, regions, strict=False):
            z = drawn(layer, z, dice).clamp_min(0)
            stays &= ((z >= region.lower[0]) & (z <= region.upper[0])).all(-1)
        left = 1 - stays.double().mean().item()
        assert left <= chain.outside + 0.02
        assert 0.4 < chain.outside < 0.6  # 3/2 of the mass: two rectangles and one range of means


@pytest.mark.parametrize("seed", slow_but(range(4), 0))
def test_forms_on_the_chain_are_dominated_by_their_gaussian(seed: int) -> None:
    """``E (S - t)_+ 1_C <= E (top + std xi - t)_+`` for rows of the last hidden layer and any t."""
    network = network_of((2, 6, 5, 3), seed, 0.3)
    box = Box.ball(torch.tensor([0.4, -0.7], dtype=D), 0.02)
    chain = links_of(network, box, 1e-3)
    rows = Dice(seed).normal(1, 8, 5)
    form = chain.form(rows, torch.zeros(1, 8, dtype=D))
    xi = Dice(1).normal(100_000, 1)
    for x in points_of(box, seed):
        dice, z = Dice(seed), x.expand(20_000, 2)
        for layer in network.linears[:2]:
            z = drawn(layer, z, dice).clamp_min(0)
        stays = ((z >= chain.end.lower[0]) & (z <= chain.end.upper[0])).all(-1)
        values = (z @ rows[0].T)[stays]
        for t in (-2.0, -1.0, 0.0, 1.0, 2.0):
            edge = form.top + t * form.std
            mine, theirs = (values - edge).clamp_min(0), (form.std * (xi - t)).clamp_min(0)
            error = 5 * (mine.std(0) / len(mine) ** 0.5 + theirs.std(0) / len(theirs) ** 0.5)
            assert (mine.mean(0) <= theirs.mean(0) + error).all()


@pytest.mark.parametrize("seed", slow_but(range(4), 0))
def test_ranges_behind_a_chain_hold_and_are_tighter_than_its_corner(seed: int) -> None:
    sizes = ((2, 12), (12, 10), (10, 3))
    linears = [random_linear(n_out, n_in, 7 * seed + k, std=0.4) for k, (n_in, n_out) in enumerate(sizes)]
    network, box = BayesianNetwork.from_linears(linears), Box.ball(torch.tensor([0.4, -0.7], dtype=D), 0.02)
    chain, layer = links_of(network, box, 0.2), Layer.of(linears[-1])
    found, corner = chain.ranges(layer, 0.2), layer.ranges(chain.end)
    assert (found.std_upper <= corner.std_upper).all()
    assert (found.std_upper < 0.8 * corner.std_upper).any()
    assert (found.mean_upper - found.mean_lower < 0.8 * (corner.mean_upper - corner.mean_lower)).all()
    z, dice = box.upper.expand(20_000, 2), Dice(seed)
    for one in linears[:-1]:
        z = drawn(one, z, dice).clamp_min(0)
    m, r = moments(linears[-1], z)
    stays = (m >= found.mean_lower[0]) & (m <= found.mean_upper[0]) & (r <= found.std_upper[0])
    assert 1 - stays.all(-1).double().mean() <= chain.outside + 0.2 + 0.02


def test_ranges_behind_nearly_certain_layers_are_the_value_there() -> None:
    """Nothing is lost, so nothing may be missing either."""
    linears = [random_linear(5, 2, 1, std=1e-9), random_linear(4, 5, 2, std=1e-9), random_linear(3, 4, 4, std=0.5)]
    x = torch.tensor([[0.4, -0.7]], dtype=D)
    z = x
    for one in linears[:-1]:
        z = (z @ one.weight_mean.T + one.bias_mean).clamp_min(0)
    truth = (z**2 @ linears[-1].weight_std.T ** 2 + linears[-1].bias_std ** 2).sqrt()
    chain = links_of(BayesianNetwork.from_linears(linears), Box(x, x), 0.1)
    found = chain.ranges(Layer.of(linears[-1]), 0.1).std_upper[0]
    assert (found >= truth * (1 - 1e-7)).all()
    assert (found <= truth * (1 + 1e-6)).all()


@pytest.mark.parametrize("mass", [1e-2, 1e-5])
@pytest.mark.parametrize("u", [-0.2, -0.7, -1.0, -1.6, -2.5])
def test_the_gaussian_of_a_link_dominates_its_clipped_neuron(u: float, mass: float) -> None:
    """One neuron N(u, 1) with its noise cut at c: E(z - E z - t)_+ is at most that of N(0, std^2), for t >= 0."""
    one, zero = torch.ones(1, 1, dtype=D), torch.zeros(1, 1, dtype=D)
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


@pytest.mark.parametrize("mass", [0.05, 0.3])
def test_all_neurons_stay_in_their_ranges_at_once(mass: float) -> None:
    """Means and deviations of a wide layer whose inputs are random: drawn 2000 times at one x."""
    network = make_network((3, 120, 150, 2), seed=4, std=1.5)
    first, second = network.linears[:2]
    x = torch.tensor([[0.4, -0.7, 0.9]], dtype=D)
    chain = links_of(BayesianNetwork.from_linears([first, network.linears[1]], "classification"), Box(x, x), mass)
    found = chain.ranges(Layer.of(second), mass)
    draws = 2000
    m, r = moments(second, drawn(first, x.expand(draws, -1), Dice(0)).clamp_min(0))
    inside = (m >= found.mean_lower[0]) & (m <= found.mean_upper[0]) & (r <= found.std_upper[0])
    failed = 1 - inside.all(-1).double().mean().item()
    allowed = min(mass + chain.outside, 1.0)
    assert failed <= allowed + 5 * math.sqrt(allowed / draws)
