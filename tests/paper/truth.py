"""Truth for the partition method: planes in ball arithmetic, and means of deep narrow networks by nested quadrature."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import torch
from flint import arb
from support import oracles
from support.dice import Dice
from torch import Tensor

from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork
from bnndp.paper.layers import Layer
from bnndp.paper.planes import Planes

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)


def linear(mean: object, std: object, bias: object, bias_std: object) -> Linear:
    """A layer from nested lists."""
    return Linear(*(torch.tensor(value, dtype=torch.float64) for value in (mean, std, bias, bias_std)))


def random_linear(n_out: int, n_in: int, seed: int, *, std: float = 0.5) -> Linear:
    """A layer with standard normal means and standard deviations up to ``std``."""
    dice = Dice(seed)
    weight, spread = dice.normal(n_out, n_in), std * dice.uniform(shape=(n_out, n_in))
    return Linear(weight, spread, dice.normal(n_out), std * dice.uniform(shape=(n_out,)))


def network_of(sizes: tuple[int, ...], seed: int, std: float, scale: float = 1.0) -> BayesianNetwork:
    """A classifier of such layers, the means times ``scale``."""
    layers = []
    for k, (n_in, n_out) in enumerate(itertools.pairwise(sizes)):
        one = random_linear(n_out, n_in, 1000 * seed + k, std=std)
        layers.append(Linear(scale * one.weight_mean, one.weight_std, scale * one.bias_mean, one.bias_std))
    return BayesianNetwork.from_linears(layers, task="classification")


def points_of(box: Box, seed: int, count: int = 4) -> Tensor:
    """Vertices (at most eight) and random points of the first box: (points, n)."""
    ends = torch.stack([box.lower[0], box.upper[0]])
    picks = torch.tensor(list(itertools.islice(itertools.product((0, 1), repeat=box.n), 8)))
    vertices = torch.stack([ends[p, torch.arange(box.n)] for p in picks])
    share = Dice(seed).uniform(shape=(count, box.n))
    return torch.cat([vertices, (ends[0] + share * (ends[1] - ends[0])).clamp(ends[0], ends[1])])


def moments(layer: Linear, z: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the pre-activations given z (..., n)."""
    return z @ layer.weight_mean.T + layer.bias_mean, (z**2 @ layer.weight_std.T**2 + layer.bias_std**2).sqrt()


def drawn(layer: Linear, z: Tensor, dice: Dice) -> Tensor:
    """Pre-activations, each neuron drawn from its law given the layer before."""
    mean, std = moments(layer, z)
    return mean + std * dice.normal(*mean.shape)


def gaussians(layer: Linear, z: list[float]) -> list[tuple[arb, arb]]:
    """``m_h(z)`` and ``r_h(z)`` as balls."""
    return oracles.pre_activation(BayesianNetwork((layer,)), z)


@oracles.precise
def plane(layer: Layer, planes: Planes, var: Tensor, z: list[float], neuron: int) -> arb:
    """Value of one plane at ``z``, with the float coefficients taken as exact (first box, first region)."""
    a, c, offset = (t[0, 0, neuron].item() for t in (planes.a, planes.c, planes.offset))
    mean, spread, t = layer.mean[neuron].tolist(), var[neuron].tolist(), planes.t[0, 0].tolist()
    total = arb(offset)
    for mu, s, at, x in zip(mean, spread, t, z, strict=True):
        total += arb(a) * arb(mu) * arb(x) + arb(c) * arb(s) * arb(at) * arb(x)
    return total


def _expected_relu(m: np.ndarray, r: np.ndarray) -> np.ndarray:
    """``g(m, r)`` by its textbook form (absolute accuracy only), independent of the package."""
    u = np.divide(m, r, out=np.zeros_like(m), where=r > 0)
    erf = torch.erf(torch.from_numpy(u / math.sqrt(2))).numpy()
    value = m * 0.5 * (1 + erf) + r * np.exp(-u * u / 2) / math.sqrt(2 * math.pi)
    return np.where(r > 0, value, np.maximum(m, 0))


def rectified_mean(function: Callable[[np.ndarray], np.ndarray], m: float, r: float, panels: int = 24) -> np.ndarray:
    """``E function(max(m + r xi, 0))``: the atom at zero and Gauss-Legendre panels up to ten standard deviations."""
    if r == 0:
        return function(np.array([max(m, 0.0)]))[0]
    start = -m / r
    atom = 0.5 * math.erfc(-start / math.sqrt(2)) * function(np.zeros(1))[0]
    low, high = max(start, -10.0), max(start, 10.0)
    edges = np.linspace(low, high, panels + 1)
    half = np.diff(edges)[:, None] / 2
    t = (edges[:-1, None] + half + half * _NODES).ravel()  # in standard deviations: nothing cancels where r is small
    weight = (half * _WEIGHTS).ravel() * np.exp(-0.5 * t**2) / math.sqrt(2 * math.pi)
    return atom + np.tensordot(weight, function(np.maximum(m + r * t, 0)), 1)


def narrow_mean(network: BayesianNetwork, x: list[float]) -> np.ndarray:
    """``E f(x)`` where every hidden layer but the last has one neuron: nested one-dimensional integrals."""
    linears = [
        [t.numpy() for t in (one.weight_mean, one.weight_std, one.bias_mean, one.bias_std)] for one in network.linears
    ]
    last_mean, _, last_bias, _ = linears[-1]

    def value(depth: int, z: np.ndarray) -> np.ndarray:  # z (points, n): (points, outputs)
        mean, std, bias, bias_std = linears[depth]
        m, r = z @ mean.T + bias, np.sqrt(z**2 @ (std**2).T + bias_std**2)
        if depth == len(linears) - 2:
            return _expected_relu(m, r) @ last_mean.T + last_bias
        step = lambda y: value(depth + 1, y[:, None])  # noqa: E731
        return np.stack([rectified_mean(step, m[i, 0], r[i, 0]) for i in range(len(z))])

    return value(0, np.array([x]))[0]


def sampled_mean(
    network: BayesianNetwork, x: Tensor, samples: int, seed: int
) -> tuple[Tensor, Tensor]:  # x (points, n)
    """Mean and standard error of ``E f(x)``: weights are drawn but for the last two layers, which are integrated."""
    dice, z = Dice(seed), x.expand(samples, *x.shape)
    *below, hidden, last = network.linears
    for layer in below:
        mean, std = moments(layer, z)
        z = (mean + std * dice.normal(samples, 1, layer.n_out)).clamp_min(0)  # any coupling of the points will do
    mean, std = moments(hidden, z)
    u = mean / std.clamp_min(1e-300)
    relu = mean * torch.special.ndtr(u) + std * torch.exp(-0.5 * u * u) / math.sqrt(2 * math.pi)
    value = relu @ last.weight_mean.T + last.bias_mean
    return value.mean(0), value.std(0) / samples**0.5
