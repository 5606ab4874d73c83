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

__all__ = ["median_time", "random_network", "sample_local", "sample_weights"]


def median_time(function: Callable[[], object], *, repeats: int = 9, budget: float = 6.0) -> float:
    """Median CPU seconds of a call after a warm-up call; fewer repeats, but at least 3, once the budget is spent.

    CPU time of this process, not time on the wall: on one thread they agree, and other programs do not disturb it.
    """
    function()
    times: list[float] = []
    while len(times) < 3 or (len(times) < repeats and sum(times) < budget):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
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


def sample_weights(network: BayesianNetwork, x: Tensor, passes: int, *, dtype: torch.dtype, chunk: int = 50) -> Tensor:
    """``passes`` forward passes at ``x`` (n,), each with its own draw of all weights: (passes, n_out).

    ``chunk`` passes run at once without a loop; 50 keep the drawn weights of a 2x64 network in the cache, which was the
    fastest of 1 to 2,000.
    """
    tensors = [[t.to(dtype) for t in (a.weight_mean, a.weight_std, a.bias_mean, a.bias_std)] for a in network.linears]
    sizes = [min(chunk, passes - done) for done in range(0, passes, chunk)]
    return torch.cat([_sample_chunk(tensors, x.to(dtype), size) for size in sizes])


def _sample_chunk(tensors: list[list[Tensor]], x: Tensor, draws: int) -> Tensor:
    z = x.expand(draws, -1)[..., None]
    for k, (mean, std, bias_mean, bias_std) in enumerate(tensors):
        weight = torch.randn(draws, *mean.shape, dtype=x.dtype).mul_(std).add_(mean)
        bias = torch.randn(draws, *bias_mean.shape, dtype=x.dtype).mul_(bias_std).add_(bias_mean)
        z = torch.baddbmm(bias[..., None], weight, z.relu() if k else z)
    return z[..., 0]


def sample_local(network: BayesianNetwork, x: Tensor, passes: int, *, dtype: torch.dtype) -> Tensor:
    """Outputs of the same law by local reparametrisation: pre-activations are drawn, not weights: (passes, n_out)."""
    z = x.to(dtype).expand(passes, -1)
    for k, layer in enumerate(network.linears):
        z = z.relu() if k else z
        mean = torch.addmm(layer.bias_mean.to(dtype), z, layer.weight_mean.T.to(dtype))
        variance = torch.addmm(layer.bias_std.to(dtype) ** 2, z * z, layer.weight_std.T.to(dtype) ** 2)
        z = torch.randn_like(mean).mul_(variance.sqrt_()).add_(mean)
    return z
