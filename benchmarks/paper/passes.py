"""The unit of time in which costs are compared: one forward pass with all weights drawn anew from the posterior.

A sampled mean over n draws costs n of these. Machines differ and are noisy, ratios within one run much less.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor

from bnndp.attack.draws import draw_networks, evaluate
from bnndp.network import BayesianNetwork

__all__ = ["sample_weights", "seconds_a_pass"]

_LEAST_SECONDS = 0.3  # of CPU time that are measured


def sample_weights(network: BayesianNetwork, x: Tensor, passes: int, *, dtype: torch.dtype, chunk: int = 50) -> Tensor:
    """``passes`` forward passes at ``x`` (n,), each with its own draw of all weights: (passes, n_out).

    ``chunk`` passes run at once without a loop; 50 keep the drawn weights of a 2x64 network in the cache, which was the
    fastest of 1 to 2,000.
    """
    tensors = [[t.to(dtype) for t in (a.weight_mean, a.weight_std, a.bias_mean, a.bias_std)] for a in network.linears]
    sizes = [min(chunk, passes - done) for done in range(0, passes, chunk)]
    seen = network.centred(x).to(dtype)
    return torch.cat([_sample_chunk(tensors, seen, size) for size in sizes])


def seconds_a_pass(network: BayesianNetwork, x: Tensor) -> float:
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
