"""Inputs with labels, from a file of the user or from a published data set. Every fault is one line."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
from torch import Tensor

from bnndp.cli.inputs import check_array, faults_of, read_matrices, read_npz
from bnndp.cli.manner import PLAIN, Manner
from bnndp.cli.origin import Given
from bnndp.data import NAMES, ClassificationData, Store, describe, load, open_store
from bnndp.ensemble import Posterior
from bnndp.errors import InputError
from bnndp.regions import Box

__all__ = ["Points", "Source", "labels_in_question", "read_labels", "read_points", "shown_store"]


@dataclass(frozen=True, slots=True)
class Source:
    """Where the inputs come from: a file, or a published data set, and how many of them are wanted."""

    path: Path | None = None
    data: str | None = None
    split: str = "test"
    folder: Path | None = None
    limit: int | None = None
    fold: int = 0

    def __post_init__(self) -> None:
        if self.data is not None:
            _check_set(self.data)
        if (self.path is None) == (self.data is None):
            raise InputError("give either the file INPUTS or a data set by --data, one of the two.")
        if self.data is None and self.folder is not None:
            raise InputError("--data-dir belongs to --data; leave it out when INPUTS is a file.")

    def given(self, points: Points) -> Given:
        """What a run folder keeps of it."""
        arrays = {"x": points.x.numpy()} | ({} if points.label is None else {"y": points.label.numpy()})
        labels = "network" if points.label is None else "given"
        if self.path is not None:
            return Given(arrays, self.path, limit=self.limit, labels=labels)
        return Given(arrays, None, self.data, self.split, self.fold, self.limit, labels)

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
    """The inputs and labels of ``source``; all must lie in ``domain`` and fit the network."""
    x, label = _published(source, network, manner) if source.path is None else _own(source.path, network)
    with faults_of(source):
        Box.ball(x, 0.0, domain=domain)
    return Points(x, label, str(source))[: source.limit]


def read_labels(path: Path, count: int, classes: int) -> Tensor | None:
    """The labels ``y`` (count,) of a .npz file; None where it has none."""
    if path.suffix.lower() != ".npz":
        return None
    with faults_of(path):
        arrays = read_npz(path, lambda names: tuple(name for name in names if name == "y"))
        return _labels(arrays["y"], count, classes) if arrays else None


def labels_in_question(path: Path | None, network: Posterior, count: int, label: int | None) -> Tensor | None:
    """The decisions (count,) that are asked about: those of the file, or one for all; None where there are none."""
    if network.task != "classification":
        if label is not None:
            raise InputError(f"--label is for classifiers; this network is for {network.task}. Leave it out.")
        return None
    given = None if path is None else read_labels(path, count, network.n_out)
    if label is None:
        return given
    if given is not None:
        raise InputError(f"{path}: holds labels y, and --label {label} was given too; use one of the two.")
    if label >= network.n_out:
        raise InputError(f"--label is {label}, but the classes of the network are 0 to {network.n_out - 1}.")
    return torch.full((count,), label)


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


def _check_set(name: str) -> None:
    try:
        task = describe(name).task
    except InputError as error:
        raise InputError(f"invalid value for '--data': {error}") from error
    if task != "classification":
        fit = ", ".join(known for known in NAMES if describe(known).task == "classification")
        raise InputError(f"invalid value for '--data': {name} is for {task} and has no labels; choose one of {fit}.")


def _published(source: Source, network: Posterior, manner: Manner) -> tuple[Tensor, Tensor]:
    with shown_store(source.folder, manner) as store:
        found = load(str(source.data), source.split, folder=store, fold=source.fold)
    if not isinstance(found, ClassificationData):
        raise InputError(f"{source}: has no labels.")
    with faults_of(source):
        check_array("x", found.x.numpy(), network.n_in)
        return found.x, _labels(found.y.numpy(), found.points, network.n_out)


def _own(path: Path, network: Posterior) -> tuple[Tensor, Tensor | None]:
    with faults_of(path):
        x = read_matrices(path, network.n_in, _points_of)["x"]
    return torch.from_numpy(x), read_labels(path, x.shape[0], network.n_out)


def _points_of(names: list[str]) -> tuple[str, ...]:
    if "x" not in names:
        raise InputError(f"needs an array x of points; it holds {', '.join(sorted(names)) or 'nothing'}.")
    return ("x",)


def _labels(array: np.ndarray, count: int, classes: int) -> Tensor:
    """The labels as int64, or an error that names the first one that is not a class."""
    if array.dtype.kind not in "iu":
        raise InputError(f"y has dtype {array.dtype}; labels must be integers, as y.astype(int) gives.")
    if array.shape != (count,):
        raise InputError(f"y has shape {array.shape}, but there are {count} inputs; give one label for each.")
    bad = np.flatnonzero((array < 0) | (array >= classes))
    if len(bad):
        raise InputError(
            f"y[{bad[0]}] is {array[bad[0]]} ({len(bad)} such of {count}), but the classes of the network are 0 to "
            f"{classes - 1}."
        )
    return torch.from_numpy(array.astype(np.int64))
