"""What commands say, and where: data on stdout, everything else on stderr.

``--json`` puts one JSON object in the place of the table, ``--quiet`` leaves nothing but errors on stderr, and the
table goes there where stdout is taken by rows (``--out -``).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import typer
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table

from bnndp.cli.progress import show_progress
from bnndp.runs.work import Advance

_WIDE = 160  # characters of a line of a table that goes into a file
_ANY = 10_000  # more than any table needs


@dataclass(frozen=True, slots=True)
class Messages:
    """What was asked for by ``--json`` and ``--quiet``, and whether the rows go to stdout."""

    json: bool = False
    quiet: bool = False
    rows: bool = False

    def tell(self, message: str) -> None:
        """A message of one line on stderr."""
        if not self.quiet:
            typer.echo(f"bnndp: {message}", err=True)

    def progress(self, name: str, total: int) -> contextlib.AbstractContextManager[Advance]:
        """How far the work is, on stderr."""
        return show_progress(name, total, quiet=self.quiet)

    def table(self, *parts: RenderableType) -> None:
        """The summary for people; nothing with ``--json``, which has :meth:`summary`."""
        if not self.json and not (self.rows and self.quiet):
            console = _console(stderr=self.rows)
            console.print(*(_fitting(part, console) for part in parts), sep="\n")

    def summary(self, values: Mapping[str, Any]) -> None:
        """The summary for programs, on one line of stdout; nothing without ``--json``."""
        if self.json:
            typer.echo(json.dumps(values, allow_nan=False))


def row_table(cells: Mapping[str, str]) -> Table:
    """A table of one row, by the names of its columns."""
    table = Table(*cells)
    table.add_row(*cells.values())
    return table


def _console(*, stderr: bool) -> Console:
    """As wide as the terminal, or as COLUMNS says; elsewhere wide enough that no number is cut off."""
    console = Console(stderr=stderr)
    if not console.is_terminal and not os.environ.get("COLUMNS"):
        console.width = _WIDE
    return console


def _fitting(part: RenderableType, console: Console) -> RenderableType:
    """A table of one row that is wider than the terminal, upright: names at the left, no number cut off."""
    if not isinstance(part, Table) or part.row_count != 1:
        return part
    if Measurement.get(console, console.options.update(width=_ANY), part).maximum <= console.width:
        return part
    upright = Table(title=part.title, show_header=False)
    for column in part.columns:
        upright.add_row(column.header, *column.cells)
    return upright


PLAIN = Messages()
"""Without any of the options."""
