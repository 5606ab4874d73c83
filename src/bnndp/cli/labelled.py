"""Inputs with labels, from a file of the user or from a published data set. Every fault is one line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bnndp.cli.inputs import check_array, faults_of, read_matrices, read_npz
from bnndp.data.images import fashion_mnist, mnist
from bnndp.errors import InputError
from bnndp.network import BayesianNetwork
from bnndp.regions import Box

__all__ = ["Points", "Source", "labels_in_question", "read_labels", "read_points"]

_SETS = {"mnist": mnist, "fashion_mnist": fashion_mnist}


@dataclass(frozen=True, slots=True)
class Source:
    """Where the inputs come from: a file, or a published data set, and how many of them are wanted."""

    path: Path | None = None
    data: str | None = None
    split: str = "test"
    folder: Path | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        if (self.path is None) == (self.data is None):
            raise InputError("give either the file INPUTS or a data set by --data, one of the two; see bnndp --help.")
        if self.data is None and self.folder is not None:
            raise InputError("--data-dir belongs to --data; leave it out when INPUTS is a file.")

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


def read_points(source: Source, network: BayesianNetwork, domain: tuple[float, float] | None) -> Points:
    """The inputs and labels of ``source``; all must lie in ``domain`` and fit the network."""
    x, label = _published(source, network) if source.path is None else _own(source.path, network)
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


def labels_in_question(path: Path, network: BayesianNetwork, count: int, label: int | None) -> Tensor | None:
    """The decisions (count,) that are asked about: those of the file, or one for all; None where there are none."""
    if network.task != "classification":
        if label is not None:
            raise InputError(f"--label is for classifiers; this network is for {network.task}. Leave it out.")
        return None
    given = read_labels(path, count, network.n_out)
    if label is None:
        return given
    if given is not None:
        raise InputError(f"{path}: holds labels y, and --label {label} was given too; use one of the two.")
    if label >= network.n_out:
        raise InputError(f"--label is {label}, but the classes of the network are 0 to {network.n_out - 1}.")
    return torch.full((count,), label)


def _published(source: Source, network: BayesianNetwork) -> tuple[Tensor, Tensor]:
    found = _SETS[str(source.data)](source.split, source.folder)
    with faults_of(source):
        check_array("x", found.x.numpy(), network.n_in)
        return found.x, _labels(found.y.numpy(), found.points, network.n_out)


def _own(path: Path, network: BayesianNetwork) -> tuple[Tensor, Tensor | None]:
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
