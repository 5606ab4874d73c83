"""Networks whose only randomness is Bernoulli dropout, by all their masks; and a product rule for Gaussians."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from support import records
from support.layer_networks import activation
from support.passes import holds
from torch import Tensor
from torch.nn import functional

from bnndp.engine.moments.signal import POWERS
from bnndp.engine.nodes.node import row_std
from bnndp.engine.rows import DenseRows
from bnndp.layers import AveragePool, Conv2d, Dropout, Flatten, Linear, MaxPool
from bnndp.network import BayesianNetwork


def outcomes(network: BayesianNetwork, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Chances (masks,) and values (masks, n) after every layer, for all masks of a network at x (n,)."""
    shapes = zip(network.layers, network.shapes[:-1], strict=True)
    sizes = [s[0] if layer.channels else math.prod(s) for layer, s in shapes if isinstance(layer, Dropout)]
    bits = torch.tensor(list(itertools.product((0.0, 1.0), repeat=sum(sizes))), dtype=torch.float64)
    chance, z, values = torch.ones(len(bits), dtype=torch.float64), x.reshape(1, *network.shapes[0]), []
    z = z.expand(len(bits), *network.shapes[0])
    for layer in network.layers:
        if isinstance(layer, Dropout):
            own, bits = bits[:, : sizes[0]], bits[:, sizes.pop(0) :]
            chance = chance * (own * (1 - layer.rate) + (1 - own) * layer.rate).prod(-1)
            z = z * own.reshape(len(own), *((-1, 1, 1) if layer.channels else z.shape[1:])) / (1 - layer.rate)
        else:
            z = _certain(layer, z)
        values.append(z.flatten(1))
    return chance, values


def _certain(layer: Any, z: Tensor) -> Tensor:
    if isinstance(layer, Conv2d):
        return functional.conv2d(z, layer.weight_mean, layer.bias_mean, layer.stride, layer.padding)
    if isinstance(layer, Linear):
        return functional.linear(z, layer.weight_mean, layer.bias_mean)
    if isinstance(layer, AveragePool | MaxPool):
        pool = functional.avg_pool2d if isinstance(layer, AveragePool) else functional.max_pool2d
        return pool(z, layer.size, layer.stride)
    return z.flatten(1) if isinstance(layer, Flatten) else layer(z)


def certain(o: int, i: int, seed: int) -> Linear:
    return Linear.fixed(records.normal(o, i, seed=seed), 0.3 * records.normal(o, seed=seed + 1))


def dropouts(act: str, rate: float) -> dict[str, BayesianNetwork]:
    """Small networks with dropout in every place."""
    phi, drop = activation(act), Dropout(rate)
    kernel = Conv2d.fixed(records.normal(2, 1, 2, 2, seed=4), records.normal(2, seed=6))
    last = (Flatten(), certain(3, 2, 7), phi, certain(2, 3, 8))
    image = (1, 3, 3)
    return {
        "one": BayesianNetwork((certain(5, 2, 1), phi, drop, certain(2, 5, 3))),
        "input": BayesianNetwork((drop, certain(4, 3, 1), phi, certain(3, 4, 2), phi, certain(1, 3, 5))),
        "two": BayesianNetwork((certain(4, 2, 1), phi, drop, certain(4, 4, 3), phi, drop, certain(2, 4, 5))),
        "signal": BayesianNetwork((certain(5, 2, 1), phi, drop, phi, certain(3, 5, 2), phi, certain(1, 3, 3))),
        "channels": BayesianNetwork(
            (kernel, phi, Dropout(rate, channels=True), Flatten(), certain(3, 8, 7), phi, certain(2, 3, 8)),
            input_shape=image,
        ),
        "average": BayesianNetwork((kernel, phi, drop, AveragePool(2), *last), input_shape=image),
        "max": BayesianNetwork((kernel, phi, drop, MaxPool(2), *last), input_shape=image),
        "overlapping": BayesianNetwork(
            (drop, AveragePool((1, 2), 1), Flatten(), certain(2, 4, 7), phi, certain(1, 2, 8)), input_shape=(1, 2, 3)
        ),
    }


def check_node(name: str, node: Any, chance: Tensor, z: Tensor) -> None:  # chance (outcomes,), z (outcomes, n)
    """All that a node of a pass on one box says of z."""
    s, mean = node.signal, chance @ z
    centred = (z - mean).abs()
    assert holds(s.mean, mean), name
    scale = 1e-12 * (1 + mean.abs())
    variance = chance @ centred.square()

    def at_most(truth: Tensor, claim: Tensor, what: str) -> None:
        assert bool((truth <= claim + 1e-9 * claim.abs() + scale).all()), f"{name}: {what}"

    at_most(variance, s.variance[0], "variance")
    at_most(s.noise.lower[0], variance, "noise from below")
    for i, q in enumerate(POWERS):
        at_most((chance @ centred**q) ** (1 / q), s.norms[0, :, i], f"norm {q}")
    if s.source and not s.fixed:
        at_most(variance, s.noise.upper[0], "noise")
        third, fourth = chance @ (z - mean) ** 3, chance @ centred**4
        at_most(third.abs(), s.third_size[0], "size of the third moment")
        at_most(third, s.third.upper[0], "third moment")
        at_most(-third, -s.third.lower[0], "third moment from below")
        at_most(fourth, s.noise_fourth.upper[0], "fourth moment")
        at_most(s.noise_fourth.lower[0], fourth, "fourth moment from below")
    rows = torch.cat([torch.ones(1, z.shape[1], dtype=torch.float64), records.normal(2, z.shape[1], seed=9)])
    along = ((z - mean) @ rows.T).abs()
    found, norms = row_std(node, DenseRows(rows[None]))[0], node.norms(DenseRows(rows[None]))
    assert bool((chance @ along.square() <= found.square() * (1 + 1e-9) + 1e-12).all()), name
    for i, q in enumerate(POWERS):
        assert bool(((chance @ along**q) ** (1 / q) <= norms[0, :, i] * (1 + 1e-9) + 1e-9).all()), (name, q)


def hermite(n: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights for a standard Gaussian."""
    off = torch.arange(1, n, dtype=torch.float64).sqrt()
    values, vectors = torch.linalg.eigh(torch.diag(off, 1) + torch.diag(off, -1))
    return values, vectors[0].square()
