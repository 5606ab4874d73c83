"""Planes folded for rows: sums hold in rational arithmetic, whatever cancels in them."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from support.dice import Dice
from torch import Tensor

from bnndp.engine.nodes.bound import within
from bnndp.engine.planes.folded import folded
from bnndp.engine.planes.mean import Planes
from bnndp.engine.rows import DenseRows
from bnndp.geometry.bounds import Interval

N, ROWS, POINTS = 7, 9, 5


def _exact(values: Tensor) -> list[Fraction]:
    return [Fraction(value) for value in values.tolist()]


@pytest.mark.parametrize("tangent", [False, True])
@pytest.mark.parametrize("scale", [1.0, 1e-9, 1e12])
@pytest.mark.parametrize("seed", range(4))
def test_what_a_row_becomes_is_below_it(seed: int, scale: float, *, tangent: bool) -> None:
    """For means and spreads within their ranges, with lower and upper planes of very different sizes."""
    dice = Dice(seed)
    mean = Interval(dice.normal(1, N) - 1, dice.normal(1, N) + 2)
    mean = Interval(torch.minimum(mean.lower, mean.upper), torch.maximum(mean.lower, mean.upper))
    spread = dice.normal(1, N).abs() + 0.1  # T is between 0 and this
    low, high = ([dice.normal(1, N) * size for size in (1.0, 1.0, 1.0)] for size in (1.0, scale))
    high = [part * scale for part in high]
    sizes = [a.abs() * mean.magnitude + b.abs() * spread + c.abs() for a, b, c in (low, high)]
    size = torch.maximum(*sizes) * (1 + 1e-10)
    planes = Planes(low[0], low[1].abs(), low[2], high[0], high[1], high[2], mean, size, tangent)
    bias, terms = dice.normal(1, N), 0.1 * dice.normal(1, N).abs()
    none = torch.zeros(1, 1, dtype=torch.float64)
    rows, constant = dice.normal(1, ROWS, N) * 10 ** dice.normal(1, ROWS, N), dice.normal(1, ROWS)
    before = folded(planes, bias, 1e-13 * (mean.magnitude + bias.abs() + terms), none).apply(DenseRows(rows), constant)
    both = before.both
    assert both is not None
    for share in torch.rand(POINTS, 2, N, generator=torch.Generator().manual_seed(seed), dtype=torch.float64):
        at = mean.lower[0] + share[0] * (mean.upper - mean.lower)[0]
        m, t, b = _exact(at.clamp(mean.lower[0], mean.upper[0])), _exact(share[1] * spread[0]), _exact(bias[0])
        for k in range(ROWS):
            truth = Fraction(constant[0, k].item())
            for i, r in enumerate(_exact(rows[0, k])):
                a, c, d = _exact(torch.stack([p[0, i] for p in (low if r > 0 else high)]))
                slope = abs(c) if r > 0 else c
                truth += r * (a * (m[i] + b[i]) + slope * t[i] + d)
            alpha, beta = _exact(before.alpha.dense().values[0, k]), _exact(both.dense().values[0, k])
            found = sum(
                (x * y for x, y in zip(alpha + beta, m + t, strict=True)), Fraction(before.constant[0, k].item())
            )
            assert found <= truth
            scale_of_terms = float(
                (rows[0, k].abs() * (size[0] + bias[0].abs() * torch.maximum(low[0], high[0]).abs()[0])).sum()
            )
            assert float(truth - found) <= 1e-11 * (scale_of_terms + abs(constant[0, k].item()) + 1)


@pytest.mark.parametrize("seed", range(4))
def test_the_least_value_within_ranges(seed: int) -> None:
    dice = Dice(seed)
    ends = dice.normal(1, N) * 10 ** dice.normal(1, N), dice.normal(1, N) * 10 ** dice.normal(1, N)
    values = Interval(torch.minimum(*ends), torch.maximum(*ends))
    rows = dice.normal(1, ROWS, N)
    found = within(DenseRows(rows), values)
    for k in range(ROWS):
        pairs = zip(_exact(rows[0, k]), _exact(values.lower[0]), _exact(values.upper[0]), strict=True)
        truth = sum((min(r * a, r * b) for r, a, b in pairs), Fraction(0))
        assert Fraction(found[0, k].item()) <= truth
        assert float(truth) - found[0, k].item() <= 1e-12 * float((rows[0, k].abs() * values.magnitude[0]).sum())
