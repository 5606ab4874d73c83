r"""The mean of a network's output at given points, from inside: exact where a closed form exists, sampled otherwise.

Given the layer below, pre-activations are independent Gaussians :math:`N(m(z), r(z)^2)`. Hence the mean is exact for
at most one hidden layer, and for any depth when all hidden layers but the last have no variance:

.. math:: \mathbb E f(x)=\bar W_{K+1}\,\mathbb E\,g\big(m_K(z_{K-1}),r_K(z_{K-1})\big)+\bar b_{K+1},
          \qquad z_k=[m_k(z_{k-1})+r_k(z_{k-1})\,\varepsilon_k]_+ .

Only :math:`\varepsilon_1,\dots,\varepsilon_{K-1}` are sampled (the last hidden layer and the output layer are
integrated out). The noise is the same for every x: each point sees the right law, and the estimate is a smooth
function of x that can be ascended. The draws are scrambled Sobol points in independent replicates, so the standard
error is honest, but for events rarer than one in all draws: what only they add is seen neither in the mean nor in its
error. Nothing here proves a bound: estimates and, up to rounding, exact values of :math:`\mathbb E f`.

That is for plain networks. Any other chain is cut in three: its end that is linear in the mean (mean weights, averages,
dropout of mean one), the activation before it with the layer it sees, whose outputs are Gaussians each by itself given
the layer below and are integrated out, and what is below, which is sampled (``pathwise.py``). Where something is
sampled below and the mean of the activation has no quick closed form, an unbiased rule of degree three is used.
An ensemble is the weighted mean of its members, each with its own noise; members without variance are exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bnndp.attack.draws import Chain, evaluate
from bnndp.attack.noise import REPLICATES, AnyNoise, Mixture, Noise, Part, gaussian_noise, layer_noise, mixed
from bnndp.attack.pathwise import breadth, integrated, marginals, noise_width, step, symmetric
from bnndp.engine.chunks import cache_size
from bnndp.errors import InputError, UnsupportedLayerError
from bnndp.layers import WEIGHTED, AveragePool, Dropout, Flatten, Linear
from bnndp.maths.normal import cdf, pdf
from bnndp.maths.rectified import expected_relu
from bnndp.network import BayesianNetwork, Ensemble, Layer, Posterior, is_activation

__all__ = [
    "Estimate",
    "Noise",
    "ascent_direction",
    "chunk_size",
    "draw_noise",
    "estimate",
    "expected_output",
    "gather",
    "gaussian_noise",
    "is_exact",
    "pre_activation",
]

MEMORY = 2**23
"""Bytes of intermediate tensors at a time on a CPU; small, so that they stay in the cache (measured fastest)."""

_QUICK = ("relu", "leaky_relu", "hard_tanh", "elu", "gelu")  # activations whose mean is a few elementary functions
_GENERAL = 8  # times the memory for networks that are not plain: images are wide, and a step has more to call
_NO_VARIANCE = 1e-300  # stands for zero under a square root, whose slope at zero would make NaN of 0 * inf


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimated mean of every output; the standard error is zero where the mean is a closed form."""

    mean: Tensor  # (..., n_out)
    std_error: Tensor  # (..., n_out)
    replicates: Tensor  # (replicates, ..., n_out): the independent estimates behind ``mean``; one if exact


def is_exact(network: Posterior) -> bool:
    """Whether the mean has a closed form: nothing below the last activation and the layer it sees has any variance."""
    if isinstance(network, Ensemble):
        return all(is_exact(member) for member in network.members)
    if not network.plain:
        return not any(layer.random for layer in network.layers[: _cut(network).sampled])
    return not any(layer.random for layer in network.linears[:-2])


def draw_noise(network: Posterior, samples: int, *, seed: int, replicates: int = REPLICATES) -> AnyNoise:
    """At least ``samples`` draws of the noise in ``replicates`` independent scrambles, determined by ``seed``."""
    if isinstance(network, Ensemble):
        return mixed(
            network,
            samples,
            seed,
            lambda member, count, own: draw_noise(member, count, seed=own, replicates=replicates),
        )
    if not network.plain:
        return layer_noise(network, _widths(network, _cut(network)), samples, seed=seed, replicates=replicates)
    return gaussian_noise(network.linears[:-2], samples, seed=seed, replicates=replicates)


