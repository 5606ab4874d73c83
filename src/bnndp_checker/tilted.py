r"""Exponential moments of one rectified Gaussian (docs/certificates.md, section 2): lines above their logarithm.

:math:`l(m,r)=\log\mathbb E e^{a\max(m+r\xi,0)}=\log\bigl(\Phi(-u)+e^{am+a^2r^2/2}\Phi(u+ar)\bigr)`, u = m/r. For
:math:`a\ge0` it is convex in (m, r) and increases in both; for :math:`a\le0`, :math:`l-\tfrac12a^2r^2` is concave.
"""

from __future__ import annotations

from flint import arb

from bnndp_checker.ball_arithmetic import ZERO, cdf, larger, pdf, sq

Ends = tuple[arb, arb]


def line(a: arb, mean: Ends, std: Ends) -> Ends:
    """Slope and constant of a line in m above l for all m and r in these ranges."""
    if not a <= 0:  # max(., 0) >= 0, so a larger a is on the safe side where the sign is not known
        a = larger(a.upper(), ZERO)
        low, high = (_at(a, end, std[1])[0] for end in mean)
        slope = (high - low) / (mean[1] - mean[0])
        slope = slope if slope >= 0 else ZERO  # an interval of no width
        return slope, high - slope * mean[1]
    middle, root = (mean[0] + mean[1]) / 2, (std[0] + std[1]) / 2
    value, slope, turn = _at(a, middle, root)
    off = [turn * (r - root) + sq(a * (r - root)) / 2 for r in std]
    return slope, value - slope * middle + larger(*off)


def _at(a: arb, m: arb, r: arb) -> tuple[arb, arb, arb]:
    """The logarithm, and its derivatives in m and in r: with E = e^l, E_r = r E_mm (heat equation)."""
    if r.is_zero():
        return a * larger(m, ZERO), a if m >= 0 else ZERO, ZERO
    u = m / r
    tilted = (a * m + sq(a * r) / 2).exp() * cdf(u + a * r)
    total = cdf(-u) + tilted
    return total.log(), a * tilted / total, r * (a * a * tilted + a * pdf(u) / r) / total
