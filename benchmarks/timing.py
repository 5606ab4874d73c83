"""Median times, and the unit of cost: one forward pass with all weights drawn anew from the posterior."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from bnndp.attack.draws import draw_networks, evaluate
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork

__all__ = [
    "Turn",
    "by_turns",
    "median_time",
    "random_network",
    "sample_local",
    "sample_weights",
    "seconds_per_pass",
]

_LEAST_SECONDS = 0.3  # of CPU time in which forward passes are measured


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

    Other work of the machine affects all of them equally. At least 3 rounds, fewer than ``repeats`` once the
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


def sample_weights(network: BayesianNetwork, x: Tensor, passes: int, *, dtype: torch.dtype, chunk: int = 50) -> Tensor:
    """``passes`` forward passes at ``x`` (n,), each with its own draw of all weights: (passes, n_out).

    ``chunk`` passes run at once without a loop; 50 keep the drawn weights of a 2x64 network in the cache, which was the
    fastest of 1 to 2,000.
    """
    tensors = [[t.to(dtype) for t in (a.weight_mean, a.weight_std, a.bias_mean, a.bias_std)] for a in network.linears]
    sizes = [min(chunk, passes - done) for done in range(0, passes, chunk)]
    centred = network.centred(x).to(dtype)
    return torch.cat([_sample_chunk(tensors, centred, size) for size in sizes])


def seconds_per_pass(network: BayesianNetwork, x: Tensor) -> float:
    """CPU seconds of one pass in float64 at ``x`` (n,), a mean over as many as fill a third of a second."""
    passes = 50
    run = _sample_plain if network.plain else _sample_any
    run(network, x, passes)
    while True:
        begin = time.process_time()
        run(network, x, passes)
        seconds = time.process_time() - begin
        if seconds >= _LEAST_SECONDS:
            return seconds / passes
        passes *= 2


def _sample_plain(network: BayesianNetwork, x: Tensor, passes: int) -> None:
    sample_weights(network, x, passes, dtype=torch.float64)


def _sample_any(network: BayesianNetwork, x: Tensor, passes: int, *, chunk: int = 50) -> None:
    """The same for any layers."""
    for done in range(0, passes, chunk):
        evaluate(draw_networks(network, min(chunk, passes - done), seed=done), x[None])


def _sample_chunk(tensors: list[list[Tensor]], x: Tensor, draws: int) -> Tensor:
    z = x.expand(draws, -1)[..., None]
    for k, (mean, std, bias_mean, bias_std) in enumerate(tensors):
        weight = torch.randn(draws, *mean.shape, dtype=x.dtype).mul_(std).add_(mean)
        bias = torch.randn(draws, *bias_mean.shape, dtype=x.dtype).mul_(bias_std).add_(bias_mean)
        z = torch.baddbmm(bias[..., None], weight, z.relu() if k else z)
    return z[..., 0]
