r"""What the Taylor polynomial of first order leaves of :math:`\mathbb EX_+` and :math:`\mathbb EX_+^2`, near and far.

X is Gaussian of mean m and variance s given a random input y. Let W(m, s) be one of the two means given y,
:math:`\tau=m-m_0`, :math:`\delta=s-s_0`, P the normal distribution function, f its density, and

.. math:: q=W(m,s)-W(m_0,s_0)-W_m\tau-W_s\delta,\qquad\text{derivatives at }(m_0,s_0).

*Near*, for :math:`|\tau|\le t` and any s >= 0, :math:`|q|\le\tfrac12A\tau^2+B|\tau\delta|+K\delta^2`, A and B the
largest sizes of :math:`W_{mm}` and :math:`W_{ms}` at s_0 for these m, and K as follows: first m moves at s_0, then s.
With :math:`u=m/\sqrt{s_0}` and :math:`v=m/\sqrt s`

===================  ==============================  ===================  ======================================
W                    :math:`W_{mm}`                  :math:`W_{ms}`       :math:`W_{ss}`, at any s
===================  ==============================  ===================  ======================================
:math:`EX_+`         :math:`f(u)/\sqrt{s_0}`         :math:`-uf(u)/2s_0`  :math:`\tfrac14(v^2-1)v^3f(v)m^{-3}`
:math:`EX_+^2`       :math:`2P(u)`                   :math:`f(u)/\sqrt{s_0}`  :math:`-\tfrac12v^3f(v)m^{-2}`
===================  ==============================  ===================  ======================================

so :math:`K\le\tfrac18\sup|v^3(v^2-1)f(v)|\,|m|^{-3}` and :math:`\tfrac14\sup|v^3f(v)|\,m^{-2}`: far from the kink s
does little, however small or large it is. Always :math:`K\le` ``MEAN_BELOW`` :math:`s_0^{-3/2}` and
``SECOND_CURVATURE`` :math:`s_0^{-1}` (docs/theory.md, section 4.3). And the last term is at most :math:`\Lambda|\delta|`
with :math:`\Lambda=\min(f(0)s_0^{-1/2},\tfrac12f(1)/|m|)`, or one for the second: :math:`W(m,s)-W(m,s_0)` and
:math:`W_s\delta` have one sign, :math:`W_s=\tfrac12f(v)/\sqrt s` is at most :math:`\tfrac12f(1)/|m|`, and
:math:`|\sqrt s-\sqrt{s_0}|\le|\delta|s_0^{-1/2}`.

*Far*, for any m: W is convex in m with a slope in [0, 1], or a second derivative in [0, 2], so :math:`|q|\le
\max(P,1-P)|\tau|+f(0)s_0^{-1/2}|\delta|` for the first and :math:`\tau^2+|\delta|` for the second.

In :math:`L^q` over y the near part costs :math:`\tfrac12A\lVert\tau\rVert_{2q}^2+B\lVert\tau\rVert_{2q}\lVert
\delta\rVert_{2q}+K\lVert\delta\rVert_{2q}^2`, the far one its bound times the indicator of :math:`|\tau|>t`:
:math:`\mathbb E|\tau|^k1_{|\tau|>t}\le\mathbb E|\tau|^pt^{k-p}` for p >= k (Markov), and :math:`\lVert
\delta1_{|\tau|>t}\rVert_q\le\lVert\delta\rVert_{2q}P(|\tau|>t)^{1/2q}` (Cauchy and Schwarz). Any t holds; a few are
tried for each neuron.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bnndp.engine.general.signal import Pre
from bnndp.maths.normal import cdf, pdf
from bnndp.maths.rectified import ratio
from bnndp.maths.rounding import TINY, UP
from bnndp.maths.tails import MEAN_BELOW, SECOND_CURVATURE

__all__ = ["HingeTaylor", "hinge_taylor"]

_SHARES = (0.3, 0.5, 0.7, 0.9)  # t over |m_0|
_ROOTS = (0.2, 0.5, 1.0)  # t over the root of s_0
_LOST = 1e-12  # granted to functions of u
_PEAK, _HALF_AT_ONE = 0.39895, 0.12099  # f(0) and f(1) / 2, rounded up
_MEAN_FAR, _SQUARE_FAR = 0.18507, 0.11567  # sup |v^3 (v^2 - 1) f(v)| / 8 and sup |v^3 f(v)| / 4, rounded up


@dataclass(frozen=True, slots=True)
class HingeTaylor:
    """Slopes in s at the middle, and norms of the remainders in L2, L4 and L8 over y; upper bounds."""

    mean_slope: Tensor  # (batch, n)
    mean: tuple[Tensor, Tensor, Tensor]  # of E X_+: (batch, n) each
    square_slope: Tensor  # (batch, n)
    square: tuple[Tensor, Tensor, Tensor]  # of E X_+^2: (batch, n) each


def hinge_taylor(x: Pre) -> HingeTaylor:
    """At the middle of the ranges of M and S; of a positive part with its kink at zero."""
    m = (0.5 * x.mean.lower + 0.5 * x.mean.upper).clamp(x.mean.lower, x.mean.upper)
    s = (0.5 * (x.spread.lower + x.spread.upper)).clamp(x.spread.lower, x.spread.upper)
    half, wide = (0.5 * (end.upper - end.lower) * UP for end in (x.mean, x.spread))
    root = s.sqrt().clamp_min(TINY)
    u = ratio(m, root)
    # All that follows in units of the root of s_0; with an axis of choices of t before.
    tau = [(half + norm) / root for norm in (x.mean_variance.sqrt(), *x.norms.unbind(-1))]  # of order 2, 4, 8, 16
    delta = [(wide + norm) / root / root for norm in (x.spread_deviation, *x.spread_deltas.unbind(-1))]  # 2, 4, 8
    if x.spread_delta16 is not None:
        delta.append((wide + x.spread_delta16) / root / root)
    reach = torch.stack([*(share * u.abs() for share in _SHARES), *(torch.full_like(u, by) for by in _ROOTS)])
    far = _Far(tau, delta, reach.clamp_min(1e-3))
    left, right = (u - far.reach) - _LOST * (1 + u.abs()), (u + far.reach) + _LOST * (1 + u.abs())
    away = torch.maximum(left, -right).clamp_min(1e-6)  # |u| is at least this
    density, bent = _largest(left, right, ()), _largest(left, right, (-1.0, 1.0))
    slope, steep = cdf(right) + _LOST, torch.maximum(cdf(u), cdf(-u)) + _LOST
    in_s = (
        ((_MEAN_FAR / away**3).clamp_max(MEAN_BELOW), (_HALF_AT_ONE / away).clamp_max(_PEAK)),
        ((_SQUARE_FAR / away**2).clamp_max(SECOND_CURVATURE), torch.ones_like(away)),
    )
    mean, square = [], []
    for i in range(3):  # orders 2, 4, 8
        two, mixed, more = far.near(i)
        moved = [torch.minimum(k * more, linear * delta[i]) for k, linear in in_s]
        rest = 0.5 * density * two + 0.5 * bent * mixed + moved[0]
        beyond = [far.delta(i)] + ([far.delta(i, 2)] if i + 1 < len(delta) else [])
        late = torch.minimum(_PEAK * beyond[0], MEAN_BELOW * beyond[-1]) if len(beyond) > 1 else _PEAK * beyond[0]
        mean.append(_least(rest + steep * far.tau(i, 1) + late) * root * UP)
        rest = slope * two + density * mixed + moved[1]
        square.append(_least(rest + far.tau(i, 2) + far.delta(i)) * root.square() * UP)
    return HingeTaylor(
        0.5 * (pdf(u) + _LOST) / root * UP,
        (mean[0], mean[1], mean[2]),
        (cdf(u) + _LOST) * UP,
        (square[0], square[1], square[2]),
    )


@dataclass(frozen=True)
class _Far:
    """Norms of tau and delta of the orders 2, 4, 8 and 16, and choices of t: (choices, batch, n)."""

    taus: list[Tensor]
    deltas: list[Tensor]
    reach: Tensor

    def near(self, i: int) -> tuple[Tensor, Tensor, Tensor]:
        """Norms of the order 2^(i + 1) of tau^2, tau delta and delta^2 where |tau| <= t."""
        two, mixed = self.taus[i + 1].square(), self.reach * self.deltas[i]
        if i + 1 == len(self.deltas):
            return two, mixed, torch.full_like(two, torch.inf)
        return two, torch.minimum(mixed, self.taus[i + 1] * self.deltas[i + 1]), self.deltas[i + 1].square()

    def tau(self, i: int, power: int) -> Tensor:
        """Of a power of |tau| where |tau| > t."""
        order = 2 ** (i + 1)
        found = [
            norm**power * (norm / self.reach) ** (2 ** (j + 1) / order - power)
            for j, norm in enumerate(self.taus)
            if 2 ** (j + 1) >= power * order
        ]
        return torch.stack(found).amin(0)

    def delta(self, i: int, power: int = 1) -> Tensor:
        """Of a power of delta where |tau| > t: its norm in Lp and the chance to the power 1 / q - power / p."""
        order = 2 ** (i + 1)
        found = [
            norm**power * self.chance ** (1 / order - power / 2 ** (j + 1))
            for j, norm in enumerate(self.deltas)
            if 2 ** (j + 1) >= power * order
        ]
        return torch.stack([part.expand_as(self.reach) for part in found]).amin(0)

    @cached_property
    def chance(self) -> Tensor:
        """P(|tau| > t), at most."""
        found = [(norm / self.reach).clamp_max(1.0) ** 2 ** (j + 1) for j, norm in enumerate(self.taus)]
        return torch.stack(found).amin(0)


def _largest(left: Tensor, right: Tensor, turns: tuple[float, ...]) -> Tensor:
    """The largest density between the ends, or times |u| with its extrema at the turns."""
    if not turns:
        return pdf(torch.zeros_like(left).clamp(left, right)) + _LOST
    points = [left, right, *(torch.full_like(left, at).clamp(left, right) for at in turns)]
    return torch.stack([at.abs() * pdf(at) for at in points]).amax(0) + _LOST


def _least(found: Tensor) -> Tensor:  # (choices, batch, n) -> (batch, n)
    """The best choice; what is no number says nothing."""
    return found.nan_to_num(torch.inf).amin(0)
