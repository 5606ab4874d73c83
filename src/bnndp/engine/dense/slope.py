r"""The slope :math:`\Phi(m/\sqrt{s_0})` of a neuron as a random variable: its mean and how much it varies."""

from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.engine.dense.records import PreActivation
from bnndp.geometry.bounds import Interval
from bnndp.maths.normal import cdf, pdf
from bnndp.maths.rectified import ratio
from bnndp.maths.replacement import TO_CDF, TO_DENSITY_SQUARE
from bnndp.maths.rounding import ELEMENTARY, TINY, UP
from bnndp.maths.tails import MEAN_MIXED, PEAK

__all__ = ["Slope", "slope"]


@dataclass(frozen=True, slots=True)
class Slope:
    """``centre`` is a constant, ``E (Phi - centre)^2 <= square`` and ``Var Phi <= variance`` at s0 = spread.upper."""

    centre: Tensor  # (batch, n)
    variance: Tensor  # (batch, n)
    square: Tensor  # (batch, n)
    norm4: Tensor  # (batch, n): the fourth root of E Phi^4, at most


def slope(before: PreActivation, mean: Interval) -> Slope:
    r"""Bounds for every x of the box.

    If m were Gaussian given the layer before, the mean would be :math:`\Phi(M/\sqrt{s_0+N})`; the replacement error
    and the variance of E[m | before] bound the distance (:math:`|\Phi''|\le\varphi(1)`). The variance is at most
    :math:`\varphi(0)^2V_m/s_0` (Lipschitz), at most q(1 - q) for a mean q, and in the second layer at most
    :math:`\mathbb E\varphi(m/\sqrt{s_0})^2D/s_0` (Poincare), where for a Gaussian m :math:`\mathbb E\varphi^2
    =\varphi(0)\,\varphi(M/\sqrt{s_0/2+N})\sqrt{s_0/(s_0+2N)}`.
    """
    s0, n = before.spread.upper.clamp_min(TINY), before.noise
    wide, narrow = (s0 + n.upper).sqrt(), (s0 + n.lower).sqrt()
    low = cdf(torch.minimum(ratio(mean.lower, wide), ratio(mean.lower, narrow)))
    high = cdf(torch.maximum(ratio(mean.upper, wide), ratio(mean.upper, narrow)))
    error = before.replacement.upper / s0.sqrt()
    # Steps 3 and 4: |d_s Phi| and half of |d_mm Phi| are at most phi(1) / (2 s).
    unknown = MEAN_MIXED * (before.central + before.noise_variance.sqrt()) / s0
    distance = 0.5 * (high - low) + TO_CDF * error + unknown + ELEMENTARY
    centre = 0.5 * (low + high)
    toward = torch.where(centre > 0.5, (centre - distance).clamp_min(0.5), (centre + distance).clamp_max(0.5))
    variance = torch.minimum(toward * (1 - toward), PEAK * PEAK * before.mean_variance / s0)
    norm4 = torch.ones_like(centre)
    if before.energy is not None:
        density, energy = _density_square(before, mean, error), before.energy
        variance = torch.minimum(variance, (density * energy.usual + PEAK * PEAK * energy.rare) / s0)
        # || F - E F ||_4 <= sqrt(3) || grad F ||_4 for Gaussian sources, and E phi^4 <= phi(0)^2 E phi^2.
        gradient = (PEAK * PEAK * density).sqrt().sqrt() * energy.usual.sqrt()
        gradient = gradient + PEAK * (energy.unlikely * energy.rare).sqrt().sqrt()
        norm4 = (centre + distance + 3**0.5 * gradient / s0.sqrt()).nan_to_num(1.0).clamp_max(1)
    square = (variance + distance.square()).nan_to_num(1.0).clamp_max(1)
    return Slope(centre, variance * UP, square * UP, norm4 * UP)


def _density_square(before: PreActivation, mean: Interval, error: Tensor) -> Tensor:
    """Upper bound of E phi(m / sqrt(s0))^2 in the second layer."""
    s0, n = before.spread.upper.clamp_min(TINY), before.noise
    straddles = (mean.lower <= 0) & (mean.upper >= 0)
    nearest = torch.where(straddles, 0.0, torch.minimum(mean.lower.abs(), mean.upper.abs()))
    density = pdf(ratio(nearest, (0.5 * s0 + n.upper).sqrt())) * (s0 / (s0 + 2 * n.lower)).sqrt() * PEAK
    return (density + TO_DENSITY_SQUARE * error + ELEMENTARY).nan_to_num(torch.inf).clamp_max(PEAK * PEAK)
