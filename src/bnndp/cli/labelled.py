"""Inputs, with labels for classifiers, from a file of the user or a published data set. Every fault is one line."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
from torch import Tensor

from bnndp.cli.arrays import read_named
from bnndp.cli.inputs import check_array, faults_of, read_matrices
from bnndp.cli.manner import PLAIN, Manner
from bnndp.cli.origin import Given
from bnndp.data import NAMES, ClassificationData, Store, describe, load, open_store
from bnndp.errors import InputError
from bnndp.geometry.box import Box
from bnndp.network import Posterior

__all__ = ["Points", "Source", "has_labels", "read_labels", "read_points", "read_published", "shown_store"]


@dataclass(frozen=True, slots=True)
class Source:
    """Where the inputs come from: a file, or a published data set, and how many of them are wanted."""

    path: Path | None = None
    data: str | None = None
    split: str = "test"
    folder: Path | None = None
    limit: int | None = None
    fold: int = 0
    task: str = "classification"  # of the network

    def __post_init__(self) -> None:
        if self.data is not None:
            _check_set(self.data, self.task)
        if (self.path is None) == (self.data is None):
            raise InputError("give either the file INPUTS or a data set by --data, one of the two.")
        if self.data is None and self.folder is not None:
            raise InputError("--data-dir belongs to --data; leave it out when INPUTS is a file.")

    def given(self, points: Points) -> Given:
        """What a run folder keeps of it; without labels the decisions in question are the network's own."""
        return self.given_as({"x": points.x.numpy()}, points.label, "network")

    def given_as(self, arrays: Mapping[str, np.ndarray], label: Tensor | None, otherwise: str = "none") -> Given:
        """The same of arrays that were read from it, ``otherwise`` of those without labels."""
        kept = dict(arrays) if label is None else {**arrays, "y": label.numpy()}
        labels = otherwise if label is None else "given"
        if self.path is not None:
            return Given(kept, self.path, limit=self.limit, labels=labels)
        return Given(kept, None, self.data, self.split, self.fold, self.limit, labels)

    def __str__(self) -> str:
        """Its name in messages."""
        return f"{self.data} ({self.split})" if self.path is None else str(self.path)


@dataclass(frozen=True, slots=True)
class Points:
    """Inputs that were checked against a network, with their labels if there are any."""

    x: Tensor  # (n, inputs)
    label: Tensor | None  # (n,) of int64
    source: str

    def __getitem__(self, part: slice) -> Points:
        return Points(self.x[part], None if self.label is None else self.label[part], self.source)


def read_points(
    source: Source, network: Posterior, domain: tuple[float, float] | None, manner: Manner = PLAIN
) -> Points:
    """The inputs and labels of ``source`` within its limit; all must lie in ``domain`` and fit the network."""
    if source.path is None:
        x, label = read_published(source, network, manner)
    else:
        x, label = _own(source.path, network, source.limit)
    with faults_of(source):
        Box.ball(x, 0.0, domain=domain)
    return Points(x, label, str(source))


def read_labels(path: Path, count: int, classes: int, limit: int | None = None) -> Tensor | None:
    """The first ``limit`` of the ``count`` labels of a file, y or a column of that name; None where it has none."""
    with faults_of(path):
        arrays = read_named(path, lambda names: tuple(name for name in names if name == "y"))
        return _labels(arrays["y"], count, classes, limit) if arrays else None


def has_labels(path: Path) -> bool:
    """Whether a file has whole numbers y, or a column of that name."""
    with contextlib.suppress(InputError, OSError, MemoryError):  # what is not used may be anything
        arrays = read_named(path, lambda names: tuple(name for name in names if name == "y"))
        return "y" in arrays and arrays["y"].dtype.kind in "iu"
    return False


@contextlib.contextmanager
def shown_store(folder: Path | None, manner: Manner = PLAIN) -> Iterator[Store]:
    """The store of data sets, with a bar on stderr for what it downloads; no bar where that is no terminal."""
    console = Console(stderr=True)
    shown = console.is_terminal and not manner.quiet
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=console, transient=True, disable=not shown) as bars:
        tasks = {}

        def show(name: str, done: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total)
            bars.update(tasks[name], completed=done)

        yield open_store(folder, progress=show)


def _check_set(name: str, wanted: str) -> None:
    try:
        task = describe(name).task
    except InputError as error:
        raise InputError(f"invalid value for '--data': {error}") from error
    if task != wanted:
        fit = ", ".join(known for known in NAMES if describe(known).task == wanted)
        why = "has no labels" if wanted == "classification" else f"the network for {wanted}"
        raise InputError(f"invalid value for '--data': {name} is for {task} and {why}; choose one of {fit}.")


def read_published(source: Source, network: Posterior, manner: Manner = PLAIN) -> tuple[Tensor, Tensor | None]:
    """The inputs of a data set within the limit, which fit the network, and for a classifier the labels."""
    with shown_store(source.folder, manner) as store:
        found = load(str(source.data), source.split, folder=store, fold=source.fold)
    with faults_of(source):
        check_array("x", found.x.numpy(), network.n_in)
        if not isinstance(found, ClassificationData):
            return found.x[: source.limit], None
        labels = _labels(found.y.numpy(), found.points, network.n_out, source.limit)
        return found.x[: source.limit], labels


def _own(path: Path, network: Posterior, limit: int | None) -> tuple[Tensor, Tensor | None]:
    with faults_of(path):
        x = read_matrices(path, network.input_shape or (), _points_of, limit)["x"]
    return torch.from_numpy(x[:limit]), read_labels(path, x.shape[0], network.n_out, limit)


def _points_of(names: list[str]) -> tuple[str, ...]:
    if "x" not in names:
        raise InputError(f"needs an array x of points; it holds {', '.join(sorted(names)) or 'nothing'}.")
    return ("x",)


def _labels(array: np.ndarray, count: int, classes: int, limit: int | None) -> Tensor:
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
    return torch.from_numpy(used.astype(np.int64))
