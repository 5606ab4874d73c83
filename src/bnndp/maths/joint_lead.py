r"""Lower bounds of the lead :math:`\mathbb E(p_c-p_k)` from two moments of every margin, for margins of any variance.

With :math:`D=D_k`, :math:`f(D)=\tanh\tfrac{D_+}2` and the other classes i,

.. math:: p_c-p_k=\tanh\tfrac D2\,q,\qquad q=\frac1{1+\sum_ir_i},\qquad r_i=\frac{e^{-D_i}}{1+e^{-D}}.

It is at least :math:`\hat h=f(D)q-f(-D)`, as :math:`q\le1`. For D > 0 this is :math:`(1-e^{-D})/(1+e^{-D}+
\sum_ie^{-D_i})`, for D < 0 it is :math:`\tanh\tfrac D2`, so it rises in D and in every :math:`D_i`. Hence margins of
larger means may be moved down: let their means be the least ones, M of D and :math:`M_i` of :math:`D_i`.

*One variable for each class.* :math:`-\log(1+e^{-D})` is concave, so it lies below its tangent at any
:math:`D_0\ge0`, and :math:`r_i\le e^{-C_i}`, :math:`C_i=D_i-\kappa(D-D_0)+\log(1+e^{-D_0})`,
:math:`\kappa=\sigma(-D_0)\le\tfrac12`. As :math:`C_i` is :math:`(1-2\kappa)D_i+2\kappa B_i` up to a constant,
:math:`B_i=D_i-\tfrac12D`, its standard deviation is at most the same mean of theirs (Minkowski).

*One term for each class.* Let :math:`t_i=e^{-\mathbb EC_i}`, t their sum and :math:`q_0=1/(1+t)`. The function
:math:`\tau/(1+\tau)` increases and is concave, so its increments from t on are subadditive, and

.. math:: q\ge q_0-\sum_ik_i(C_i),\qquad k_i(C)=\frac1{1+t}-\frac1{1+t+(e^{-C}-t_i)_+}.

*Multipliers.* For any numbers :math:`b_i`, :math:`A_i>0` and the centred :math:`\gamma_i` of :math:`C_i`, the mean of
:math:`b_i\gamma_i-\tfrac12A_i\gamma_i^2` is :math:`-\tfrac12A_i\operatorname{Var}C_i`. So

.. math:: \mathbb E\hat h\ge\mathbb E\Omega(D)-\tfrac12\sum_iA_i\operatorname{Var}C_i,\quad
          \Omega=q_0f(D)-f(-D)-\sum_i\Psi_i(f(D)),\quad
          \Psi_i(f)=\sup_\gamma\,(b_i\gamma-\tfrac12A_i\gamma^2+fk_i),

and in the same way :math:`\mathbb E\Omega(D)\ge\inf_y(\Omega(M+y)-by+\tfrac12Ay^2)-\tfrac12A\operatorname{Var}D`. All
choices of b, A, :math:`b_i` and :math:`A_i` hold; they are climbed by Adam. At the best b and A the last step is sharp
(duality).

*Suprema and infima* are over the whole line. A supremum of functions that are linear in f, :math:`\Psi_i` is convex in
f, so it lies below its chords between some f. On a cell of width w a function whose second derivative is at least -c
exceeds the larger of its ends by at most :math:`cw^2/8`; likewise from below. For the supremum
:math:`c=A_i+f\rho_i\sup|\sigma''|`, as :math:`k_i` is a constant less :math:`\rho_i\sigma(C+\log(1/\rho_i))`,
:math:`\rho_i=1/(1+t-t_i)`, up to a kink that is convex. For the infimum :math:`c=A+\sup|\tanh''(\cdot/2)|\max(1,
\text{largest slope of a chord}-q_0)`: kinks of :math:`\Omega` are concave, and for D > 0 only a negative factor of the
concave :math:`\tanh\tfrac D2` bends up. Beyond the last nodes :math:`0\le k_i\le q_0` falls in C, :math:`\Omega` is
at least :math:`-1-\sum\Psi_i(0)` on the left, if D < 0 there, and :math:`q_0f(\text{last node})-\sum\Psi_i(1)` on the
right.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.maths.logistic import logistic_tail
from bnndp.maths.rounding import ELEMENTARY, TINY, UNIT, gamma

__all__ = ["joint_leads"]

_SHARES = (0.0, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9, 1.0)  # the values of f between which Psi has chords
_BEND = 0.1924501  # sup |tanh''(. / 2)|, and twice sup |sigma''|
_LEAST, _MOST = 1e-6, 1e12  # smaller deviations are taken as the first, of larger variances nothing is known
_FARTHEST = 300.0  # margins further off are taken as this
_NODES, _CELLS = 97, 56  # of D and of each C
_REACH = 10.0  # of D on each side of its mean, and of C below zero
_TOUCH = 0.7  # how far D_0 is below M, in standard deviations
_NEAR = 16  # other classes that are weighed at most; the others are lost
_HELD = 2**22  # numbers that are held at a time on a CPU
_HEAT = 0.02  # of the laws for which multipliers are improved
_RATE, _DECAY, _STEPS = 0.06, 0.96, 25  # of the ascent
_HOPELESS = -0.25  # bounds of the first multipliers below which there is none
_ROUNDING = 256 * UNIT


def joint_leads(  # noqa: PLR0913 (what is known of the margins)
    mean: Tensor,  # (batch, classes): E D_i is at least this
    variance: Tensor,  # (batch, classes): Var D_i is at most this
    middles: Tensor,  # (batch, k, i): Var B_i of the pair c and k is at most this
    tails: Tensor,  # (batch, classes): E sigma(-D_i) is at most this
    reference: Tensor,  # (batch,): the class c
    known: Tensor,  # (batch, classes): other lower bounds of E (p_c - p_k)
    times: int = 1,  # as many pairs at a time as suit a CPU
) -> Tensor:
    """Lower bounds of E (p_c - p_k) for every k: (batch, classes), no worse than ``known``.

    Only where that is not positive, but might be: where the lead over k is positive if there were no other classes.
    """
    classes = torch.arange(mean.shape[1], device=mean.device)
    own = reference[:, None] == classes
    fine = mean.isfinite() & (variance >= 0) & (variance <= _MOST)  # false for NaN
    tails = torch.where(fine, torch.fmin(tails.nan_to_num(1.0), logistic_tail(mean, variance)), 1.0)
    asked = ~(known > 0) & ~own & fine & (mean >= 0) & (tails < 0.5)
    least = torch.where(fine, mean, torch.nan).clamp_max(_FARTHEST)
    at, rival = asked.nonzero().unbind(-1)
    count = min(_NEAR, mean.shape[1] - 2)
    found = known.clone()
    step = max(1, times * _HELD // (max(count, 1) * len(_SHARES) * _CELLS))
    for start in range(0, at.numel(), step):
        box, k = at[start : start + step], rival[start : start + step]
        weight = tails[box].masked_fill(own[box] | (classes == k[:, None]), 0.0)
        near = weight.topk(count).indices  # (pairs, near)
        m, v = least[box, k], variance[box, k].clamp_min(_LEAST**2)
        sd, middle = (t.gather(1, near).sqrt().clamp_min(_LEAST) for t in (variance[box], middles[box, k]))
        touch = (m - _TOUCH * v.sqrt()).clamp_min(0)
        tilt = torch.sigmoid(-touch)[:, None]
        others = least[box].gather(1, near) + tilt * (touch - m)[:, None] + torch.log1p(torch.exp(-touch))[:, None]
        spread = ((1 - 2 * tilt) * sd + 2 * tilt * middle).square() * (1 + _ROUNDING)
        lost = weight.scatter(1, near, 0.0).sum(-1) * (1 + gamma(mean.shape[1]))
        bound = _climbed(m, v, others, spread) - lost
        found[box, k] = torch.fmax(found[box, k], bound)
    return found


def _climbed(mean: Tensor, variance: Tensor, centre: Tensor, spread: Tensor) -> Tensor:
    """Lower bounds (pairs,) from M, Var D, E C and Var C, with better multipliers where the first are nearly enough."""
    found = _Dual.of(mean, variance, centre, spread).climbed(0)
    at = ((found > _HOPELESS) & (found <= 0)).nonzero()[:, 0]
    if at.numel():
        found[at] = _Dual.of(mean[at], variance[at], centre[at], spread[at]).climbed(_STEPS)
    return found


@dataclass(frozen=True, slots=True)
class _Multipliers:
    """b, A, b_i and A_i, all positive."""

    b: Tensor  # (pairs,)
    a: Tensor  # (pairs,)
    each_b: Tensor  # (pairs, classes)
    each_a: Tensor  # (pairs, classes)


@dataclass(frozen=True, slots=True)
class _Dual:
    """What the bound needs of the moments, as a function of the multipliers."""

    mean: Tensor  # M: (pairs,)
    variance: Tensor  # of D: (pairs,)
    centre: Tensor  # E C: (pairs, classes)
    spread: Tensor  # Var C: (pairs, classes)
    y: Tensor  # nodes of D - M: (1, nodes)
    away: Tensor  # nodes of C - E C <= 0: (pairs, classes, nodes)
    base: Tensor  # q_0: (pairs,)
    bend: Tensor  # of k, how far it is concave on the cells: (pairs, classes, cells)
    lost: Tensor  # k at the nodes: (pairs, classes, nodes)
    slope: Tensor  # -k' at the means: (pairs, classes)

    @classmethod
    def of(cls, mean: Tensor, variance: Tensor, centre: Tensor, spread: Tensor) -> _Dual:
        y = torch.sinh(torch.linspace(-1, 1, _NODES, dtype=mean.dtype, device=mean.device) * math.asinh(_REACH))
        each = torch.exp(-centre)
        total = each.sum(-1, keepdim=True)
        rest = total - each
        rho, shift = 1 / (1 + rest), torch.log1p(rest)
        width = (centre.clamp_min(0) + _REACH) / _CELLS
        away = -width[..., None] * torch.arange(_CELLS, -1, -1, device=mean.device)
        inside = (centre + shift)[..., None] + away
        lost = rho[..., None] * (torch.sigmoid(centre + shift)[..., None] - torch.sigmoid(inside))
        bend = torch.where(inside[..., :-1] < 0, 0.5 * _BEND * rho[..., None], 0.0)
        base = 1 / (1 + total[:, 0])
        lost = (lost + ELEMENTARY).clamp_min(0)
        slope = rho * torch.sigmoid(centre + shift) * torch.sigmoid(-centre - shift)
        return cls(mean, variance, centre, spread, y[None], away, base, bend, lost, slope)

    def climbed(self, steps: int) -> Tensor:
        """The best bound (pairs,) that so many steps find."""
        begin = self._begin()
        free = [torch.log(t.clamp_min(_LEAST)) for t in (begin.b, begin.a, begin.each_b, begin.each_a)]
        best, moments = torch.full_like(self.mean, -1.0), [(torch.zeros_like(t), torch.zeros_like(t)) for t in free]
        for step in range(1, steps + 2):
            at = _Multipliers(*(t.exp() for t in free))
            value, slopes = self.at(at)
            best = torch.fmax(best, value)
            rate = _RATE * _DECAY**step
            pairs = zip(free, moments, slopes, (at.b, at.a, at.each_b, at.each_a), strict=True)
            for t, (first, second), slope, scale in pairs:  # Adam (Kingma and Ba 2015)
                uphill = (slope * scale).nan_to_num(0.0)
                first.lerp_(uphill, 0.1)
                second.lerp_(uphill.square(), 0.001)
                size = (second / (1 - 0.999**step)).sqrt() + TINY
                t.add_(first / (1 - 0.9**step) / size, alpha=rate)
        return best

    def _begin(self) -> _Multipliers:
        """Of parabolas that touch k at the means, and about those that touch tanh."""
        above = self.lost - self.lost[..., -1:] + self.slope[..., None] * self.away
        each = (2 * above / self.away.square().clamp_min(0.1)).amax(-1).clamp_min(1e-4)
        b = 0.5 * self.base / torch.cosh(0.5 * self.mean).square()
        return _Multipliers(b, 0.2 / (1 + self.variance / 6), 0.4 * self.slope, each)

    def at(self, by: _Multipliers) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The bound (pairs,) and its slopes in the multipliers."""
        psi, first, second = self._losses(by)  # (pairs, classes, shares) each
        total = psi.sum(1) * (1 + _ROUNDING)
        y, share = self.y, self._shares
        d = self.mean[:, None] + y
        f, g = torch.tanh(0.5 * d.clamp_min(0)), torch.tanh(0.5 * (-d).clamp_min(0))
        upper = torch.bucketize(f, share, right=True).clamp(1, len(share) - 1)
        weight = (f - share[upper - 1]) / (share[upper] - share[upper - 1])
        omega = self.base[:, None] * f - g - torch.lerp(total.gather(1, upper - 1), total.gather(1, upper), weight)
        line, square = by.b[:, None] * y, 0.5 * by.a[:, None] * y.square()
        value = omega - line + square - _ROUNDING * (1 + total[:, -1:] + line.abs() + square)
        steepest = (total.diff() / share.diff()).amax(-1)
        bend = _BEND * (steepest - self.base).clamp_min(1.0) + by.a
        cells = torch.minimum(value[:, 1:], value[:, :-1]) - 0.125 * bend[:, None] * y.diff().square()
        left = value[:, 0] - omega[:, 0] - 1 - torch.where(self.mean < _REACH, total[:, 0], total[:, -1])
        last = (by.b / by.a).clamp_min(_REACH)
        right = self.base * f[:, -1] - total[:, -1] - by.b * last + 0.5 * by.a * last.square()
        least = torch.minimum(cells.amin(-1), torch.minimum(left, right - _ROUNDING * (1 + by.b * last)))
        spent = 0.5 * by.a * self.variance + 0.5 * (by.each_a * self.spread).sum(-1)
        # Slopes where D has the law that puts its weight on the least values.
        law = torch.softmax(-value / _HEAT, -1)
        shares = (
            torch.zeros_like(total).scatter_add(1, upper - 1, law * (1 - weight)).scatter_add(1, upper, law * weight)
        )
        each_b = -torch.einsum("ps,pcs->pc", shares, first)
        each_a = 0.5 * torch.einsum("ps,pcs->pc", shares, second) - 0.5 * self.spread
        slopes = -(law * y).sum(-1), 0.5 * ((law * y.square()).sum(-1) - self.variance), each_b, each_a
        return least - spent * (1 + _ROUNDING) - 64 * ELEMENTARY, slopes

    def _losses(self, by: _Multipliers) -> tuple[Tensor, Tensor, Tensor]:
        """Psi at the shares, from above, and gamma and its square where it is attained: (pairs, classes, shares)."""
        away, share = self.away, self._shares
        line, square = by.each_b[..., None] * away, 0.5 * by.each_a[..., None] * away.square()
        plain = line - square + _ROUNDING * (line.abs() + square)
        value = plain[:, :, None] + share[:, None] * self.lost[:, :, None]  # (pairs, classes, shares, nodes)
        cells = torch.maximum(value[..., 1:], value[..., :-1])
        bend = by.each_a[..., None, None] + share[:, None] * self.bend[:, :, None]
        cells = cells + 0.125 * bend * away.diff().square()[:, :, None]
        left = plain[..., :1] + share * self.base[:, None, None]
        right = 0.5 * (by.each_b.square() / by.each_a * (1 + _ROUNDING))[..., None]
        found = torch.maximum(cells.amax(-1), left)
        low, high = away.gather(2, value.argmax(-1)), (by.each_b / by.each_a)[..., None]
        weight = torch.sigmoid((found - right) / _HEAT)
        first, second = torch.lerp(high, low, weight), torch.lerp(high.square(), low.square(), weight)
        return torch.maximum(found, right), first, second

    @property
    def _shares(self) -> Tensor:
        return self.y.new_tensor(_SHARES)
