"""Measurements are kept bit for bit, and only what belongs to the question is found again."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from benchmarks.paper.columns import Cell
from benchmarks.paper.journal import Journal

CELL = Cell((0.1, 1 / 3, math.nan, math.inf), 0.7)


def test_cells_come_back_bit_for_bit(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    Journal(path).add("a", "moment", "d1", CELL)
    found = Journal(path).find("a", "moment", "d1")
    assert found.seconds == CELL.seconds
    assert found.values[:2] == CELL.values[:2]
    assert math.isnan(found.values[2])
    assert found.values[3] == math.inf


@pytest.mark.parametrize("key", [("b", "moment", "d1"), ("a", "inside", "d1"), ("a", "moment", "d2")])
def test_another_question_has_no_answer(tmp_path: Path, key: tuple[str, str, str]) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.add("a", "moment", "d1", CELL)
    assert journal.find(*key) is None


def test_a_line_that_was_cut_off_is_not_there_and_harms_no_other(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.add("a", "moment", "d", CELL)
    journal.add("b", "moment", "d", CELL)
    text = path.read_text()
    path.write_text(text[: text.index("\n") + 30])  # killed while the second line was written
    again = Journal(path)
    assert again.find("a", "moment", "d") is not None
    assert again.find("b", "moment", "d") is None
    again.add("c", "moment", "d", CELL)
    last = Journal(path)
    assert last.find("a", "moment", "d") is not None
    assert last.find("c", "moment", "d") is not None


@pytest.mark.parametrize(
    "line", ["", "[]", "3", '{"row": "a"}', '{"row": "a", "column": "c", "digest": 3, "seconds": 1, "values": [1]}',
             '{"row": "a", "column": "c", "digest": "d", "seconds": 1, "values": []}',
             '{"row": "a", "column": "c", "digest": "d", "seconds": 1, "values": ["much"]}'],
)  # fmt: skip
def test_a_line_of_another_kind_is_not_there(tmp_path: Path, line: str) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text(line + "\n")
    assert Journal(path).find("a", "c", "d") is None


def test_the_last_of_two_lines_counts(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.add("a", "c", "d", Cell((1.0,), 1.0))
    journal.add("a", "c", "d", Cell((2.0,), 1.0))
    assert Journal(path).find("a", "c", "d") == Cell((2.0,), 1.0)
    assert len([json.loads(line) for line in path.read_text().splitlines()]) == 2


def test_restart_forgets(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    Journal(path).add("a", "c", "d", CELL)
    assert Journal(path, restart=True).find("a", "c", "d") is None
    assert not path.exists()


def test_means() -> None:
    assert Cell((1.0, math.nan), 1.0).radius == 0.5  # what is not certified is worth nothing
    assert math.isnan(Cell((1.0, math.nan), 1.0).width)
    assert Cell((1.0, math.inf), 1.0).width == math.inf
    assert Cell((1.0, 3.0, math.inf), 1.0).broken == 2.0
    assert math.isnan(Cell((math.inf,), 1.0).broken)
    assert Cell((1.0, 2.0), 3.0).seconds_per_point == 1.5
