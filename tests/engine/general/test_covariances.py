"""Chains without activations: means and covariances of every kind of layer are known exactly, at any depth."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support import records
from torch import Tensor
from torch.nn import functional

from bnndp.activations import Identity
from bnndp.engine.general.forward import bound, hidden, row_variance
from bnndp.engine.general.margins import margins
from bnndp.engine.general.nodes import Input, Weighted, deviation
from bnndp.engine.general.rows import DenseRows
from bnndp.engine.general.signal import of_box
from bnndp.engine.general.weights import weights_of
from bnndp.geometry.box import Box
from bnndp.layers import AveragePool, Conv2d, Dropout, Flatten, Linear
from bnndp.network import BayesianNetwork

DENSE = {
    "mean-field": records.linear,
    "fixed": lambda o, i, seed: Linear.fixed(
        records.normal(o, i, seed=seed) / math.sqrt(i), records.normal(o, seed=seed)
    ),
    "bias": lambda o, i, seed: Linear.fixed(
        records.normal(o, i, seed=seed) / math.sqrt(i), records.normal(o, seed=seed), records.uniform(o, seed=seed)
    ),
    "rows": lambda o, i, seed: records.correlated(o, i, seed, shared=False),
    "shared": lambda o, i, seed: records.correlated(o, i, seed, shared=True),
    "matrix normal": records.matrix_normal,
}
IMAGE = (2, 4, 5)
BELOW: dict[str, tuple[list[Any], tuple[int, ...]]] = {  # what comes before the dense layers, and its input
    "nothing": ([], (3,)),
    "dropout": ([Dropout(0.4)], (3,)),
    "gaussian dropout": ([Dropout(0.3, "gaussian")], (3,)),
    "conv": ([records.conv(2, 2, 5, size=2), Flatten()], IMAGE),
    "conv, strides and padding": ([records.conv(3, 2, 6, size=3, stride=(2, 1), padding=(1, 2)), Flatten()], IMAGE),
    "two convs": (
        [records.conv(2, 2, 7, size=2), Identity(), records.conv(2, 2, 8, size=2, padding=1), Flatten()],
        IMAGE,
    ),
    "fixed conv": ([Conv2d.fixed(records.normal(2, 2, 2, 2, seed=4)), Dropout(0.5), Flatten()], IMAGE),
    "conv and dropout": ([records.conv(2, 2, 9, size=2), Identity(), Dropout(0.9), Flatten()], IMAGE),
    "dropped channels": ([records.conv(2, 2, 9, size=2), Identity(), Dropout(0.5, channels=True), Flatten()], IMAGE),
    "gaussian channels": ([Dropout(0.5, "gaussian", True), records.conv(2, 2, 9, size=2), Flatten()], IMAGE),
    "average": ([records.conv(2, 2, 10, size=2), Identity(), AveragePool(2, 1), Flatten()], IMAGE),
    "average apart": ([Dropout(0.3), AveragePool(2), records.conv(2, 2, 11, size=2), Flatten()], IMAGE),
    "average of an image": ([AveragePool((3, 2), (1, 2)), records.conv(2, 2, 11, size=2), Flatten()], IMAGE),
}


def _linear_map(layer: Any, shape: tuple[int, ...]) -> Tensor:
    """The matrix of the mean of a layer, less its bias."""
    n = math.prod(shape)
    zero = _mean(layer, torch.zeros(shape, dtype=torch.float64))
    return torch.stack([_mean(layer, e.reshape(shape)) - zero for e in torch.eye(n, dtype=torch.float64)], 1)


def _mean(layer: Any, z: Tensor) -> Tensor:
    if isinstance(layer, AveragePool):
        return functional.avg_pool2d(z[None], layer.size, layer.stride).flatten()
    if isinstance(layer, Flatten | Identity):
        return z.flatten()
    return records.law(layer, z)[0]


def _covariance(layer: Any, z: Tensor) -> Tensor:
    if isinstance(layer, AveragePool | Flatten | Identity):
        n = len(_mean(layer, z))
        return torch.zeros(n, n, dtype=torch.float64)
    return records.law(layer, z)[1]


def exact(network: BayesianNetwork, x: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Means and covariances after every layer of a network without activations.

    Given z a covariance is a quadratic function of z, so its mean is that at E z plus the quadratic part at the columns
    of a root of Cov z.
    """
    mean, covariance = x, torch.zeros(len(x), len(x), dtype=torch.float64)
    found = []
    for layer, shape in zip(network.layers, network.shapes[:-1], strict=True):
        values, vectors = torch.linalg.eigh(covariance)
        columns = (vectors * values.clamp_min(0).sqrt()).T
        zero = torch.zeros(shape, dtype=torch.float64)
        total = _covariance(layer, mean.reshape(shape))
        for column in columns:
            v = column.reshape(shape)
            total = total + 0.5 * (_covariance(layer, v) + _covariance(layer, -v)) - _covariance(layer, zero)
        matrix = _linear_map(layer, shape)
        mean, covariance = _mean(layer, mean.reshape(shape)), total + matrix @ covariance @ matrix.T
        found.append((mean, covariance))
    return found


