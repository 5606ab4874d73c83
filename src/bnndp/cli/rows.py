"""The output file: rows of JSON that appear under their name only when all of them are written."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TextIO

from bnndp.errors import InputError

__all__ = ["RowFile", "plain"]


class RowFile:
    """A context that writes rows into a temporary file beside ``path`` and renames it at a good end.

    Whatever else happens, an exception or an interruption, the temporary file is removed and an older file of that name
    stays as it was. Files in ``keep`` are never overwritten.
    """

    def __init__(self, path: Path, *, keep: Sequence[Path] = ()) -> None:
        self.path = path
        self._target = path.resolve()
        if not self._target.parent.is_dir():
            raise InputError(f"{path}: the folder {self._target.parent} does not exist; create it or change --out.")
        if self._target.exists() and not self._target.is_file():
            raise InputError(f"{path}: is not a regular file and cannot be replaced; change --out.")
        if any(self._target == other.resolve() for other in keep):
            raise InputError(f"{path}: is an input of this command and would be overwritten; change --out.")
        self._scratch = self._target.with_name(f".{self._target.name}.{os.getpid()}.part")

    def __enter__(self) -> RowFile:
        try:
            self._file: TextIO = self._scratch.open("x", encoding="utf-8")
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written: {error.strerror}; change --out.") from error
        return self

    def write(self, row: dict[str, object]) -> None:
        """Add one row."""
        try:
            self._file.write(json.dumps(row, allow_nan=False) + "\n")
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written: {error.strerror}; make room or change --out.") from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self._file.close()
            self._scratch.unlink(missing_ok=True)

    def _finish(self) -> None:
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            os.replace(self._scratch, self._target)
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written: {error.strerror}; make room or change --out.") from error


def plain(values: Sequence[float]) -> object:
    """A number for one output, a list for several; null where there is no finite bound (JSON has no infinity)."""
    numbers = [value if math.isfinite(value) else None for value in values]
    return numbers[0] if len(numbers) == 1 else numbers
