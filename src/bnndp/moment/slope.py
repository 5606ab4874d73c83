r"""The slope :math:`\Phi(m/\sqrt{s_0})` of a neuron as a random variable: its mean and how much it varies."""

from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.bounds import Interval
from bnndp.maths.normal import cdf, pdf
from bnndp.maths.rectified import ratio
from bnndp.maths.replacement import TO_CDF, TO_DENSITY_SQUARE
from bnndp.maths.rounding import ELEMENTARY, TINY
from bnndp.maths.tails import PEAK
from bnndp.moment.records import PreActivation

__all__ = ["Slope", "slope"]

_UP = 1 + 1e-10


@dataclass(frozen=True, slots=True)
class Slope:
    """``centre`` is a constant, ``E (Phi - centre)^2 <= square`` and ``Var Phi <= variance`` at s0 = spread.upper."""

    centre: Tensor  # (batch, n)
    variance: Tensor  # (batch, n)
    square: Tensor  # (batch, n)


def slope(before: PreActivation, mean: Interval) -> Slope:
    r"""Bounds for every x of the box.

    If m were Gaussian given the layer before, the mean would be :math:`\Phi(M/\sqrt{s_0+N})`; the replacement error
    and the variance of E[m | before] bound the distance (:math:`|\Phi''|\le\varphi(1)`). The variance is at most
    :math:`\varphi(0)^2V_m/s_0` (Lipschitz), at most q(1 - q) for a mean q, and in the second layer at most
    :math:`\mathbb E\varphi(m/\sqrt{s_0})^2D/s_0` (Poincare), where for a Gaussian m :math:`\mathbb
    E\varphi^2=\varphi(M/\sqrt{s_0/2+N})\sqrt{s_0/(s_0+2N)}/(2\sqrt\pi)`.
    """
    s0, n = before.spread.upper.clamp_min(TINY), before.noise
    wide, narrow = (s0 + n.upper).sqrt(), (s0 + n.lower).sqrt()
    low = cdf(torch.minimum(ratio(mean.lower, wide), ratio(mean.lower, narrow)))
    high = cdf(torch.maximum(ratio(mean.upper, wide), ratio(mean.upper, narrow)))
    error = before.replacement.upper / s0.sqrt()
    unknown = (
        0.5 * (before.central + before.noise_variance.sqrt()) / s0
    )  # steps 3 and 4: |d_s Phi|, |d_mm Phi| / 2 <= 1/(2 s)
    distance = 0.5 * (high - low) + TO_CDF * error + unknown + ELEMENTARY
    centre = 0.5 * (low + high)
    toward = torch.where(centre > 0.5, (centre - distance).clamp_min(0.5), (centre + distance).clamp_max(0.5))
    variance = torch.minimum(toward * (1 - toward), PEAK * PEAK * before.mean_variance / s0)
    if before.energy is not None:
        variance = torch.minimum(variance, _poincare(before, mean, error))
    return Slope(centre, variance * _UP, (variance + distance.square()).nan_to_num(1.0).clamp_max(1) * _UP)


def _poincare(before: PreActivation, mean: Interval, error: Tensor) -> Tensor:
    energy = before.energy
    if energy is None:
        return torch.full_like(error, torch.inf)
    s0, n = before.spread.upper.clamp_min(TINY), before.noise
    straddles = (mean.lower <= 0) & (mean.upper >= 0)
    nearest = torch.where(straddles, 0.0, torch.minimum(mean.lower.abs(), mean.upper.abs()))
    density = pdf(ratio(nearest, (0.5 * s0 + n.upper).sqrt())) * (s0 / (s0 + 2 * n.lower)).sqrt() * (PEAK / 2**0.5)
    density = (density + TO_DENSITY_SQUARE * error + ELEMENTARY).nan_to_num(torch.inf).clamp_max(PEAK * PEAK)
    return (density * energy.usual + PEAK * PEAK * energy.rare) / s0
