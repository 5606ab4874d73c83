r"""The mean of the softmax at given points, from inside: sampled through all layers, differentiable in the points.

Given the layer below, pre-activations are independent Gaussians :math:`N(m(z), r(z)^2)`, the logits included:

.. math:: \mathbb E\,p(x)=\mathbb E\,\mathrm{softmax}\big(m_{K+1}(z_K)+r_{K+1}(z_K)\,\varepsilon_{K+1}\big),
          \qquad z_k=[m_k(z_{k-1})+r_k(z_{k-1})\,\varepsilon_k]_+ .

The noise :math:`\varepsilon_1,\dots,\varepsilon_{K+1}` is the same for every x, in antithetic pairs of scrambled Sobol
points: each point sees the right law, what is odd in the noise cancels (nearly all of it where the posterior is
narrow), and the estimate is a smooth function of x. Means are taken of logarithms by log-sum-exp, so that probabilities
far below the smallest number still have a gradient. Nothing here proves a bound.

That is for plain networks; any other chain is sampled layer by layer (``pathwise.py``), and an ensemble is the
mixture of its members, each with its own noise.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bnndp.attack.draws import Chain, evaluate
from bnndp.attack.noise import REPLICATES, AnyNoise, Noise, Part, gaussian_noise, layer_noise, mixed
from bnndp.attack.pathwise import noise_width, step
from bnndp.attack.sampling import MEMORY, Estimate, chunk_size, gather, pre_activation
from bnndp.engine.chunks import cache_size
from bnndp.errors import InputError
from bnndp.network import BayesianNetwork, Ensemble, Posterior

__all__ = ["draw_softmax_noise", "estimate_softmax", "log_means", "log_odds", "mean_path", "odds_direction"]

_NO_WEIGHT = -1e4  # stands for log 0: a row without positive or without negative weights still has a gradient


def draw_softmax_noise(network: Posterior, samples: int, *, seed: int, replicates: int = REPLICATES) -> AnyNoise:
    """At least ``samples`` draws of the noise of all layers, logits included, in antithetic pairs."""
    if isinstance(network, Ensemble):
        return mixed(
            network,
            samples,
            seed,
            lambda member, count, own: draw_softmax_noise(member, count, seed=own, replicates=replicates),
        )
    if not network.plain:
        pairs = zip(network.layers, network.shapes[:-1], strict=True)
        widths = tuple(noise_width(layer, shape) for layer, shape in pairs)
        return layer_noise(network, widths, samples, seed=seed, replicates=replicates, antithetic=True)
    return gaussian_noise(network.linears, samples, seed=seed, replicates=replicates, antithetic=True)


def mean_path(network: Posterior) -> AnyNoise:
    """No noise: the network of the mean weights (of each member), which stands for the posterior where it is narrow."""
    if isinstance(network, Ensemble):
        return mixed(network, 1, 0, lambda member, *_: mean_path(member))
    return Noise((None,) * len(network.linears if network.plain else network.layers))


def estimate_softmax(
    network: Posterior,
    x: Tensor,  # (..., n)
    noise: AnyNoise,
    *,
    memory: int = MEMORY,
) -> Estimate:
    """Mean and standard error of every class probability at any number of points: fields (..., classes).

    The error is that of the independent replicates; it is zero where no layer is random (one replicate, exact).
    """
    return gather(log_means(network, x, noise, memory=memory).exp())


def log_means(
    network: Posterior,
    x: Tensor,  # (..., n)
    noise: AnyNoise,
    *,
    memory: int = MEMORY,
) -> Tensor:
    """``log E p`` by each replicate, in chunks that fit into ``memory`` bytes: (replicates, ..., classes)."""
    points = x.reshape(-1, x.shape[-1])
    size = chunk_size(network, noise, cache_size(memory, x.device), tensors=8)
    with torch.no_grad():
        parts = []
        for index in range(noise.replicates):
            part = noise.part(index)
            parts.append(torch.cat([_log_mean(network, chunk, part) for chunk in points.split(size)]))
    return torch.stack(parts).reshape(len(parts), *x.shape[:-1], network.n_out)


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
    noise: AnyNoise,
    *,
    memory: int = MEMORY,
) -> tuple[Tensor, Tensor]:
    """Value (points,) and gradient (points, n) of the largest of the log odds, with all replicates of the noise."""
    size = chunk_size(network, noise, cache_size(memory, x.device), tensors=4 * (network.depth + 1))
    values, gradients = [], []
    for points, weights in zip(x.split(size), rows.split(size), strict=True):
        with torch.enable_grad():
            leaf = points.detach().requires_grad_()
            parts = [_log_mean(network, leaf, noise.part(index)) for index in range(noise.replicates)]
            value = log_odds(torch.stack(parts).logsumexp(0), weights).amax(-1)  # a constant in the mean cancels
            gradients.append(torch.autograd.grad(value.sum(), leaf)[0])
        values.append(value.detach())
    return torch.cat(values), torch.cat(gradients)


def _log_mean(network: Posterior, x: Tensor, noise: Part) -> Tensor:
    """``log E p`` at ``x`` (points, n) over one replicate of the noise, differentiable in x: (points, classes)."""
    if isinstance(network, Ensemble):
        return _log_mixture(network, x, noise)
    if isinstance(noise, Chain):
        raise InputError("this noise was drawn for an ensemble, not for a network.")
    if not network.plain:
        return _log_general(network, x, noise)
    z = network.centred(x)[:, None]  # (points, draws, n), one draw until a layer is random
    for index, (layer, eps) in enumerate(zip(network.linears, noise, strict=True)):
        z = z.clamp_min(0) if index else z
        if eps is None:
            z = z @ layer.weight_mean.T + layer.bias_mean
        else:
            mean, std = pre_activation(layer, z)
            z = torch.addcmul(mean, std, eps)
    return torch.log_softmax(z, dim=-1).logsumexp(1) - math.log(z.shape[1])


def _log_general(network: BayesianNetwork, x: Tensor, noise: tuple[Tensor | None, ...]) -> Tensor:
    z = network.centred(x).reshape(1, -1, *network.shapes[0])  # (draws, points, *shape)
    for layer, eps in zip(network.layers, noise, strict=True):
        z = step(layer, z, eps)
    return torch.log_softmax(z, dim=-1).logsumexp(0) - math.log(z.shape[0])


def _log_mixture(network: Ensemble, x: Tensor, noise: Part) -> Tensor:
    logs = network.probabilities.log()[:, None, None]
    if isinstance(noise, Chain):
        parts = torch.log_softmax(evaluate(noise, x), dim=-1)  # (members, points, classes)
    else:
        pairs = zip(network.members, noise, strict=True)
        parts = torch.stack([_log_mean(member, x, part) for member, part in pairs])
    return (parts + logs).logsumexp(0)
