"""Robust accuracy: what is printed holds, and the picture is refused before any work where it cannot be written."""

from __future__ import annotations

import io
import math
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from rich.console import Console

from bnndp.errors import InputError
from bnndp.questions.evaluate import Curve, Evaluation
from bnndp.report.curve import curve_rows, curve_table, draw_curve
from bnndp.report.figure import expect_picture


def lines_of(curve: Curve) -> list[list[str]]:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(curve_table(curve))
    text = console.export_text().splitlines()
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in text if line.startswith("│")]


def evaluation(attack: float = 0.5) -> Evaluation:
    label = torch.zeros(3, dtype=torch.int64)
    radius = torch.tensor([0.1, 0.2, math.nan], dtype=torch.float64)
    return Evaluation(label, label, radius, torch.full((3,), attack, dtype=torch.float64), upper=1.0)


@pytest.mark.parametrize(
    ("certified", "attacked", "points"), [(2, 2, 3), (9999, 9999, 10_000), (1, 1, 2000), (7, 7, 7)]
)
def test_certified_is_rounded_down_and_attacked_up(certified: int, attacked: int, points: int) -> None:
    ((_, low, high),) = lines_of(Curve((0.1,), (certified,), (attacked,), points, points))
    low_share, high_share = (Fraction(cell.removesuffix(" %")) / 100 for cell in (low, high))
    assert low_share <= Fraction(certified, points) < low_share + Fraction(1, 1000)
    assert high_share >= Fraction(attacked, points) > high_share - Fraction(1, 1000)


def test_without_an_attack_there_is_no_column_for_it() -> None:
    assert lines_of(Curve((0.0, 0.25), (3, 1), None, 4, 4)) == [["0", "75.0 %"], ["0.25", "25.0 %"]]


def test_rows_are_shares_in_double_precision() -> None:
    rows = curve_rows(Curve((0.1, 0.2), (2, 1), None, 3, 3))
    assert rows[0] == {"eps": 0.1, "points": 3, "accuracy": 1.0, "certified": 2 / 3, "attacked": None}
    assert curve_rows(Curve((0.1,), (1,), (2,), 3, 3))[0]["attacked"] == 2 / 3


def test_a_picture_depends_on_its_arguments_only(tmp_path: Path) -> None:
    pictures = []
    for attack in (0.5, 0.5, math.nan):
        draw_curve(evaluation(attack), [0.1, 0.3], tmp_path / "a.png")
        pictures.append((tmp_path / "a.png").read_bytes())
    assert pictures[0] == pictures[1] != pictures[2]
    assert pictures[0].startswith(b"\x89PNG")


def test_bad_places_are_refused_early(tmp_path: Path) -> None:
    for path, words in ((tmp_path / "a.txt", "must end in"), (tmp_path / "none" / "a.png", "does not exist")):
        with pytest.raises(InputError, match=words):
            expect_picture(path)