def expected_output(network: Posterior, x: Tensor, noise: Part) -> Tensor:
    """Mean output at ``x`` (points, n) over one replicate of the noise, differentiable in x: (points, n_out)."""
    if isinstance(network, Ensemble):
        return _expected_mixture(network, x, noise)
    if isinstance(noise, Chain):
        raise InputError("this noise was drawn for an ensemble, not for a network.")
    if not network.plain:
        return _expected_general(network, x, noise)
    *below, last = network.linears
    z = network.centred(x)[:, None]  # (points, draws, n), one draw until a layer is random
    for layer, eps in zip(below[:-1], noise, strict=True):
        mean, std = pre_activation(layer, z)
        z = (mean if eps is None else mean + std * eps).clamp_min(0)
    if below:
        mean, std = pre_activation(below[-1], z)
        z = _climbable_relu(mean, std) if mean.requires_grad else expected_relu(mean, std)
    return z.mean(1) @ last.weight_mean.T + last.bias_mean


def _expected_general(network: BayesianNetwork, x: Tensor, noise: tuple[Tensor | None, ...]) -> Tensor:
    cut = _cut(network)
    z = network.centred(x).reshape(1, -1, *network.shapes[0])  # (draws, points, *shape)
    for layer, eps in zip(network.layers[: cut.sampled], noise, strict=False):
        z = step(layer, z, eps)
    if cut.tail > cut.sampled:
        below, activation = network.layers[cut.sampled : cut.tail]
        if not is_activation(activation):
            raise UnsupportedLayerError(f"{activation.kind} cannot be sampled here; this is a bug in bnndp.")
        mean, std = marginals(below, z)
        eps = None if cut.closed else noise[-1]
        z = integrated(activation, mean, std) if eps is None else symmetric(activation, mean, std, eps)
    z = z.mean(0, keepdim=True)
    for layer in network.layers[cut.tail :]:
        z = step(layer, z, None)
    return z[0]


def _expected_mixture(network: Ensemble, x: Tensor, noise: Part) -> Tensor:
    weights = network.probabilities
    if isinstance(noise, Chain):
        return torch.einsum("m,mpo->po", weights, evaluate(noise, x))
    parts = [expected_output(member, x, part) for member, part in zip(network.members, noise, strict=True)]
    return torch.einsum("m,mpo->po", weights, torch.stack(parts))


@dataclass(frozen=True, slots=True)
class _Cut:
    """How many layers are sampled, where the end begins that is linear in the mean, and how what is between is done."""

    sampled: int
    tail: int  # two more than ``sampled`` if there is an activation to integrate, else the same
    closed: bool


def _cut(network: BayesianNetwork) -> _Cut:
    layers = network.layers
    tail = len(layers)
    while tail > 0 and _linear_in_mean(layers[tail - 1]):
        tail -= 1
    pair = tail >= 2 and is_activation(layers[tail - 1]) and isinstance(layers[tail - 2], WEIGHTED)
    if not pair or not layers[tail - 2].random:
        return _Cut(tail, tail, True)
    below = any(layer.random for layer in layers[: tail - 2])
    return _Cut(tail - 2, tail, not below or layers[tail - 1].kind in _QUICK)


def _widths(network: BayesianNetwork, cut: _Cut) -> tuple[int, ...]:
    """Gaussians for each sampled layer, and for the activation if it has no closed form."""
    shapes = network.shapes
    own = tuple(noise_width(layer, shape) for layer, shape in zip(network.layers[: cut.sampled], shapes, strict=False))
    return own if cut.closed else (*own, 3 * math.prod(shapes[cut.tail]))


def _linear_in_mean(layer: Layer) -> bool:
    return isinstance(layer, (*WEIGHTED, AveragePool, Dropout, Flatten)) or layer.kind == "identity"


