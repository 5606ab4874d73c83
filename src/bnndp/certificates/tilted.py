r"""Lines above the logarithm of an exponential moment of rectified Gaussians, as in ``bnndp_checker.tilted``.

:math:`l(m,r)=\log\mathbb E e^{a\max(m+r\xi,0)}` is convex in (m, r) for :math:`a\ge0`; for :math:`a\le0`
:math:`l-\tfrac12a^2r^2` is concave.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bnndp.certificates.maps import SLACK, Sides
from bnndp.maths.normal import INV_SQRT_2PI


def log_lines(a: Tensor, mean: Sides, std: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Slopes and constants (batch, rows, n) of lines in m above l, for factors a (batch, rows, n) and all ranges."""
    low, high, least, most = (part[:, None] for part in (mean.low, mean.high, *std))
    up = a.clamp_min(0)
    ends = [_at(up, end, most)[0] for end in (low, high)]
    chord = ((ends[1] - ends[0]) / (high - low).clamp_min(1e-300)).clamp_min(0)
    chord = torch.where(high > low, chord, 0.0)
    down, middle, root = a.clamp_max(0), 0.5 * (low + high), 0.5 * (least + most)
    value, tilt, turn = _at(down, middle, root)
    off = [turn * (r - root) + (down * (r - root)).square() / 2 for r in (least, most)]
    tangent = value - tilt * middle + torch.maximum(*off)
    slope = torch.where(a > 0, chord, tilt)
    constant = torch.where(a > 0, ends[1] - chord * high, tangent)
    size = ends[1].abs() + value.abs() + a.abs() * (low.abs() + high.abs() + most)
    return slope, constant + SLACK * size


def _at(a: Tensor, m: Tensor, r: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The logarithm, and its derivatives in m and in r."""
    safe = r.clamp_min(1e-150)
    u = (m / safe).clamp(-1e6, 1e6)
    tilted = a * m + (a * safe).square() / 2 + torch.special.log_ndtr(u + a * safe)
    total = torch.logaddexp(torch.special.log_ndtr(-u), tilted)
    share = (tilted - total).exp()
    density = INV_SQRT_2PI * (-0.5 * u * u - total).exp()
    exact = a * m.clamp_min(0)
    still = r == 0
    return (
        torch.where(still, exact, total),
        torch.where(still, a * (m >= 0), a * share),
        torch.where(still, 0.0, safe * a * a * share + a * density),
    )