def _network(below: str, kinds: tuple[str, ...], *, activations: bool = False) -> BayesianNetwork:
    layers, shape = list(BELOW[below][0]), BELOW[below][1]
    n = math.prod(shape)
    for layer in layers:
        n = math.prod(layer.out_shape(shape))
        shape = layer.out_shape(shape)
    for k, kind in enumerate(kinds):
        out = 3 if k == len(kinds) - 1 else 4
        layers.append(DENSE[kind](out, n, 100 * k + 7))
        if activations and k < len(kinds) - 1:
            layers.append(Identity())
        n = out
    return BayesianNetwork(tuple(layers), input_shape=BELOW[below][1])


CHAINS = [("nothing", (kind, other, "rows")) for kind in DENSE for other in DENSE] + [
    (below, (kind, "mean-field")) for below in BELOW for kind in ("mean-field", "shared", "matrix normal", "fixed")
]


@pytest.mark.parametrize(("below", "kinds"), CHAINS, ids=lambda p: p if isinstance(p, str) else "-".join(p))
def test_means_and_covariances_of_linear_chains(below: str, kinds: tuple[str, ...]) -> None:
    network = _network(below, kinds, activations=len("".join(kinds)) % 2 == 0)
    x = records.normal(1, network.n_in, seed=3)
    truth = exact(network, x[0])
    mean, covariance = truth[-1]
    box = Box(x, x)
    interval, passed = bound(network, box).interval(), hidden(network, box)
    assert bool((interval.lower[0] <= mean + 1e-11).all() & (interval.upper[0] >= mean - 1e-11).all())
    assert float((interval.upper - interval.lower).max()) < 1e-9 * (1 + float(mean.abs().max()))
    rows = torch.cat([torch.eye(3, dtype=torch.float64), torch.ones(1, 3), records.normal(2, 3, seed=5)])
    claim = row_variance(passed, rows[None])[0]
    variance = (rows @ covariance * rows).sum(-1)
    assert bool((claim >= variance * (1 - 1e-9)).all()), (claim / variance).min()
    nodes = _nodes(network)
    for index, node in zip(nodes, passed.chain[1:], strict=True):
        at, around = truth[index]
        s = node.signal
        assert bool((s.mean.lower[0] <= at + 1e-11).all() & (s.mean.upper[0] >= at - 1e-11).all()), index
        assert bool((s.variance[0] >= around.diagonal() * (1 - 1e-9)).all()), index
        u = torch.cat([torch.ones(1, len(at), dtype=torch.float64), records.normal(3, len(at), seed=index)])
        spread = (u @ around * u).sum(-1)
        found = deviation(node, DenseRows(u[None]))[0].square()
        assert bool((found >= spread * (1 - 1e-9)).all()), (index, (found / spread).min())
        norms = node.tails(DenseRows(u[None])).norms[0, :, 0]
        assert bool((norms.square() >= spread * (1 - 1e-9)).all()), index
        if s.source:
            assert torch.allclose(found, spread, rtol=1e-6, atol=1e-12), index
            assert bool((s.noise.lower[0] <= around.diagonal() * (1 + 1e-9)).all())


def _nodes(network: BayesianNetwork) -> list[int]:
    from support.layer_judge import node_layers

    return node_layers(network)


@pytest.mark.parametrize("kind", sorted(DENSE))
def test_one_layer_is_exact(kind: str) -> None:
    """Nothing is lost for a Gaussian layer on a point: rows, and margins with all that two logits share."""
    network = _network("nothing", (kind,))
    x = records.normal(1, 3, seed=8)
    mean, covariance = records.law(network.layers[0], x[0])
    rows = torch.cat([torch.eye(3, dtype=torch.float64), records.normal(4, 3, seed=5)])
    claim = row_variance(hidden(network, Box(x, x)), rows[None])[0]
    variance = (rows @ covariance * rows).sum(-1)
    assert torch.allclose(claim, variance, rtol=1e-8, atol=1e-20)
    assert bool((claim >= variance).all())
    network = BayesianNetwork(network.layers, "classification")
    for reference in range(3):
        found = margins(network, Box(x, x), torch.tensor([[reference]]))
        row = -torch.eye(3, dtype=torch.float64)
        row[:, reference] += 1
        variance = (row @ covariance * row).sum(-1)
        assert torch.allclose(found.variance[0, 0], variance, rtol=1e-8, atol=1e-20)
        assert bool((found.variance[0, 0] >= variance - 1e-20).all())
        assert torch.allclose(found.mean[0, 0], row @ mean, rtol=1e-11, atol=1e-12)
        assert bool((found.mean[0, 0] <= row @ mean + 1e-15).all())


