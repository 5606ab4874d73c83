"""The results of a run for other programs: ``rows.jsonl``, ``results.csv``, ``results.parquet``, ``witnesses.npz``.

Rows come one after the other and are not kept in memory. The files appear under their names when all of them are whole.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from bnndp.errors import ModelFileError, RunStateError
from bnndp.files.posterior import sync_folder, write_whole
from bnndp.runs.lines import numbers
from bnndp.runs.witnesses import Witnesses

__all__ = ["EXPORTS", "Exports", "Row", "npz", "whole_file", "write_summary"]

Row = Mapping[str, Any]
"""What is known of one input, in values that JSON knows; all rows of a run have the same keys."""

ROWS, TABLE, FRAME, WITNESSES, SUMMARY = (
    "rows.jsonl", "results.csv", "results.parquet", "witnesses.npz", "summary.json",
)  # fmt: skip
EXPORTS = (ROWS, TABLE, FRAME, WITNESSES, SUMMARY)
"""The names of the files."""

_INTEGERS = ("index", "label", "decision", "rival")
_TEXTS = ("method", "effort", "verdict")
_TRUTHS = ("capped",)
_LEFT_OUT = "witness"  # of the tables: an input is no cell
_GROUP = 10_000  # rows that go into a .parquet file together


def npz(arrays: Mapping[str, np.ndarray]) -> bytes:
    """The content of a compressed .npz file; what takes the space are pictures, which compress well."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]  # its keywords are arrays
    return buffer.getvalue()


def write_summary(folder: Path, summary: Mapping[str, Any]) -> None:
    """Write ``summary.json``."""
    content = json.dumps(summary, indent=2, allow_nan=False) + "\n"
    with _faults_of(folder):
        write_whole(folder / SUMMARY, content.encode())


class Exports:
    """A context that writes rows and witnesses into the files of a run folder and renames them at a good end.

    Whatever else happens, older files stay as they were. ``complete`` says after that whether a .parquet file was
    written, which needs pyarrow; without it an older one is removed, as it would be of other answers.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.complete = False
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Exports:
        with self._stack as stack, _faults_of(self.folder):
            self._rows = stack.enter_context(whole_file(self.folder / ROWS))
            self._table = _Table(stack.enter_context(whole_file(self.folder / TABLE)))
            self._frame = stack.enter_context(_frame(self.folder / FRAME))
            self._witnesses = stack.enter_context(_kept_witnesses(self.folder / WITNESSES))
            self._stack = stack.pop_all()
        return self

    def write(self, row: Row, beside: Row | None = None) -> None:
        """Add one row, and the witness that it has, or that stands ``beside`` it."""
        with _faults_of(self.folder):
            self._rows.write(json.dumps(row, allow_nan=False) + "\n")
            cells = {name: value for name, value in row.items() if name != _LEFT_OUT}
            self._table.write(cells)
            if self._frame is not None:
                self._frame.write(cells)
            held = beside or row
            if held.get(_LEFT_OUT) is not None:
                self._witnesses.add(row["index"], held["rival"], np.array(numbers(held[_LEFT_OUT])))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with _faults_of(self.folder):
            self._stack.__exit__(kind, error, traceback)
            if kind is not None:
                return
            self.complete = self._frame is not None
            if not self.complete:
                (self.folder / FRAME).unlink(missing_ok=True)


@contextlib.contextmanager
def _faults_of(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ModelFileError) as error:
        cause = error.strerror if isinstance(error, OSError) else error
        raise RunStateError(
            f"{folder}: its tables cannot be written: {cause}; every answer is kept; make room and give the same "
            "command again."
        ) from error


@contextlib.contextmanager
def _scratch(path: Path) -> Iterator[Path]:
    """A name to write a file under, which gets its own at a good end."""
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        yield scratch
        descriptor = os.open(scratch, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        scratch.replace(path)
        sync_folder(path.parent)
    finally:
        scratch.unlink(missing_ok=True)


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[io.TextIOWrapper]:
    """A text file that appears under its name when it is whole; until then an older one stays as it was."""
    with _scratch(path) as scratch, scratch.open("x", encoding="utf-8", newline="") as file:
        yield file


@contextlib.contextmanager
def _kept_witnesses(path: Path) -> Iterator[Witnesses]:
    """Witnesses, which are a file at a good end; where there are none, an older one is removed."""
    with Witnesses(path.parent) as witnesses:
        yield witnesses
        if len(witnesses):
            with _scratch(path) as scratch:
                witnesses.write(scratch)
        else:
            path.unlink(missing_ok=True)


class _Table:
    """Rows as comma-separated values: a list takes a column an entry, null is empty."""

    def __init__(self, file: io.TextIOWrapper) -> None:
        self._writer = csv.writer(file, lineterminator="\n")
        self._names: list[str] | None = None

    def write(self, row: Row) -> None:
        cells = dict(_flat(row))
        if self._names is None:
            self._names = list(cells)
            self._writer.writerow(self._names)
        self._writer.writerow([cells[name] for name in self._names])


def _flat(row: Row) -> Iterator[tuple[str, object]]:
    for name, value in row.items():
        if isinstance(value, list):
            yield from ((f"{name}_{i}", part) for i, part in enumerate(value))
        else:
            yield name, value


class _Frame:
    """Rows as a .parquet file, some thousands at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: list[Row] = []
        self._writer: Any = None

    def write(self, row: Row) -> None:
        self._rows.append(row)
        if len(self._rows) == _GROUP:
            self.flush()

    def flush(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not self._rows:
            return
        if self._writer is None:
            self._writer = pq.ParquetWriter(str(self._path), _schema(self._rows[0]))
        self._writer.write_table(pa.Table.from_pylist(self._rows, schema=self._writer.schema))
        self._rows = []

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


@contextlib.contextmanager
def _frame(path: Path) -> Iterator[_Frame | None]:
    """The .parquet file; None where pyarrow is not there."""
    try:
        import pyarrow.parquet  # noqa: F401 (only to see that it is there)
    except ImportError:
        yield None
        return
    with _scratch(path) as scratch:
        frame = _Frame(scratch)
        try:
            yield frame
            frame.flush()
        finally:
            frame.close()


def _schema(row: Row) -> Any:
    """The types of the columns: by their names, and lists where the row has them."""
    import pyarrow as pa

    def kind(name: str, value: object) -> Any:
        if name in _INTEGERS:
            return pa.int64()
        if name in _TEXTS:
            return pa.string()
        if name in _TRUTHS:
            return pa.bool_()
        return pa.list_(pa.float64()) if isinstance(value, list) else pa.float64()

    return pa.schema([(name, kind(name, value)) for name, value in row.items()])
