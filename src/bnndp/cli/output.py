"""Where rows go: a file that appears under its name only when all of them are written, or stdout; and verdicts."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from bnndp.errors import InputError
from bnndp.files.posterior import write_whole
from bnndp.runs.exports import Row, whole_file

STDOUT = Path("-")
"""What stands for stdout on the command line."""

_WORDS = {"certified": "unsat", "falsified": "sat", "undecided": "unknown"}  # by the value of a Verdict


@contextlib.contextmanager
def open_rows(out: Path | None, *, keep: Sequence[Path] = ()) -> Iterator[Callable[[Row], object] | None]:
    """What takes the rows of ``--out``, one after the other; None: there is none.

    A file is written under another name beside ``out`` and renamed on success. Whatever else happens, an exception
    or an interruption, an older file of that name stays as it was. Files in ``keep`` are never overwritten. Rows go to
    stdout when all answers are there, so that a reader gets all or none.
    """
    if out is None:
        yield None
    elif out == STDOUT:
        yield lambda row: sys.stdout.write(_line(row))
    else:
        with open_text(out, keep=keep) as write:
            yield lambda row: write(_line(row))


@contextlib.contextmanager
def open_text(out: Path | None, *, keep: Sequence[Path] = ()) -> Iterator[Callable[[str], object]]:
    """What takes the text of a file, which is written as :func:`open_rows` does; without a file it takes nothing."""
    if out is None:
        yield lambda _: None
        return
    with contextlib.ExitStack() as stack:
        with _faults_of(out):
            file = stack.enter_context(whole_file(_place(out, keep)))

        def write(text: str) -> None:
            with _faults_of(out):
                file.write(text)

        yield write
        with _faults_of(out):
            stack.close()


def _line(row: Row) -> str:
    return json.dumps(row, allow_nan=False) + "\n"


def _place(path: Path, keep: Sequence[Path]) -> Path:
    """The file that is written, where links lead."""
    target = path.resolve()
    if path.absolute().parts[1:2] in (("dev",), ("proc",)):
        raise InputError(
            f"{path}: the rows are renamed into place and need a file of their own; change --out, "
            "which may be - for stdout."
        )
    if not target.parent.is_dir():
        raise InputError(f"{path}: the folder {target.parent} does not exist; make it or change --out.")
    if target.exists() and not target.is_file():
        raise InputError(f"{path}: is not a regular file and cannot be replaced; change --out.")
    expect_other(path, keep, "--out")
    return target


@contextlib.contextmanager
def _faults_of(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}; change --out.") from error


def expect_other(path: Path, keep: Sequence[Path], option: str) -> None:
    """Refuse to write a file of ``keep``."""
    if any(path.resolve() == other.resolve() for other in keep):
        raise InputError(f"{path}: is an input of this command and would be overwritten; change {option}.")


def write_verdicts(path: Path, model: Path, names: Iterable[str], rows: Iterable[Row]) -> None:
    """One line per box, as in VNN-COMP: category, network, property, time of preparation, result, seconds.

    The result is ``unsat`` if the decision is certified, so that no input breaks it, ``sat`` if one does, ``unknown``.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for name, row in zip(names, rows, strict=True):
        writer.writerow(["bnndp", model, name, 0.0, _WORDS[row["verdict"]], row["seconds"]])
    write_whole(path, text.getvalue().encode())


def finite_or_none(value: float | None) -> float | None:
    """The number, or null where there is none: JSON has neither NaN nor infinity."""
    return value if value is not None and math.isfinite(value) else None


def plain(values: Sequence[float]) -> object:
    """A number for one output, a list for several; null where there is no finite bound (JSON has no infinity)."""
    numbers = [finite_or_none(value) for value in values]
    return numbers[0] if len(numbers) == 1 else numbers
