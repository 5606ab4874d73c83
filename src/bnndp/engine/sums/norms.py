r"""Norms of sums of independent centred terms, from those of the terms.

:math:`\mathbb E(\sum X_k)^q` is a sum over the partitions of q factors without single ones, each at most a product of
:math:`M_p=\sum_k\mathbb E|X_k|^p`: together q! times the coefficient of :math:`t^q` in
:math:`\exp\sum_{p\ge2}M_pt^p/p!`. If the terms are independent given a history Y, the M_p are random, and by Hoelder
the mean of a product of such whose orders add up to q is at most the product of the
:math:`\lVert M_p\rVert_{q/p}\le\sum_k\lVert X_k\rVert_q^p`; of the first, M_2, at most the sum of the squares of the
norms of the standard deviations given Y.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from bnndp.engine.moments.signal import POWERS
from bnndp.engine.rows import Rows
from bnndp.maths.hinge import root_of
from bnndp.maths.rounding import TINY, UP

__all__ = ["independent_norms", "norm_of_moments", "norms_of_moments"]

_LEAST = 1e-18  # of the norms, relative to the largest: sixteenth powers of those do not underflow


def independent_norms(rows: Rows, norms: Tensor, deviations: Tensor) -> Tensor:  # (batch, n, k) -> (batch, rows, k)
    """Of ``rows . X``, X independent given Y, from the norms of its coordinates and of their deviations given Y."""
    found, square = [], rows.square()
    powers = [square]
    for _ in POWERS:
        powers.append(powers[-1].square())
    for k, q in enumerate(POWERS[: norms.shape[-1]]):
        root = square.dot(deviations[..., k].square()).sqrt()
        scaled = (norms[..., k] / norms[..., k].amax(-1, keepdim=True).clamp_min(TINY)).clamp_min(_LEAST)
        moments = {2: torch.ones_like(root)}
        for p, power in zip((4, 8, 16), powers[1:], strict=False):
            if p <= q:
                moments[p] = power.dot(scaled**p)
        ratio = norms[..., k].amax(-1, keepdim=True) / root.clamp_min(TINY)
        moments = {p: value if p == 2 else value * ratio**p for p, value in moments.items()}
        found.append(root * norm_of_moments(_between(moments, q), q))
    return torch.stack(found, -1).nan_to_num(torch.inf) * UP  # a row of zeros: 0 times infinity


def _between(moments: dict[int, Tensor], q: int) -> dict[int, Tensor]:
    """All M_p from those of powers of two: their logarithms are convex in p."""
    found = dict(moments)
    for low in (2, 4, 8):
        high = 2 * low
        for p in range(low + 1, min(high, q)):
            share = (p - low) / low
            found[p] = moments[low] ** (1 - share) * moments[high] ** share
    return found


def norm_of_moments(moments: dict[int, Tensor], q: int) -> Tensor:
    """The norm in Lq of a sum of variance one, at most, from its M_p for p = 2, ..., q."""
    return norms_of_moments(moments, (q,))[0]


def norms_of_moments(moments: dict[int, Tensor], orders: Sequence[int]) -> list[Tensor]:
    """The same for several q at once, in increasing order."""
    factors = {k: moments[k] / math.factorial(k - 1) for k in range(2, orders[-1] + 1)}
    series: dict[int, Tensor] = {}  # without those of order zero and one, which are one and zero
    for n in range(2, orders[-1] + 1):
        total = factors[n].clone()
        for k in range(2, n - 1):
            total.addcmul_(factors[k], series[n - k])
        series[n] = total / n
    return [root_of(math.factorial(q) * series[q], q) for q in orders]
