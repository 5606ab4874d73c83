"""Chains of layers whose moments are known: without activations at any depth, and two layers by quadrature."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support import records
from support.layer_judge import node_layers
from support.layer_networks import activation
from support.passes import ends, holds
from tests.engine.cases import hermite
from tests.marks import slow_but
from torch import Tensor
from torch.nn import functional

from bnndp.activations import Identity
from bnndp.engine.margins import margins
from bnndp.engine.moment_pass import MomentPass
from bnndp.engine.nodes.node import row_std
from bnndp.engine.rows import DenseRows
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
USUAL = [("nothing", (kind, kind, "rows")) for kind in DENSE] + [(below, ("shared", "mean-field")) for below in BELOW]


@pytest.mark.parametrize(("below", "kinds"), slow_but(CHAINS, *USUAL))
def test_means_and_covariances_of_linear_chains(below: str, kinds: tuple[str, ...]) -> None:
    network = _network(below, kinds, activations=len("".join(kinds)) % 2 == 0)
    x = records.normal(1, network.n_in, seed=3)
    truth = exact(network, x[0])
    mean, covariance = truth[-1]
    bounds = MomentPass.of(network, Box(x, x))
    interval = ends(bounds, 3)
    assert holds(interval, mean)
    assert float((interval.upper - interval.lower).max()) < 1e-9 * (1 + float(mean.abs().max()))
    rows = torch.cat([torch.eye(3, dtype=torch.float64), torch.ones(1, 3), records.normal(2, 3, seed=5)])
    claim, variance = bounds.variance(rows)[0], (rows @ covariance * rows).sum(-1)
    assert bool((claim >= variance * (1 - 1e-9)).all()), (claim / variance).min()
    for index, node in zip(node_layers(network), bounds.hidden.nodes[1:], strict=True):
        at, around = truth[index]
        s = node.signal
        assert holds(s.mean, at), index
        assert bool((s.variance[0] >= around.diagonal() * (1 - 1e-9)).all()), index
        u = torch.cat([torch.ones(1, len(at), dtype=torch.float64), records.normal(3, len(at), seed=index)])
        spread = (u @ around * u).sum(-1)
        found = row_std(node, DenseRows(u[None]))[0].square()
        assert bool((found >= spread * (1 - 1e-9)).all()), (index, (found / spread).min())
        norms = node.norms(DenseRows(u[None]))[0, :, 0]
        assert bool((norms.square() >= spread * (1 - 1e-9)).all()), index
        if s.source:
            assert torch.allclose(found, spread, rtol=1e-6, atol=1e-12), index
            assert bool((s.noise.lower[0] <= around.diagonal() * (1 + 1e-9)).all())


@pytest.mark.parametrize("kind", sorted(DENSE))
def test_one_layer_is_exact(kind: str) -> None:
    """Nothing is lost for a Gaussian layer on a point: rows, and margins with all that two logits share."""
    layer = _network("nothing", (kind,)).layers[0]
    x = records.normal(1, 3, seed=8)
    mean, covariance = records.law(layer, x[0])
    rows = torch.cat([torch.eye(3, dtype=torch.float64), records.normal(4, 3, seed=5)])
    bounds = MomentPass.of(BayesianNetwork((layer,), "classification"), Box(x, x))
    claim, variance = bounds.variance(rows)[0], (rows @ covariance * rows).sum(-1)
    assert torch.allclose(claim, variance, rtol=1e-8, atol=1e-20)
    assert bool((claim >= variance).all())
    for reference in range(3):
        found = margins(bounds, torch.tensor([[reference]]), 3)
        row = -torch.eye(3, dtype=torch.float64)
        row[:, reference] += 1
        variance = (row @ covariance * row).sum(-1)
        assert torch.allclose(found.variance[0, 0], variance, rtol=1e-8, atol=1e-20)
        assert bool((found.variance[0, 0] >= variance - 1e-20).all())
        assert torch.allclose(found.mean[0, 0], row @ mean, rtol=1e-11, atol=1e-12)
        assert bool((found.mean[0, 0] <= row @ mean + 1e-15).all())


@pytest.mark.parametrize(("below", "kinds"), slow_but(CHAINS[::4], *CHAINS[::12]))
def test_boxes_hold_what_happens_inside_them(below: str, kinds: tuple[str, ...]) -> None:
    network = _network(below, kinds)
    box = Box.ball(records.normal(1, network.n_in, seed=3), 0.3)
    bounds, rows = MomentPass.of(network, box), records.normal(1, 3, 3, seed=5)
    interval, claim = ends(bounds, 3), bounds.variance(rows)[0]
    for seed in range(4):
        share = records.uniform(network.n_in, seed=seed).round(decimals=0 if seed else 9)
        mean, covariance = exact(network, box.lower[0] + (box.upper - box.lower)[0] * share)[-1]
        assert holds(interval, mean)
        assert bool((claim >= (rows[0] @ covariance * rows[0]).sum(-1) * (1 - 1e-9)).all())


@pytest.mark.parametrize("act", slow_but(("tanh", "sigmoid", "softplus", "gelu", "silu", "identity"), "tanh", "gelu"))
def test_two_layers_by_nested_quadrature(act: str) -> None:
    """2-2-2-1 with independent weights: the first layer by a product rule, the second in closed form."""
    phi = activation(act)
    nodes, weights = hermite(60)
    grid, chance = torch.cartesian_prod(nodes, nodes), torch.cartesian_prod(weights, weights).prod(-1)
    for seed in range(4):
        first, second = records.linear(2, 2, 5 + seed, std=0.5), records.linear(2, 2, 50 + seed, std=0.5)
        last = records.linear(1, 2, 90 + seed)
        x = records.normal(1, 2, seed=seed)
        mean, covariance = records.law(first, x[0])
        z = phi(mean + grid * covariance.diagonal().sqrt())
        m = z @ second.weight_mean.T + second.bias_mean
        s = z.square() @ second.weight_std.square().T + second.bias_std.square()
        h = phi.mean(m, s.sqrt())  # E[phi(X_i) | z]
        central = phi.central(m, s.sqrt()).variance
        given = 0.5 * (central.lower + central.upper)
        truth, noise = chance @ h, chance @ given
        between = ((h - truth) * chance[:, None]).T @ (h - truth)
        total = noise + between.diagonal()
        bounds = MomentPass.of(BayesianNetwork((first, phi, second, phi, last)), Box(x, x))
        assert holds(ends(bounds, 1), last.weight_mean @ truth + last.bias_mean, 1e-9)
        node = bounds.hidden.nodes[2]
        signal = node.signal
        assert bool((total <= signal.variance[0] * (1 + 1e-7)).all())
        assert holds(signal.noise, noise, 1e-7 * noise)
        assert bool(((chance @ (given - noise).square()).sqrt() <= signal.noise_deviation[0] * (1 + 1e-7)).all())
        rows = records.normal(5, 2, seed=seed)
        own, apart = node.parts(DenseRows(rows[None]))
        assert bool((own[0] >= rows.square() @ noise * (1 - 1e-7)).all())
        assert bool((apart[0].square() >= (rows @ between * rows).sum(-1) * (1 - 1e-7)).all())
        weight, spread = last.weight_mean[0], last.weight_std.square()[0]
        variance = spread @ (total + truth.square()) + last.bias_std.square()[0]
        variance = variance + weight @ (between + noise.diag()) @ weight
        assert bounds.variance(torch.ones(1, 1, dtype=torch.float64)).item() >= variance.item() * (1 - 1e-7)


def test_a_sine_of_the_user_has_sound_variances() -> None:
    """The slope of the surrogate is not that of the sine: its rest must not be expanded around it."""
    phi, one = activation("piecewise_affine"), torch.ones(1, 1, dtype=torch.float64)
    xi, weight = hermite(40)
    x = torch.linspace(0.6, 0.8, 11, dtype=torch.float64)[:, None]
    for r in (1e-5, 1e-3, 0.1):
        noisy = Linear(one, 0 * one, 0 * one[0], r * one[0])
        network = BayesianNetwork((noisy, Identity(), Linear.fixed(one), phi, Linear.fixed(one)))
        value = torch.sin(x + r * xi)
        truth = (value - (value @ weight)[:, None]).square() @ weight
        assert bool((MomentPass.of(network, Box(x, x)).variance(one)[:, 0] >= truth).all())
