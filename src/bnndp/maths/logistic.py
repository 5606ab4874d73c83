r"""The mean of :math:`\sigma(-D)=1/(1+e^D)` from two moments of D, for any law with those moments.

For every t the parabola that touches :math:`f(D)=\sigma(-D)` at t with curvature :math:`2\gamma(t)`,

.. math:: f(D)\le f(t)+f'(t)(D-t)+\gamma(t)(D-t)^2\quad\text{for all D},\qquad
          \gamma(t)=\sup_D\frac{f(D)-f(t)-f'(t)(D-t)}{(D-t)^2},

is a bound; its mean needs two moments only, and the least over t is the sharp bound (attained by a law on two points).
f decreases, so a law with mean at least d can be shifted down to the mean d: the bound at d holds for it too.
"""

import torch
from torch import Tensor

from bnndp.maths.rounding import TINY, UNIT

HALF_CURVATURE = 0.0481126
r"""Half of the largest curvature of f, :math:`\tfrac12\sup|f''|=\sqrt3/36`: at least gamma(t) for every t."""

_PARABOLAS = (
    (-4.5, 3.01e-5), (-4, 7.97e-5), (-3.5, 2.088e-4), (-3, 5.359e-4), (-2.5, 1.3297e-3), (-2, 3.1291e-3),
    (-1.5, 6.8029e-3), (-1, 1.325e-2), (-0.5, 2.25431e-2), (0, 3.31222e-2), (0.25, 3.80166e-2), (0.5, 4.21589e-2),
    (0.75, 4.52835e-2), (1, 4.72557e-2), (1.25, 4.80763e-2), (1.5, 4.78561e-2), (1.75, 4.67755e-2), (2, 4.50434e-2),
    (2.25, 4.28641e-2), (2.5, 4.04172e-2), (2.75, 3.7848e-2), (3, 3.52659e-2), (3.25, 3.27482e-2), (3.5, 3.03456e-2),
    (3.75, 2.80882e-2), (4, 2.59909e-2), (4.25, 2.40578e-2), (4.5, 2.22862e-2), (4.75, 2.06689e-2), (5, 1.91958e-2),
    (5.5, 1.66384e-2), (6, 1.45243e-2), (6.5, 1.27713e-2), (7, 1.13098e-2), (7.5, 1.00832e-2), (8, 9.0462e-3),
    (9, 7.4048e-3), (10, 6.1797e-3), (11, 5.2414e-3), (12, 4.5061e-3), (14, 3.4414e-3), (16, 2.7197e-3),
    (18, 2.2065e-3), (20, 1.8279e-3), (23, 1.4215e-3), (26, 1.1383e-3), (30, 8.766e-4), (35, 6.601e-4), (40, 5.154e-4),
    (50, 3.398e-4), (60, 2.41e-4),
)  # fmt: skip
"""Points t and upper bounds of gamma(t); tests/maths/test_logistic.py proves them in ball arithmetic."""

_FARTHEST = 1e100  # larger means have squares that overflow; a law with a larger mean may be shifted down to it
_SHARES = (0.1, 0.3, 0.6)  # of d, where Cantelli's inequality cuts for margins far beyond the last t


def logistic_tail(mean: Tensor, variance: Tensor) -> Tensor:  # (...) each
    r"""Upper bound of :math:`\mathbb E\,\sigma(-D)` for any D with mean at least ``mean`` and at most this variance."""
    d, v = mean.clamp_max(_PARABOLAS[-1][0])[..., None], variance[..., None]
    t, curvature = torch.tensor(_PARABOLAS, dtype=mean.dtype, device=mean.device).T
    # Where the variance is small the parabola must touch at d itself.
    t, curvature = (
        torch.cat([t.expand(*d.shape[:-1], -1), d], -1),
        torch.cat([curvature, curvature.new([HALF_CURVATURE])]),
    )
    value = torch.sigmoid(-t)
    slope = value * torch.sigmoid(t)  # -f'(t)
    d = torch.minimum(d, t + 0.5 * slope / curvature)  # the parabola rises beyond its vertex: shift down to that
    first, second = slope * (t - d), curvature * ((d - t).square() + v)
    size = value + first.abs() + second
    best = (value + first + second + 16 * UNIT * size).nan_to_num(torch.inf, posinf=torch.inf).amin(-1)
    far = mean.clamp_max(_FARTHEST)
    for share in _SHARES:  # P(D <= share d) <= V / (V + (1 - share)^2 d^2) for d > 0
        square = ((1 - share) * far).square()
        cut = variance / (variance + square) + torch.sigmoid(-share * far)
        best = torch.minimum(best, torch.where(far > 0, cut * (1 + 16 * UNIT), torch.inf).nan_to_num(torch.inf))
    return (best + TINY).clamp(0, 1)
