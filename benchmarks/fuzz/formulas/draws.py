"""Random arguments in float64: where networks live, in the tails, at kinks, and at the ends of the number range."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["Draw"]

_EDGES = (0.0, 5e-324, 2.3e-308, 1e-300, 1e-160, 1e-100, 1e-20, 1.0, 1e6, 1e30)


class Draw:
    """A stream of random tensors, (n,) each, that depends on its seed only."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def uniform(self, n: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Uniform on an interval."""
        return low + (high - low) * torch.rand(n, generator=self.generator, dtype=torch.float64)

    def normal(self, n: int, scale: float = 1.0) -> Tensor:
        """Gaussian with mean zero."""
        return scale * torch.randn(n, generator=self.generator, dtype=torch.float64)

    def log_uniform(self, n: int, low: float, high: float) -> Tensor:
        """Ten to the power of a uniform exponent."""
        return 10 ** self.uniform(n, low, high)

    def signed(self, n: int, low: float, high: float) -> Tensor:
        """The same with a random sign."""
        return self.log_uniform(n, low, high) * torch.where(self.uniform(n) < 0.5, -1.0, 1.0)

    def integers(self, n: int, low: int, high: int) -> Tensor:
        """Integers from low to high, both included."""
        return torch.randint(low, high + 1, (n,), generator=self.generator)

    def mixed(self, *choices: Tensor) -> Tensor:
        """At each place one of the tensors, all equally likely."""
        which = self.integers(len(choices[0]), 0, len(choices) - 1)
        return torch.stack(choices).gather(0, which[None])[0]

    def standard(self, n: int, largest: float = 1e30) -> Tensor:
        """Arguments in standard deviations: tails to 40, the middle, and from nothing to ``largest``."""
        wide = self.signed(n, -300, 0) if largest < 1 else self.signed(n, -16, float(torch.tensor(largest).log10()))
        return self.mixed(self.uniform(n, -40, 40), self.normal(n, 2), wide, self.signed(n, -300, 0))

    def gaussians(self, n: int, largest: float = 30.0) -> tuple[Tensor, Tensor]:
        """Means and stds up to ``10**largest``: |m/r| <= 40, stds 0, one far larger than the other."""
        usual, any_size = self.log_uniform(n, -12, min(6.0, largest)), self.log_uniform(n, -300, largest)
        r = self.mixed(usual, usual, usual, any_size)
        u = self.mixed(self.uniform(n, -40, 40), self.uniform(n, -40, 40), self.normal(n, 2), self.signed(n, -16, 3))
        m = self.mixed(*[(u * r).clamp(-(10**largest), 10**largest)] * 4, self.signed(n, -300, largest))
        edges = torch.tensor([e for e in _EDGES if e <= 10**largest], dtype=torch.float64)
        edge = edges[self.integers(n, 0, len(edges) - 1)]
        r = torch.where(self.uniform(n) < 0.04, edge, r)
        edge = edges[self.integers(n, 0, len(edges) - 1)]
        m = torch.where(self.uniform(n) < 0.04, torch.where(self.uniform(n) < 0.5, -edge, edge), m)
        r = torch.where(self.uniform(n) < 0.03, 0.0, r)
        return torch.where(self.uniform(n) < 0.03, 0.0, m), r
