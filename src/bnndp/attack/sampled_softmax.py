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

from bnndp.attack.draws import cast, mean_chain, stacked
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
    chain = mean_chain(network.members[0]) if len(network.members) == 1 else stacked(network)
    if chain is not None:
        return Noise((), chain)
    return Noise(tuple(gaussian_noise([0] * len(member.layers), 1, seed=0) for member in network.members))


def quick_path(network: Posterior) -> Noise | None:
    """The mean path in single precision; None where that takes more than one chain."""
    chain = mean_path(network).chain
    return None if chain is None else Noise((), cast(chain, torch.float32))


def estimate_softmax(network: Posterior, x: Tensor, noise: Noise, *, memory: int = MEMORY) -> Estimate:  # x (..., n)
    """Mean and standard error of every class probability at any number of points: fields (..., classes).

    The error is that of the independent replicates; it is zero where no layer is random (one replicate, exact).
    """
    return gather(log_means(network, x, noise, memory=memory).exp())


def log_means(network: Posterior, x: Tensor, noise: Noise, *, memory: int = MEMORY) -> Tensor:  # x (..., n)
    """``log E p`` by each replicate, in chunks that fit into ``memory`` bytes: (replicates, ..., classes)."""
    return sampled(MEAN_SOFTMAX, network, x, noise, memory=memory)


@dataclass(frozen=True, slots=True)
class Contest:
    r"""Rows of decisions (a decision is right while ``rows . E p >= 0``), in the form that log odds take.

    .. math:: \log\sum_i[-A_{ki}]_+\,\mathbb E\,p_i-\log\sum_i[A_{ki}]_+\,\mathbb E\,p_i ,

    is positive if and only if :math:`A_k\cdot\mathbb E\,p<0`. Unlike that product it does not saturate where one class
    has nearly all probability. A row of zeros never wins: its odds are minus infinity.
    """

    against: Tensor  # (..., rows) of classes where every row is one of them less another, else (..., rows, classes)
    favour: Tensor  # the same: the other class, or logarithms of the coefficients
    lost: Tensor  # (..., rows): rows that cannot win

    @classmethod
    def of(cls, rows: Tensor) -> Contest:
        """Those of rows (..., rows, classes)."""
        lost = (rows == 0).all(-1)
        if bool(
            ((rows == 1).sum(-1) == 1).all() & ((rows == -1).sum(-1) == 1).all() & ((rows != 0).sum(-1) == 2).all()
        ):
            return cls(rows.argmin(-1), rows.argmax(-1), lost)
        against, favour = (torch.where(part > 0, part.log(), _NO_WEIGHT) for part in (-rows, rows))
        return cls(against, favour, lost)

    def odds(self, log_mean: Tensor) -> Tensor:
        """Log odds of every row from logarithms of mean probabilities (..., classes): (..., rows)."""
        if not self.against.is_floating_point():
            lead = log_mean.shape[:-1] if log_mean.ndim >= self.against.ndim else self.against.shape[:-1]
            mean = log_mean.expand(*lead, -1)
            against, favour = (mean.gather(-1, index.expand(*lead, -1)) for index in (self.against, self.favour))
            return against - favour
        mean = log_mean[..., None, :]
        odds = (self.against + mean).logsumexp(-1) - (self.favour + mean).logsumexp(-1)
        return odds.masked_fill(self.lost, -torch.inf)

    def __getitem__(self, index: Tensor | slice) -> Contest:
        """Those of some of the inputs."""
        return Contest(self.against[index], self.favour[index], self.lost[index])

    def repeat(self, times: int) -> Contest:
        """The same for ``times`` climbs of each input, climb by climb: (times * batch, ...)."""
        return Contest(*(part.repeat(times, *[1] * (part.ndim - 1)) for part in (self.against, self.favour, self.lost)))


def odds_direction(
    network: Posterior,
    x: Tensor,  # (points, n)
    contest: Contest,  # of the points
    noise: Noise,
    *,
    without: Tensor | None = None,  # (points, rows)
    memory: int = MEMORY,
) -> tuple[Tensor, Tensor]:
    """Value (points,) and gradient (points, n) of the largest of the log odds, with all replicates of the noise.

    Rows in ``without`` are left out.
    """
    size = chunk_size(network, noise, cache_size(memory, x.device), tensors=4 * (network.depth + 1))
    values, gradients = [], []
    for start in range(0, x.shape[0], size):
        part = slice(start, start + size)
        with torch.enable_grad():
            leaf = x[part].detach().requires_grad_()
            parts = [sampled_at(MEAN_SOFTMAX, network, leaf, noise.part(index)) for index in range(noise.replicates)]
            mean = parts[0] if len(parts) == 1 else torch.stack(parts).logsumexp(0)  # a constant in the mean cancels
            odds = contest[part].odds(mean)
            value = (odds if without is None else odds.masked_fill(without[part], -torch.inf)).amax(-1)
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

    def network(self, network: BayesianNetwork, x: Tensor, noise: LayerPart, count: int) -> Tensor:
        """All layers on the noise, then the mean over the draws of each replicate."""
        z = network.centred(x).reshape(1, -1, *network.shapes[0])  # (draws, points, *shape)
        for layer, eps in zip(network.layers, noise, strict=True):
            z = step(layer, z, eps)
        z = z.unflatten(0, (min(count, z.shape[0]), -1))  # one draw where nothing is random
        return torch.log_softmax(z, dim=-1).logsumexp(1) - math.log(z.shape[1])

    def fixed(self, outputs: Tensor) -> Tensor:
        """The logarithm of the softmax of outputs without variance."""
        return torch.log_softmax(outputs, dim=-1)

    def mix(self, means: Tensor, weights: Tensor) -> Tensor:
        """The logarithm of the weighted mean."""
        return (means + weights.log()[:, None, None, None]).logsumexp(0)


MEAN_SOFTMAX = _MeanSoftmax()
