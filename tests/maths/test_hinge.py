"""Moments of hinges and clipped Gaussians against Arb's integrals, within an eighth of what is granted."""

from __future__ import annotations

import pytest
import torch
from flint import acb, arb, ctx

from bnndp.maths.hinge import clipped_raw, hinge_raw
from bnndp.maths.rounding import ELEMENTARY


def integral(lines: list[tuple[arb, arb, arb, arb]], k: int) -> arb:
    """E f(xi)^k for f = a + b xi on pieces (low, high, a, b)."""

    def piece(low: arb, high: arb, a: arb, b: arb) -> arb:
        density = 1 / (2 * acb.pi()).sqrt()
        return acb.integral(lambda z, _: (acb(a) + b * z) ** k * (-z * z / 2).exp() * density, low, high).real

    return sum((piece(*line) for line in lines if float(line[1]) > float(line[0])), arb(0))


@pytest.mark.parametrize("a", [0.0, -1.0, 0.01, 0.3, -2.0])
@pytest.mark.parametrize("b", [1.0, 0.99, -0.5, 3.0])
def test_hinge(a: float, b: float) -> None:
    t = torch.tensor([0.0, 1e-9, 0.3, 1.0, 2.4, 5.0, 9.0, 30.0, 1000.0], dtype=torch.float64)
    found = hinge_raw(torch.full_like(t, a), b, t)
    with ctx.workprec(120):
        for i, at in enumerate(t.tolist()):
            kink = arb(min(at, 15.0))
            lines = [(arb(-15), kink, arb(0), arb(a)), (kink, arb(15), -arb(b) * at, arb(a) + b)]
            for k in range(1, 5):
                granted = ELEMENTARY * (abs(a) + abs(b)) ** k / 8
                assert abs(arb(found[k - 1][i].item()) - integral(lines, k)) <= granted, (at, k)


def test_clipped() -> None:
    ends = [(-1.0, 1.0), (-0.2, 3.0), (-30.0, 0.5), (0.0, 2.0), (0.3, 0.31), (1.0, 5.0), (4.0, 4.5), (8.0, 900.0)]
    ends += [(-h, -low) for low, h in ends] + [(-1000.0, 1000.0), (-1000.0, -999.0), (0.0, 1000.0), (-1e-9, 1e-9)]
    lower, upper = torch.tensor(ends, dtype=torch.float64).T
    found = clipped_raw(lower, upper)
    with ctx.workprec(120):
        for i, (low, high) in enumerate(ends):
            about = min(max(0.0, low), high)
            start, end = arb(max(min(low, 15.0), -15.0)), arb(max(min(high, 15.0), -15.0))
            lines = [
                (arb(-15), start, arb(low) - about, arb(0)),
                (start, end, -arb(about), arb(1)),
                (end, arb(15), arb(high) - about, arb(0)),
            ]
            for k in range(1, 5):
                assert abs(arb(found[k - 1][i].item()) - integral(lines, k)) <= ELEMENTARY / 8, (low, high, k)
