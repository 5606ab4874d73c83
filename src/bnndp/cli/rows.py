"""Where rows of JSON go: a file that appears under its name only when all of them are written, or stdout."""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TextIO

from bnndp.errors import InputError
from bnndp.files.posterior import sync_folder

__all__ = ["STDOUT", "RowFile", "StandardRows", "expect_other", "finite_or_none", "open_rows", "plain"]

STDOUT = Path("-")
"""What stands for stdout on the command line."""


class RowFile:
    """A context that writes rows into a temporary file beside ``path`` and renames it at a good end.

    Whatever else happens, an exception or an interruption, the temporary file is removed and an older file of that name
    stays as it was. Files in ``keep`` are never overwritten.
    """

    def __init__(self, path: Path, *, keep: Sequence[Path] = ()) -> None:
        self.path = path
        self._keep = tuple(keep)

    def __enter__(self) -> RowFile:
        with self._one_line():
            self._target = self.path.resolve()
            self._check()
            self._scratch = self._target.with_name(f".{self._target.name}.{secrets.token_hex(8)}.part")
            self._file: TextIO = self._scratch.open("x", encoding="utf-8")
        return self

    def _check(self) -> None:
        if self.path.absolute().parts[1:2] in (("dev",), ("proc",)):
            raise InputError(
                f"{self.path}: the rows are renamed into place and need a file of their own; change --out, "
                "which may be - for stdout."
            )
        if not self._target.parent.is_dir():
            raise InputError(f"{self.path}: the folder {self._target.parent} does not exist; make it or change --out.")
        if self._target.exists() and not self._target.is_file():
            raise InputError(f"{self.path}: is not a regular file and cannot be replaced; change --out.")
        expect_other(self.path, self._keep, "--out")

    @contextlib.contextmanager
    def _one_line(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written: {error.strerror}; change --out.") from error

    def write(self, row: dict[str, object]) -> None:
        """Add one row."""
        with self._one_line():
            self._file.write(json.dumps(row, allow_nan=False) + "\n")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            with self._one_line(), self._file:
                if kind is None:
                    self._file.flush()
                    os.fsync(self._file.fileno())
                    os.replace(self._scratch, self._target)
                    sync_folder(self._target.parent)
        finally:
            self._scratch.unlink(missing_ok=True)


def expect_other(path: Path, keep: Sequence[Path], option: str) -> None:
    """Refuse to write a file of ``keep``."""
    if any(path.resolve() == other.resolve() for other in keep):
        raise InputError(f"{path}: is an input of this command and would be overwritten; change {option}.")


class StandardRows:
    """Rows on stdout; they are written when all answers are there, so that a reader gets all or none."""

    def write(self, row: dict[str, object]) -> None:
        """Add one row."""
        sys.stdout.write(json.dumps(row, allow_nan=False) + "\n")


def open_rows(
    out: Path | None, *, keep: Sequence[Path] = ()
) -> contextlib.AbstractContextManager[RowFile | StandardRows | None]:
    """Where the rows of ``--out`` go; None: nowhere."""
    if out is None or out == STDOUT:
        return contextlib.nullcontext(None if out is None else StandardRows())
    return RowFile(out, keep=keep)


def finite_or_none(value: float | None) -> float | None:
    """The number, or null where there is none: JSON knows neither NaN nor infinity."""
    return value if value is not None and math.isfinite(value) else None


def plain(values: Sequence[float]) -> object:
    """A number for one output, a list for several; null where there is no finite bound (JSON has no infinity)."""
    numbers = [finite_or_none(value) for value in values]
    return numbers[0] if len(numbers) == 1 else numbers
