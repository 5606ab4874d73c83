"""Judges that share no code with the package: Arb balls for exact means, plain Monte Carlo for sampled ones."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from flint import arb, arb_mat, ctx
from torch import Tensor

from bnndp.network import BayesianNetwork

__all__ = ["affine_value", "exact_mean", "has_exact_mean", "provably_less", "sampled_mean"]

BITS = 256
_INFLATED = 3.0  # standard deviation of the one coordinate that is pushed out in half of the draws


@contextmanager
def precision(bits: int = BITS) -> Iterator[None]:
    """Arb arithmetic with ``bits`` bits inside the block."""
    before, ctx.prec = ctx.prec, bits
    try:
        yield
    finally:
        ctx.prec = before


def has_exact_mean(network: BayesianNetwork) -> bool:
    """Whether all hidden layers but the last are without variance, so that the mean is a closed form."""
    return all(not layer.weight_std.any() and not layer.bias_std.any() for layer in network.linears[:-2])


def exact_mean(network: BayesianNetwork, x: Tensor) -> list[arb]:  # x (n,)
    """Enclosures of the mean outputs at the float64 point ``x``; needs :func:`has_exact_mean`."""
    with precision():
        z = _column(x)
        *below, last = network.linears
        for layer in below[:-1]:
            z = _map(lambda m: m.max(arb(0)), _matrix(layer.weight_mean) * z + _column(layer.bias_mean))
        if below:
            layer = below[-1]
            mean = _matrix(layer.weight_mean) * z + _column(layer.bias_mean)
            square = _map(lambda v: v * v, _matrix(layer.weight_std))
            variance = square * _map(lambda v: v * v, z) + _map(lambda v: v * v, _column(layer.bias_std))
            z = arb_mat(mean.nrows(), 1, [_rectified(mean[i, 0], variance[i, 0]) for i in range(mean.nrows())])
        out = _matrix(last.weight_mean) * z + _column(last.bias_mean)
        return [out[i, 0] for i in range(out.nrows())]


def affine_value(matrix: Tensor, offset: Tensor, x: Tensor) -> arb:  # (n,), (), (n,)
    """Enclosure of ``matrix . x + offset`` for float64 coefficients taken as they are."""
    with precision():
        total = arb(float(offset))
        for a, b in zip(matrix.tolist(), x.tolist(), strict=True):
            total += arb(a) * arb(b)
        return total


def provably_less(a: arb | float, b: arb | float) -> bool:
    """Whether ``a < b`` for all values of both balls; no tolerance."""
    with precision():
        return bool(arb(a) < arb(b))


def sampled_mean(network: BayesianNetwork, x: Tensor, samples: int, seed: int) -> tuple[Tensor, Tensor]:  # x (n,)
    """Mean outputs at one point and their standard errors, by weighted Monte Carlo: (n_out,), (n_out,).

    In half of the draws the noise of one coordinate, picked at random, has three times its standard deviation, and the
    draws are weighted back (weights <= 2). A neuron that is active once in 1e7 draws is then seen often enough: plain
    draws would miss it, report a mean that is too small with a standard error of zero, and accuse a sound bound.
    """
    generator = torch.Generator().manual_seed(seed)
    hidden = network.linears[:-1]
    widths = [layer.n_out for layer in hidden[:-1]]
    weights, values = [], []
    for _ in range(math.ceil(samples / 4096)):
        noise = torch.randn(4096, sum(widths), generator=generator, dtype=torch.float64)
        pushed = torch.randint(sum(widths), (2048,), generator=generator)
        noise[torch.arange(2048), pushed] *= _INFLATED
        grown = (0.5 * noise.square() * (1 - _INFLATED**-2)).exp() / _INFLATED  # density ratio, pushed to plain
        weights.append(1 / (0.5 + 0.5 * grown.mean(1)))
        values.append(_forward(network, x, list(noise.split(widths, dim=1))))
    weight, value = torch.cat(weights)[:, None], torch.cat(values)
    mean = (weight * value).sum(0) / weight.sum()
    error = (weight * (value - mean)).square().sum(0).sqrt() / weight.sum()
    return mean, error


def _forward(network: BayesianNetwork, x: Tensor, noise: list[Tensor]) -> Tensor:
    """Mean output given the noise of the hidden layers but the last: (draws, n_out)."""
    z = x.expand(noise[0].shape[0], -1)
    *below, last = network.linears
    for k, layer in enumerate(below):
        mean = torch.nn.functional.linear(z, layer.weight_mean, layer.bias_mean)
        std = torch.nn.functional.linear(z.square(), layer.weight_std.square(), layer.bias_std.square()).sqrt()
        if k < len(noise):
            z = torch.relu(mean + std * noise[k])
        else:
            u = (mean / std.clamp_min(1e-200)).clamp(-40, 40)
            soft = mean * torch.special.ndtr(u) + std * (-0.5 * u * u).exp() / math.sqrt(2 * math.pi)
            z = torch.where(u.abs() >= 40, torch.relu(mean), soft)
    return torch.nn.functional.linear(z, last.weight_mean, last.bias_mean)


def _rectified(mean: arb, variance: arb) -> arb:
    """``E max(N(mean, variance), 0)``; the variance is zero or a positive ball."""
    if variance == 0:
        return mean.max(arb(0))
    std = variance.sqrt()
    u = mean / std
    density = (-u * u / 2).exp() / (2 * arb.pi()).sqrt()
    return mean * (-u / arb(2).sqrt()).erfc() / 2 + std * density


def _matrix(values: Tensor) -> arb_mat:
    return arb_mat([[arb(v) for v in row] for row in values.tolist()])


def _column(values: Tensor) -> arb_mat:
    return arb_mat([[arb(v)] for v in values.tolist()])


def _map(function: object, matrix: arb_mat) -> arb_mat:
    return arb_mat(matrix.nrows(), matrix.ncols(), [function(entry) for entry in matrix.entries()])  # type: ignore[operator]
