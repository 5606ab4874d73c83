r"""Rectified Gaussians whose noise is clipped from above, :math:`\tilde z=\mathrm{ReLU}(u+\min(\xi,c))`.

On a main rectangle of half width c the noise of every neuron is at most c, so that :math:`z=\tilde z` there; and where
the neuron is rarely active :math:`\tilde z` spreads far less than :math:`\xi`. :func:`clipped_variance` is a variance v
with :math:`\tilde z-\mathbb E\tilde z\preceq N(0,v)` in the convex order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from bnndp.maths.rectified import expected_relu
from bnndp.maths.rounding import TINY
from bnndp.paper.layers import SLACK

_STEP = 0.125  # distance of the tabled means u
_POINTS = 400  # levels at which the stop-loss transforms are compared
_HALVINGS = 30
_SAFE = 1e-9  # relative, for the rounding of the comparison
_BLUR = 1e-18  # absolute: the transforms are differences of tails


def clipped_loss(reach: float) -> float:
    r"""At least :math:`\mathbb E[z-\tilde z]=\mathbb E(\xi-c)_+` for :math:`u\ge-c`, and for all u."""
    return _g(torch.tensor(-reach, dtype=torch.float64)).item() * (1 + SLACK) + TINY


def clipped_variance(u: Tensor, reach: float) -> Tensor:  # u of any shape: mean over standard deviation
    r"""A v with :math:`\tilde z-\mathbb E\tilde z\preceq N(0,v)`, at most one; the same holds for every smaller u.

    For u < u' the difference of the two :math:`\tilde z` as functions of :math:`\xi` is monotone, so the centred laws
    cross once and are ordered: v may be taken at the next larger tabled u. Above zero it is one.
    """
    table = _table(reach)
    place = torch.searchsorted(table.at.to(u.device), (u + _SAFE).contiguous())
    values = torch.cat([table.variance, torch.ones_like(table.variance[:1])]).to(u.device)
    return values[place.clamp_max(len(values) - 1)]  # NaN is sorted last


@dataclass(frozen=True, slots=True)
class _Table:
    at: Tensor  # (points,), increasing up to zero
    variance: Tensor  # (points,)


@cache
def _table(reach: float) -> _Table:
    r"""The least v, by bisection, with :math:`\mathbb E(\tilde z-\mathbb E\tilde z-t)_+\le\sqrt v\,g(-t/\sqrt v,1)`.

    That for all t, and equal means, is the convex order. For t >= 0 both sides fall with t, so they are compared a
    step apart; beyond the largest value the left side is zero. For t <= 0 the same is done with
    :math:`\mathbb E(t-\cdot)_+`, which differs from :math:`\mathbb E(\cdot-t)_+` by t on both sides.
    """
    at = -torch.arange(0.0, reach + _STEP, _STEP, dtype=torch.float64).flip(0)
    at = at.clamp_min(-reach)  # the first: never active with such noise
    clip = torch.tensor(-reach, dtype=torch.float64)
    mean = (_g(at) - _g(clip)).clamp_min(0)[:, None]
    share = torch.linspace(0, 1, _POINTS + 1, dtype=torch.float64)
    above, below = (at[:, None] + reach - mean).clamp_min(0) * share, -mean * share.flip(0)
    call = (_g(at[:, None] - mean - above) - _g(clip)).clamp_min(0)[:, :-1] * (1 + _SAFE) + _BLUR
    put = (below + _g(at[:, None] - mean - below) - _g(clip)).clamp_min(0)[:, 1:] * (1 + _SAFE) + _BLUR
    low, high = torch.zeros_like(at), torch.ones_like(at)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        root = middle.sqrt()[:, None]
        fits = (call <= root * _g(-above[:, 1:] / root)).all(1) & (put <= root * _g(below[:, :-1] / root)).all(1)
        low, high = torch.where(fits, low, middle), torch.where(fits, middle, high)
    return _Table(at, (high * (1 + _SAFE)).clamp_max(1))


def _g(t: Tensor) -> Tensor:
    """``E (xi + t)_+``."""
    return expected_relu(t, torch.ones_like(t))
