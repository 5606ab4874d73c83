r"""Even moments of :math:`z=\varphi(X)`, X Gaussian given a random input y, for a hinge with its kink at zero.

:math:`\varphi(x)=bx_+-ax_-`, and p is even. With :math:`F_j=\mathbb E[|b|^pX_+^j+|a|^pX_-^j\mid y]`, a function of the
mean m and the variance s of X given y, :math:`\mathbb E[z^p\mid y]=F_p`, :math:`|\partial_mF_j|\le jF_{j-1}` and
:math:`\partial_sF_j=\tfrac12j(j-1)F_{j-2}` for j >= 2. So with :math:`\tau=m-m_0`, :math:`\delta=s-s_0`,

.. math:: F_p(m,s)\le\sum_{j+2k\le p}\frac{p!}{2^kj!\,k!\,(p-j-2k)!}F_{p-j-2k}(m_0,s_0)|\tau|^j|\delta|^k,

where :math:`F_0` is replaced by :math:`\max(|a|,|b|)^p`, its largest value. Proof: at s_0 this is Taylor in m; then
:math:`F_p(m,s)=F_p(m,s_0)+\tfrac12p(p-1)\int_{s_0}^sF_{p-2}(m,t)dt`, and induction over even p. Norms over y of the
products: :math:`\lVert\tau^j\delta^k\rVert_a\le\lVert\tau\rVert_{aq}^j\lVert\delta\rVert_{aq/2}^k` with q = j + 2k
(Hoelder). In the mean the linear terms cost no more than :math:`|\mathbb E\tau|` and :math:`|\mathbb E\delta|`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from bnndp.activations.activation import Activation
from bnndp.engine.moments.pre_activation import PreActivation
from bnndp.engine.moments.signal import CENTRED, POWERS
from bnndp.maths.hinge import positive_moments
from bnndp.maths.rounding import SMALL, UP

__all__ = ["Powers", "hinge_slopes", "powers"]

_LOST = 1e-300  # sums of scaled terms that underflow


@dataclass(frozen=True, slots=True)
class Powers:
    """Upper bounds, (batch, n) each."""

    fourth: Tensor  # E z^4
    fourth_norms: Tensor  # (batch, n, 2): norms in L2 and L4 of E[z^4 | y]
    norms: Tensor  # (batch, n, 2): ||z||_q for q = 8, 16
    positive: bool  # whether z is never negative

    @property
    def centred_norms(self) -> Tensor:
        """||z - E[z | y]||_q for q = 8, 16: no larger than those of z if it is not negative."""
        return self.norms if self.positive else self.norms * self.norms.new_tensor(CENTRED[1:])


def powers(phi: Activation, x: PreActivation) -> Powers | None:
    """None unless the activation is a hinge with its kink at zero."""
    slopes = hinge_slopes(phi)
    if slopes is None:
        return None
    middle = (0.5 * x.mean.lower + 0.5 * x.mean.upper).clamp(x.mean.lower, x.mean.upper)
    s0 = (0.5 * (x.spread.lower + x.spread.upper)).clamp(x.spread.lower, x.spread.upper)
    half, wide = (0.5 * (end.upper - end.lower) * UP for end in (x.mean, x.spread))
    sd_m, sd_s = x.mean_variance.sqrt(), x.spread_deviation
    unit = torch.stack([middle.abs(), s0.sqrt(), half + sd_m, (wide + sd_s).sqrt()]).amax(0).clamp_min(SMALL)
    square = unit.square()
    tau = [(half + norm) / unit for norm in (sd_m, *x.norms.unbind(-1))]  # ||tau||_q, q = 2, 4, 8, 16
    delta = [(wide + norm) / square for norm in (sd_s, *x.spread_deltas.unbind(-1))]  # ||delta||_q, q = 2, 4, 8
    sides = [positive_moments(POWERS[-1], sign * middle / unit, s0.sqrt() / unit) for sign in (-1, 1)]
    at = _Taylor(slopes, sides, tau, delta)
    fourth = at.norm(4, 1, (half / unit, wide / square))
    given = [at.norm(4, a) for a in (2, 4)]
    roots = [(at.norm(q, 1, (half / unit, wide / square)) + _LOST) ** (1 / q) * unit for q in POWERS[1:]]
    return Powers(
        (fourth + _LOST) * square.square() * UP,
        torch.stack([(value + _LOST) * square.square() for value in given], -1) * UP,
        torch.stack(roots, -1) * UP,
        slopes[0] <= 0 <= slopes[1],
    )


def hinge_slopes(phi: Activation) -> tuple[float, float] | None:
    """The slopes on the left and on the right of zero of a hinge with its kink there; else None."""
    shape = phi.shape
    if len(shape.kinks) != 1 or shape.kinks[0][0] != 0 or not shape.slope_known:
        return None
    if float(phi(torch.zeros((), dtype=torch.float64))) != 0:
        return None
    low, high = shape.slopes
    return (low, high) if shape.kinks[0][1] > 0 else (high, low)


@dataclass(frozen=True, slots=True)
class _Taylor:
    """The polynomial of the module, from norms of tau and delta; all scaled, (batch, n)."""

    slopes: tuple[float, float]
    sides: list[list[Tensor]]  # E X_-^j and E X_+^j, j = 0, 1, ...
    tau: list[Tensor]
    delta: list[Tensor]

    def norm(self, p: int, a: int, mean: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Norm in La of E[z^p | y], at most; ``mean`` are the sizes of E tau and E delta, for a = 1."""
        left, right = (abs(slope) ** p for slope in self.slopes)
        moments = [left * low + right * high for low, high in zip(*self.sides, strict=True)]
        moments[0] = torch.full_like(moments[0], max(left, right))
        total = moments[p]
        for q in range(1, p + 1):
            tau, delta = _norm(self.tau, a * q), _norm(self.delta, a * q / 2)
            inner = torch.zeros_like(total)
            for k in range(q // 2 + 1):
                j = q - 2 * k
                product = tau**j * delta**k
                if mean is not None and j + k == 1:
                    product = mean[k]
                inner = inner + product / (2**k * math.factorial(j) * math.factorial(k))
            total = total + math.factorial(p) / math.factorial(p - q) * moments[p - q] * inner
        return total


def _norm(norms: list[Tensor], order: float) -> Tensor:
    """The norm of this order from those of orders 2, 4, 8, ...: the logarithm of a moment is convex in its order."""
    low = 2
    for small, large in pairwise(norms):
        if order <= low:
            return small
        if order < 2 * low:
            share = 2 * (order - low) / order  # of the larger norm
            return small ** (1 - share) * large**share
        low *= 2
    return norms[-1]
