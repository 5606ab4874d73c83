r"""Lines below the lead of a class over one rival, in the margin of that rival alone, where nothing is random.

With :math:`d=\zeta_c-\zeta_k` and q the probability of all other classes, :math:`p_c-p_k=(1-q)\tanh(d/2)`. It is at
least :math:`\tanh(d/2)` for d < 0, whatever the others are, and at least :math:`\theta\tanh(d/2)` for d > 0 if
:math:`1-q\ge\theta`. As :math:`q\le Q/(1+Q)` with :math:`Q=\sum_je^{-D_j}` over the others, :math:`\theta=1/(1+Q)` at
their least margins. This f(d) is convex for d < 0 and concave for d > 0, so :math:`f(d)-\beta d` is least on [a, b] at
an end, at zero, or where :math:`\sigma(d)\sigma(-d)=\beta/2` and d < 0; that value is the constant of a line of slope
:math:`\beta\ge0` below f. An error of the last point counts by its square.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bnndp.maths.rounding import ELEMENTARY, TINY

__all__ = ["duel_lines"]

_FAR = 300.0  # margins of more are not known


def duel_lines(
    rows: Tensor,  # (batch, rows, classes)
    own: Tensor,  # (batch, classes): which class is c
    least: Tensor,  # (batch, 1, classes): of the margins of c
    most: Tensor,  # (batch, 1, classes)
    share: float,
) -> tuple[Tensor, Tensor]:
    """Constants (batch, rows) and slopes (batch, rows, classes) of lines below rows ``p_c - p_k``.

    They are highest at this share of the range of the margin. The constant is minus infinity for other rows, and where
    a margin is not known.
    """
    rival = rows < 0
    duel = (rival.sum(-1) == 1) & (rows == own[:, None].to(rows.dtype) - rival.to(rows.dtype)).all(-1)
    a, b = ((end * rival).nan_to_num(0.0).sum(-1) for end in (least.clamp(-_FAR, _FAR), most.clamp(-_FAR, _FAR)))
    known = ((least.abs() <= _FAR) & (most.abs() <= _FAR) | own[:, None]).all(-1)  # (batch, 1)
    b = torch.maximum(a, b)
    others = torch.exp(-least.clamp(-_FAR, _FAR)).masked_fill(rival | own[:, None], 0.0).sum(-1)
    kept = (1 - ELEMENTARY) / (1 + others * (1 + ELEMENTARY))
    at = a + share * (b - a)
    best, slope = torch.full_like(a, -torch.inf), torch.zeros_like(a)
    chord = (_lead(b, kept) - _lead(a, kept)) / (b - a).clamp_min(TINY)
    for beta in (chord, _steepness(at), _steepness(a)):
        tilt = beta.nan_to_num(0.0).clamp(0.0, 0.5)
        constant = _constant(a, b, kept, tilt)
        take = constant + tilt * at > best + slope * at
        best, slope = torch.where(take, constant, best), torch.where(take, tilt, slope)
    fine = duel & known & best.isfinite()
    return torch.where(fine, best, -torch.inf), torch.where(fine, slope, 0.0)[..., None] * rival


def _lead(d: Tensor, kept: Tensor) -> Tensor:
    value = torch.tanh(0.5 * d)
    return torch.where(d > 0, kept * value, value)


def _steepness(d: Tensor) -> Tensor:
    return 2 * torch.sigmoid(d) * torch.sigmoid(-d)


def _constant(a: Tensor, b: Tensor, kept: Tensor, beta: Tensor) -> Tensor:
    """The least value of ``f(d) - beta d`` on [a, b], rounded down."""
    p = beta / (1 + (1 - 2 * beta).clamp_min(0).sqrt())  # sigma(d) where the slope is beta, at most a half
    touching = (p / (1 - p)).clamp_min(TINY).log().clamp(a, b)
    points = (a, b, torch.zeros_like(a).clamp(a, b), touching)
    least = torch.stack([_lead(d, kept) - beta * d for d in points]).amin(0)
    return least - ELEMENTARY * (1 + beta * torch.maximum(a.abs(), b.abs()))
