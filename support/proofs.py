"""Proofs of numerical constants: suprema of derivatives by a formula, or by branch and bound in ball arithmetic."""

from __future__ import annotations

from collections.abc import Callable

from flint import arb

__all__ = ["Cell", "hermite_peak", "proved", "search", "search_line"]

Cell = tuple[float, float, float, float]  # m from, m to, s from, s to
_ROUNDED = arb(1) + arb(2) ** -50  # the constants are floats, the true values need not be


def proved(value: arb, limit: arb | float) -> bool:
    """Whether value <= limit for all points of both balls, apart from the rounding of ``limit`` to a float."""
    return bool(value <= arb(limit) * _ROUNDED)


def search(negative: Callable[[Cell], bool], start: Cell, most: int = 60_000) -> None:
    """Prove ``negative`` on ``start`` by cutting cells across their longer side; fail where a cell gets too small."""
    cells, visited = [start], 0
    while cells:
        m0, m1, s0, s1 = cell = cells.pop()
        visited += 1
        assert visited < most, f"no proof after {most} cells"
        if negative(cell):
            continue
        assert m1 - m0 > 1e-7, f"no proof near m = {m0}, s = {s0}"
        if m1 - m0 > s1 - s0:
            middle = 0.5 * (m0 + m1)
            cells += [(m0, middle, s0, s1), (middle, m1, s0, s1)]
        else:
            middle = 0.5 * (s0 + s1)
            cells += [(m0, m1, s0, middle), (m0, m1, middle, s1)]


def search_line(value: Callable[[float, float], arb], limit: float, ends: tuple[float, float]) -> None:
    """Prove value <= limit between the ends, ``value(a, b)`` bounding it on [a, b]."""
    cells, visited = [ends], 0
    while cells:
        a, b = cells.pop()
        visited += 1
        assert visited < 60_000, "no proof"
        if proved(value(a, b), limit):
            continue
        assert b - a > 1e-9, f"no proof near u = {a}"
        middle = 0.5 * (a + b)
        cells += [(a, middle), (middle, b)]


def hermite_peak(k: int) -> arb:
    """``sup |He_k(u)| phi(u)`` for k = 0..4: its derivative is -He_{k+1} phi, so it is at a zero of He_{k+1}."""
    root6, root10 = arb(6).sqrt(), arb(10).sqrt()
    zeros = ([arb(0)], [arb(1)], [arb(0), arb(3)], [3 - root6, 3 + root6], [arb(0), 5 - root10, 5 + root10])[k]
    values: tuple[Callable[[arb], arb], ...] = (  # of x = u^2
        lambda x: arb(1), lambda x: x.sqrt(), lambda x: x - 1, lambda x: x.sqrt() * (x - 3), lambda x: x * x - 6 * x + 3
    )  # fmt: skip
    peak = arb(0)
    for x in zeros:
        peak = peak.max(abs(values[k](x)) * (-x / 2).exp() / (2 * arb.pi()).sqrt())
    return peak
