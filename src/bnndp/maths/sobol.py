"""Scrambled Sobol points that are the same whatever the default dtype of torch is."""

import torch
from torch import Tensor

MOST_DIMENSIONS = torch.quasirandom.SobolEngine.MAXDIM
"""For more there are none."""


def sobol_points(dimension: int, count: int, seed: int) -> Tensor:  # (count, dimension), float64
    """The first ``count`` points in the unit cube, on a grid of 2^-30.

    torch makes the first of all in its default dtype, where it is infinite in float16; here it is always float32's.

    >>> sobol_points(2, 4, seed=0).shape
    torch.Size([4, 2])
    """
    engine = torch.quasirandom.SobolEngine(dimension, scramble=True, seed=seed)
    points = engine.draw(count, dtype=torch.float64)
    points[:1] = engine.shift.to(torch.float32) / 2**engine.MAXBIT
    return points
