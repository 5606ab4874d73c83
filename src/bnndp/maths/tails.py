r"""Bounds on expectations from two moments only, for any law with those moments."""

import math

import torch
from torch import Tensor

__all__ = ["HALF_PEAK", "PEAK", "excess", "relu_scarf", "shortfall"]

PEAK = 1 / math.sqrt(2 * math.pi)
r"""Largest value of the normal density, :math:`\varphi(0)`."""

HALF_PEAK = 0.5 * PEAK
r"""Largest value of :math:`\sqrt s\,\partial g/\partial s=\tfrac12\varphi(m/\sqrt s)`."""


def relu_scarf(mean: Tensor, variance: Tensor) -> Tensor:
    r"""Upper bound :math:`\mathbb E[X]_+\le\tfrac12(\mu+\sqrt{\mu^2+V})` for any X with that mean and Var X <= V.

    Scarf (1958); it increases in both arguments and is convex in the mean. Written so that a negative mean does not
    cancel: :math:`\tfrac12 V/(\sqrt{\mu^2+V}-\mu)` for :math:`\mu<0`.
    """
    root = torch.sqrt(mean * mean + variance)
    left = 0.5 * variance / (root - mean).clamp_min(torch.finfo(mean.dtype).tiny)
    return torch.where(mean < 0, left, 0.5 * (mean + root))


def excess(mean: Tensor, variance: Tensor, level: Tensor) -> Tensor:
    r"""Upper bound of :math:`\mathbb E(s-\ell)_+` for any s with mean at most ``mean``, variance at most ``variance``."""
    return relu_scarf(mean - level, variance)


def shortfall(mean: Tensor, variance: Tensor, level: Tensor) -> Tensor:
    r"""Upper bound of :math:`\mathbb E(\ell-s)_+` for any s with mean at least ``mean``, variance at most ``variance``."""
    return relu_scarf(level - mean, variance)
