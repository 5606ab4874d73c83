"""Median times, and Monte-Carlo forward passes to measure them against."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from bnndp.experiments.passes import sample_weights
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


def sample_local(network: BayesianNetwork, x: Tensor, passes: int, *, dtype: torch.dtype) -> Tensor:
    """Outputs of the same law by local reparametrisation: pre-activations are drawn, not weights: (passes, n_out)."""
    z = x.to(dtype).expand(passes, -1)
    for k, layer in enumerate(network.linears):
        z = z.relu() if k else z
        mean = torch.addmm(layer.bias_mean.to(dtype), z, layer.weight_mean.T.to(dtype))
        variance = torch.addmm(layer.bias_std.to(dtype) ** 2, z * z, layer.weight_std.T.to(dtype) ** 2)
        z = torch.randn_like(mean).mul_(variance.sqrt_()).add_(mean)
    return z
