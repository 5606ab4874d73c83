"""The columns of the tables that a run writes: their names, their order and the types of their cells.

Rows are made of these columns and tables take no others, so that none is written without a type. Any cell may be null.
What the columns hold is said in docs/runs.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeAlias


class Kind(Enum):
    """The type of the cells of a column."""

    INTEGER = "integer"
    TEXT = "text"
    TRUTH = "truth value"
    REAL = "real number"  # or a list of them, one for each output
    INPUT = "input"  # a list of numbers, in rows.jsonl and in witnesses.npz only: an input is no cell of a table


Columns: TypeAlias = Mapping[str, Kind]
"""The columns of a row by their names, in their order."""

BOX_COLUMNS: Columns = {
    "index": Kind.INTEGER,
    "lower": Kind.REAL,
    "upper": Kind.REAL,
    "width": Kind.REAL,
    "inside_lower": Kind.REAL,
    "inside_upper": Kind.REAL,
    "method": Kind.TEXT,
    "effort": Kind.TEXT,
    "seconds": Kind.REAL,
}
"""Of ``bnndp certify``."""

DECISION_COLUMNS: Columns = {
    **BOX_COLUMNS,
    "label": Kind.INTEGER,
    "verdict": Kind.TEXT,
    "lead": Kind.REAL,
    "rival": Kind.INTEGER,
    "witness": Kind.INPUT,
}
"""Of ``bnndp certify`` where decisions are asked about."""

RADIUS_COLUMNS: Columns = {
    "index": Kind.INTEGER,
    "label": Kind.INTEGER,
    "decision": Kind.INTEGER,
    "radius": Kind.REAL,
    "capped": Kind.TRUTH,
    "attack_radius": Kind.REAL,
    "ratio": Kind.REAL,
    "effort": Kind.TEXT,
    "seconds": Kind.REAL,
}
"""Of ``bnndp radius`` and ``bnndp evaluate``."""

COLUMNS: Columns = {**DECISION_COLUMNS, **RADIUS_COLUMNS}
"""All of them."""


def row_of(columns: Columns, cells: Mapping[str, object]) -> dict[str, object]:
    """The cells in the order of the columns: one for each column, and no others.

    >>> row_of({"index": Kind.INTEGER, "effort": Kind.TEXT}, {"effort": "low", "index": 0})
    {'index': 0, 'effort': 'low'}
    """
    if cells.keys() != columns.keys():
        raise KeyError(f"cells of {', '.join(cells)} for the columns {', '.join(columns)}")
    return {name: cells[name] for name in columns}
