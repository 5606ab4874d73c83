r"""The noisy sine sets of the paper's regression experiments, generated from a seed.

One input: :math:`y=\sin(2\pi x)+\varepsilon` on :math:`[-1,1]`; two inputs:
:math:`y=\tfrac12\sin(2\pi x_1)+\tfrac12\sin(2\pi x_2)+\varepsilon` on :math:`[-1,1]^2`. Both are the mean of the sines
of the coordinates, which is how other numbers of inputs are defined here.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bnndp.data.records import RegressionData
from bnndp.errors import InputError

POINTS = 8192


def clean_sine(x: Tensor) -> Tensor:  # x (..., n_in)
    r"""The function without noise, :math:`\frac1n\sum_i\sin(2\pi x_i)`: (..., 1).

    >>> clean_sine(torch.tensor([[0.25, -0.25], [0.25, 0.25]])).flatten().tolist()
    [0.0, 1.0]
    """
    return torch.sin(2 * math.pi * x).mean(-1, keepdim=True)


def noisy_sine(n_in: int = 1, *, points: int = POINTS, noise_std: float = 0.1, seed: int = 0) -> RegressionData:
    """``points`` uniform inputs in [-1, 1]^n_in and their sines with Gaussian noise; the same seed, the same set.

    >>> noisy_sine(2, points=100, seed=1)
    RegressionData(points=100, inputs=2, outputs=1)
    """
    if n_in < 1 or points < 1:
        raise InputError(f"n_in and points must be at least 1, got n_in={n_in}, points={points}.")
    if not (math.isfinite(noise_std) and noise_std >= 0):
        raise InputError(f"noise_std must be finite and >= 0, got {noise_std}.")
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(points, n_in, generator=generator, dtype=torch.float64) - 1
    noise = torch.randn(points, 1, generator=generator, dtype=torch.float64)
    clean = clean_sine(x)
    return RegressionData(x, clean + noise_std * noise, clean)
