r"""Two moons: two classes on interleaving half circles in the plane, generated from a seed.

With an angle :math:`t` uniform in :math:`[0,\pi]` class 0 lies at :math:`(\cos t,\sin t)` and class 1 at
:math:`(1-\cos t,\tfrac12-\sin t)`, each with Gaussian noise in both coordinates.
"""

from __future__ import annotations

import math

import torch

from bnndp.data.records import ClassificationData
from bnndp.errors import InputError


def two_moons(points: int = 1000, *, noise_std: float = 0.1, seed: int = 0) -> ClassificationData:
    """``points`` points with their classes, in turn 0 and 1; the same seed, the same set.

    >>> two_moons(100)
    ClassificationData(points=100, inputs=2, classes=2)
    """
    if points < 1:
        raise InputError(f"points must be at least 1, got {points}.")
    if not (math.isfinite(noise_std) and noise_std >= 0):
        raise InputError(f"noise_std must be finite and >= 0, got {noise_std}.")
    generator = torch.Generator().manual_seed(seed)
    angle = math.pi * torch.rand(points, generator=generator, dtype=torch.float64)
    noise = torch.randn(points, 2, generator=generator, dtype=torch.float64)
    label = torch.arange(points) % 2
    side = (1 - 2 * label).to(torch.float64)  # 1 for class 0, -1 for class 1
    clean = torch.stack([label + side * angle.cos(), 0.5 * label + side * angle.sin()], dim=-1)
    return ClassificationData(clean + noise_std * noise, label, classes=2)
