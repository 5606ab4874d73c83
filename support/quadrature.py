"""Laws as nodes and weights: means by sums, with nothing of the package in them."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

__all__ = ["density", "rectified_law"]

_NODES, _WEIGHTS = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(12))


def density(u: Tensor) -> Tensor:
    """Of the standard normal law."""
    return torch.exp(-0.5 * u * u) / math.sqrt(2 * math.pi)


def rectified_law(m: float, r: float, panels: int = 40) -> tuple[Tensor, Tensor]:
    """Nodes and weights of max(N(m, r^2), 0): the atom, and twelve Gauss-Legendre nodes in each panel above it."""
    low, high = max(-m / r, -9.0), max(9.0, 4.0 - m / r)
    half = (high - low) / (2 * panels)
    xi = (torch.linspace(low, high, panels + 1, dtype=torch.float64)[:-1, None] + half * (_NODES + 1)).flatten()
    atom = torch.tensor([0.5 * math.erfc(m / r / math.sqrt(2))], dtype=torch.float64)
    return torch.cat([torch.zeros_like(atom), m + r * xi]), torch.cat(
        [atom, (half * _WEIGHTS).repeat(panels) * density(xi)]
    )
