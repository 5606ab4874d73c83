r"""Lower planes of a convex hinge that may touch anywhere: what the search for better bounds moves.

For :math:`\varphi(x)=lx+J\max(x,0)`, J > 0 (ReLU, leaky ReLU), and any u,
:math:`G(m,r)\ge(l+J\Phi(u))m+J\varphi(u)r` (g is convex and of degree one). Where X is Gaussian with a variance s(x)
of its own, :math:`\sqrt s\ge(s+\sqrt{s_1s_2})/(\sqrt{s_1}+\sqrt{s_2})` on :math:`[s_1,s_2]`, a chord
below a concave function.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.activations.activation import Activation
from bnndp.engine.general.expectation import Around
from bnndp.engine.general.signal import Pre
from bnndp.maths.normal import cdf, pdf
from bnndp.maths.rounding import ELEMENTARY, TINY, UP
from bnndp.maths.tails import PEAK

__all__ = ["Hinge", "hinge_of"]


@dataclass(frozen=True, slots=True)
class Hinge:
    """``(l + J Phi(u)) M + J phi(u) (root + tilt s) - error`` is below E phi(X) on the box, for every u."""

    slope: float  # l
    jump: float  # J
    root: Tensor  # (batch, n)
    tilt: Tensor  # (batch, n): zero where X is not Gaussian with a variance that is a function of x
    error: Tensor  # (batch, n)
    start: Tensor  # (batch, n): u of the usual plane
    size: Tensor  # (batch, n): the terms are at most this for any u, the scale of rounding errors

    def at(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # (batch, rows, n)
        """Coefficients of M and of s, and the constant: (batch, rows, n) each."""
        density = self.jump * pdf(u)
        constant = density * self.root[:, None] - self.error[:, None] - ELEMENTARY * self.size[:, None]
        return self.slope + self.jump * cdf(u), density * self.tilt[:, None], constant


def hinge_of(phi: Activation, x: Pre, near: Around) -> Hinge | None:
    """The planes of a hinge with its kink at zero; None for all other activations."""
    kinks = phi.shape.kinks
    if len(kinks) != 1 or kinks[0][0] != 0 or kinks[0][1] <= 0:
        return None
    jump, low = kinks[0][1], phi.shape.slopes[0]
    if x.fixed:
        small, large = (x.spread.lower / UP).sqrt() / UP, (x.spread.upper * UP).sqrt() * UP
        total = (small + large) * UP
        flat = total <= TINY
        tilt = torch.where(flat, 0.0, 1 / total.clamp_min(TINY) / UP)
        root = torch.where(flat, 0.0, small * large / total.clamp_min(TINY) / UP / UP)
        error = torch.zeros_like(root)
    else:
        root, tilt, error = near.lower_rho, torch.zeros_like(near.lower_rho), near.lower_error
    middle = 0.5 * (x.mean.lower + x.mean.upper)
    typical = root + tilt * x.spread.upper
    start = (middle / typical.clamp_min(TINY)).clamp(-8.0, 8.0)
    size = (abs(low) + jump) * x.mean.magnitude + jump * PEAK * (root + tilt * x.spread.upper) + error.abs()
    return Hinge(low, jump, root, tilt, error, start, size * UP + TINY)
