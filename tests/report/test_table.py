"""The table prints certified intervals rounded outward."""

from __future__ import annotations

import io
from fractions import Fraction

import pytest
import torch
from rich.console import Console

from bnndp.attack.inside import Inside
from bnndp.geometry.bounds import Affine, AffineBounds
from bnndp.geometry.box import Box
from bnndp.questions.bounds import Bounds
from bnndp.report.table import _interval, box_table


@pytest.mark.parametrize(
    ("lower", "upper"),
    [(0.1, 0.1), (-0.12345, 0.12345), (-1 / 3, 1 / 3), (0.00004, 0.00005), (-0.0, 0.0), (-12.5, 1e-9)],
)
def test_what_is_printed_contains_what_is_certified(lower: float, upper: float) -> None:
    low, high = (Fraction(text.strip()) for text in _interval(lower, upper).strip("[]").split(","))
    assert low <= Fraction(lower)
    assert high >= Fraction(upper)
    assert Fraction(lower) - low < Fraction(1, 10_000)
    assert high - Fraction(upper) < Fraction(1, 10_000)


def test_a_row_for_every_box_and_the_mean() -> None:
    box = Box([[0.0], [0.5]], [[0.5], [1.0]])

    def column(*values: float) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64)[:, None]

    flat = torch.zeros(2, 1, 1, dtype=torch.float64)
    low, high = column(-1.0, 0.0), column(1.0, 1.0)
    bounds = Bounds(low, high, AffineBounds(Affine(flat, low), Affine(flat, high), box), ("moment",) * 2)
    zero = column(0.0, 0.0)
    inside = Inside(column(-0.5, 0.5), column(0.5, 0.5), flat, flat, zero, zero)
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(box_table(box, bounds, inside))
    lines = [line.split("│")[1:-1] for line in console.export_text().splitlines() if line.startswith("│")]
    assert [line[3].strip() for line in lines] == ["2.000", "-", "3.000"]
    assert [line[1].strip() for line in lines] == ["[-1.0000,  1.0000]", "[ 0.0000,  1.0000]", "1.5000"]
