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

from bnndp.maths.normal import bell, cdf, pdf
from bnndp.maths.rectified import first_two, ratio, standard_raw
from bnndp.maths.rounding import power_of

_SQRT1_2 = math.sqrt(0.5)
_AHEAD = 6  # steps of the recursion before the first ratio that counts
_SLACK = 1 + 1e-12  # for rounding
_GAUSSIAN = (0.0, 1.0, 0.0, 3.0)  # E xi^k, k = 1 to 4


def hinge_raw(a: Tensor, b: float, t: Tensor, count: int = 4) -> tuple[Tensor, ...]:  # (...), number, (...)
    """E (a xi + b (xi - t)_+)^k for k = 1 to ``count`` <= 4 and t >= 0; within ``ELEMENTARY (|a| + |b|)^k``."""
    low = _low(t) if count > 2 else first_two(t, torch.zeros_like(t, dtype=torch.bool))
    found = []
    for k in range(1, count + 1):
        total = _GAUSSIAN[k - 1] * power_of(a, k) if _GAUSSIAN[k - 1] else torch.zeros_like(a)
        for j in range(1, k + 1):
            inner = low[k - 1]
            for i in range(1, k - j + 1):
                inner = inner + math.comb(k - j, i) * (power_of(t, i) * low[k - i - 1])
            total = total + math.comb(k, j) * b**j * (inner if j == k else power_of(a, k - j) * inner)
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


def tail_norms(orders: tuple[int, ...], t: Tensor) -> tuple[Tensor, list[Tensor]]:
    r"""The mean of :math:`P=(\xi-t)_+`, :math:`t\ge0`, and its norms of these orders q: all at most.

    The moments are products of :math:`\mathbb P(P>0)` and ratios. Of its factor :math:`e^{-t^2/2}` the root is taken
    first: it underflows where the root is far from zero.
    """
    ratios, square = _tail_ratios(max(orders), t), t * t
    moment = 0.5 * torch.special.erfcx(_SQRT1_2 * t)  # over exp(-t^2 / 2)
    mean, norms = moment * ratios[0] * bell(t) * _SLACK, []
    for n, high in enumerate(ratios, 1):
        moment = moment * high
        if n in orders:
            norms.append(root_of(moment, n) * torch.exp(-0.5 / n * square) * _SLACK)
    return mean, norms


def root_of(x: Tensor, n: int) -> Tensor:
    """``x ** (1 / n)``: by square roots where n is a power of two."""
    if n & (n - 1):
        return x ** (1 / n)
    for _ in range(n.bit_length() - 1):
        x = x.sqrt()
    return x


def positive_moments(count: int, m: Tensor, r: Tensor) -> list[Tensor]:
    r"""At most :math:`\mathbb E(m+r\xi)_+^j` for j = 0 to ``count``; all digits.

    For m >= 0 by :math:`\mathbb EX_+^{j+1}=m\,\mathbb EX_+^j+jr^2\,\mathbb EX_+^{j-1}`, a sum of positive terms.
    """
    u = ratio(m, r)
    t, high = u.clamp_max(0).abs(), m.clamp_min(0)
    tail = 0.5 * torch.special.erfcx(_SQRT1_2 * t) * bell(t)
    probability = cdf(u.clamp_min(0))
    below, above = [tail], [probability, high * probability + r * pdf(u.clamp_min(0))]
    for j, factor in enumerate(_tail_ratios(count, t), 1):
        below.append(below[-1] * factor * r)
        above.append(high * above[j] + j * r * r * above[j - 1])
    return [torch.where(m < 0, *both) * _SLACK for both in zip(below, above, strict=False)]


def _tail_ratios(count: int, t: Tensor) -> list[Tensor]:
    r"""At most :math:`\rho_n=\mathbb EP^n/\mathbb EP^{n-1}` for n = 1 to ``count``, :math:`P=(\xi-t)_+`, :math:`t\ge0`.

    They obey :math:`\rho_n(\rho_{n+1}+t)=n` (by parts) and increase with n (log-convexity of moments), so
    :math:`\rho_n\le2n/(t+\sqrt{t^2+4n})`. From there the recursion downward turns upper into lower bounds and back,
    and loses no digits.
    """
    last, square, found = count + _AHEAD, t * t, []
    high = 2 * last / (t + (square + 4 * last).sqrt())
    low = torch.zeros_like(t)
    for n in range(last - 1, 0, -1):
        low, high = n / (high + t), n / (low + t).clamp_min(0.5 * (t + (square + 4 * n).sqrt()))
        found.append(high)
    return found[: -count - 1 : -1]
