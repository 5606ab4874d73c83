"""Median times, and Monte-Carlo forward passes to measure them against."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from bnndp.network import BayesianNetwork, Linear

__all__ = ["median_time", "random_network", "sample_local", "sample_loop", "sample_weights"]


def median_time(function: Callable[[], object], *, repeats: int = 9, budget: float = 6.0) -> float:
    """Median seconds of a call after a warm-up call; fewer repeats, but at least 3, once the budget is spent."""
    function()
    times: list[float] = []
    while len(times) < 3 or (len(times) < repeats and sum(times) < budget):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def random_network(sizes: tuple[int, ...], seed: int = 0) -> BayesianNetwork:
    """Weights of the scale of a trained network, for figures that depend on sizes only."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def linear(n_in: int, n_out: int) -> Linear:
        std = 0.1 / math.sqrt(n_in)
        return Linear(
            normal(n_out, n_in) * math.sqrt(2 / n_in),
            torch.full((n_out, n_in), std, dtype=torch.float64),
            normal(n_out) * 0.1,
            torch.full((n_out,), std, dtype=torch.float64),
        )

    return BayesianNetwork.from_linears(linear(n_in, n_out) for n_in, n_out in pairwise(sizes))


@torch.no_grad()
def sample_weights(network: BayesianNetwork, x: Tensor, passes: int, chunk: int = 50) -> Tensor:  # x (n,)
    """``passes`` forward passes at ``x``, each with its own draw of all weights; ``chunk`` at a time: (passes, n_out).

    Chunks of 50 keep the drawn weights of a 2x64 network in the cache: the fastest of the sizes tried.
    """
    return torch.cat([_sample_chunk(network, x, min(chunk, passes - done)) for done in range(0, passes, chunk)])


def _sample_chunk(network: BayesianNetwork, x: Tensor, draws: int) -> Tensor:
    z = x.expand(draws, -1)[..., None]
    for k, layer in enumerate(network.linears):
        weight = (
            torch.randn(draws, *layer.weight_mean.shape, dtype=x.dtype).mul_(layer.weight_std).add_(layer.weight_mean)
        )
        bias = torch.randn(draws, layer.n_out, dtype=x.dtype).mul_(layer.bias_std).add_(layer.bias_mean)
        z = torch.baddbmm(bias[..., None], weight, z.relu() if k else z)
    return z[..., 0]


def sample_loop(network: BayesianNetwork, x: Tensor, passes: int) -> Tensor:  # x (n,)
    """The same, one pass after another, as a Bayesian library runs them: (passes, n_out)."""
    return torch.cat([_sample_chunk(network, x, 1) for _ in range(passes)])


@torch.no_grad()
def sample_local(network: BayesianNetwork, x: Tensor, passes: int) -> Tensor:  # x (n,)
    """The same law by local reparametrisation: pre-activations are drawn instead of weights: (passes, n_out)."""
    z = x.expand(passes, -1)
    for k, layer in enumerate(network.linears):
        z = z.relu() if k else z
        mean = torch.addmm(layer.bias_mean, z, layer.weight_mean.T)
        variance = torch.addmm(layer.bias_std**2, z * z, (layer.weight_std**2).T)
        z = torch.randn_like(mean).mul_(variance.sqrt_()).add_(mean)
    return z
