"""Truths for activations of jointly Gaussian vectors: by quadrature with panels between kinks, and by dense grids."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from support import records
from support.layer_networks import activation
from torch import Tensor

from bnndp.geometry.box import Box
from bnndp.layers import CorrelatedLinear, Linear, MatrixNormalLinear

F64 = torch.float64
_LEGENDRE = tuple(torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(12))
_REACH = 9.0
KINKS = {
    "relu": {0.0: 1.0},
    "leaky_relu": {0.0: 0.99},
    "hard_tanh": {-1.0: 1.0, 1.0: -1.0},
    "identity": {},
    "elu": {0.0: 0.0},
}
"""Where the slope jumps by how much."""
_FLAT = {"relu": 0.0, "leaky_relu": 0.01, "hard_tanh": 0.0, "identity": 1.0}  # the slope far below


def value_of(act: str, x: Tensor) -> Tensor:
    """phi(x)."""
    return activation(act)(x)


def slope_of(act: str, x: Tensor) -> Tensor:
    """phi'(x) by autograd."""
    x = x.detach().clone().requires_grad_(True)
    (found,) = torch.autograd.grad(activation(act)(x).sum(), x)
    return found


def smooth(act: str, m: Tensor, r: Tensor) -> Tensor:
    """E phi(m + r xi): in closed form between kinks, else by the trapezoid rule, which is exact for analytic phi."""
    if act == "elu":  # a jump of the second derivative
        return activation(act).mean(m, r)
    if act not in _FLAT:
        nodes, weights = grid(1, 121 + 2 * int(40 * float(r.max())))
        return value_of(act, m[..., None] + r[..., None] * nodes[:, 0]) @ weights
    found = _FLAT[act] * m + (value_of(act, torch.tensor(-50.0, dtype=F64)) + 50.0 * _FLAT[act])
    for where, jump in KINKS[act].items():
        u = (m - where) / r.clamp_min(1e-150)
        density = torch.exp(-0.5 * u * u) / math.sqrt(2 * math.pi)
        found = found + jump * ((m - where) * 0.5 * torch.erfc(-u / math.sqrt(2)) + r * density)
    return found


def standard(act: str, m: float, r: float) -> tuple[Tensor, Tensor]:
    """Nodes and weights of a standard Gaussian, in panels that end where phi(m + r xi) has a kink."""
    ends = torch.linspace(-_REACH, _REACH, 25 + int(15 * r), dtype=F64)
    kinks = torch.tensor([(where - m) / max(r, 1e-150) for where in KINKS.get(act, {})], dtype=F64)
    ends = torch.cat([ends, kinks.clamp(-_REACH, _REACH)]).sort().values
    half = 0.5 * (ends[1:] - ends[:-1])
    nodes, weights = _LEGENDRE
    xi = (ends[:-1, None] + half[:, None] * (nodes + 1)).flatten()
    weight = (half[:, None] * weights).flatten() * torch.exp(-0.5 * xi * xi) / math.sqrt(2 * math.pi)
    return xi, weight


@dataclass(frozen=True)
class Truth:
    """Of z = phi(X), X Gaussian with mean m and covariances C: (n,), (n, n)."""

    mean: Tensor
    slope: Tensor  # E phi'(X)
    bend: Tensor  # E phi''(X), by parts
    covariance: Tensor  # of z
    mixed: Tensor  # Cov(phi'(X_j), z_k)


