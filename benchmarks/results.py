"""Rows of figures: printed as a table, and kept in ``benchmarks/results-NAME.json``."""

from __future__ import annotations

import json
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

__all__ = ["FOLDER", "keep", "show"]

FOLDER = Path(__file__).resolve().parent
_SECONDS = ("wall", "cpu", "seconds")  # the last word of columns that are printed with a unit


def show(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a table with a column for every key of the first row."""
    table = Table(*rows[0], title=title)
    for row in rows:
        table.add_row(*(_cell(name, value) for name, value in row.items()))
    width = None if sys.stdout.isatty() else 200  # a pipe has no width, and 80 columns cut the tables
    Console(width=width).print(table)


def keep(name: str, part: str, found: Any, folder: Path = FOLDER) -> None:
    """Write the figures of one part; those of other parts in the same file stay."""
    path = folder / f"results-{name}.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    if isinstance(found, dict):
        found = before.get(part, {}) | found
    about = {"torch": torch.__version__, "python": platform.python_version()}
    path.write_text(json.dumps(before | about | {part: found}, indent=2) + "\n")


def _cell(name: str, value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return " to ".join(_cell(name, end) for end in (value[0], value[-1]))
    if not isinstance(value, float):
        return "" if value is None else str(value)
    if re.split("[ _]", name)[-1] not in _SECONDS:
        return f"{value:.4g}"
    unit, factor = next(((u, f) for u, f in (("s", 1.0), ("ms", 1e3)) if value * f >= 1), ("us", 1e6))
    return f"{value * factor:.3g} {unit}"
