"""Judges that share no code with the package: Arb balls for exact means, quadrature for few neurons, Monte Carlo.

The quadrature sees errors of 1e-9 where a sample of any affordable size sees 1e-4: it is what tests tight bounds of two
and more hidden layers (the layers above the sampled ones may be as wide as they like).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from flint import arb, arb_mat, ctx
from torch import Tensor

from bnndp.layers import Linear
from bnndp.maths.rounding import gamma
from bnndp.network import BayesianNetwork

__all__ = [
    "affine_value",
    "exact_mean",
    "has_exact_mean",
    "law",
    "magnitude",
    "noise_of",
    "panels",
    "paths",
    "provably_less",
    "quadrature_mean",
    "rounding_unit",
    "sampled_mean",
    "sampled_neurons",
]

BITS = 256
_PANELS = 8
_REACH = 8.0  # standard deviations; 1e-15 of the mass lies beyond
_INFLATED = 3.0  # standard deviation of the one coordinate that is pushed out in half of the draws
_PAIRS = 1024  # at a time


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


def sampled_neurons(network: BayesianNetwork) -> int:
    """Number of neurons in the hidden layers but the last: the dimension of the integral for the mean."""
    return sum(layer.n_out for layer in network.linears[:-2])


def quadrature_mean(network: BayesianNetwork, x: Tensor, nodes: int = 0) -> tuple[Tensor, Tensor]:  # x (points, n)
    """Mean outputs by product quadrature over the hidden layers but the last, and an error estimate: (points, n_out).

    Each rectified neuron is an atom at zero and a density above it; Gauss-Legendre nodes are laid on that part of
    [-8, 8] standard deviations where it is positive, so that its kink does not fall inside. For at most two sampled
    neurons, with 512 or 64 nodes each. The error is twice the difference to half as many nodes.
    """
    nodes = nodes or (512 if sampled_neurons(network) == 1 else 64)
    fine, coarse = (
        torch.cat([_integrate(network, chunk, count) for chunk in x.split(8)]) for count in (nodes, nodes // 2)
    )
    return fine, 2 * (fine - coarse).abs()


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

    A neuron that is active once in 1e7 draws is seen often enough: plain draws would miss it, report a mean that is too
    small with a standard error of zero, and accuse a sound bound.
    """
    weights, values = [], []
    for weight, noise in noise_of(network.linears[:-2], samples, seed, pushed=True):
        mirrored = [-part for part in noise]
        values.append(0.5 * (_forward(network, x, noise) + _forward(network, x, mirrored)))
        weights.append(weight)
    weight, value = torch.cat(weights)[:, None], torch.cat(values)
    mean = (weight * value).sum(0) / weight.sum()
    error = (weight * (value - mean)).square().sum(0).sqrt() / weight.sum()
    return mean, error


def noise_of(
    layers: Sequence[Linear], samples: int, seed: int, *, pushed: bool = False
) -> Iterator[tuple[Tensor, list[Tensor]]]:
    """One half of the antithetic pairs that make ``samples`` draws, in chunks: weights, and the noise of each layer.

    With ``pushed``, half of the pairs have one coordinate of their noise, picked at random, at three times its
    standard deviation and are weighted back (weights <= 2): what is rare is seen then.
    """
    generator = torch.Generator().manual_seed(seed)
    widths = [layer.n_out for layer in layers]
    for _ in range(math.ceil(samples / (2 * _PAIRS))):
        noise = torch.randn(_PAIRS, sum(widths), generator=generator, dtype=torch.float64)
        weight = torch.ones(_PAIRS, dtype=torch.float64)
        if pushed:
            half = _PAIRS // 2
            noise[torch.arange(half), torch.randint(sum(widths), (half,), generator=generator)] *= _INFLATED
            grown = (0.5 * noise.square() * (1 - _INFLATED**-2)).exp() / _INFLATED  # density ratio, pushed to plain
            weight = 1 / (0.5 + 0.5 * grown.mean(1))
        yield weight, list(noise.split(widths, dim=1))


