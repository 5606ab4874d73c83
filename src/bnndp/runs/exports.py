"""The results of a run for other programs: ``rows.jsonl``, ``results.csv``, ``results.parquet``, ``witnesses.npz``.

Rows come one after the other and are not kept in memory. The files appear under their names when all of them are whole.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import shutil
import tempfile
import zipfile
from array import array
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np

from bnndp.errors import ModelFileError, RunStateError
from bnndp.files.posterior import replacing, write_whole
from bnndp.runs.columns import COLUMNS, Kind
from bnndp.runs.sealed_lines import numbers

Row: TypeAlias = Mapping[str, Any]
"""What is known of one input, in JSON-compatible values; all rows of a run have the same keys (runs/columns.py)."""

Export: TypeAlias = Callable[[Row, Row], None]
"""Adds a row, and its witness: that of the row, or that of the entries which are given beside it."""

ROWS, TABLE, FRAME, WITNESSES, SUMMARY = (
    "rows.jsonl", "results.csv", "results.parquet", "witnesses.npz", "summary.json",
)  # fmt: skip
EXPORTS = (ROWS, TABLE, FRAME, WITNESSES, SUMMARY)
"""The names of the files."""

_GROUP = 10_000  # rows that go into a .parquet file together
_BLOCK = 2**20  # bytes of witnesses that are copied at once


def npz(arrays: Mapping[str, np.ndarray]) -> bytes:
    """The content of a compressed .npz file; what takes the space are pictures, which compress well."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]  # its keywords are arrays
    return buffer.getvalue()


def write_summary(folder: Path, summary: Row) -> None:
    """Write ``summary.json``."""
    content = json.dumps(summary, indent=2, allow_nan=False) + "\n"
    with _faults_of(folder):
        write_whole(folder / SUMMARY, content.encode())


@contextlib.contextmanager
def open_exports(folder: Path) -> Iterator[Export]:
    """Write rows and witnesses into the files of a run folder, which are renamed on success.

    Whatever else happens, older files stay as they were. A .parquet file needs pyarrow.
    """
    with contextlib.ExitStack() as stack:
        with _faults_of(folder):
            rows = stack.enter_context(whole_file(folder / ROWS))
            tables = [stack.enter_context(_table(folder / TABLE)), stack.enter_context(_frame(folder / FRAME))]
            add_witness = stack.enter_context(_witnesses(folder / WITNESSES))

        def write(row: Row, beside: Row) -> None:
            with _faults_of(folder):
                rows.write(json.dumps(row, allow_nan=False) + "\n")
                for table in tables:
                    table({name: value for name, value in row.items() if COLUMNS[name] is not Kind.INPUT})
                found = beside or row
                if found.get("witness") is not None:
                    add_witness(row["index"], found["rival"], np.array(numbers(found["witness"])))

        yield write
        with _faults_of(folder):
            stack.close()


@contextlib.contextmanager
def _faults_of(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ModelFileError) as error:
        cause = error.strerror if isinstance(error, OSError) else error
        raise RunStateError(
            f"{folder}: its tables cannot be written: {cause}; every answer is kept; free some disk space and give "
            "the same command again."
        ) from error


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[io.TextIOWrapper]:
    """A text file that appears under its name when it is whole; until then an older one stays as it was."""
    with replacing(path) as scratch, scratch.open("x", encoding="utf-8", newline="") as file:
        yield file


@contextlib.contextmanager
def _table(path: Path) -> Iterator[Callable[[Row], None]]:
    """Rows as comma-separated values: a list takes one column per entry, null is empty."""
    with whole_file(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        names: list[str] = []

        def write(row: Row) -> None:
            cells = dict(_flat(row))
            if not names:
                names.extend(cells)
                writer.writerow(names)
            writer.writerow([cells[name] for name in names])

        yield write


def _flat(row: Row) -> Iterator[tuple[str, object]]:
    for name, value in row.items():
        if isinstance(value, list):
            yield from ((f"{name}_{i}", part) for i, part in enumerate(value))
        else:
            yield name, value


@contextlib.contextmanager
def _frame(path: Path) -> Iterator[Callable[[Row], None]]:
    """Rows as a .parquet file, some thousands at a time; without pyarrow there is none, nor an older one."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        yield lambda _: None
        path.unlink(missing_ok=True)
        return
    rows: list[Row] = []
    with replacing(path) as scratch, contextlib.ExitStack() as stack:
        writer: Any = None

        def flush() -> None:
            nonlocal writer
            writer = writer or stack.enter_context(pq.ParquetWriter(str(scratch), _schema(pa, rows[0])))
            writer.write_table(pa.Table.from_pylist(rows, schema=writer.schema))
            rows.clear()

        def write(row: Row) -> None:
            rows.append(row)
            if len(rows) == _GROUP:
                flush()

        yield write
        if rows:
            flush()


def _schema(pa: Any, row: Row) -> Any:
    """The types of the columns; those of several real numbers are lists where the row has them."""
    types = {Kind.INTEGER: pa.int64(), Kind.TEXT: pa.string(), Kind.TRUTH: pa.bool_(), Kind.REAL: pa.float64()}
    return pa.schema(
        [
            (name, pa.list_(types[COLUMNS[name]]) if isinstance(value, list) else types[COLUMNS[name]])
            for name, value in row.items()
        ]
    )


@contextlib.contextmanager
def _witnesses(path: Path) -> Iterator[Callable[[int, int, np.ndarray], None]]:
    """Collects witnesses with their numbers and rivals, and writes an .npz file on success if there are any.

    They are not kept in memory, but in a temporary file of the same folder, which is gone with the process.
    """
    index, rival, inputs = array("q"), array("q"), 0
    with tempfile.TemporaryFile(dir=path.parent) as file:

        def add(point: int, other: int, x: np.ndarray) -> None:  # x (inputs,)
            nonlocal inputs
            if index and x.size != inputs:
                raise RunStateError(f"the witness of input {point} has {x.size} numbers, those before {inputs}.")
            inputs = x.size
            file.write(x.astype("<f8", copy=False).tobytes())
            index.append(point)
            rival.append(other)

        yield add
        if not index:
            path.unlink(missing_ok=True)
            return
        with replacing(path) as scratch:
            _write_witnesses(scratch, {"index": index, "rival": rival}, file, (len(index), inputs))


def _write_witnesses(path: Path, whole: Mapping[str, array[int]], x: IO[bytes], shape: tuple[int, int]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, values in whole.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.array(values, dtype=np.int64), allow_pickle=False)
        with archive.open("x.npy", "w", force_zip64=True) as file:
            header = {"descr": "<f8", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            x.seek(0)
            shutil.copyfileobj(x, file, _BLOCK)
