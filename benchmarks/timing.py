"""Median times, and Monte-Carlo forward passes to measure them against."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from benchmarks.paper.passes import sample_weights
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork

__all__ = ["Turn", "by_turns", "median_time", "random_network", "sample_local", "sample_weights"]


@dataclass(frozen=True, slots=True)
class Turn:
    """Medians of one of several functions that were called by turns: seconds on the wall, and of CPU time."""

    wall: float
    cpu: float


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


def by_turns(functions: Sequence[Callable[[], object]], *, repeats: int = 7, budget: float = 20.0) -> list[Turn]:
    """Call the functions one after the other, again and again, after one round to warm up; medians of each.

    What else the machine does meanwhile meets all of them alike. At least 3 rounds, fewer than ``repeats`` once the
    budget of seconds is spent.
    """
    for function in functions:
        function()
    wall: list[list[float]] = [[] for _ in functions]
    cpu: list[list[float]] = [[] for _ in functions]
    begin = time.perf_counter()
    for turn in range(repeats):
        if turn >= 3 and time.perf_counter() - begin > budget:
            break
        for function, walls, cpus in zip(functions, wall, cpu, strict=True):
            start, started = time.perf_counter(), time.process_time()
            function()
            walls.append(time.perf_counter() - start)
            cpus.append(time.process_time() - started)
    return [Turn(statistics.median(w), statistics.median(c)) for w, c in zip(wall, cpu, strict=True)]


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
