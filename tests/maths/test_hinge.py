"""Moments of hinges and clipped Gaussians against Arb's integrals, within an eighth of what is granted."""

from __future__ import annotations

import pytest
import torch
from flint import acb, arb, ctx

from bnndp.maths.hinge import clipped_raw, hinge_raw, positive_moments, root_of, tail_norms
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


def test_moments_of_a_tail_lose_no_digits() -> None:
    t = torch.tensor([0.0, 0.1, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0], dtype=torch.float64)
    mean, norms = tail_norms((8, 16), t)
    with ctx.workprec(900):
        for i, at in enumerate(t.tolist()):
            lines = [(arb(at), arb(at + 14), -arb(at), arb(1))]
            for q, found in ((1, mean), (8, norms[0]), (16, norms[1])):
                truth = float(integral(lines, q).root(q))
                assert truth <= float(found[i]) <= truth * 1.02, (at, q)


def test_moments_of_a_tail_at_the_ends() -> None:
    t = torch.tensor([100.0, 1e20, torch.inf], dtype=torch.float64)
    mean, norms = tail_norms((8, 16), t)
    assert not bool(torch.stack([mean, *norms]).isnan().any())
    assert float(norms[1][0]) > 0  # its sixteenth power underflows


@pytest.mark.parametrize("m", [-30.0, -5.0, -1.0, -1e-9, 0.0, 0.3, 2.0, 9.0])
@pytest.mark.parametrize("r", [1e-3, 1.0, 2.5])
def test_positive_moments(m: float, r: float) -> None:
    found = positive_moments(16, *(torch.tensor(x, dtype=torch.float64) for x in (m, r)))
    with ctx.workprec(900):
        start = -arb(m) / arb(r)
        if float(start) > 37:  # the probability underflows
            assert all(float(x) >= 0 for x in found)
            return
        low = start if float(start) > -14 else arb(-14)
        lines = [(low, low + 30, arb(m), arb(r))]
        for j, value in enumerate(found):
            truth = integral(lines, j)
            granted = 1.1 ** min(j + 1, 4) if m < 0 else 1 + 1e-9
            assert float(truth) <= float(value) * (1 + 1e-14) <= float(truth) * granted, j


@pytest.mark.parametrize("n", [2, 3, 8, 16])
def test_roots(n: int) -> None:
    x = torch.tensor([0.0, 1e-300, 1e-30, 0.3, 1.0, 7.0, 1e200], dtype=torch.float64)
    assert torch.allclose(root_of(x, n), x ** (1 / n), rtol=1e-14, atol=0.0)
