"""The table of all inputs: what its columns are, and its rows as numbers that a script can sort.

What is certified is rounded to the safe side here, once: the script shows the numbers as they come.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bnndp.report.page.markup import Markup, data_script, tag
from bnndp.report.page.outcome import Intervals, Outcome, Radii
from bnndp.report.page.record import Record
from bnndp.report.page.scales import rounded, short

_FIRST = 25  # rows that are there without the script
_SEVERAL = 3  # outputs up to which each has its own columns

Cell = float | int | str | None


@dataclass(frozen=True, slots=True)
class Column:
    """One column: ``kind`` is number, class, text or verdict; ``empty`` stands for what is missing.

    ``least`` are the positions of rows whose number is marked by ≥: the truth may be more.
    """

    name: str
    kind: str
    empty: str = "–"
    title: str = ""
    least: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Table:
    """Columns, and rows of cells in their order."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]


def table_of(record: Record, outcome: Outcome, eps: float | None) -> Table:
    """One row per input."""
    found = _radii(outcome, eps or 0.0) if isinstance(outcome, Radii) else _intervals(outcome)
    columns: list[tuple[Column, Sequence[Cell]]] = [(Column("input", "number"), list(record.index)), *found]
    columns.append((Column("effort", "text", title="the last level that was completed"), list(record.levels)))
    columns.append((Column("seconds", "number"), _cells(outcome.seconds, up=True)))
    return Table([column for column, _ in columns], list(zip(*(cells for _, cells in columns), strict=True)))


def _radii(outcome: Radii, eps: float) -> list[tuple[Column, Sequence[Cell]]]:
    none = "none found" if outcome.attacked else "not searched"
    return [
        (Column("label", "class"), outcome.label.tolist()),
        (
            Column("decision", "class", title="of the network at the input itself, by sampling"),
            outcome.decision.tolist(),
        ),
        (
            Column("verdict", "verdict", title="at the radius that is chosen above"),
            [verdict.value for verdict in outcome.verdicts(eps)],
        ),
        (
            Column(
                "proved radius",
                "number",
                "nothing",
                title="≥: the search ended at the largest radius that was tried" if outcome.capped.any() else "",
                least=np.flatnonzero(outcome.capped).tolist(),
            ),
            _cells(outcome.radius, up=False),
        ),
        (Column("attack radius", "number", none), _cells(outcome.attack, up=True)),
        (Column("ratio", "number", title="proved over attacked"), _cells(outcome.ratio, up=False)),
    ]


def _intervals(outcome: Intervals) -> list[tuple[Column, Sequence[Cell]]]:
    found: list[tuple[Column, Sequence[Cell]]] = []
    claims = outcome.claims
    if claims is not None:
        found.append((Column("label", "class"), claims.label.tolist()))
        found.append((Column("verdict", "verdict"), [verdict.value for verdict in claims.verdict]))
        found.append(
            (Column("lead", "number", title="of the label over every other class"), _cells(claims.lead, up=False))
        )
    outputs = outcome.lower.shape[1]
    if outputs <= _SEVERAL:
        for output in range(outputs):
            name = "" if outputs == 1 else f" {output}"
            found.append((Column(f"lower{name}", "number", "−∞"), _cells(outcome.lower[:, output], up=False)))
            found.append((Column(f"upper{name}", "number", "∞"), _cells(outcome.upper[:, output], up=True)))
    else:
        widest = outcome.widest
        at = np.arange(len(widest))
        found.append((Column("widest output", "class"), widest.tolist()))
        found.append((Column("lower", "number", "−∞"), _cells(outcome.lower[at, widest], up=False)))
        found.append((Column("upper", "number", "∞"), _cells(outcome.upper[at, widest], up=True)))
    found.append((Column("width", "number", "∞", "of the widest interval"), _cells(outcome.width, up=True)))
    inside = outcome.inside
    if inside is not None:
        found.append((Column("inside", "number", title="width of what an attack found"), _cells(inside, up=False)))
    found.append((Column("method", "text"), list(outcome.method)))
    return found


def _cells(values: np.ndarray, *, up: bool) -> list[Cell]:
    return [rounded(value, up=up) if math.isfinite(value) else None for value in values.tolist()]


def table_markup(table: Table, eps: float | None, end: float | None) -> Markup:
    """The first rows as they are, and all of them for the script, which sorts, filters and turns pages."""
    data: dict[str, Any] = {
        "columns": [{"name": c.name, "kind": c.kind, "empty": c.empty, "least": c.least} for c in table.columns],
        "rows": table.rows,
        "eps": eps,
        "end": end,
    }
    heads = (tag("th", c.name, scope="col", class_=c.kind, title=c.title or None) for c in table.columns)
    return tag(
        "div",
        tag("form", id="filters", class_="filters", hidden=True, aria_label="Filter the table"),
        tag("p", f"{min(_FIRST, len(table.rows)):,} of {len(table.rows):,} inputs", id="count", role="status"),
        tag(
            "div",
            tag(
                "table",
                tag("caption", "All inputs", class_="hidden"),
                tag("thead", tag("tr", heads)),
                tag("tbody", (_row(table.columns, at, row) for at, row in enumerate(table.rows[:_FIRST]))),
                id="rows",
            ),
            class_="scroll",
            tabindex="0",
            role="region",
            aria_label="Table of all inputs, scrolls sideways",
        ),
        tag("nav", id="pages", class_="pages", hidden=True, aria_label="Pages of the table"),
        data_script("data", data),
    )


def _row(columns: Sequence[Column], at: int, row: Sequence[Cell]) -> Markup:
    cells = ((c, cell, f" {cell}" if c.kind == "verdict" else "") for c, cell in zip(columns, row, strict=True))
    return tag("tr", (tag("td", _shown(c, at, cell), class_=f"{c.kind}{more}") for c, cell, more in cells))


def _shown(column: Column, at: int, cell: Cell) -> str:
    if cell is None:
        return column.empty
    if isinstance(cell, float):
        text = f"{cell:.5g}".replace("-", "−") if math.isfinite(cell) else short(cell)
        return f"≥ {text}" if at in column.least else text
    return str(cell)
