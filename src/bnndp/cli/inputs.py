"""Reading what the user gives: the network, and the inputs as boxes. Every fault is one line that says what to do."""

from __future__ import annotations

import contextlib
import csv
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from bnndp.cli.manner import PLAIN, Manner
from bnndp.ensemble import Posterior
from bnndp.errors import CertError, InputError
from bnndp.files import ModelFile, read_model
from bnndp.regions import Box
from bnndp.regular_files import ARCHIVE_FAULTS

__all__ = [
    "Neighbourhood", "Regions", "check_array", "faults_of", "given_boxes", "load_classifier", "load_model",
    "load_network", "read_boxes", "read_matrices", "read_npz",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """What to certify around each input: the ball of radius ``eps``, cut to ``domain``."""

    eps: float | None = None
    norm: float = math.inf
    domain: tuple[float, float] | None = None


def load_model(path: Path, manner: Manner = PLAIN) -> ModelFile:
    """What a file holds, with the network or the ensemble; a file without a digest is said to have none."""
    if not path.is_file():
        raise InputError(f"{path}: no such file; MODEL must be a bnndp-posterior-1 file.")
    found = read_model(path)
    if found.sha256 is None:
        manner.tell(
            f"{path} has no digest, so that a damaged value in it would not be noticed; "
            "bnndp convert writes a sealed copy."
        )
    return found


def load_network(path: Path) -> Posterior:
    """The network of a file, or the ensemble."""
    return load_model(path).posterior


def load_classifier(path: Path, manner: Manner = PLAIN) -> ModelFile:
    """What a file holds, refused if it is not a classifier."""
    found = load_model(path, manner)
    if found.posterior.task != "classification":
        raise InputError(
            f"{path}: is a network for {found.posterior.task}, which has no decisions; bound its outputs with bnndp "
            "certify."
        )
    return found


@contextlib.contextmanager
def faults_of(source: object) -> Iterator[None]:
    """Put the name of the source in front of whatever is wrong with it."""
    try:
        yield
    except CertError as error:
        raise InputError(f"{source}: {error}") from error
    except (OSError, MemoryError) as error:
        raise InputError(f"{source}: cannot be read: {getattr(error, 'strerror', None) or error}.") from error


@dataclass(frozen=True, slots=True)
class Regions:
    """The boxes to certify, and the arrays that they were given by: x, or lower and upper, one row a box."""

    box: Box
    arrays: dict[str, np.ndarray]


def read_boxes(path: Path, n_in: int, around: Neighbourhood) -> Regions:
    """The boxes of a .npz or .csv file, one a row; faults name the file."""
    with faults_of(path):
        arrays = read_matrices(path, n_in, _wanted)
        if "x" in arrays:
            return Regions(_balls(arrays["x"], around), arrays)
        return Regions(given_boxes(arrays["lower"], arrays["upper"], around), arrays)


def read_matrices(path: Path, n_in: int, choose: Callable[[list[str]], tuple[str, ...]]) -> dict[str, np.ndarray]:
    """The matrices that ``choose`` picks by their names, checked: finite, in float64, one column an input."""
    suffix = path.suffix.lower()
    if suffix not in (".npz", ".csv"):
        raise InputError(f"INPUTS must be a .npz or a .csv file, got {path.suffix or 'no suffix'!r}.")
    if not path.is_file():
        raise InputError("no such file; INPUTS must be a .npz or a .csv file.")
    found = read_npz(path, choose) if suffix == ".npz" else _read_csv(path)
    arrays = {name: _as_float64(name, array) for name, array in found.items()}
    for name, array in arrays.items():
        check_array(name, array, n_in)
    return arrays


def _balls(x: np.ndarray, around: Neighbourhood) -> Box:
    if around.eps is None:
        raise InputError("holds points x, so the radius of the balls around them is needed; add --eps E.")
    return Box.ball(torch.from_numpy(x), around.eps, domain=around.domain, norm=around.norm)


def given_boxes(lower: np.ndarray, upper: np.ndarray, around: Neighbourhood) -> Box:
    """Boxes by their ends, cut to the domain."""
    if around.eps is not None or around.norm != math.inf:
        raise InputError("holds boxes (lower, upper), which have no radius; leave out --eps and --norm.")
    box = Box(torch.from_numpy(lower), torch.from_numpy(upper))
    if around.domain is None:
        return box
    low, high = around.domain
    if not low <= high:
        raise InputError(f"--domain needs LO <= HI, got {low} {high}.")
    cut_lower, cut_upper = box.lower.clamp_min(low), box.upper.clamp_max(high)
    empty = (cut_lower > cut_upper).nonzero()
    if len(empty):
        b, i = empty[0].tolist()
        raise InputError(
            f"box {b} lies outside the domain [{low}, {high}]: input {i} runs from {box.lower[b, i].item()} to "
            f"{box.upper[b, i].item()}; rescale the boxes or give another --domain."
        )
    return Box(cut_lower, cut_upper)


def check_array(name: str, array: np.ndarray, n_in: int) -> None:
    """Refuse what is not a non-empty matrix of finite numbers with one column an input."""
    if array.ndim != 2:
        raise InputError(f"{name} must have shape (n, {n_in}), got {array.shape}; reshape it to one row a point.")
    if array.shape[1] != n_in:
        raise InputError(f"{name} has {array.shape[1]} columns, but the network takes {n_in} inputs; give one each.")
    if array.shape[0] == 0:
        raise InputError(f"{name} has no rows; give at least one.")
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        row, column = bad[0].tolist()
        raise InputError(
            f"{name} at row {row}, column {column} is {array[row, column]} ({len(bad)} such values); "
            "all must be finite numbers."
        )


def read_npz(path: Path, choose: Callable[[list[str]], tuple[str, ...]]) -> dict[str, np.ndarray]:
    """The arrays that ``choose`` picks from the names in the archive."""
    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise InputError("is a single array, not a .npz archive; write it with numpy.savez(FILE, x=...).")
            return {name: archive[name] for name in choose(archive.files)}
    except ARCHIVE_FAULTS as error:
        if isinstance(error, InputError):
            raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"cannot be read as plain .npz arrays: {reason}; write it with numpy.savez.") from error


