r"""What the Taylor polynomial of first order leaves of :math:`F=\mathbb E[X_+^2\mid y]`, near and far.

X is Gaussian of mean m and variance s given a random input y. With :math:`\tau=m-m_0`, :math:`\delta=s-s_0`, P the
normal distribution function, f its density and :math:`u=m/\sqrt{s_0}` let

.. math:: q=F(m,s)-F(m_0,s_0)-F_m\tau-F_s\delta,\qquad\text{derivatives at }(m_0,s_0),\quad F_s=P(u_0).

*Near*, for :math:`|\tau|\le t` and any s >= 0, :math:`|q|\le A\tau^2+B|\tau\delta|+K\delta^2`: first m moves at s_0,
where :math:`F_{mm}=2P(u)` and :math:`F_{ms}=f(u)s_0^{-1/2}`, so A and B are the largest P and :math:`fs_0^{-1/2}` for
these m; then s. With :math:`v=m/\sqrt s`, :math:`F_{ss}=-\tfrac12v^3f(v)m^{-2}` at any s, so
:math:`K\le\tfrac14\sup|v^3f(v)|\,m^{-2}`: far from the kink s does little, however small or large it is. Always
:math:`K\le` ``SECOND_CURVATURE`` :math:`/s_0` (docs/theory.md, section 4.3), and as :math:`0\le F_s\le1` the last
term is at most :math:`|\delta|`.

*Far*, for any m and s, :math:`|q|\le\tau^2+|\delta|`, as :math:`0\le F_{mm}\le2`.

In :math:`L^q` over y the near part costs :math:`A\lVert\tau\rVert_{2q}^2+B\lVert\tau\rVert_{2q}\lVert
\delta\rVert_{2q}+K\lVert\delta\rVert_{2q}^2`, the far one its bound times the indicator of :math:`|\tau|>t`:
:math:`\mathbb E|\tau|^k1_{|\tau|>t}\le\mathbb E|\tau|^pt^{k-p}` for p >= k (Markov), and :math:`\lVert
\delta1_{|\tau|>t}\rVert_q\le\lVert\delta\rVert_{2q}P(|\tau|>t)^{1/2q}` (Cauchy and Schwarz). Any t holds; a few are
tried for each neuron.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.engine.moments.pre_activation import PreActivation
from bnndp.maths.normal import cdf, pdf
from bnndp.maths.rectified import ratio
from bnndp.maths.rounding import TINY, UP
from bnndp.maths.tails import SECOND_CURVATURE

__all__ = ["HingeSquare", "hinge_square"]

_SHARES = (0.3, 0.5, 0.7, 0.9)  # t over |m_0|
_ROOTS = (0.2, 0.5, 1.0)  # t over the root of s_0
_LOST = 1e-12  # granted to functions of u
_FAR = 0.11567  # sup |v^3 f(v)| / 4, rounded up


@dataclass(frozen=True, slots=True)
class HingeSquare:
    """The slope of F in s at the middle, and norms of the remainder in L2, L4 and L8 over y: (batch, n), at most."""

    slope: Tensor
    remainders: tuple[Tensor, Tensor, Tensor]


def hinge_square(x: PreActivation) -> HingeSquare:
    """At the middle of the ranges of M and S; of a positive part with its kink at zero."""
    m = (0.5 * x.mean.lower + 0.5 * x.mean.upper).clamp(x.mean.lower, x.mean.upper)
    s = (0.5 * (x.spread.lower + x.spread.upper)).clamp(x.spread.lower, x.spread.upper)
    half, wide = (0.5 * (end.upper - end.lower) * UP for end in (x.mean, x.spread))
    root = s.sqrt().clamp_min(TINY)
    u = ratio(m, root)
    # All that follows in units of the root of s_0; with an axis of choices of t before.
    tau = [(half + norm) / root for norm in (x.mean_variance.sqrt(), *x.norms.unbind(-1))]  # of order 2, 4, 8, 16
    delta = [(wide + norm) / root / root for norm in (x.spread_deviation, *x.spread_deltas.unbind(-1))]  # 2, 4, 8
    reach = torch.stack([*(share * u.abs() for share in _SHARES), *(torch.full_like(u, by) for by in _ROOTS)])
    reach = reach.clamp_min(1e-3)
    left, right = (u - reach) - _LOST * (1 + u.abs()), (u + reach) + _LOST * (1 + u.abs())
    away = torch.maximum(left, -right).clamp_min(1e-6)  # |u| is at least this
    density, slope = pdf(torch.zeros_like(left).clamp(left, right)) + _LOST, cdf(right) + _LOST
    bent = (_FAR / away.square()).clamp_max(SECOND_CURVATURE)
    chance = torch.stack([(norm / reach).clamp_max(1.0) ** 2 ** (j + 1) for j, norm in enumerate(tau)]).amin(0)
    found = []
    for i, own in enumerate(delta):
        order, more = 2 ** (i + 1), delta[i + 1] if i + 1 < len(delta) else None
        mixed, moved, late = reach * own, own, own  # of tau delta, of the last term, and of delta where tau is far
        if more is not None:
            mixed, moved = torch.minimum(mixed, tau[i + 1] * more), torch.minimum(own, bent * more.square())
            late = torch.minimum(own, more * chance ** (0.5 / order))
        far = [
            norm.square() * (norm / reach) ** (2 ** (j + 1) / order - 2)
            for j, norm in enumerate(tau)
            if 2 ** (j + 1) >= 2 * order
        ]
        remainder = slope * tau[i + 1].square() + density * mixed + moved + torch.stack(far).amin(0) + late
        found.append(remainder.nan_to_num(torch.inf, posinf=torch.inf).amin(0) * root.square() * UP)
    return HingeSquare((cdf(u) + _LOST) * UP, (found[0], found[1], found[2]))
