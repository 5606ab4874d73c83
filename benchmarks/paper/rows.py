"""Filling a table: every row is trained or taken from the shelf, and its missing cells are measured and kept."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from benchmarks.paper.grid import Cell, Column, Subject
from benchmarks.paper.journal import Journal
from benchmarks.paper.networks import Posterior, Shelf, architecture_of, size_of
from benchmarks.paper.paper import Convolutional, Radius, Width
from benchmarks.paper.passes import seconds_a_pass
from bnndp.data import ClassificationData, load
from bnndp.errors import InputError
from bnndp.questions.decision import decide
from bnndp.training.fit import Plan, Watcher

__all__ = ["Measured", "Row", "Task", "Told", "fill"]

Published = TypeVar("Published", Width, Radius, Convolutional)
Told = Callable[["Task"], Watcher | None]
"""Told before the work begins what it is; may give a watcher of the steps of a training."""

_UNIT = "one forward pass"  # the name of its cell


@dataclass(frozen=True, slots=True)
class Row(Generic[Published]):
    """A network to measure, and what the paper printed for its size."""

    published: Published
    plan: Plan
    points: int

    @property
    def name(self) -> str:
        """Its name in the table and in the journal."""
        own = self.published
        if isinstance(own, Convolutional):
            return f"{self.plan.data} {architecture_of(self.plan)}"
        return f"{own.data} {size_of(own.hidden)}"


@dataclass(frozen=True, slots=True)
class Task:
    """A piece of work: a training of so many steps, or a column of a row."""

    row: str
    column: str | None = None  # None: the network is trained
    steps: int = 0

    @classmethod
    def training(cls, row: str, plan: Plan) -> Task:
        """That of a network."""
        return cls(row, steps=plan.all_steps)


@dataclass(frozen=True, slots=True)
class Measured(Generic[Published]):
    """A row with its cells by column, its training card, and the seconds of one forward pass with drawn weights."""

    row: Row[Published]
    card: Mapping[str, Any]
    cells: Mapping[str, Cell]
    seconds_a_pass: float

    def passes(self, column: str) -> float:
        """What an input cost in this column, in forward passes with drawn weights."""
        return self.cells[column].seconds_a_point / self.seconds_a_pass


def fill(
    rows: Sequence[Row[Published]], columns: Sequence[Column], shelf: Shelf, journal: Journal, told: Told | None = None
) -> Iterator[Measured[Published]]:
    """The rows one after the other, each as soon as it is complete."""
    names = [column.name for column in columns]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"two columns are called {twice[0]!r}; give the one of --baselines another name.")
    for row in rows:
        watcher = None if told is None or shelf.has(row.plan) else told(Task.training(row.name, row.plan))
        posterior = shelf.take(row.plan, watcher)
        subject = _subject(row, posterior, shelf)
        basis = _basis(subject)
        cells = {}
        for column in columns:
            part = subject[: column.points]
            digest = _digest(basis, column.name + column.version, part.x.shape[0])
            cell = journal.find(row.name, column.name, digest)
            if cell is None:
                if told is not None:
                    told(Task(row.name, column.name))
                cell = _timed(column, part)
                journal.add(row.name, column.name, digest, cell)
            cells[column.name] = cell
        digest = _digest(basis, _UNIT, 1)
        unit = journal.find(row.name, _UNIT, digest)
        if unit is None:
            seconds = seconds_a_pass(subject.network, subject.x[0])
            unit = Cell((seconds,), seconds)
            journal.add(row.name, _UNIT, digest, unit)
        yield Measured(row, posterior.card, cells, unit.seconds)


def _subject(row: Row[Published], posterior: Posterior, shelf: Shelf) -> Subject:
    """The first inputs of the test part; a classifier is asked about the decisions that it takes there."""
    test = load(row.plan.data, "test", folder=shelf.store, fold=row.plan.fold)
    x = test.x[: row.points]
    if isinstance(test, ClassificationData):
        label = decide(posterior.single, x)
        return Subject(posterior.single, x, label=label, domain=row.plan.described.domain)
    eps = row.published.eps if isinstance(row.published, Width) else None
    return Subject(posterior.single, x, eps=eps)


def _timed(column: Column, subject: Subject) -> Cell:
    """One call, in CPU seconds of this process: other programs do not disturb them, and on one thread they are true."""
    begin = time.process_time()
    values = column.measure(subject)
    seconds = time.process_time() - begin
    points = subject.x.shape[0]
    if not isinstance(values, Tensor) or values.shape != (points,):
        found = f"a tensor {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
        raise InputError(f"column {column.name!r} gave {found} for {points} inputs; it must give a tensor ({points},).")
    return Cell(tuple(values.tolist()), seconds)


def _basis(subject: Subject) -> str:
    """What all cells of a row depend on: the program, the network, the question; inputs come on top."""
    label = None if subject.label is None else subject.label.tolist()
    asked = [metadata.version("bnndp"), subject.network.digest(), subject.eps, subject.domain, label]
    return json.dumps(asked) + _bits(subject.x)


def _digest(basis: str, column: str, points: int) -> str:
    return hashlib.sha256(json.dumps([basis, column, points]).encode()).hexdigest()[:16]


def _bits(x: Tensor) -> str:
    return hashlib.sha256(x.to(torch.float64).contiguous().numpy().tobytes()).hexdigest()
