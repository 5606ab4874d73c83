r"""Random sums that a Gaussian dominates in the convex order: their tails, and their mean under a sigmoid.

:math:`M\preceq N(0,\tau^2)` means :math:`\mathbb E f(M)\le\mathbb E f(\tau\xi)` for every convex f. It holds for
:math:`z-\mathbb Ez`, :math:`z=\mathrm{ReLU}(\zeta)`, :math:`\zeta\sim N(m,r^2)`, with :math:`\tau=r`: the difference
of :math:`\zeta-m` and :math:`z-\mathbb Ez` increases with :math:`\zeta` and has mean zero, so that the two distribution
functions cross once. It is kept by independent sums and by martingales (docs/theory-partition.md, section 9).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from bnndp.errors import InputError
from bnndp.maths.rectified import expected_relu
from bnndp.maths.rounding import TINY
from bnndp.paper.layers import SLACK

_FARTHEST = 37.0  # standard deviations: beyond it the tail is not a normal float64 number
_LINES = (0.0, 1.0, 2.0, 3.0, 4.5, 6.5)  # where the straight parts of the majorants touch the sigmoid, mirrored
_FINE, _COARSE = 0.125, 0.5  # distances of the knots below and above 8
_MARGIN = 2.0**-30  # relative, for the rounding of the tables; the tests hold it to ball arithmetic


def dominated_tail(t: Tensor) -> Tensor:  # any shape, t > 0
    r"""At least :math:`P(M\ge t\tau)` for every :math:`M\preceq N(0,\tau^2)`, :math:`\tau>0`.

    .. math:: P(M\ge t)\le\min_{s<t}\frac{\mathbb E(M-s)_+}{t-s}\le\min_{s<t}\frac{g(-s,1)}{t-s}

    Markov's inequality for :math:`(M-s)_+`; s = t - v with v on a grid around the best, which is about 1 / t.
    """
    steps = torch.logspace(-3, 1, 129, dtype=torch.float64, device=t.device)
    mean = expected_relu(steps - t[..., None], torch.ones_like(steps))
    return ((mean * (1 + SLACK) + TINY) / steps).amin(-1).clamp_max(1)


@cache
def tail_quantile(chance: float) -> float:
    """A number t with ``dominated_tail(t) <= chance``, about the smallest, found by bisection."""
    if not chance >= TINY:
        raise InputError(f"the probability of a tail must be at least {TINY}, got {chance!r}; take a larger mass.")
    low, high = 0.0, _FARTHEST
    for _ in range(50):
        middle = 0.5 * (low + high)
        if dominated_tail(torch.tensor(middle, dtype=torch.float64)).item() <= chance:
            high = middle
        else:
            low = middle
    return high


def dominated_sigmoid(mean: Tensor, std: Tensor) -> Tensor:
    r"""At least :math:`\mathbb E\,\sigma(-(d+M))` for every :math:`d\ge` ``mean`` and :math:`M\preceq N(0,\tau^2)`.

    :math:`\sigma(-D)` is at most ``max(line, sigma)``, where the line touches it at some :math:`-a\le0`, and this is
    convex; so are its interpolations :math:`F(D)=F_\infty+\sum_i\kappa_i(T_i-D)_+\ge\max(\cdot)`, and
    :math:`\mathbb E F(d+M)\le F_\infty+\sum_i\kappa_i\,g(T_i-d,\tau)`. The least over a table of lines is taken.
    """
    table = _table()
    knots, weights = table.knots.to(mean.device), table.weights.to(mean.device)
    excess = expected_relu(knots - mean[..., None], std[..., None]) * (1 + SLACK)  # (..., knots)
    value = excess @ weights.T + table.limits.to(mean.device)
    return (value.amin(-1) * (1 + _MARGIN)).clamp_max(1)


@dataclass(frozen=True, slots=True)
class _Table:
    knots: Tensor  # (knots,)
    weights: Tensor  # (lines, knots), >= 0
    limits: Tensor  # (lines,), values to the right of the last knot


@cache
def _table() -> _Table:
    """Convex interpolations at the knots, one for each line; to the left of the first knot they are the line."""
    fine = torch.arange(0.0, 8.0, _FINE, dtype=torch.float64)
    knots = torch.cat([fine, torch.arange(8.0, 40.0 + _COARSE, _COARSE, dtype=torch.float64)])
    weights, limits = [], []
    for a in _LINES:
        height = 1 / (1 + math.exp(-a))
        slope = height * (1 - height)  # of the tangent of sigma(-D) at D = -a, downward
        value = torch.maximum(height - slope * (knots + a), torch.sigmoid(-knots))
        falls = torch.cat([torch.tensor([slope], dtype=torch.float64), -value.diff() / knots.diff()])
        weights.append((falls - torch.cat([falls[1:], torch.zeros_like(falls[:1])])).clamp_min(0))
        limits.append(value[-1])
    return _Table(knots, torch.stack(weights), torch.stack(limits))
