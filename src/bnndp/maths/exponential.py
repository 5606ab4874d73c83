r"""Exponential moments of a rectified Gaussian, :math:`L(m,r;a,c)=\log\mathbb E\exp(aZ+cZ^2)`, :math:`Z=\max(m+r\xi,0)`.

With :math:`w=1/(1-2cr^2)`, which has to be positive, :math:`u=m/r` and :math:`\tilde u=(m+ar^2)\sqrt w/r`,

.. math:: e^L=\Phi(-u)+\sqrt w\,e^{w(am+cm^2+a^2r^2/2)}\,\Phi(\tilde u)
             =\Phi(-u)+\sqrt w\,\varphi(u)\,\Phi(\tilde u)/\varphi(\tilde u).

Given Z > 0, the law tilted by :math:`\exp(aZ+cZ^2)` is that of a Gaussian of mean :math:`\tilde m=w(m+ar^2)` and
variance :math:`\tilde s=wr^2` cut at zero. Proofs of all that is claimed here are in docs/theory-exponential.md.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.maths.normal import INV_SQRT_2PI
from bnndp.maths.rounding import ELEMENTARY, TINY

__all__ = ["Tilted", "chernoff_constant", "log_moment", "log_mills", "tilted"]

_SQRT1_2 = math.sqrt(0.5)


@dataclass(frozen=True, slots=True)
class Tilted:
    """L and the law of Z tilted by exp(a Z + c Z^2); every field has the shape of the arguments."""

    log: Tensor  # L
    active: Tensor  # P(Z > 0)
    mean: Tensor  # E Z = dL/da
    second: Tensor  # E Z^2 = dL/dc
    in_mean: Tensor  # dL/dm
    in_std: Tensor  # dL/dr


def chernoff_constant(lam: Tensor) -> Tensor:
    r""":math:`\lambda^\lambda(1-\lambda)^{1-\lambda}=\sup_D\sigma(-D)e^{\lambda D}` for :math:`0<\lambda\le1`."""
    return torch.exp(torch.xlogy(lam, lam) + torch.xlogy(1 - lam, 1 - lam)) * (1 + ELEMENTARY)


def log_moment(m: Tensor, r: Tensor, a: Tensor, c: Tensor) -> Tensor:
    """L, rounded up by ELEMENTARY times the size of its terms; infinite where ``2 c r^2 >= 1`` and where it is NaN."""
    off, on, size = _parts(m, r.clamp_min(TINY), a, c)
    value = torch.logaddexp(off, on) + ELEMENTARY * size
    return torch.where(_exists(r, c), value, torch.inf).nan_to_num(torch.inf, posinf=torch.inf, neginf=-torch.inf)


def tilted(m: Tensor, r: Tensor, a: Tensor, c: Tensor) -> Tilted:
    """L and its derivatives to rounding; for choices that need not be exact and, widened, for bounds."""
    r = r.clamp_min(TINY)
    off, on, _ = _parts(m, r, a, c)
    log = torch.logaddexp(off, on)
    active = torch.exp(on - log)
    w = 1 / (1 - 2 * c * r * r)
    std = w.sqrt() * r
    u = (m + a * r * r) * w.sqrt() / r
    first, second = _cut_moments(u)  # of a standard Gaussian around u, cut at zero
    mean, square = active * std * first, active * std.square() * second
    # dL/dm = E F'(X) and dL/dr = r (E F''(X) + E F'(X)^2) by Stein, F' = a + 2 c x on x > 0 and a jump of a at 0.
    in_mean = a * active + 2 * c * mean
    density = torch.exp(-0.5 * (m / r).square() - log) * INV_SQRT_2PI / r
    in_std = r * (a * density + (2 * c + a * a) * active + 4 * a * c * mean + 4 * c * c * square)
    return Tilted(log, active, mean, square, in_mean, in_std)


def log_mills(x: Tensor) -> Tensor:
    r""":math:`\log(\Phi(x)/\varphi(x))`, which increases."""
    left = torch.log(0.5 * torch.special.erfcx((-x).clamp_min(0) * _SQRT1_2)) - math.log(INV_SQRT_2PI)
    right = torch.special.log_ndtr(x.clamp_min(0)) + 0.5 * x.clamp_min(0).square() - math.log(INV_SQRT_2PI)
    return torch.where(x < 0, left, right)


def _exists(r: Tensor, c: Tensor) -> Tensor:
    return 2 * c * r * r < 1 - ELEMENTARY


def _parts(m: Tensor, r: Tensor, a: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Logarithms of the two terms of e^L and the size of what was added up in them."""
    s = r * r
    w = 1 / (1 - 2 * c * s)
    root = w.sqrt()
    u, v = m / r, (m + a * s) * root / r
    power = w * (a * m + c * m * m + 0.5 * a * a * s)
    right = power + torch.special.log_ndtr(v.clamp_min(0))
    left = -0.5 * u * u + torch.log(0.5 * torch.special.erfcx((-v).clamp_min(0) * _SQRT1_2))
    on = 0.5 * torch.log(w) + torch.where(v >= 0, right, left)
    off = torch.special.log_ndtr(-u)
    terms = w * ((a * m).abs() + c.abs() * m * m + a * a * s)
    size = 1 + torch.where(v >= 0, terms, 0.0)
    return off, on, size


def _cut_moments(u: Tensor) -> tuple[Tensor, Tensor]:
    """E Y and E Y^2 for Y = u + xi given that it is positive."""
    low = u < 0
    inverse = torch.where(
        low,
        1 / torch.special.erfcx((-u).clamp_min(0) * _SQRT1_2) * math.sqrt(2 / math.pi),
        torch.exp(-0.5 * u.clamp_min(0).square()) * INV_SQRT_2PI / torch.special.ndtr(u.clamp_min(0)),
    )  # phi(u) / Phi(u)
    first = (u + inverse).clamp_min(0)
    return first, (1 + u * first).clamp_min(0)
