"""Every column has one type, whoever writes it, and rows are refused that have other columns."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bnndp.runs.columns import BOX_COLUMNS, COLUMNS, DECISION_COLUMNS, RADIUS_COLUMNS, Kind, row_of
from bnndp.runs.exports import open_exports

DOCS = Path(__file__).parents[2] / "docs" / "runs.md"


def test_a_name_has_the_same_type_in_all_rows() -> None:
    for columns in (BOX_COLUMNS, DECISION_COLUMNS, RADIUS_COLUMNS):
        assert {name: COLUMNS[name] for name in columns} == columns


@pytest.mark.parametrize("cells", [{"index": 0}, {"index": 0, "radius": 0.1, "surplus": 1}, {}])
def test_rows_have_all_columns_and_no_others(cells: dict[str, object]) -> None:
    with pytest.raises(KeyError, match="for the columns index, radius"):
        row_of({"index": Kind.INTEGER, "radius": Kind.REAL}, cells)


def test_the_order_is_that_of_the_columns() -> None:
    row = row_of(RADIUS_COLUMNS, dict.fromkeys(reversed(RADIUS_COLUMNS)))
    assert list(row) == list(RADIUS_COLUMNS)


def test_a_table_takes_no_column_without_a_type(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="newcomer"), open_exports(tmp_path) as export:
        export({"index": 0, "newcomer": 1.0}, {})
    assert list(tmp_path.iterdir()) == []


def test_the_documentation_names_them_in_their_order() -> None:
    text = DOCS.read_text(encoding="utf-8").partition("### rows.jsonl")[2].partition("They are explained")[0]
    for command, columns in (("certify", DECISION_COLUMNS), ("radius, evaluate", RADIUS_COLUMNS)):
        entries = next(item for item in text.split("\n- ") if item.startswith(f"{command}: "))
        assert re.findall(r"`(\w+)`", entries) == list(columns)
