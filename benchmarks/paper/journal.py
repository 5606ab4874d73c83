"""Measurements so far, one line of JSON each, so that an interrupted run continues where it was.

A line has the row, the column, a digest of everything that decides the measurement, the values and the seconds. A line
with another digest, of other options or of another network, is ignored; so is one that was cut off. Numbers are written
so that they are read back bit for bit.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from benchmarks.paper.columns import Cell

__all__ = ["Journal"]


class Journal:
    """The cells of a file that were measured already; :meth:`add` appends to the file at once."""

    def __init__(self, path: Path, *, restart: bool = False) -> None:
        self.path = path
        if restart:
            path.unlink(missing_ok=True)
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        self._cells = dict(found for line in text.splitlines() if (found := _parse(line)) is not None)
        self._ends_in_a_line = not text or text.endswith("\n")

    def find(self, row: str, column: str, digest: str) -> Cell | None:
        """The cell, if it was measured under this digest."""
        return self._cells.get((row, column, digest))

    def add(self, row: str, column: str, digest: str, cell: Cell) -> None:
        """Keep a cell; it is on the disk when this returns."""
        values = [value if math.isfinite(value) else repr(value) for value in cell.values]
        record = {"row": row, "column": column, "digest": digest, "seconds": cell.seconds, "values": values}
        line = json.dumps(record, allow_nan=False) + "\n"
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line if self._ends_in_a_line else "\n" + line)
            file.flush()
            os.fsync(file.fileno())
        self._ends_in_a_line = True
        self._cells[row, column, digest] = cell


def _parse(line: str) -> tuple[tuple[str, str, str], Cell] | None:
    try:
        record: dict[str, Any] = json.loads(line)
        key = tuple(record[field] for field in ("row", "column", "digest"))
        cell = Cell(tuple(float(value) for value in record["values"]), float(record["seconds"]))
    except (ValueError, KeyError, TypeError):
        return None
    return (key, cell) if all(isinstance(part, str) for part in key) and cell.values else None
