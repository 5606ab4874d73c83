"""Networks whose layers form a graph: exact laws by all masks of dropout, linear maps, and chains that are the same."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from support import records
from support.layer_draws import node_values
from support.layer_networks import ACTS, activation
from support.passes import ends, holds
from tests.engine.cases import certain, check_node
from tests.marks import slow_but
from torch import Tensor
from torch.nn import functional

from bnndp.activations import Identity, Relu, Tanh
from bnndp.deadline import NEVER
from bnndp.engine.moment_pass import MomentPass
from bnndp.engine.protocol import both_signs
from bnndp.geometry.box import Box
from bnndp.layers import Branched, Concatenate, Conv2d, Dropout, Flatten, Linear, Residual
from bnndp.network import BayesianNetwork, flat
from bnndp.tighten.slopes import climb

F64 = torch.float64


class Masks:
    """Layers without variance but for Bernoulli dropout of units, for all masks at once."""

    def __init__(self, units: int) -> None:
        self.left = torch.tensor(list(itertools.product((0.0, 1.0), repeat=units)), dtype=F64)
        self.chance = torch.ones(len(self.left), dtype=F64)

    def __call__(self, layer: Any, z: Tensor) -> Tensor:  # (masks, 1, *shape)
        if isinstance(layer, Dropout):
            n = math.prod(z.shape[2:])
            own, self.left = self.left[:, :n], self.left[:, n:]
            self.chance = self.chance * (own * (1 - layer.rate) + (1 - own) * layer.rate).prod(-1)
            return z * own.reshape(len(own), *z.shape[1:]) / (1 - layer.rate)
        if isinstance(layer, Conv2d):
            return functional.conv2d(z[:, 0], layer.weight_mean, layer.bias_mean, layer.stride, layer.padding)[:, None]
        if isinstance(layer, Linear):
            return functional.linear(z, layer.weight_mean, layer.bias_mean)
        return z.flatten(2) if isinstance(layer, Flatten) else layer(z)


def masked(act: str, rate: float) -> dict[str, tuple[BayesianNetwork, int]]:
    """Graphs with dropout before, in and after their branches, and the number of units that are dropped."""
    phi, drop = activation(act), Dropout(rate)
    first = (certain(3, 2, 1), phi, drop)
    kernel = Conv2d.fixed(records.normal(1, 1, 3, 3, seed=4), records.normal(1, seed=6), padding=1)
    narrow = Conv2d.fixed(records.normal(1, 1, 1, 1, seed=5), records.normal(1, seed=7))
    projected = Residual((certain(4, 3, 3), phi, drop, certain(2, 4, 5)), (certain(2, 3, 7),))
    both = Concatenate(((), (certain(3, 3, 3), phi, drop), (phi,)))
    nested = Residual((certain(2, 3, 3), phi, drop, Residual((phi, certain(2, 2, 4))), certain(3, 2, 5)))
    blocks = {
        "identity": ((*first, Residual((certain(3, 3, 3), phi, drop)), certain(2, 3, 9)), 6),
        "projection": ((*first, projected, phi, certain(2, 2, 9)), 7),
        "of the input": ((Residual((certain(2, 2, 3), phi, drop), (certain(2, 2, 5), phi, drop)), certain(2, 2, 9)), 4),
        "activated": ((*first, Residual((phi, certain(3, 3, 3))), phi, certain(3, 3, 5), phi, certain(2, 3, 9)), 3),
        "concatenation": ((*first, both, certain(2, 9, 5), phi, certain(2, 2, 9)), 6),
        "nested": ((*first, nested, phi, certain(2, 3, 9)), 5),
        "twice": ((*first, Concatenate(((), ())), certain(2, 6, 5), phi, certain(2, 2, 9)), 3),
    }
    found = {name: (BayesianNetwork(layers, input_shape=(2,)), units) for name, (layers, units) in blocks.items()}
    images = (kernel, phi, drop, Residual((kernel,), (narrow,)), phi, Concatenate(((narrow,), ())), Flatten())
    return found | {"image": (BayesianNetwork((*images, certain(2, 12, 9)), input_shape=(1, 2, 3)), 6)}


USUAL = [("relu", 0.5, name) for name in masked("relu", 0.5)]


@pytest.mark.parametrize(
    ("act", "rate", "name"),
    slow_but([(a, r, n) for a in ACTS for r in (0.1, 0.9) for n in masked(a, r)] + USUAL, *USUAL),
)
def test_every_node_by_all_masks(act: str, rate: float, name: str) -> None:
    network, units = masked(act, rate)[name]
    centre = records.normal(1, network.n_in, seed=12)
    box = Box(centre - 0.05, centre + 0.05)
    bounds = MomentPass.of(network, box)
    interval, rows = ends(bounds, 2), records.normal(1, 3, 2, seed=4)
    variance = bounds.variance(rows)[0]
    for x in (box.lower, box.upper, box.centre):
        masks = Masks(units)
        values = node_values(network, x, 2**units, masks)
        assert masks.left.shape[1] == 0
        assert float(masks.chance.sum()) == pytest.approx(1)
        *nodes, (_, y) = [(where, z[:, 0]) for where, z in values]
        assert holds(interval, masks.chance @ y)
        along = y @ rows[0].T
        truth = masks.chance @ (along - masks.chance @ along).square()
        assert bool((variance >= truth * (1 - 1e-9)).all())
        for (where, z), node in zip(nodes, bounds.hidden.nodes[1:], strict=True):
            check_node(where, node, masks.chance, z)


def linear_graphs(kind: str) -> tuple[Any, ...]:
    """Layers of three values without variance and without activations."""
    a, b, c = (Linear.fixed(records.normal(3, 3, seed=seed), records.normal(3, seed=seed)) for seed in (1, 2, 3))
    minus = Linear.fixed(-a.weight_mean)
    wide = Linear.fixed(records.normal(3, 6, seed=5))
    return {
        "identity": (Residual((a,)),),
        "deep": (Residual((a, Identity(), b)),),
        "projection": (Residual((a, Identity(), b), (c,)),),
        "nothing left": (Residual((a, Identity(), b), (Linear.fixed(-(b.weight_mean @ a.weight_mean)),)),),
        "nothing left of one layer": (Residual((a,), (minus,)),),
        "concatenation": (Concatenate(((a, Identity(), b), ())), wide),
        "nested": (Residual((a, Concatenate(((b,), (c, Residual((a,))))), wide), (Residual((b,), (c,)),)), b),
    }[kind]


def exact_map(layers: Any, z: Tensor) -> Tensor:  # (points, 3)
    for layer in layers:
        if isinstance(layer, Branched):
            z = layer.joined([exact_map(branch, z)[None] for branch in layer.branches])[0]
        else:
            z = z if isinstance(layer, Identity) else functional.linear(z, layer.weight_mean, layer.bias_mean)
    return z


KINDS = ("identity", "deep", "projection", "nothing left", "nothing left of one layer", "concatenation", "nested")


@pytest.mark.parametrize("kind", KINDS)
def test_means_and_variances_through_linear_graphs_are_exact(kind: str) -> None:
    """What two branches make of the same values is added before it is bounded, so nothing is lost where it cancels."""
    first, last = records.linear(3, 2, 7), Linear.fixed(records.normal(2, 3, seed=9))
    layers = linear_graphs(kind)
    box = Box.ball(records.normal(1, 2, seed=3), 0.1)
    bounds = MomentPass.of(BayesianNetwork((first, *layers, last)), box)
    matrix = exact_map(layers, torch.eye(3, dtype=F64)) - exact_map(
        layers, torch.zeros(1, 3, dtype=F64)
    )  # (3, 3): rows in
    total = last.weight_mean @ matrix.T
    corners = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=2)), dtype=F64) * 0.1 + box.centre
    means = exact_map(layers, functional.linear(corners, first.weight_mean, first.bias_mean)) @ last.weight_mean.T
    found = ends(bounds, 2)
    slack = 1e-9 * (1 + means.abs().amax())
    assert bool((found.lower <= means.amin(0) + 1e-12).all() & (found.upper >= means.amax(0) - 1e-12).all())
    assert bool((found.lower >= means.amin(0) - slack).all() & (found.upper <= means.amax(0) + slack).all())
    rows = records.normal(1, 4, 2, seed=5)
    claim = bounds.variance(rows)[0]
    along = rows[0] @ total
    truth = torch.stack(
        [torch.einsum("ri,ik,rk->r", along, records.law(first, corner)[1], along) for corner in corners]
    ).amax(0)
    assert bool((claim >= truth * (1 - 1e-9) - 1e-25).all())  # rounding of the truth, where it is zero
    assert bool((claim <= truth * 1.01 + 1e-12).all())


@pytest.mark.parametrize("radius", [0.02, 0.3])
def test_without_variance_sums_and_concatenations_are_as_tight_as_a_chain(radius: float) -> None:
    """Values after a ReLU pass the next one unchanged: so the graph can be written as a chain of wider layers."""
    fixed = [
        Linear.fixed(records.normal(o, i, seed=s) / i**0.5, 0.2 * records.normal(o, seed=s + 1))
        for o, i, s in ((6, 3, 1), (8, 6, 3), (5, 8, 5), (5, 6, 7), (2, 5, 9))
    ]
    first, inner, outer, short, last = fixed
    side = Linear.fixed(
        torch.cat([inner.weight_mean, torch.eye(6, dtype=F64)]), torch.cat([inner.bias_mean, torch.zeros(6, dtype=F64)])
    )
    both = Linear.fixed(torch.cat([outer.weight_mean, short.weight_mean], 1), outer.bias_mean + short.bias_mean)
    chain = BayesianNetwork.from_linears([first, side, both, last])
    block = Residual((inner, Relu(), outer), (short,))
    joined = Concatenate(((inner, Relu()), ()))
    graphs = [(first, Relu(), block, Relu(), last), (first, Relu(), joined, both, Relu(), last)]
    box = Box.ball(records.normal(4, 3, seed=2), radius)
    rows = both_signs(2, box)
    one = MomentPass.of(chain, box)
    best = climb(one, rows, 10, NEVER)[0].least
    for layers in graphs:
        bounds = MomentPass.of(BayesianNetwork(layers), box)
        assert torch.allclose(bounds.least(rows), one.least(rows), rtol=1e-9, atol=1e-9)
        assert bounds.widths in ([6, 8, 5], [6, 8, 8 + 6, 5])
        climbed = climb(bounds, rows, 10, NEVER)[0].least
        assert bool((climbed >= best - 5e-3).all())  # the chain has more slopes to choose
        assert radius < 0.1 or bool((climbed > bounds.least(rows) + 1e-4).any())


@pytest.mark.parametrize("phi", [Relu(), Tanh()], ids=lambda phi: phi.kind)
def test_signs_inside_branches(phi: Any) -> None:
    """On the cell of a sign the bounds hold for the x whose neuron has it; here an activation keeps the sign."""
    first, inner, outer, last = (certain(o, i, s) for o, i, s in ((5, 3, 1), (4, 5, 3), (5, 4, 5), (2, 5, 7)))
    network = BayesianNetwork((first, phi, Residual((phi, inner, phi, outer)), phi, last))
    assert sum(layer.kind == phi.kind for layer in flat(network.layers)) == 4
    box = Box.ball(records.normal(1, 3, seed=2), 0.5)
    bounds = MomentPass.of(network, box)
    assert bounds.widths == [5, 5, 4, 5]
    rows, better = both_signs(2, box), 0
    x = box.lower + records.uniform(2000, 3, seed=5) * (box.upper - box.lower)
    values = node_values(network, x, 1, Masks(0))
    truth = values[-1][1][0] @ rows.T  # (points, rows)
    nodes = {id(node): z[0] for (_, z), node in zip(values, bounds.hidden.nodes[1:], strict=False)}
    for layer, node in enumerate(bounds._activations.values()):
        split = ((node.pre.mean.lower < 0) & (node.pre.mean.upper > 0))[0].nonzero()[:, 0]
        for neuron in split.tolist():
            signs = tuple(torch.zeros(2, n, dtype=torch.int8) for n in bounds.widths)
            signs[layer][0, neuron], signs[layer][1, neuron] = 1, -1
            found = bounds.restricted(torch.tensor([0, 0]), signs).least(rows)
            positive = nodes[id(node)][:, neuron] > 0
            assert bool((truth[positive] >= found[0] - 1e-9).all())
            assert bool((truth[~positive] >= found[1] - 1e-9).all())
            better += int((found.amin(0) > bounds.least(rows)[0] + 1e-6).sum())
    assert better > 0
