"""The written tables: the right numbers under the right titles."""

from __future__ import annotations

import csv
import io
import math
from typing import Any

import pytest
import torch
from benchmarks.paper.columns import ATTACK, CLIPPED, INSIDE, MOMENT, NO_DOMAIN, PARTITION, POINT, Cell, Column
from benchmarks.paper.published import TABLE_1A, TABLE_1B, TABLE_2
from benchmarks.paper.rows import Measured, Row, rows_of
from benchmarks.paper.tables import csv_text, headings_1a, headings_1b, headings_2, markdown

from bnndp.layers import Dropout
from bnndp.training.fit import Plan

EXTRA = (Column("cut", lambda subject: torch.zeros(subject.x.shape[0]), whole=False, points=1),)


def rows(table: Any, data: str, *, quick: bool = False) -> list[Row]:
    return rows_of(table, Plan(data, "vogn", temperature=0.5), {}, quick=quick)


def measured_1a() -> Measured:
    row = rows(TABLE_1A, "sine2d")[0]
    widths = {MOMENT: 0.06, PARTITION: 0.08, INSIDE: 0.05, CLIPPED: 0.03, POINT: 0.001, "cut": 12.0}
    cells = {name: Cell((value, value), 0.02) for name, value in widths.items()}
    card = {"test": {"rmse": 0.1, "output_std": 0.0234}, "seconds": 7.6}
    return Measured(row, card, cells, 1e-4)


def measured_1b() -> Measured:
    row = rows(TABLE_1B, "mnist")[0]
    cells = {
        MOMENT: Cell((0.02, math.nan, 0.04), 0.03),
        PARTITION: Cell((0.01, 0.01, 0.01), 1.0),
        ATTACK: Cell((0.04, 0.05, math.inf), 1.0),
        NO_DOMAIN: Cell((0.01, math.nan, 0.02), 1.0),
    }
    card = {"test": {"accuracy": 0.97, "logit_std": 0.0151}, "seconds": 30.0}
    return Measured(row, card, cells, 1e-3)


def only_row(headings: Any, measured: Any) -> dict[str, str]:
    (row,) = csv.DictReader(io.StringIO(csv_text(headings, [measured])))
    return row


def test_widths() -> None:
    row = only_row(headings_1a(EXTRA), measured_1a())
    assert (row["data"], row["hidden"], row["eps"]) == ("sine2d", "1x64", "0.01")
    assert float(row["moment"]) == 0.06
    assert float(row["ratio"]) == pytest.approx(1.2)
    assert (float(row["paper_bnn_dp"]), float(row["paper_fl_5"]), float(row["paper_fl_3"])) == (0.041, 1.8, 0.8)
    assert float(row["milliseconds"]) == pytest.approx(10)
    assert float(row["forward_passes"]) == pytest.approx(100)
    assert float(row["cut"]) == 12
    assert float(row["paper_seconds"]) == 8.0


def test_radii() -> None:
    row = only_row(headings_1b(), measured_1b())
    assert float(row["moment"]) == pytest.approx(0.02)  # what is not certified counts as zero
    assert float(row["certified_share"]) == pytest.approx(2 / 3)
    assert float(row["ratio"]) == pytest.approx(0.25)  # (0.5 + 0) / 2; what was not broken has no ratio
    assert float(row["gain"]) == pytest.approx(0.02 / 0.0150)


def test_markdown_has_two_parts_and_marks_what_is_not_whole() -> None:
    text = markdown(headings_1a(EXTRA), [measured_1a()])
    first, second = text.split("\n\n")
    assert "| 1x64 |" in first
    assert "| 1x64 |" in second
    assert "cut (1 inputs) †" in second
    assert "cut" not in first
    assert "0.06" in first
    assert len({line.count("|") for line in first.splitlines()}) == 1
    assert len({line.count("|") for line in second.splitlines()}) == 1


def test_large_and_missing_numbers() -> None:
    measured = measured_1a()
    cells = {
        **measured.cells,
        INSIDE: Cell((0.0,), 1.0),
        PARTITION: Cell((123456.7,), 1.0),
        MOMENT: Cell((math.inf,), 1.0),
    }
    text = markdown(headings_1a(), [Measured(measured.row, measured.card, cells, 1e-4)])
    assert "| 123,457 |" in text
    assert "| inf |" in text
    assert "| - |" in text  # no ratio to a range of zero


def test_quick_rows_are_the_narrow_ones_of_every_data_set_and_depth() -> None:
    quick = rows(TABLE_1A, "sine2d", quick=True)
    assert [row.name for row in quick] == [f"{data} {k}x64" for data in ("sine2d", "kin8nm") for k in (1, 2, 3)]
    assert {row.points for row in quick} == {10}
    assert all(row.plan.temperature == 0.5 and row.plan.hidden == row.published.hidden for row in quick)
    assert {row.points for row in rows(TABLE_1B, "mnist")} == {100}
    assert len(rows(TABLE_1A, "sine2d")) == len(rows(TABLE_1B, "mnist")) == 18
    assert rows(TABLE_1B, "mnist")[-1].name == "fashion_mnist 3x256"


def test_the_paper_is_better_than_what_it_compares_with() -> None:
    """In every row of Table 1 that it prints in bold: a slip in copying the figures would show."""
    assert all(row.bnn_dp < min(row.fl_3, row.fl_5) for row in TABLE_1A)
    assert all(row.bnn_dp >= max(row.fl_3, row.fl_5) for row in TABLE_1B)
    assert all(row.bnn_dp < row.fl_5 < row.fl_3 for row in TABLE_2)


def test_rows_of_convolutions() -> None:
    plan = Plan("fashion_mnist", "bbb", (), conv="2x4", dropout=Dropout(0.1))
    found = rows_of(TABLE_2, plan, {"cifar10": "cifar10_subset"}, quick=True)
    assert [row.plan.conv for row in found] == ["2x4", "2x4,2x4", "4x4,4x4", "3x4,3x4,3x4"]
    assert [row.plan.hidden for row in found] == [(64,), (64,), (), ()]
    assert [row.plan.data for row in found] == ["fashion_mnist"] * 2 + ["cifar10_subset"] * 2
    assert [row.published.data for row in found] == ["fashion_mnist"] * 2 + ["cifar10"] * 2
    assert found[1].name == "fashion_mnist 2x4-2x4-1x64"
    assert all(row.plan.dropout == Dropout(0.1) for row in found)


def test_headings_of_convolutions() -> None:
    plan = Plan("fashion_mnist", "bbb", (), conv="2x4")
    row = rows_of(TABLE_2, plan, {"cifar10": "cifar10_subset"}, quick=False)[3]
    cells = {name: cell for name, cell in measured_1b().cells.items() if name != PARTITION}
    card = {"test": {"accuracy": 0.4, "logit_std": 0.0151}, "seconds": 30.0}
    found = only_row(headings_2(), Measured(row, card, cells, 1e-3))
    assert (found["data"], found["convolutions"], found["kernels"], found["hidden"]) == (
        "cifar10_subset",
        "3",
        "3",
        "-",
    )
    assert float(found["gain"]) == pytest.approx(0.02 / 0.00011)
    assert float(found["paper_seconds"]) == 1.8
    assert float(found["ratio"]) == pytest.approx(0.25)