def magnitude(layers: Sequence[Linear], size: Tensor) -> Tensor:
    """How large values after some layers may be, ten standard deviations included, for inputs up to ``size``."""
    for layer in layers:
        std = (size.square() @ layer.weight_std.square().T + layer.bias_std.square()).sqrt()
        size = size @ layer.weight_mean.abs().T + layer.bias_mean.abs() + 10 * std
    return size


def rounding_unit(network: BayesianNetwork) -> float:
    """The relative error of an evaluation of the network in float64."""
    return gamma(4 * (sum(network.sizes) + 64 * len(network.linears)))


def _integrate(network: BayesianNetwork, x: Tensor, count: int) -> Tensor:
    *below, last = network.linears
    z, mass = paths(below[:-1], x, count)
    return (mass[..., None] * _output(last, *law(below[-1], z))).sum(1)


def paths(layers: Sequence[Linear], x: Tensor, count: int) -> tuple[Tensor, Tensor]:  # x (points, n)
    """Values of the last of some hidden layers at all nodes, (points, paths, n), and their probabilities."""
    share, weights = panels(count)
    z, mass = x[:, None], torch.ones(x.shape[0], 1, dtype=torch.float64)
    for layer in layers:
        mean, std = law(layer, z)
        for i in range(layer.n_out):  # each neuron multiplies the paths by the nodes and the atom
            m, r = mean[..., i, None], std[..., i, None]
            start = (-m / r.clamp_min(1e-200)).clamp(-_REACH, _REACH)
            at = start + (_REACH - start) * share
            value = torch.cat([torch.zeros_like(m), (m + r * at).clamp_min(0)], -1)
            part = torch.cat([torch.special.ndtr(start), (_REACH - start) * weights * _density(at)], -1)
            silent = (r == 0).expand_as(value)  # a neuron without variance is one atom at its value
            atom = torch.zeros_like(part)
            atom[..., 0] = 1
            value, part = torch.where(silent, m.clamp_min(0).expand_as(value), value), torch.where(silent, atom, part)
            mass = (mass[..., None] * part).flatten(1)
            mean, std = (t[:, :, None].expand(-1, -1, value.shape[-1], -1).flatten(1, 2) for t in (mean, std))
            mean = torch.cat([mean[..., :i], value.flatten(1)[..., None], mean[..., i + 1 :]], -1)
        z = mean
    return z, mass


def panels(count: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights on [0, 1] in equal panels, ``count`` in all."""
    nodes, weights = np.polynomial.legendre.leggauss(count // _PANELS)
    share = (np.arange(_PANELS)[:, None] + (nodes + 1) / 2) / _PANELS
    return torch.from_numpy(share.ravel()), torch.from_numpy(np.tile(weights / (2 * _PANELS), _PANELS))


def law(layer: Linear, z: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the pre-activations given z."""
    mean = torch.nn.functional.linear(z, layer.weight_mean, layer.bias_mean)
    return mean, torch.nn.functional.linear(z.square(), layer.weight_std.square(), layer.bias_std.square()).sqrt()


def _output(last: Linear, mean: Tensor, std: Tensor) -> Tensor:
    """Mean output given the law of the last hidden layer."""
    u = (mean / std.clamp_min(1e-200)).clamp(-40, 40)
    soft = mean * torch.special.ndtr(u) + std * _density(u)
    z = torch.where(u.abs() >= 40, torch.relu(mean), soft)
    return torch.nn.functional.linear(z, last.weight_mean, last.bias_mean)


def _density(t: Tensor) -> Tensor:
    return (-0.5 * t * t).exp() / math.sqrt(2 * math.pi)


def _forward(network: BayesianNetwork, x: Tensor, noise: list[Tensor]) -> Tensor:
    """Mean output given the noise of the hidden layers but the last: (draws, n_out)."""
    z = x.expand(noise[0].shape[0], -1)
    *below, last = network.linears
    for layer, eps in zip(below[:-1], noise, strict=True):
        mean, std = law(layer, z)
        z = torch.relu(mean + std * eps)
    return _output(last, *law(below[-1], z))


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
