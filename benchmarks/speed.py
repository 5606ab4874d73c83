"""Speed as ratios: a certified box against Monte-Carlo forward passes, a batch against a single box, sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from benchmarks.networks import network
from benchmarks.timing import median_time, random_network, sample_local, sample_weights
from bnndp import Options, certify
from bnndp.geometry.box import Box
from bnndp.network import BayesianNetwork

__all__ = ["Cost", "Speed", "costs", "speed"]

PASSES, BATCH = 2000, 256
SIZES = ((1, 64), (2, 64), (3, 64), (4, 64), (1, 128), (1, 256), (1, 512), (2, 128), (2, 256), (2, 512))
_SAMPLERS: dict[str, Callable[[BayesianNetwork, Tensor, int], Tensor]] = {
    "weights drawn, batched, float32": partial(sample_weights, dtype=torch.float32),
    "weights drawn, batched, float64": partial(sample_weights, dtype=torch.float64),
    "weights drawn, in a loop, float32": partial(sample_weights, dtype=torch.float32, chunk=1),
    "local reparametrisation, batched, float32": partial(sample_local, dtype=torch.float32),
}


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds of one certified box, of a box in a batch of 256, and of one forward pass by each sampler."""

    single: float
    in_batch: float
    passes: dict[str, float]


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of one box alone and in a batch, and of a forward pass (weights drawn, batched, float32), for a size."""

    depth: int
    width: int
    single: float
    in_batch: float
    forward: float


def boxes_of(posterior: BayesianNetwork, count: int, eps: float = 1e-3) -> Box:
    """``count`` random boxes in [-1, 1]^n."""
    generator = torch.Generator().manual_seed(0)
    return Box.ball(2 * torch.rand(count, posterior.n_in, generator=generator, dtype=torch.float64) - 1, eps)


def speed(name: str = "sine2d-2x64") -> Speed:
    """The figures of one network, default method, one pass."""
    posterior = network(name)
    x = torch.full((posterior.n_in,), 0.3, dtype=torch.float64)
    single, many = boxes_of(posterior, 1), boxes_of(posterior, BATCH)
    return Speed(
        single=median_time(lambda: certify(posterior, single, Options()), repeats=15),
        in_batch=median_time(lambda: certify(posterior, many, Options())) / BATCH,
        passes={label: _pass_time(sampler, posterior, x) for label, sampler in _SAMPLERS.items()},
    )


def _pass_time(
    sampler: Callable[[BayesianNetwork, Tensor, int], Tensor], posterior: BayesianNetwork, x: Tensor
) -> float:
    """Seconds of one of 2,000 forward passes."""
    return median_time(lambda: sampler(posterior, x, PASSES)) / PASSES


def costs(sizes: tuple[tuple[int, int], ...] = SIZES, batch: int = 64) -> list[Cost]:
    """Cost against depth and width, on random weights (the cost does not depend on their values)."""
    return [_cost(depth, width, batch) for depth, width in sizes]


def _cost(depth: int, width: int, batch: int) -> Cost:
    posterior = random_network((2, *(width,) * depth, 1))
    x = torch.full((2,), 0.3, dtype=torch.float64)
    single, many = boxes_of(posterior, 1), boxes_of(posterior, batch)
    passes = max(50, PASSES * 64 // (8 * width * depth))
    return Cost(
        depth=depth,
        width=width,
        single=median_time(lambda: certify(posterior, single, Options()), budget=3),
        in_batch=median_time(lambda: certify(posterior, many, Options()), repeats=3, budget=3) / batch,
        forward=median_time(lambda: sample_weights(posterior, x, passes, dtype=torch.float32), repeats=5, budget=3)
        / passes,
    )
