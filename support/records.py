"""One record of every kind, their laws by explicit covariances, and networks sampled one at a time with plain torch."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bnndp.activations import ACTIVATIONS, PiecewiseAffine, Relu, Tanh
from bnndp.layers import (
    AveragePool,
    Branched,
    Concatenate,
    Conv2d,
    CorrelatedLinear,
    Dropout,
    Flatten,
    Linear,
    MatrixNormalLinear,
    MaxPool,
    Residual,
)
from bnndp.network import BayesianNetwork, Ensemble


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def uniform(*shape: int, seed: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def linear(n_out: int, n_in: int, seed: int, std: float = 0.4) -> Linear:
    mean, bias = normal(n_out, n_in, seed=seed) / math.sqrt(n_in), 0.3 * normal(n_out, seed=seed + 1)
    return Linear(mean, std * uniform(n_out, n_in, seed=seed + 2), bias, std * uniform(n_out, seed=seed + 3))


def correlated(n_out: int, n_in: int, seed: int, *, shared: bool, rank: int = 2, std: float = 0.4) -> CorrelatedLinear:
    base = linear(n_out, n_in, seed, std)
    factor = std * normal(n_out, n_in + 1, rank, seed=seed + 4)
    return CorrelatedLinear(base.weight_mean, base.weight_std, base.bias_mean, base.bias_std, factor, shared)


def matrix_normal(n_out: int, n_in: int, seed: int, std: float = 0.5) -> MatrixNormalLinear:
    base = linear(n_out, n_in, seed)
    rows, columns = normal(n_out, 2, seed=seed + 5), std * normal(n_in + 1, n_in, seed=seed + 6)
    return MatrixNormalLinear(base.weight_mean, base.bias_mean, rows, columns)


def conv(
    out: int, into: int, seed: int, *, size: int = 3, std: float = 0.3, stride: Any = 1, padding: Any = 0
) -> Conv2d:
    shape = (out, into, size, size)
    mean = normal(*shape, seed=seed) / math.sqrt(into * size * size)
    bias = 0.3 * normal(out, seed=seed + 1)
    return Conv2d(mean, std * uniform(*shape, seed=seed + 2), bias, std * uniform(out, seed=seed + 3), stride, padding)


IMAGE = (2, 5, 6)
RANDOM: dict[str, tuple[Any, tuple[int, ...]]] = {  # every layer with a variance, and the shape of its inputs
    "linear": (linear(3, 4, 10), (4,)),
    "bias only": (Linear.fixed(normal(3, 4, seed=1), normal(3, seed=2), uniform(3, seed=3)), (4,)),
    "rows": (correlated(3, 4, 20, shared=False), (4,)),
    "rows of full rank": (correlated(3, 4, 21, shared=False, rank=7), (4,)),
    "low rank": (correlated(3, 4, 30, shared=True), (4,)),
    "whole layer": (
        CorrelatedLinear.whole(normal(2, 3, seed=1), normal(2, seed=2), torch.cov(normal(8, 20, seed=3))),
        (3,),
    ),
    "matrix normal": (matrix_normal(3, 4, 40), (4,)),
    "conv": (conv(3, 2, 50), IMAGE),
    "conv with stride and padding": (conv(3, 2, 60, stride=(2, 1), padding=(1, 2)), IMAGE),
    "dropout": (Dropout(0.3), (4,)),
    "dropout of an image": (Dropout(0.3), IMAGE),
    "gaussian dropout": (Dropout(0.4, "gaussian"), (4,)),
    "channel dropout": (Dropout(0.25, channels=True), IMAGE),
    "gaussian channel dropout": (Dropout(0.25, "gaussian", True), IMAGE),
}
FIXED: dict[str, tuple[Any, tuple[int, ...]]] = {
    "linear": (Linear.fixed(normal(3, 4, seed=1)), (4,)),
    "conv": (Conv2d.fixed(normal(3, 2, 2, 2, seed=1), stride=2), IMAGE),
    "no dropout": (Dropout(0.0), (4,)),
    "flatten": (Flatten(), IMAGE),
    "average": (AveragePool(2), IMAGE),
    "average with stride": (AveragePool((3, 2), stride=1), IMAGE),
    "max": (MaxPool((2, 3), stride=(1, 2)), IMAGE),
}


def activation(kind: str) -> Any:
    """One activation of this kind, as the package makes it by default."""
    if kind == PiecewiseAffine.kind:
        return PiecewiseAffine.of(lambda x: x / (1 + abs(x)), 1.0, pieces=50)
    return ACTIVATIONS[kind]()


def law(layer: Any, z: Tensor) -> tuple[Tensor, Tensor]:
    """Mean (n,) and covariance (n, n) of the flattened outputs of a layer given its input z."""
    if isinstance(layer, Dropout):
        variance = layer.rate / (1 - layer.rate)
        groups = torch.arange(z.shape[0]).reshape(-1, *[1] * (z.ndim - 1)).expand(z.shape).flatten()
        same = groups[:, None] == groups if layer.channels else torch.eye(z.numel(), dtype=torch.bool)
        flat = z.flatten()
        return flat, variance * torch.outer(flat, flat) * same
    if isinstance(layer, Conv2d):
        size = tuple(layer.weight_mean.shape[2:])
        patches = F.unfold(z[None], size, padding=layer.padding, stride=layer.stride)[0]  # (weights, positions)
        out = len(layer.bias_mean)
        mean = layer.weight_mean.reshape(out, -1) @ patches + layer.bias_mean[:, None]
        variances = layer.weight_std.reshape(out, -1).square()
        blocks = [patches.T @ (v[:, None] * patches) + b**2 for v, b in zip(variances, layer.bias_std, strict=True)]
        return mean.flatten(), torch.block_diag(*blocks)
    mean = layer.weight_mean @ z + layer.bias_mean
    one = torch.cat([z, torch.ones(1, dtype=torch.float64)])
    if isinstance(layer, MatrixNormalLinear):
        return mean, layer.row_factor @ layer.row_factor.T * (layer.column_factor.T @ one).square().sum()
    covariance = torch.diag(layer.weight_std.square() @ z.square() + layer.bias_std.square())
    if isinstance(layer, CorrelatedLinear):
        added = torch.einsum("ijq,j->iq", layer.factor, one)
        covariance = covariance + (added @ added.T if layer.shared else torch.diag(added.square().sum(-1)))
    return mean, covariance


def _weights(layer: Any) -> tuple[Tensor, Tensor]:
    """Weights and biases of a dense layer drawn from one joint Gaussian with an explicit covariance."""
    n_out, n_in = layer.weight_mean.shape
    size = n_out * (n_in + 1)
    if isinstance(layer, MatrixNormalLinear):
        covariance = torch.kron(layer.row_factor @ layer.row_factor.T, layer.column_factor @ layer.column_factor.T)
    else:
        covariance = torch.cat([layer.weight_std, layer.bias_std[:, None]], 1).square().flatten().diag()
        if isinstance(layer, CorrelatedLinear):
            rows = layer.factor.reshape(size, -1) if layer.shared else torch.block_diag(*layer.factor)
            covariance = covariance + rows @ rows.T
    values, vectors = torch.linalg.eigh(covariance)
    noise = vectors @ (values.clamp_min(0).sqrt() * torch.randn(size, dtype=torch.float64))
    joint = noise.reshape(n_out, n_in + 1) + torch.cat([layer.weight_mean, layer.bias_mean[:, None]], 1)
    return joint[:, :-1], joint[:, -1]


def apply_once(layer: Any, z: Tensor) -> Tensor:  # noqa: PLR0911 (one for each kind); (points, *shape)
    """One draw of a layer, with the functions of torch; torch's own random numbers."""
    if isinstance(layer, Conv2d):
        weight = torch.normal(layer.weight_mean, layer.weight_std)
        return F.conv2d(z, weight, torch.normal(layer.bias_mean, layer.bias_std), layer.stride, layer.padding)
    if isinstance(layer, Dropout):
        ones = torch.ones(1, *z.shape[1:], dtype=torch.float64)
        if layer.law == "bernoulli":
            return z * (F.dropout2d if layer.channels else F.dropout)(ones, layer.rate, training=True)
        ones = ones[..., :1, :1] if layer.channels else ones
        return z * torch.normal(ones, math.sqrt(layer.rate / (1 - layer.rate)))
    if isinstance(layer, AveragePool | MaxPool):
        return (F.avg_pool2d if isinstance(layer, AveragePool) else F.max_pool2d)(z, layer.size, layer.stride)
    if isinstance(layer, Branched):
        return layer.joined([chained(branch, z)[None] for branch in layer.branches])[0]
    if hasattr(layer, "weight_mean"):
        return F.linear(z, *_weights(layer))
    return z.flatten(1) if isinstance(layer, Flatten) else layer(z)


