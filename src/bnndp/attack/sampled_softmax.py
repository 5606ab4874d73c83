r"""The mean of the softmax at given points, from inside: sampled through all layers, differentiable in the points.

Given the layer below, pre-activations are independent Gaussians :math:`N(m(z), r(z)^2)`, the logits included:

.. math:: \mathbb E\,p(x)=\mathbb E\,\mathrm{softmax}\big(m_{K+1}(z_K)+r_{K+1}(z_K)\,\varepsilon_{K+1}\big),
          \qquad z_k=[m_k(z_{k-1})+r_k(z_{k-1})\,\varepsilon_k]_+ .

The noise :math:`\varepsilon_1,\dots,\varepsilon_{K+1}` is the same for every x, in antithetic pairs of scrambled Sobol
points: each point sees the right law, what is odd in the noise cancels (nearly all of it where the posterior is
narrow), and the estimate is a smooth function of x. Means are taken of logarithms by log-sum-exp, so that probabilities
far below the smallest number still have a gradient. Nothing here proves a bound.

Any other chain is sampled layer by layer in the same way (``pathwise.py``), and an ensemble is the mixture of its
members, each with its own noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.attack.draws import stacked
from bnndp.attack.noise import REPLICATES, LayerPart, Noise, gaussian_noise
from bnndp.attack.pathwise import noise_width, step
from bnndp.attack.sampler import MEMORY, Estimate, chunk_size, draw, gather, sampled, sampled_at
from bnndp.engine.chunks import cache_size
from bnndp.network import BayesianNetwork, Posterior

_NO_WEIGHT = -1e4  # stands for log 0: a row without positive or without negative weights still has a gradient


def draw_softmax_noise(network: Posterior, samples: int, *, seed: int, replicates: int = REPLICATES) -> Noise:
    """At least ``samples`` draws of the noise of all layers, logits included, in antithetic pairs."""
    return draw(MEAN_SOFTMAX, network, samples, seed=seed, replicates=replicates)


def mean_path(network: Posterior) -> Noise:
    """No noise: the network of the mean weights (of each member), which stands for the posterior where it is narrow."""
    chain = stacked(network)
    if chain is not None:
        return Noise((), chain)
    return Noise(tuple(gaussian_noise([0] * len(member.layers), 1, seed=0) for member in network.members))


def estimate_softmax(network: Posterior, x: Tensor, noise: Noise, *, memory: int = MEMORY) -> Estimate:  # x (..., n)
    """Mean and standard error of every class probability at any number of points: fields (..., classes).

    The error is that of the independent replicates; it is zero where no layer is random (one replicate, exact).
    """
    return gather(log_means(network, x, noise, memory=memory).exp())


def log_means(network: Posterior, x: Tensor, noise: Noise, *, memory: int = MEMORY) -> Tensor:  # x (..., n)
    """``log E p`` by each replicate, in chunks that fit into ``memory`` bytes: (replicates, ..., classes)."""
    return sampled(MEAN_SOFTMAX, network, x, noise, memory=memory)


def log_odds(log_mean: Tensor, rows: Tensor) -> Tensor:  # (..., classes), (..., rows, classes)
    r"""Log odds against a decision that is right while ``rows . E p >= 0``: (..., rows).

    .. math:: \log\sum_i[-A_{ki}]_+\,\mathbb E\,p_i-\log\sum_i[A_{ki}]_+\,\mathbb E\,p_i ,

    positive if and only if :math:`A_k\cdot\mathbb E\,p<0`. Unlike that product it does not saturate where one class has
    nearly all probability. A row of zeros never wins: its odds are minus infinity.
    """
    against, favour = (torch.where(part > 0, part.log(), _NO_WEIGHT) for part in (-rows, rows))
    mean = log_mean[..., None, :]
    odds = (against + mean).logsumexp(-1) - (favour + mean).logsumexp(-1)
    return odds.masked_fill((rows == 0).all(-1), -torch.inf)


def odds_direction(
    network: Posterior,
    x: Tensor,  # (points, n)
    rows: Tensor,  # (points, rows, classes)
    noise: Noise,
    *,
    memory: int = MEMORY,
) -> tuple[Tensor, Tensor]:
    """Value (points,) and gradient (points, n) of the largest of the log odds, with all replicates of the noise."""
    size = chunk_size(network, noise, cache_size(memory, x.device), tensors=4 * (network.depth + 1))
    values, gradients = [], []
    for points, weights in zip(x.split(size), rows.split(size), strict=True):
        with torch.enable_grad():
            leaf = points.detach().requires_grad_()
            parts = [sampled_at(MEAN_SOFTMAX, network, leaf, noise.part(index)) for index in range(noise.replicates)]
            value = log_odds(torch.stack(parts).logsumexp(0), weights).amax(-1)  # a constant in the mean cancels
            gradients.append(torch.autograd.grad(value.sum(), leaf)[0])
        values.append(value.detach())
    return torch.cat(values), torch.cat(gradients)


@dataclass(frozen=True, slots=True)
class _MeanSoftmax:
    """The sampler of the logarithm of the mean softmax."""

    antithetic: bool = True

    def widths(self, network: BayesianNetwork) -> tuple[int, ...]:
        """Those of all layers."""
        pairs = zip(network.layers, network.shapes[:-1], strict=True)
        return tuple(noise_width(layer, shape) for layer, shape in pairs)

    def network(self, network: BayesianNetwork, x: Tensor, noise: LayerPart) -> Tensor:
        """All layers on the noise, then the mean over the draws."""
        z = network.centred(x).reshape(1, -1, *network.shapes[0])  # (draws, points, *shape)
        for layer, eps in zip(network.layers, noise, strict=True):
            z = step(layer, z, eps)
        return torch.log_softmax(z, dim=-1).logsumexp(0) - math.log(z.shape[0])

    def fixed(self, outputs: Tensor) -> Tensor:
        """The logarithm of the softmax of outputs without variance."""
        return torch.log_softmax(outputs, dim=-1)

    def mix(self, means: Tensor, weights: Tensor) -> Tensor:
        """The logarithm of the weighted mean."""
        return (means + weights.log()[:, None, None]).logsumexp(0)


MEAN_SOFTMAX = _MeanSoftmax()