@pytest.mark.parametrize(("below", "kinds"), CHAINS[::4], ids=lambda p: p if isinstance(p, str) else "-".join(p))
def test_boxes_hold_what_happens_inside_them(below: str, kinds: tuple[str, ...]) -> None:
    network = _network(below, kinds)
    centre = records.normal(1, network.n_in, seed=3)
    box = Box.ball(centre, 0.3)
    interval, rows = bound(network, box).interval(), records.normal(1, 3, 3, seed=5)
    claim = row_variance(hidden(network, box), rows)[0]
    for seed in range(4):
        x = box.lower[0] + (box.upper - box.lower)[0] * records.uniform(network.n_in, seed=seed).round(
            decimals=0 if seed else 9
        )
        mean, covariance = exact(network, x)[-1]
        assert bool((interval.lower[0] <= mean + 1e-11).all() & (interval.upper[0] >= mean - 1e-11).all())
        variance = (rows[0] @ covariance * rows[0]).sum(-1)
        assert bool((claim >= variance * (1 - 1e-9)).all())


def test_a_shared_kernel_is_one_noise_for_all_positions() -> None:
    """The sum over positions of one kernel has a variance of the square of their number, not of their number."""
    one = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    layer = Conv2d(one, one, torch.zeros(1), torch.zeros(1))
    network = BayesianNetwork((layer, Identity(), Flatten(), Linear.fixed(torch.ones(1, 9))), input_shape=(1, 3, 3))
    x = torch.ones(1, 9, dtype=torch.float64)
    found = row_variance(hidden(network, Box(x, x)), torch.ones(1, 1, 1, dtype=torch.float64))
    assert 81 <= found.item() < 81 * (1 + 1e-6)
    alternating = torch.tensor([[(-1.0) ** i for i in range(9)]], dtype=torch.float64)
    network = BayesianNetwork((*network.layers[:-1], Linear.fixed(alternating)), input_shape=(1, 3, 3))
    found = row_variance(hidden(network, Box(x, x)), torch.ones(1, 1, 1, dtype=torch.float64))
    assert 1 <= found.item() < 1 + 1e-6


@pytest.mark.parametrize("name", sorted(set(records.RANDOM) - {n for n in records.RANDOM if "dropout" in n}))
def test_planes_in_means_and_spreads_hold_on_boxes(name: str) -> None:
    """Coefficients of either sign for the means and for the spreads, carried to z: the bound holds wherever z is."""
    layer, shape = records.RANDOM[name]
    n = math.prod(shape)
    centre = records.normal(1, n, seed=6)
    radius = records.uniform(1, n, seed=7)
    box = Box(centre - radius, centre + radius)
    below = Input(of_box(box))
    weights = weights_of(layer, shape)
    weighted = Weighted(weights, below, weights.power(below.signal.mean.magnitude, 1) + weights.bias.abs())
    rows, beta = records.normal(1, 6, weights.n_out, seed=8), records.normal(1, 6, weights.n_out, seed=9)
    beta[:, 0], beta[:, 1], rows[:, 1] = beta[:, 0].abs(), -beta[:, 1].abs(), 0.0
    found, constant = weighted.lower(DenseRows(rows), DenseRows(beta), torch.zeros(1, 6, dtype=torch.float64))
    matrix = found.dense().values[0]
    for seed in range(40):
        share = records.uniform(n, seed=seed)
        z = box.lower[0] + (share if seed % 2 else share.round()) * (box.upper - box.lower)[0]
        mean, covariance = records.law(layer, z.reshape(shape))
        truth = rows[0] @ mean + beta[0] @ covariance.diagonal()
        gap = truth - matrix @ z - constant[0]
        assert bool((gap >= -1e-12).all()), (seed, gap.min())
    # At the middle a positive coefficient takes the tangent, which touches there.
    mean, covariance = records.law(layer, centre.reshape(shape))
    gap = rows[0] @ mean + beta[0] @ covariance.diagonal() - matrix @ centre[0] - constant[0]
    assert gap[0].abs() < 1e-10
