"""Reading what the user gives: the network, and the inputs as boxes. Every fault is one line that says what to do."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from bnndp.cli.arrays import Choose, read_named
from bnndp.cli.manner import PLAIN, Manner
from bnndp.errors import CertError, InputError
from bnndp.files.posterior import ModelFile, read_model
from bnndp.geometry.box import Box
from bnndp.network import Posterior

__all__ = [
    "Neighbourhood", "Regions", "balls", "check_array", "faults_of", "given_boxes", "load_classifier", "load_model",
    "load_network", "read_boxes", "read_matrices",
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
            "certify, or, if it is a classifier, convert it again with bnndp convert --task classification."
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
    rows: int  # of the source; the boxes may be the first of them


def read_boxes(path: Path, shape: tuple[int, ...], around: Neighbourhood, limit: int | None = None) -> Regions:
    """The boxes of a file of inputs of this shape, one a row, the first ``limit`` of them; faults name the file."""
    with faults_of(path):
        found = read_matrices(path, shape, _wanted, limit)
        arrays = {name: array[:limit] for name, array in found.items()}
        box = balls(arrays["x"], around) if "x" in arrays else given_boxes(arrays["lower"], arrays["upper"], around)
        return Regions(box, arrays, len(next(iter(found.values()))))


def read_matrices(
    path: Path, shape: tuple[int, ...], choose: Choose, limit: int | None = None
) -> dict[str, np.ndarray]:
    """The matrices that ``choose`` picks by their names, checked: finite, in float64, one column an input.

    ``shape`` is that of an input of the network; arrays of images of this shape become rows. The numbers of the first
    ``limit`` rows are checked: no others may be used.
    """
    arrays = {name: _as_float64(name, array) for name, array in read_named(path, choose).items()}
    rows = {name: _rows(array, shape) for name, array in arrays.items()}
    for name, array in rows.items():
        check_array(name, array[:limit], math.prod(shape))
    return rows


def _rows(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Images (n, *shape) as rows (n, inputs); all else as it is.

    Axes of length one do not matter. Where the network takes vectors the order of colours is not known, and only
    images without them become rows.
    """
    if array.ndim < 3:
        return array
    given, wanted = (tuple(n for n in axes if n != 1) for axes in (array.shape[1:], shape))
    grey = len(shape) == 1 and len(given) == 2 and math.prod(given) == shape[0]
    return array.reshape(len(array), math.prod(given)) if given == wanted or grey else array


def balls(x: np.ndarray, around: Neighbourhood) -> Box:
    """The balls around the rows of x."""
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
        raise InputError(
            f"{name} must have shape (n, {n_in}), got {array.shape}; reshape it to one row a point, with its numbers "
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
