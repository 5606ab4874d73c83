"""Judges of E softmax that share no code with the package: Arb without variance, quadrature for two classes, draws.

The quadrature sees errors of 1e-9 with at most two hidden neurons; draws come in antithetic pairs, so that nearly
deterministic posteriors are seen to 1e-8, and their covariance gives the error of any combination of the classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from flint import arb
from torch import Tensor

from benchmarks.fuzz.regression_oracle import law, noise_of, panels, paths, precision
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork

__all__ = [
    "Draws",
    "exact_softmax",
    "forward",
    "has_quadrature",
    "is_ordinary",
    "mean_sigmoid",
    "quadrature_softmax",
    "sampled_softmax",
    "softmax",
]

_REACH = 9.0  # standard deviations of a margin
_STEEP = 40.0  # margins beyond it are decided: e^-40 is left out


class Draws:
    """Mean of the softmax (points, classes) and the covariance of that mean (points, classes, classes)."""

    def __init__(self, values: Tensor, weights: Tensor) -> None:  # (pairs, points, classes), (pairs,)
        weight = weights[:, None, None]
        total = weights.sum()
        self.mean = (weight * values).sum(0) / total
        residual = weight * (values - self.mean)
        self.covariance = torch.einsum("dpi,dpj->pij", residual, residual) / total**2

    def error(self, rows: Tensor) -> Tensor:  # (points, rows, classes)
        """Standard error of ``rows . mean``: (points, rows)."""
        return torch.einsum("pri,pij,prj->pr", rows, self.covariance, rows).clamp_min(0).sqrt()


def is_ordinary(network: BayesianNetwork) -> bool:
    """Whether no weight is random."""
    return not any(layer.weight_std.any() or layer.bias_std.any() for layer in network.linears)


def exact_softmax(network: BayesianNetwork, x: Tensor) -> list[arb]:  # x (n,)
    """Enclosures of the softmax of a network without variance."""
    with precision():
        z = [arb(v) for v in x.tolist()]
        for index, layer in enumerate(network.linears):
            z = [v.max(arb(0)) for v in z] if index else z
            rows = zip(layer.weight_mean.tolist(), layer.bias_mean.tolist(), strict=True)
            z = [sum((arb(w) * v for w, v in zip(row, z, strict=True)), arb(b)) for row, b in rows]
        return [1 / sum(((other - own).exp() for other in z), arb(0)) for own in z]


def has_quadrature(network: BayesianNetwork) -> bool:
    """Two classes and at most two hidden neurons: the law of the margin is an integral over at most three numbers."""
    return network.n_out == 2 and sum(network.sizes[1:-1]) <= 2


def quadrature_softmax(network: BayesianNetwork, x: Tensor, nodes: int = 64) -> tuple[Tensor, Tensor]:
    """E softmax at ``x`` (points, n) and twice the difference to three quarters of the nodes: (points, 2) each."""
    fine, coarse = (
        torch.cat([_integrate(network, chunk, count) for chunk in x.split(16)]) for count in (nodes, 3 * nodes // 4)
    )
    return fine, 2 * (fine - coarse).abs() + 1e-13


def _integrate(network: BayesianNetwork, x: Tensor, count: int) -> Tensor:
    *hidden, last = network.linears
    z, mass = paths(hidden, x, count)
    mean, std = law(_margin(last), z)
    won = mean_sigmoid(mean[..., 0], std[..., 0], count)
    lost = mean_sigmoid(-mean[..., 0], std[..., 0], count)
    return torch.stack([(mass * won).sum(1), (mass * lost).sum(1)], -1)


def _margin(last: Linear) -> Linear:
    """Class 0 against class 1: their weights are independent."""
    mean, std = (t[:1] - t[1:] for t in (last.weight_mean, last.bias_mean)), (last.weight_std, last.bias_std)
    weight_mean, bias_mean = mean
    weight_std, bias_std = (t.square().sum(0, keepdim=True).sqrt() for t in std)
    return Linear(weight_mean, weight_std, bias_mean, bias_std)


def mean_sigmoid(mean: Tensor, std: Tensor, count: int) -> Tensor:
    """E 1/(1 + e^-D), D ~ N(mean, std^2): nodes where D is neither far from its mean nor decided, the rest exact."""
    share, weights = panels(2 * count)
    safe = std.clamp_min(1e-200)
    low, high = (((end - mean) / safe).clamp(-_REACH, _REACH) for end in (-_STEEP, _STEEP))
    u = low[..., None] + (high - low)[..., None] * share
    density = torch.exp(-0.5 * u * u) / math.sqrt(2 * math.pi)
    value = torch.sigmoid(torch.addcmul(mean[..., None], std[..., None], u))
    return ((high - low)[..., None] * weights * density * value).sum(-1) + torch.special.ndtr(-high)


def sampled_softmax(
    network: BayesianNetwork,
    x: Tensor,  # (points, n)
    samples: int,
    seed: int,
    *,
    pushed: bool = False,
) -> Draws:
    """The mean softmax at some points by ``samples`` draws in antithetic pairs, the same for all points."""
    values, weights = [], []
    for weight, noise in noise_of(network.linears, samples, seed, pushed=pushed):
        mirrored = [-part for part in noise]
        pairs = [0.5 * (softmax(network, one, noise) + softmax(network, one, mirrored)) for one in x.split(8)]
        values.append(torch.cat(pairs, 1))
        weights.append(weight)
    return Draws(torch.cat(values), torch.cat(weights))


def softmax(network: BayesianNetwork, x: Tensor, noise: list[Tensor]) -> Tensor:  # x (points, n), noise (draws, n_k)
    """The softmax given the standard noise of every layer, differentiable in x: (draws, points, classes)."""
    return torch.softmax(forward(network.linears, x, noise), -1)


def forward(layers: Sequence[Linear], x: Tensor, noise: list[Tensor]) -> Tensor:
    """Pre-activations of the last of some layers given the noise of all: (draws, points, n)."""
    z = x[None]
    for index, (layer, eps) in enumerate(zip(layers, noise, strict=True)):
        z = torch.relu(z) if index else z
        mean = torch.nn.functional.linear(z, layer.weight_mean, layer.bias_mean)
        variance = torch.nn.functional.linear(z.square(), layer.weight_std.square(), layer.bias_std.square())
        z = mean + variance.clamp_min(1e-300).sqrt() * eps[:, None]  # the root has no slope at zero
    return z
