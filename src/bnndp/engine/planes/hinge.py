r"""Lower planes of a convex hinge that may touch anywhere: what the search for better bounds moves.

For :math:`\varphi(x)=lx+J\max(x,0)`, J > 0 (ReLU, leaky ReLU), and any u,
:math:`G(m,r)\ge(l+J\Phi(u))m+J\varphi(u)r` (g is convex and of degree one). Where E phi(X) is known around
:math:`G(M,\sqrt T)` with a T(x) of its own, :math:`\sqrt T\ge(T+\sqrt{t_1t_2})/(\sqrt{t_1}+\sqrt{t_2})` on
:math:`[t_1,t_2]`, a chord below a concave function.

Where the input z is a function of x, :math:`r=\sqrt{s(z)}` is a norm of (z, 1) and so convex: it is above its tangent
at the middle c of z, :math:`r\ge\tfrac12\sqrt{s(c)}+\tfrac12t(z)/\sqrt{s(c)}` with t the tangent of s there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.activations.activation import Activation
from bnndp.engine.inequalities.expectation import ExpectationBounds
from bnndp.engine.moments.pre_activation import PreActivation
from bnndp.geometry.bounds import Interval
from bnndp.maths.normal import cdf, pdf
from bnndp.maths.rounding import ELEMENTARY, SMALL, TINY, UP
from bnndp.maths.tails import PEAK

__all__ = ["Hinge", "hinge_of"]


@dataclass(frozen=True, slots=True)
class Hinge:
    """``(l + J Phi(u)) M + J phi(u) (root + tilt T) - error`` is below E phi(X) on the box, for every u.

    If ``tangent``, with the tangent of s at the middle of the input in place of T, which it is below.
    """

    slope: float  # l
    jump: float  # J
    root: Tensor  # (batch, n)
    tilt: Tensor  # (batch, n)
    error: Tensor  # (batch, n)
    start: Tensor  # (batch, n): u of the usual plane
    size: Tensor  # (batch, n): the terms are at most this for any u, the scale of rounding errors
    tangent: bool

    def at(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # (batch, rows, n)
        """Coefficients of M and of T, and the constant: (batch, rows, n) each."""
        density = self.jump * pdf(u)
        constant = density * self.root[:, None] - self.error[:, None] - ELEMENTARY * self.size[:, None]
        return self.slope + self.jump * cdf(u), density * self.tilt[:, None], constant


def hinge_of(phi: Activation, x: PreActivation, near: ExpectationBounds) -> Hinge | None:
    """The planes of a hinge with its kink at zero; None for all other activations."""
    kinks = phi.shape.kinks
    if len(kinks) != 1 or kinks[0][0] != 0 or kinks[0][1] <= 0:
        return None
    jump, low = kinks[0][1], phi.shape.slopes[0]
    root, tilt, error = near.lower_rho, torch.zeros_like(near.lower_rho), near.lower_error
    middle, total = 0.5 * (x.mean.lower + x.mean.upper), x.smoothing
    if x.spread_centre is not None:
        root, tilt = _tangent(x.spread_centre)
        error = torch.zeros_like(root)
    elif near.pointwise is not None:
        chord, slope = _chord(total)
        height = pdf((middle / total.upper.sqrt().clamp_min(TINY)).clamp(-8.0, 8.0)) * jump
        above = height * (chord + slope * 0.5 * (total.lower + total.upper)) - near.pointwise.lower_error
        take = above > height * root - error  # false for NaN
        take = torch.ones_like(take) if x.fixed else take
        root, tilt = torch.where(take, chord, root), torch.where(take, slope, 0.0)
        error = torch.where(take, near.pointwise.lower_error, error)
    typical = root + tilt * total.upper
    near_middle = typical if x.spread_centre is None else x.spread_centre.sqrt()
    start = (middle / near_middle.clamp_min(TINY)).clamp(-8.0, 8.0)
    size = (abs(low) + jump) * x.mean.magnitude + jump * PEAK * typical + error.abs()
    return Hinge(low, jump, root, tilt, error, start, size * UP + TINY, x.spread_centre is not None)


def _tangent(s: Tensor) -> tuple[Tensor, Tensor]:  # (batch, n) each
    """Constant and slope of the root in the tangent of s; zero where squares may have underflowed."""
    root, known = s.sqrt(), s > SMALL**2
    return torch.where(known, 0.5 * root, 0.0), torch.where(known, 0.5 / root.clamp_min(SMALL), 0.0)


def _chord(total: Interval) -> tuple[Tensor, Tensor]:  # (batch, n) each
    """Constant and slope of a line below the square root on the interval."""
    small, large = (total.lower / UP).sqrt() / UP, (total.upper * UP).sqrt() * UP
    both = (small + large) * UP
    flat = both <= TINY
    slope = torch.where(flat, 0.0, 1 / both.clamp_min(TINY) / UP)
    return torch.where(flat, 0.0, small * large / both.clamp_min(TINY) / UP / UP), slope