def chained(layers: Any, z: Tensor) -> Tensor:  # (points, *shape)
    """One draw of layers one after the other."""
    for layer in layers:
        z = apply_once(layer, z)
    return z


def outputs(network: BayesianNetwork | Ensemble, x: Tensor, draws: int, seed: int) -> Tensor:
    """Outputs of networks drawn one after the other: (draws, points, n_out)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return torch.stack([_one(network, x) for _ in range(draws)])


def _one(network: BayesianNetwork | Ensemble, x: Tensor) -> Tensor:
    if isinstance(network, Ensemble):
        network = network.members[int(torch.multinomial(network.probabilities, 1))]
    return chained(
        network.layers, (x if network.shift is None else x - network.shift).reshape(len(x), *network.shapes[0])
    )


def networks() -> dict[str, BayesianNetwork | Ensemble]:
    """Small networks of all kinds, with uncertain layers below, in and above the last activation."""
    shift = normal(4, seed=77)
    chains: dict[str, BayesianNetwork | Ensemble] = {
        "tanh": BayesianNetwork((linear(6, 4, 1), Tanh(), linear(5, 6, 2), Tanh(), linear(3, 5, 3))),
        "no activation": BayesianNetwork((linear(5, 4, 1), linear(3, 5, 2))),
        "rows": BayesianNetwork(
            (correlated(6, 4, 1, shared=False), Relu(), correlated(3, 6, 2, shared=False)), shift=shift
        ),
        "low rank": BayesianNetwork(
            (correlated(6, 4, 1, shared=True), Tanh(), correlated(5, 6, 2, shared=True), Relu(), linear(3, 5, 3))
        ),
        "matrix normal": BayesianNetwork(
            (matrix_normal(6, 4, 1, 0.3), Relu(), matrix_normal(5, 6, 2, 0.3), Tanh(), matrix_normal(3, 5, 3, 0.3))
        ),
        "dropout": BayesianNetwork(
            (Dropout(0.1), Linear.fixed(normal(6, 4, seed=1)), Relu(), Dropout(0.3), linear(5, 6, 2), Tanh(),
             Dropout(0.2, "gaussian"), linear(3, 5, 3)),
        ),
        "convolutions": BayesianNetwork(
            (conv(3, 1, 1, padding=1), Relu(), Dropout(0.2, channels=True), AveragePool(2), conv(4, 3, 2, size=2),
             Tanh(), MaxPool(2, stride=1), Flatten(), linear(3, 4 * 2 * 1, 3)),
            input_shape=(1, 8, 6), shift=normal(48, seed=5),
        ),
        "blocks": BayesianNetwork(
            (linear(5, 4, 1), Relu(), Residual((linear(4, 5, 2), Tanh(), linear(3, 4, 3)), (linear(3, 5, 4),)),
             Concatenate(((), (linear(2, 3, 5), Relu(), Dropout(0.2)))), linear(3, 5, 6)),
        ),
        "convolution last": BayesianNetwork(
            (conv(2, 1, 1, stride=2), Relu(), conv(3, 2, 2, size=2), Flatten()), input_shape=(1, 5, 6),
        ),
    }  # fmt: skip
    members = (chains["tanh"], chains["rows"], BayesianNetwork.from_linears([linear(6, 4, 8), linear(3, 6, 9)]))
    chains["mixture"] = Ensemble(members, torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64))
    return chains


def classifier(network: BayesianNetwork | Ensemble) -> BayesianNetwork | Ensemble:
    """The same chain as a classifier."""
    if isinstance(network, Ensemble):
        return Ensemble(tuple(classifier(member) for member in network.members), network.weights)  # type: ignore[misc]
    return BayesianNetwork(network.layers, "classification", network.shift, network.input_shape)
