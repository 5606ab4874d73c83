"""Arrays of the user: read by name from .npz, .npy and .csv, and checked. Nothing is unpickled."""

from __future__ import annotations

import contextlib
import csv
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from bnndp.errors import InputError
from bnndp.files.regular import ARCHIVE_FAULTS

Choose = Callable[[list[str]], tuple[str, ...]]
"""The names to read, of those that there are."""

_LABEL = "label"  # the name of the column of labels in the first line of a .csv
_WHOLE = 2**53  # a label beyond it may have been another whole number in the file


def read_named(path: Path, choose: Choose) -> dict[str, np.ndarray]:
    """The arrays of a file that ``choose`` picks by their names.

    Those of a .npz have names. A .npy is x. A .csv is x, and y where its first line names a column ``label``.
    """
    suffix, kinds = path.suffix.lower(), " or ".join(_READERS)
    if suffix not in _READERS:
        raise InputError(f"INPUTS must be a {kinds} file, got {path.suffix or 'no suffix'!r}.")
    if not path.is_file():
        raise InputError(f"no such file; INPUTS must be a {kinds} file.")
    return _READERS[suffix](path, choose)


def float_rows(name: str, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Inputs of this shape as rows (n, inputs) of float64: images (n, *shape) become rows, all else stays as it is.

    No value is changed: wider types than float64 are refused. Axes of length one do not matter. Where the network takes
    vectors the order of colours is not known, and only images without them become rows.
    """
    if array.dtype.kind not in "fiu" or array.dtype.itemsize > 8:
        raise InputError(f"{name} has dtype {array.dtype}; use float64, float32 or integers.")
    array = np.ascontiguousarray(array, dtype=np.float64)
    if array.ndim < 3:
        return array
    given, wanted = (tuple(n for n in axes if n != 1) for axes in (array.shape[1:], shape))
    grey = len(shape) == 1 and len(given) == 2 and math.prod(given) == shape[0]
    return array.reshape(len(array), math.prod(given)) if given == wanted or grey else array


def expect_matrix(name: str, array: np.ndarray, n_in: int) -> None:
    """Refuse what is not a non-empty matrix of finite numbers with one column per input."""
    if array.ndim != 2:
        raise InputError(
            f"{name} must have shape (n, {n_in}), got {array.shape}; reshape it to one row per point, with its numbers "
            "in the order in which the network takes them."
        )
    if array.shape[1] != n_in:
        labels = "; labels go into y of a .npz, or into a column that the first line of a .csv calls label"
        raise InputError(
            f"{name} has {array.shape[1]} columns, but the network takes {n_in} inputs; give one each"
            f"{labels if array.shape[1] == n_in + 1 else ''}."
        )
    if array.shape[0] == 0:
        raise InputError(f"{name} has no rows; give at least one.")
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        row, column = bad[0].tolist()
        raise InputError(
            f"{name} at row {row}, column {column} is {array[row, column]} ({len(bad)} such values); "
            "all must be finite numbers."
        )


def class_labels(array: np.ndarray, count: int, classes: int, limit: int | None) -> np.ndarray:
    """The first ``limit`` labels as int64, or an error that names the first one that is not a class."""
    if array.dtype.kind not in "iu":
        raise InputError(f"y has dtype {array.dtype}; labels must be integers, as y.astype(int) gives.")
    if array.shape != (count,):
        raise InputError(f"y has shape {array.shape}, but there are {count} inputs; give one label for each.")
    used = array[:limit]
    bad = np.flatnonzero((used < 0) | (used >= classes))
    if len(bad):
        raise InputError(
            f"y[{bad[0]}] is {used[bad[0]]} ({len(bad)} such of {len(used)}), but the classes of the network are 0 to "
            f"{classes - 1}."
        )
    return used.astype(np.int64)


def _read_npz(path: Path, choose: Choose) -> dict[str, np.ndarray]:
    """Arrays of an archive."""
    with _numpy_faults("plain .npz arrays", "numpy.savez"), path.open("rb") as file:
        archive = np.load(file, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise InputError("is a single array, not a .npz archive; name it .npy, or write it with numpy.savez.")
        return {name: archive[name] for name in choose(archive.files)}


def _read_npy(path: Path, choose: Choose) -> dict[str, np.ndarray]:
    """A single array: the points x."""
    with _numpy_faults("a plain .npy array", "numpy.save"), path.open("rb") as file:
        array = np.load(file, allow_pickle=False)
        if not isinstance(array, np.ndarray):
            raise InputError("is an archive, not a single .npy array; name it .npz.")
        return dict.fromkeys(choose(["x"]), array)


@contextlib.contextmanager
def _numpy_faults(what: str, writer: str) -> Iterator[None]:
    try:
        yield
    except ARCHIVE_FAULTS as error:
        if isinstance(error, InputError):
            raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"cannot be read as {what}: {reason}; write it with {writer}.") from error


def _read_csv(path: Path, choose: Choose) -> dict[str, np.ndarray]:
    """Rows of numbers, comma-separated; a first line without any number, or with a ``label``, is a header.

    A first line with some numbers is data otherwise: a misprint in it must not lose a row.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            lines = [(reader.line_num, cells) for cells in reader]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot be read as comma-separated text in UTF-8: {error}.") from error
    while lines and not any(cell.strip() for cell in lines[-1][1]):
        lines.pop()  # blank lines at the end
    header = [cell.strip() for cell in lines[0][1]] if lines else []
    if _LABEL in header or not any(_number(cell) is not None for cell in header):
        del lines[:1]
    if not lines:
        raise InputError("has no rows of numbers; give at least one.")
    found = {"x": np.array([_row(line, cells, len(lines[0][1])) for line, cells in lines], dtype=np.float64)}
    if _LABEL in header:
        found = _labels_apart(header, found["x"], [line for line, _ in lines])
    return {name: found[name] for name in choose(list(found))}


def _labels_apart(header: list[str], numbers: np.ndarray, lines: list[int]) -> dict[str, np.ndarray]:
    """The column of labels as y, all others as x."""
    if header.count(_LABEL) > 1 or len(header) != numbers.shape[1]:
        raise InputError(
            f"its first line has {len(header)} names, {header.count(_LABEL)} of them {_LABEL}, for {numbers.shape[1]} "
            "columns; give each column one name."
        )
    column = header.index(_LABEL)
    label = numbers[:, column]
    bad = np.flatnonzero(~((label >= -_WHOLE) & (label <= _WHOLE) & (np.floor(label) == label)))
    if len(bad):
        raise InputError(f"line {lines[bad[0]]}: the {_LABEL} is {label[bad[0]]}; labels are whole numbers.")
    return {"x": np.delete(numbers, column, axis=1), "y": label.astype(np.int64)}


def _row(line: int, cells: list[str], columns: int) -> list[float]:
    if len(cells) != columns:
        raise InputError(f"line {line} has {len(cells)} values, but the first row has {columns}; give the same number.")
    numbers = [_number(cell) for cell in cells]
    if None in numbers:
        column = numbers.index(None)
        raise InputError(f"line {line}, column {column + 1}: {cells[column]!r:.60} is not a number; correct it.")
    return [number for number in numbers if number is not None]


def _number(text: str) -> float | None:
    try:
        return None if "_" in text else float(text)  # Python reads 1_000 as a number, nobody else does
    except ValueError:
        return None


_READERS: Mapping[str, Callable[[Path, Choose], dict[str, np.ndarray]]] = {
    ".npz": _read_npz,
    ".npy": _read_npy,
    ".csv": _read_csv,
}
