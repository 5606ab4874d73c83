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

Any other chain is cut in the same three: its end that is linear in the mean (mean weights, averages, dropout of mean
one), the activation before it with the layer it sees, whose outputs are Gaussians each by itself given the layer below
and are integrated out, and what is below, which is sampled (``pathwise.py``). Where something is sampled below and the
mean of the activation has no quick closed form, an unbiased rule of degree three is used.
An ensemble is the weighted mean of its members, each with its own noise; members without variance are exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.attack.noise import REPLICATES, LayerPart, Noise
from bnndp.attack.pathwise import integrated, marginals, noise_width, step, symmetric
from bnndp.attack.sampler import MEMORY, Estimate, chunk_size, draw, gather, sampled, sampled_at
from bnndp.engine.chunks import cache_size
from bnndp.errors import UnsupportedLayerError
from bnndp.layers import WEIGHTED, AveragePool, Dropout, Flatten
from bnndp.network import BayesianNetwork, Layer, Posterior, is_activation

_QUICK = ("relu", "leaky_relu", "hard_tanh", "elu", "gelu")  # activations whose mean is a few elementary functions


def is_exact(network: Posterior) -> bool:
    """Whether the mean has a closed form: nothing below the last activation and the layer it sees has any variance."""
    return not any(layer.random for member in network.members for layer in member.layers[: _cut(member).sampled])


def draw_noise(network: Posterior, samples: int, *, seed: int, replicates: int = REPLICATES) -> Noise:
    """At least ``samples`` draws of the noise in ``replicates`` independent scrambles, determined by ``seed``."""
    return draw(MEAN_OUTPUT, network, samples, seed=seed, replicates=replicates)


def estimate(network: Posterior, x: Tensor, noise: Noise, *, memory: int = MEMORY) -> Estimate:  # x (..., n)
    """Mean and standard error of the outputs at any number of points, in chunks that fit into ``memory`` bytes."""
    return gather(sampled(MEAN_OUTPUT, network, x, noise, memory=memory))


def ascent_direction(
    network: Posterior,
    x: Tensor,  # (points, n)
    rows: Tensor,  # (points, n_out)
    noise: Noise,
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
                value = (sampled_at(MEAN_OUTPUT, network, leaf, noise.part(index)) * weights).sum(-1)
                slope += torch.autograd.grad(value.sum(), leaf)[0]
            total += value.detach()
        values.append(total / noise.replicates)
        gradients.append(slope / noise.replicates)
    return torch.cat(values), torch.cat(gradients)


@dataclass(frozen=True, slots=True)
class _MeanOutput:
    """The sampler of the mean output."""

    antithetic: bool = False

    def widths(self, network: BayesianNetwork) -> tuple[int, ...]:
        """Those of the sampled layers, and of the activation if it has no closed form."""
        cut, shapes = _cut(network), network.shapes
        pairs = zip(network.layers[: cut.sampled], shapes, strict=False)
        own = tuple(noise_width(layer, shape) for layer, shape in pairs)
        return own if cut.closed else (*own, 3 * math.prod(shapes[cut.tail]))

    def network(self, network: BayesianNetwork, x: Tensor, noise: LayerPart, count: int) -> Tensor:
        """The sampled layers, the activation integrated out, and the end that is linear in the mean."""
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
        z = z.unflatten(0, (min(count, z.shape[0]), -1)).mean(1)  # one draw where nothing is random
        for layer in network.layers[cut.tail :]:
            z = step(layer, z, None)
        return z

    def fixed(self, outputs: Tensor) -> Tensor:
        """Outputs without variance are their means."""
        return outputs

    def mix(self, means: Tensor, weights: Tensor) -> Tensor:
        """The weighted mean."""
        return torch.einsum("m,mcpo->cpo", weights, means)


MEAN_OUTPUT = _MeanOutput()


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


def _linear_in_mean(layer: Layer) -> bool:
    return isinstance(layer, (*WEIGHTED, AveragePool, Dropout, Flatten)) or layer.kind == "identity"
