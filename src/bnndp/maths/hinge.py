r"""Raw moments of piecewise linear functions of a standard Gaussian with one or two kinks, without loss in the tails.

With :math:`P=(\xi-t)_+`, :math:`t\ge0`, and :math:`\lambda_j=\mathbb EP^j` (``rectified``), :math:`\xi=P+t` where
:math:`P>0`, so that

.. math:: \mathbb E(a\xi+bP)^k=a^k\,\mathbb E\xi^k
          +\sum_{j=1}^k\binom kja^{k-j}b^j\sum_{l=0}^{k-j}\binom{k-j}lt^l\lambda_{k-l} .

All powers of t meet the factor :math:`e^{-t^2/2}` of the tails: nothing large is subtracted.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bnndp.maths.rectified import standard_raw

_GAUSSIAN = (0.0, 1.0, 0.0, 3.0)  # E xi^k, k = 1 to 4


def hinge_raw(a: Tensor, b: float, t: Tensor) -> tuple[Tensor, ...]:  # (...), number, (...)
    """E (a xi + b (xi - t)_+)^k for k = 1 to 4 and t >= 0; within ``ELEMENTARY (|a| + |b|)^k``."""
    low = _low(t)
    found = []
    for k in range(1, 5):
        total = _GAUSSIAN[k - 1] * a**k
        for j in range(1, k + 1):
            inner = sum(math.comb(k - j, i) * t**i * low[k - i - 1] for i in range(k - j + 1))
            total = total + math.comb(k, j) * b**j * a ** (k - j) * inner
        found.append(total)
    return tuple(found)


def clipped_raw(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # (...) each
    r"""E (Y - y)^k for k = 1 to 4, :math:`Y=\min(\max(\xi,\ell),u)` and y the point of [lower, upper] nearest to 0.

    For :math:`\ell>0` it is :math:`\min(P,w)` with :math:`w=u-\ell`, P at t = lower; otherwise
    :math:`\max(\xi,\ell)` cut at u. Both lose above u what :math:`(c+P_u)^k-c^k` is worth there, c = w or u:
    :math:`\sum_{j\ge1}\binom kjc^{k-j}\lambda_j(u)`. For u < 0 the law is reflected. Within 4 ``ELEMENTARY``.
    """
    flip = upper < 0
    a, b = torch.where(flip, -upper, lower), torch.where(flip, -lower, upper)  # b >= 0
    raw = standard_raw(a.abs(), a <= 0)
    cut, low = torch.where(a > 0, b - a, b), _low(b)
    found = []
    for k in range(1, 5):
        lost = sum(math.comb(k, j) * cut ** (k - j) * low[j - 1] for j in range(1, k + 1))
        value = raw[k - 1] - lost
        found.append(torch.where(flip, -value, value) if k % 2 else value)
    return found[0], found[1], found[2], found[3]


def _low(t: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """E (xi - t)_+^j for j = 1 to 4."""
    return standard_raw(t, torch.zeros_like(t, dtype=torch.bool))
