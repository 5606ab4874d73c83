"""Reading what the user gives: the network, and inputs from a file, a data set or VNN-LIB files, with their labels.

Every fault is one line that names the source and says what to do.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
from torch import Tensor

from bnndp.cli.arrays import class_labels, expect_matrix, float_rows, read_named
from bnndp.cli.messages import PLAIN, Messages
from bnndp.data import NAMES, ClassificationData, RegressionData, Store, describe, load, open_store
from bnndp.errors import CertError, InputError
from bnndp.files.posterior import ModelFile, read_model
from bnndp.files.vnnlib import read_vnnlib
from bnndp.geometry.box import Box
from bnndp.network import Posterior


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """What to certify around each input: the ball of radius ``eps``, cut to ``domain``."""

    eps: float | None = None
    norm: float = math.inf
    domain: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """Where the inputs come from: a file, a published data set or VNN-LIB files, and how many of them are wanted."""

    path: Path | None = None
    data: str | None = None
    split: str = "test"
    folder: Path | None = None
    limit: int | None = None
    fold: int = 0
    vnnlib: tuple[Path, ...] = ()

    @property
    def files(self) -> tuple[Path, ...]:
        """Those that it is read from, but for data sets."""
        return self.vnnlib or (() if self.path is None else (self.path,))

    def names(self, count: int) -> Iterator[str]:
        """The names of ``count`` inputs."""
        return map(str, self.vnnlib) if self.vnnlib else (f"{self}#{row}" for row in range(count))

    def __str__(self) -> str:
        """Its name in messages."""
        return f"{self.data} ({self.split})" if not self.files else str(self.files[0])


@dataclass(frozen=True, slots=True)
class Inputs:
    """Inputs that were checked against a network, with their labels if there are any."""

    arrays: Mapping[str, np.ndarray]  # x, or the ends lower and upper of boxes: (n, inputs)
    label: Tensor | None  # (n,) of int64
    source: Source

    @property
    def x(self) -> Tensor:
        """The points (n, inputs)."""
        return torch.from_numpy(self.arrays["x"])

    def within(self, domain: tuple[float, float] | None) -> Inputs:
        """The same; refused if a point lies outside ``domain``."""
        with _faults_of(self.source):
            Box.ball(self.x, 0.0, domain=domain)
        return self

    def box(self, around: Neighbourhood) -> Box:
        """The regions to certify: balls around points, or the boxes that were given."""
        ends = [self.arrays[name] for name in ("lower", "upper") if name in self.arrays]
        for row, path in enumerate(self.source.vnnlib):
            with _faults_of(path):  # each has a box of its own
                _boxes(ends[0][[row]], ends[1][[row]], around)
        with _faults_of(self.source):
            if ends:
                return _boxes(ends[0], ends[1], around)
            if around.eps is None:
                raise InputError("holds points x, so the radius of the balls around them is needed; add --eps E.")
            return Box.ball(self.x, around.eps, domain=around.domain, norm=around.norm)

    def asked_about(self, label: int | None, network: Posterior) -> Inputs:
        """With the decisions in question: the labels that were read, or one for all."""
        if label is None:
            return self
        if network.task != "classification":
            raise InputError(f"--label is for classifiers; this network is for {network.task}. Leave it out.")
        if self.label is not None:
            raise InputError(f"{self.source}: holds labels y, and --label {label} was given too; use one of the two.")
        if label >= network.n_out:
            raise InputError(f"--label is {label}, but the classes of the network are 0 to {network.n_out - 1}.")
        return replace(self, label=torch.full((len(next(iter(self.arrays.values()))),), label))


def load_model(path: Path, messages: Messages = PLAIN) -> ModelFile:
    """What a file holds, with the network or the ensemble; a file without a digest is said to have none."""
    if not path.is_file():
        raise InputError(f"{path}: no such file; MODEL must be a bnndp-posterior-1 file.")
    found = read_model(path)
    if found.sha256 is None:
        messages.tell(
            f"{path} has no digest, so a damaged value in it would not be noticed; bnndp convert writes a sealed copy."
        )
    return found


def load_classifier(path: Path, messages: Messages = PLAIN) -> ModelFile:
    """What a file holds, refused if it is not a classifier."""
    found = load_model(path, messages)
    if found.posterior.task != "classification":
        raise InputError(
            f"{path}: is a network for {found.posterior.task}, which has no decisions; bound its outputs with bnndp "
            "certify, or, if it is a classifier, convert it again with bnndp convert --task classification."
        )
    return found


def read_inputs(source: Source, network: Posterior, messages: Messages = PLAIN, *, boxes: bool = False) -> Inputs:
    """The inputs of ``source`` within its limit, and the labels that a classifier has; ``boxes`` may be given, too."""
    if source.vnnlib:
        return Inputs(_read_vnnlib(source.vnnlib, network), None, source)
    if source.data is not None:
        _expect_set(source.data, network.task)
    if (source.path is None) == (source.data is None):
        raise InputError("give either the file INPUTS or a data set by --data, one of the two.")
    if source.path is None:
        found = read_set(source, network, messages)
        labels = found.y.numpy() if isinstance(found, ClassificationData) else None
        arrays = {"x": found.x.numpy()}
    elif source.folder is not None:
        raise InputError("--data-dir belongs to --data; leave it out when INPUTS is a file.")
    else:
        arrays, labels = _read_file(source.path, network, source.limit, boxes=boxes)
        if network.task != "classification" and _has_labels(source.path):
            messages.tell(f"{source.path}: its labels are not used: the network is for regression.")
    with _faults_of(source):
        count = len(next(iter(arrays.values())))
        checked = None if labels is None else class_labels(labels, count, network.n_out, source.limit)
    label = None if checked is None else torch.from_numpy(checked)
    return Inputs({name: array[: source.limit] for name, array in arrays.items()}, label, source)


def read_set(source: Source, network: Posterior, messages: Messages = PLAIN) -> ClassificationData | RegressionData:
    """A data set whose inputs fit the network."""
    with data_store(source.folder, messages) as store:
        found = load(str(source.data), source.split, folder=store, fold=source.fold)
    with _faults_of(source):
        expect_matrix("x", found.x.numpy(), network.n_in)
    return found


@contextlib.contextmanager
def data_store(folder: Path | None, messages: Messages = PLAIN) -> Iterator[Store]:
    """The store of data sets, with a bar on stderr for what it downloads; no bar if stderr is not a terminal."""
    console = Console(stderr=True)
    shown = console.is_terminal and not messages.quiet
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=console, transient=True, disable=not shown) as bars:
        tasks = {}

        def show(name: str, done: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total)
            bars.update(tasks[name], completed=done)

        yield open_store(folder, progress=show)


@contextlib.contextmanager
def _faults_of(source: object) -> Iterator[None]:
    """Put the name of the source in front of whatever is wrong with it."""
    try:
        yield
    except CertError as error:
        raise InputError(f"{source}: {error}") from error
    except (OSError, MemoryError) as error:
        raise InputError(f"{source}: cannot be read: {getattr(error, 'strerror', None) or error}.") from error


def _expect_set(name: str, wanted: str) -> None:
    try:
        task = describe(name).task
    except InputError as error:
        raise InputError(f"invalid value for '--data': {error}") from error
    if task != wanted:
        fit = ", ".join(known for known in NAMES if describe(known).task == wanted)
        why = "has no labels" if wanted == "classification" else f"the network for {wanted}"
        raise InputError(f"invalid value for '--data': {name} is for {task} and {why}; choose one of {fit}.")


def _read_file(
    path: Path, network: Posterior, limit: int | None, *, boxes: bool
) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
    """The matrices of a file, finite and in float64, and its labels if it is for a classifier.

    Arrays of images become rows. The numbers of the first ``limit`` rows are checked: no others may be used.
    """
    shape = network.input_shape or ()
    with _faults_of(path):
        found = read_named(path, partial(_wanted, boxes=boxes, labels=network.task == "classification"))
        labels = found.pop("y", None)
        rows = {name: float_rows(name, array, shape) for name, array in found.items()}
        for name, array in rows.items():
            expect_matrix(name, array[:limit], math.prod(shape))
    return rows, labels


def _wanted(names: list[str], *, boxes: bool, labels: bool) -> tuple[str, ...]:
    """The arrays to read: x, or lower and upper, but not both; and y."""
    more = ("y",) if labels and "y" in names else ()
    ends = {"lower", "upper"} & set(names)
    if boxes and ends and "x" in names:
        raise InputError(f"holds both x and {' and '.join(sorted(ends))}; give either points x or lower and upper.")
    if "x" in names:
        return ("x", *more)
    if boxes and len(ends) == 2:
        return ("lower", "upper", *more)
    needed = "x, or lower and upper" if boxes else "x of points"
    raise InputError(f"needs an array {needed}; it holds {', '.join(sorted(names)) or 'nothing'}.")


def _has_labels(path: Path) -> bool:
    """Whether a file has whole numbers y, or a column of that name."""
    with contextlib.suppress(InputError, OSError, MemoryError):  # what is not used may be anything
        arrays = read_named(path, lambda names: tuple(name for name in names if name == "y"))
        return "y" in arrays and arrays["y"].dtype.kind in "iu"
    return False


def _boxes(lower: np.ndarray, upper: np.ndarray, around: Neighbourhood) -> Box:
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


def _read_vnnlib(paths: tuple[Path, ...], network: Posterior) -> dict[str, np.ndarray]:
    """The boxes of VNN-LIB files, one each."""
    ends = []
    for path in paths:
        if not path.is_file():
            raise InputError(f"{path}: no such file; give a .vnnlib file.")
        found = read_vnnlib(path)
        with _faults_of(path):
            box = found.box()
            for name, declared, wanted in (("X", len(box.lower), network.n_in), ("Y", box.outputs, network.n_out)):
                if declared != wanted and (name == "X" or declared):
                    kind = "inputs" if name == "X" else "outputs"
                    raise InputError(f"declares {declared} variables {name}, but the network has {wanted} {kind}.")
            ends.append((box.lower, box.upper))
    lower, upper = (np.array([end[side] for end in ends], dtype=np.float64) for side in (0, 1))
    return {"lower": lower, "upper": upper}
