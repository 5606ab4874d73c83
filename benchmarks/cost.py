"""What a pass costs: beside forward passes, in a batch, and how it grows with inputs, width, depth and batch.

Exponents: one thing varies at a time, on random networks. The exponent is the slope of the line through the logarithms
of CPU time and of what varies, by least squares; the cost of starting a few hundred operations makes small sizes look
flat.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import torch
from torch import Tensor

from benchmarks.networks import network
from benchmarks.timing import median_time, random_network, sample_local, sample_weights
from bnndp import certify
from bnndp.geometry.box import Box
from bnndp.network import BayesianNetwork, Posterior

__all__ = ["AXES", "BATCH", "SIZES", "Axis", "costs", "exponent", "exponents", "speed"]

PASSES, BATCH = 2000, 256
SIZES = ((1, 64), (2, 64), (3, 64), (4, 64), (1, 128), (1, 256), (1, 512), (2, 128), (2, 256), (2, 512))
_SAMPLERS: dict[str, Callable[[BayesianNetwork, Tensor, int], Tensor]] = {
    "a pass, weights drawn, batched, float32": partial(sample_weights, dtype=torch.float32),
    "a pass, weights drawn, batched, float64": partial(sample_weights, dtype=torch.float64),
    "a pass, weights drawn, in a loop, float32": partial(sample_weights, dtype=torch.float32, chunk=1),
    "a pass, local reparametrisation, batched, float32": partial(sample_local, dtype=torch.float32),
}


@dataclass(frozen=True, slots=True)
class Speed:
    """CPU seconds of something, and how many of it one certified box takes."""

    what: str
    seconds: float
    per_box: float


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds of one box alone and in a batch, and what the first is in forward passes, for a size."""

    hidden: str
    alone_seconds: float
    in_batch_seconds: float
    passes: float


@dataclass(frozen=True, slots=True)
class Axis:
    """What varies, over which sizes, and what stays: inputs, width, depth and boxes of a batch."""

    varies: str
    sizes: tuple[int, ...]
    inputs: int = 16
    width: int = 64
    depth: int = 2
    batch: int = 64


AXES = (
    Axis("inputs", (8, 16, 32, 64, 128, 256, 512, 784)),
    Axis("width", (32, 64, 128, 256, 512), batch=16),
    Axis("depth", (1, 2, 3, 4)),
    Axis("batch", (1, 4, 16, 64, 256, 1024, 4096), inputs=8, width=32),
)


@dataclass(frozen=True, slots=True)
class Exponent:
    """CPU seconds of one batch for every size, and the exponent over all sizes and over the larger half of them."""

    varies: str
    sizes: tuple[int, ...]
    fixed: str
    seconds: tuple[float, ...]
    exponent: float
    of_larger_half: float


def speed(name: str = "sine2d-2x64") -> list[Speed]:
    """Of one network: a certified box alone, one in a batch, and one forward pass by each sampler."""
    posterior = network(name)
    x = torch.full((posterior.n_in,), 0.3, dtype=torch.float64)
    single, many = _boxes(posterior, 1), _boxes(posterior, BATCH)
    alone = median_time(lambda: certify(posterior, single), repeats=15)
    seconds = {"one box": alone, "a box in a batch": median_time(lambda: certify(posterior, many)) / BATCH}
    for label, sampler in _SAMPLERS.items():
        seconds[label] = median_time(partial(sampler, posterior, x, PASSES)) / PASSES
    return [Speed(what, value, alone / value) for what, value in seconds.items()]


def costs(sizes: Sequence[tuple[int, int]] = SIZES, batch: int = 64) -> list[Cost]:
    """Cost against depth and width, on random weights (the cost does not depend on their values)."""
    return [_cost(depth, width, batch) for depth, width in sizes]


def exponents(axes: Sequence[Axis] | None = None, *, quick: bool = False) -> list[Exponent]:
    """Exponents of CPU time in each axis; ``quick``: over its first four sizes."""
    return [_exponent(axis, axis.sizes[: 4 if quick else None]) for axis in axes or AXES]


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """The slope of log seconds against log size, by least squares.

    >>> round(exponent((1, 2, 4), (3.0, 12.0, 48.0)), 6)
    2.0
    """
    x = torch.tensor([math.log(size) for size in sizes], dtype=torch.float64)
    y = torch.tensor([math.log(second) for second in seconds], dtype=torch.float64)
    x, y = x - x.mean(), y - y.mean()
    return float((x * y).sum() / x.square().sum())


def _boxes(posterior: Posterior, count: int, eps: float = 1e-3) -> Box:
    """``count`` random boxes in [-1, 1]^n."""
    generator = torch.Generator().manual_seed(0)
    return Box.ball(2 * torch.rand(count, posterior.n_in, generator=generator, dtype=torch.float64) - 1, eps)


def _cost(depth: int, width: int, batch: int) -> Cost:
    posterior = random_network((2, *(width,) * depth, 1))
    x = torch.full((2,), 0.3, dtype=torch.float64)
    single, many = _boxes(posterior, 1), _boxes(posterior, batch)
    passes = max(50, PASSES * 64 // (8 * width * depth))
    alone = median_time(lambda: certify(posterior, single), budget=3)
    in_batch = median_time(lambda: certify(posterior, many), repeats=3, budget=3) / batch
    forward = median_time(lambda: sample_weights(posterior, x, passes, dtype=torch.float32), repeats=5, budget=3)
    return Cost(f"{depth}x{width}", alone, in_batch, alone * passes / forward)


def _exponent(axis: Axis, sizes: tuple[int, ...]) -> Exponent:
    seconds, half = tuple(_seconds(axis, size) for size in sizes), len(sizes) // 2
    stays = {name: value for name, value in asdict(axis).items() if name not in ("varies", "sizes", axis.varies)}
    return Exponent(
        axis.varies,
        sizes,
        ", ".join(f"{name} {value}" for name, value in stays.items()),
        seconds,
        exponent(sizes, seconds),
        exponent(sizes[half:], seconds[half:]),
    )


def _seconds(axis: Axis, size: int) -> float:
    at = asdict(axis) | {axis.varies: size}
    posterior = random_network((at["inputs"], *(at["width"],) * at["depth"], 1))
    box = _boxes(posterior, at["batch"])
    return median_time(lambda: certify(posterior, box), repeats=5, budget=4)
