"""Seeded draws of numbers and sizes, for random networks."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["Dice"]


class Dice:
    """Seeded draws in float64."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def uniform(self, low: float = 0.0, high: float = 1.0, shape: tuple[int, ...] = ()) -> Tensor:
        """Uniform in [low, high)."""
        return low + (high - low) * torch.rand(shape, generator=self.generator, dtype=torch.float64)

    def log_uniform(self, low: float, high: float, shape: tuple[int, ...] = ()) -> Tensor:
        """Its logarithm is uniform."""
        return self.uniform(math.log(low), math.log(high), shape).exp()

    def normal(self, *shape: int) -> Tensor:
        """Standard Gaussians."""
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def integer(self, low: int, high: int) -> int:
        """From low to high, both included."""
        return int(torch.randint(low, high + 1, (), generator=self.generator))

    def width(self, low: int, high: int) -> int:
        """An integer whose logarithm is about uniform."""
        return min(high, int(self.log_uniform(low, high + 1)))

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return float(self.uniform()) < probability