def _wanted(names: list[str]) -> tuple[str, ...]:
    """The arrays to read: x, or lower and upper, but not both."""
    boxes = {"lower", "upper"} & set(names)
    if "x" in names and boxes:
        raise InputError(f"holds both x and {' and '.join(sorted(boxes))}; give either points x or lower and upper.")
    if "x" in names:
        return ("x",)
    if len(boxes) == 2:
        return ("lower", "upper")
    raise InputError(f"needs an array x, or lower and upper; it holds {', '.join(sorted(names)) or 'nothing'}.")


def _as_float64(name: str, array: np.ndarray) -> np.ndarray:
    """The numbers without any change of value: wider types than float64 are refused."""
    if array.dtype.kind not in "fiu" or array.dtype.itemsize > 8:
        raise InputError(f"{name} has dtype {array.dtype}; use float64, float32 or integers.")
    return np.ascontiguousarray(array, dtype=np.float64)


def _read_csv(path: Path) -> dict[str, np.ndarray]:
    """Rows of numbers, comma-separated; a first line without any number is a header and is skipped."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            lines = [(reader.line_num, cells) for cells in reader]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot be read as comma-separated text in UTF-8: {error}.") from error
    while lines and not any(cell.strip() for cell in lines[-1][1]):
        lines.pop()  # blank lines at the end
    if lines and not any(_number(cell) is not None for cell in lines[0][1]):
        del lines[0]  # a first line with some numbers is data: a misprint in it must not lose a row
    if not lines:
        raise InputError("has no rows of numbers; give at least one.")
    return {"x": np.array([_row(line, cells, len(lines[0][1])) for line, cells in lines], dtype=np.float64)}


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