def estimate(
    network: Posterior,
    x: Tensor,  # (..., n)
    noise: AnyNoise,
    *,
    memory: int = MEMORY,
) -> Estimate:
    """Mean and standard error of the outputs at any number of points, in chunks that fit into ``memory`` bytes."""
    points = x.reshape(-1, x.shape[-1])
    size = chunk_size(network, noise, cache_size(memory, x.device), tensors=8)
    with torch.no_grad():
        parts = []
        for index in range(noise.replicates):
            part = noise.part(index)
            parts.append(torch.cat([expected_output(network, chunk, part) for chunk in points.split(size)]))
    return gather(torch.stack(parts).reshape(len(parts), *x.shape[:-1], network.n_out))


def gather(replicates: Tensor) -> Estimate:  # (replicates, ...)
    """Mean and standard error of independent estimates; of a single one, which stands for an exact value, zero."""
    count = replicates.shape[0]
    mean = replicates.mean(0)
    return Estimate(mean, replicates.std(0) / math.sqrt(count) if count > 1 else torch.zeros_like(mean), replicates)


def ascent_direction(
    network: Posterior,
    x: Tensor,  # (points, n)
    rows: Tensor,  # (points, n_out)
    noise: AnyNoise,
    *,
    memory: int = MEMORY,
) -> tuple[Tensor, Tensor]:
    """Value (points,) and gradient (points, n) of ``rows . E f(x)``, estimated with all replicates of the noise."""
    size = chunk_size(network, noise, cache_size(memory, x.device), tensors=8 * max(1, network.depth))
    values, gradients = [], []
    for points, weights in zip(x.split(size), rows.split(size), strict=True):
        total, slope = torch.zeros_like(points[:, 0]), torch.zeros_like(points)
        for index in range(noise.replicates):
            with torch.enable_grad():
                leaf = points.detach().requires_grad_()
                value = (expected_output(network, leaf, noise.part(index)) * weights).sum(-1)
                slope += torch.autograd.grad(value.sum(), leaf)[0]
            total += value.detach()
        values.append(total / noise.replicates)
        gradients.append(slope / noise.replicates)
    return torch.cat(values), torch.cat(gradients)


class _ExpectedRelu(torch.autograd.Function):
    """``g(m, r)`` with its derivatives dg/dm = Phi(m/r), dg/dr = phi(m/r); its left tail is good enough to climb on."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, std: Tensor) -> Tensor:
        u = mean / std
        active, density = cdf(u), pdf(u)
        ctx.save_for_backward(active, density)
        return (mean * active).addcmul_(std, density).clamp_min_(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        active, density = ctx.saved_tensors
        return gradients[0] * active, gradients[0] * density


def _climbable_relu(mean: Tensor, std: Tensor) -> Tensor:
    result: Tensor = _ExpectedRelu.apply(mean, std)  # type: ignore[no-untyped-call]
    return result


def pre_activation(layer: Linear, z: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of ``W z + b`` given z (points, draws, n_in): each (points, draws, n_out)."""
    mean = z @ layer.weight_mean.T + layer.bias_mean
    variance = (z * z) @ (layer.weight_std**2).T + layer.bias_std**2
    return mean, variance.clamp_min(_NO_VARIANCE).sqrt()


def chunk_size(network: Posterior, noise: AnyNoise, memory: int, *, tensors: int) -> int:
    """Points at a time, so that ``tensors`` activations of the widest layer fit into ``memory`` bytes.

    Draws multiply the layers only, not the inputs.
    """
    if isinstance(network, BayesianNetwork) and network.plain:
        n_in, *widths = network.sizes
        return max(1, memory // (8 * (tensors * noise.draws * max(widths) + 4 * n_in)))
    members = network.members if isinstance(network, Ensemble) else (network,)
    widest = max(
        breadth(layer, shape)
        for member in members
        for layer, shape in zip(member.layers, member.shapes[:-1], strict=True)
    )
    apart = len(noise.members) if isinstance(noise, Mixture) else 1  # the graphs of all members are held together
    return max(1, _GENERAL * memory // (8 * (tensors * max(1, apart) * noise.draws * widest + 4 * network.n_in)))