def truth_of(act: str, m: Tensor, covariance: Tensor) -> Truth:
    """By quadrature over X_j; the mean of z_k given X_j is that of a Gaussian."""
    n, r = len(m), covariance.diagonal().clamp_min(0).sqrt()
    mean, slope, bend, products, mixed = (torch.zeros(n, *shape, dtype=F64) for shape in ((), (), (), (n,), (n,)))
    for j in range(n):
        xi, weight = standard(act, float(m[j]), float(r[j]))
        x = m[j] + r[j] * xi
        values, slopes, safe = value_of(act, x), slope_of(act, x), r[j].clamp_min(1e-150)
        mean[j], slope[j] = weight @ values, weight @ slopes
        bend[j] = weight @ (slopes * xi) / safe
        load = covariance[j] / safe
        load[j] = r[j]
        left = (covariance.diagonal() - load.square()).clamp_min(0).sqrt()
        left[j] = 0.0
        given = smooth(act, m + load * xi[:, None], left.expand(len(xi), n))  # (nodes, n)
        given[:, j] = values
        products[j], mixed[j] = (weight * values) @ given, (weight * slopes) @ given
    return Truth(mean, slope, bend, products - torch.outer(mean, mean), mixed - torch.outer(slope, mean))


def grid(rank: int, count: int) -> tuple[Tensor, Tensor]:
    """Nodes (nodes, rank) and weights of a standard Gaussian: the trapezoid rule."""
    one = torch.linspace(-7.5, 7.5, count, dtype=F64)
    nodes = torch.cartesian_prod(*[one] * rank).reshape(-1, rank)
    weight = torch.exp(-0.5 * nodes.square().sum(-1))
    return nodes, weight / weight.sum()


def outcomes(m: Tensor, covariance: Tensor, count: int = 361) -> tuple[Tensor, Tensor]:
    """Values (nodes, n) and weights of a Gaussian vector whose covariance has rank one or two, else many draws."""
    values, vectors = torch.linalg.eigh(covariance)
    keep = values > 1e-11 * values.amax().clamp_min(1e-200)
    factor = vectors[:, keep] * values[keep].sqrt()
    rank = int(keep.sum())
    if rank == 0:
        return m[None], torch.ones(1, dtype=F64)
    if rank <= 2:
        nodes, weight = grid(rank, 2001 if rank == 1 else count)
    else:
        nodes = torch.randn(400_000, rank, generator=torch.Generator().manual_seed(3), dtype=F64)
        nodes = torch.cat([nodes, -nodes])
        weight = torch.full((len(nodes),), 1 / len(nodes), dtype=F64)
    return m + nodes @ factor.mT, weight


def ball(centre: Tensor, radius: float) -> Box:
    """A box around one centre (n,)."""
    return Box.ball(centre[None], radius)


def shared(n_out: int, n_in: int, seed: int, std: float, rank: int = 2) -> CorrelatedLinear:
    """A layer whose outputs have no noise but that of a few factors."""
    base = records.linear(n_out, n_in, seed)
    factor = std * records.normal(n_out, n_in + 1, rank, seed=seed + 4)
    none = torch.zeros_like(base.weight_mean)
    return CorrelatedLinear(base.weight_mean, none, base.bias_mean, none[:, 0], factor, shared=True)


def matrix_normal(n_out: int, n_in: int, seed: int, std: float, rank: int = 2) -> MatrixNormalLinear:
    """A layer whose outputs have a covariance of this rank."""
    base = records.linear(n_out, n_in, seed)
    rows, columns = records.normal(n_out, rank, seed=seed + 5), std * records.normal(n_in + 1, n_in, seed=seed + 6)
    return MatrixNormalLinear(base.weight_mean, base.bias_mean, rows, columns)


def spreads(layer: Any, z: Tensor) -> tuple[Tensor, Tensor]:
    """Means and variances (points, n_out) of the outputs of a dense layer given z (points, n_in)."""
    mean = z @ layer.weight_mean.mT + layer.bias_mean
    one = torch.cat([z, torch.ones_like(z[:, :1])], 1)
    if isinstance(layer, MatrixNormalLinear):
        scale = (one @ layer.column_factor).square().sum(-1, keepdim=True)
        return mean, scale * layer.row_factor.square().sum(-1)
    spread = z.square() @ layer.weight_std.square().mT + layer.bias_std.square()
    if isinstance(layer, CorrelatedLinear):
        spread = spread + torch.einsum("ijq,pj->piq", layer.factor, one).square().sum(-1)
    assert isinstance(layer, Linear | CorrelatedLinear)
    return mean, spread
