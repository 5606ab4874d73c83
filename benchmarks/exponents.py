"""How the cost of a pass grows with inputs, width, depth and batch: exponents by regression on random networks.

One thing varies at a time. The exponent is the slope of the line through the logarithms of CPU time and of what varies,
by least squares; the cost of starting a few hundred operations makes small sizes look flat.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from benchmarks.speed import boxes_of
from benchmarks.timing import median_time, random_network
from bnndp import certify

__all__ = ["AXES", "Axis", "Exponent", "exponent", "measure", "smaller"]


@dataclass(frozen=True, slots=True)
class Axis:
    """What varies, over which sizes, and what stays: inputs, width, depth and boxes of a batch."""

    name: str
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

    axis: str
    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    exponent: float
    of_larger: float
    fixed: str


def measure(axes: Sequence[Axis] = AXES) -> list[Exponent]:
    """All exponents."""
    return [_measure(axis) for axis in axes]


def smaller(axis: Axis) -> Axis:
    """The first four sizes only."""
    return replace(axis, sizes=axis.sizes[:4])


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """The slope of log seconds against log size, by least squares.

    >>> round(exponent((1, 2, 4), (3.0, 12.0, 48.0)), 6)
    2.0
    """
    x = torch.tensor([math.log(size) for size in sizes], dtype=torch.float64)
    y = torch.tensor([math.log(second) for second in seconds], dtype=torch.float64)
    x, y = x - x.mean(), y - y.mean()
    return float((x * y).sum() / x.square().sum())


def _measure(axis: Axis) -> Exponent:
    seconds = tuple(_seconds(axis, size) for size in axis.sizes)
    half = len(axis.sizes) // 2
    stays = {name: getattr(axis, name) for name in ("inputs", "width", "depth", "batch") if name != axis.name}
    return Exponent(
        axis.name,
        axis.sizes,
        seconds,
        exponent(axis.sizes, seconds),
        exponent(axis.sizes[half:], seconds[half:]),
        ", ".join(f"{name} {value}" for name, value in stays.items()),
    )


def _seconds(axis: Axis, size: int) -> float:
    at = {name: getattr(axis, name) for name in ("inputs", "width", "depth", "batch")} | {axis.name: size}
    network = random_network((at["inputs"], *(at["width"],) * at["depth"], 1))
    box = boxes_of(network, at["batch"])
    return median_time(lambda: certify(network, box), repeats=5, budget=4)
