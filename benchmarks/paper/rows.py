"""Filling a table: every row's network is trained or taken from the cache, and its missing cells are measured."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any

import torch
from torch import Tensor

from benchmarks.cache import NetworkCache, Trained, architecture_of
from benchmarks.paper import published
from benchmarks.paper.columns import Cell, Column, Subject
from benchmarks.paper.journal import Journal
from benchmarks.timing import seconds_per_pass
from bnndp.data import ClassificationData, load
from bnndp.errors import InputError
from bnndp.questions.decision import decide
from bnndp.training.fit import Plan

__all__ = ["POINTS", "QUICK_POINTS", "QUICK_WIDTH", "Measured", "Row", "fill", "rows_of"]

POINTS, QUICK_POINTS, QUICK_WIDTH = 100, 10, 64
_UNIT = "one forward pass"  # the name of its cell


@dataclass(frozen=True, slots=True)
class Row:
    """A network to measure, and what the paper printed for its size."""

    published: published.Row
    plan: Plan
    points: int

    @property
    def name(self) -> str:
        """Its name in the table and in the journal."""
        return f"{self.plan.data} {architecture_of(self.plan)}"


@dataclass(frozen=True, slots=True)
class Measured:
    """A row with its cells by column, its training card, and the seconds of one forward pass with drawn weights."""

    row: Row
    card: Mapping[str, Any]
    cells: Mapping[str, Cell]
    seconds_per_pass: float

    def passes(self, column: str) -> float:
        """What an input cost in this column, in forward passes with drawn weights."""
        return self.cells[column].seconds_per_point / self.seconds_per_pass


def rows_of(table: Sequence[published.Row], plan: Plan, sets: Mapping[str, str], *, quick: bool) -> list[Row]:
    """The rows of a table, trained as ``plan`` says; ``sets`` names the data sets that replace a published one."""
    points = QUICK_POINTS if quick else POINTS
    return [
        Row(row, replace(plan, data=sets.get(row.data, row.data), hidden=row.hidden, conv=row.conv), points)
        for row in table
        if not quick or max(row.hidden, default=0) <= QUICK_WIDTH
    ]


def fill(rows: Sequence[Row], columns: Sequence[Column], cache: NetworkCache, journal: Journal) -> Iterator[Measured]:
    """The rows one after the other, each as soon as it is complete; what is done next is printed on stderr."""
    for row in rows:
        trained = cache.get(row.plan)
        subject = _subject(row, trained, cache)
        basis = _basis(subject)

        def cell(column: Column, row: Row = row, subject: Subject = subject, basis: str = basis) -> Cell:
            part = subject[: column.points]
            digest = _digest(basis, column.name + column.version, part.x.shape[0])
            found = journal.find(row.name, column.name, digest)
            if found is None:
                print(f"{row.name}: {column.name}", file=sys.stderr, flush=True)
                found = _timed(column, part)
                journal.add(row.name, column.name, digest, found)
            return found

        cells = {column.name: cell(column) for column in columns}
        unit = cell(Column(_UNIT, _seconds_per_pass, points=1)).values[0]
        yield Measured(row, trained.card, cells, unit)


def _seconds_per_pass(subject: Subject) -> Tensor:
    return torch.tensor([seconds_per_pass(subject.network, subject.x[0])], dtype=torch.float64)


def _subject(row: Row, trained: Trained, cache: NetworkCache) -> Subject:
    """The first inputs of the test part; a classifier is asked about the decisions that it takes there."""
    test = load(row.plan.data, "test", folder=cache.store, fold=row.plan.fold)
    x = test.x[: row.points]
    if isinstance(test, ClassificationData):
        label = decide(trained.single, x)
        return Subject(trained.single, x, label=label, domain=row.plan.described.domain)
    return Subject(trained.single, x, eps=row.published.eps)


def _timed(column: Column, subject: Subject) -> Cell:
    """One call, in CPU seconds of this process: other programs do not disturb them, and on one thread they are true."""
    begin = time.process_time()
    values = column.measure(subject)
    seconds = time.process_time() - begin
    points = subject.x.shape[0]
    if values.shape != (points,):
        raise InputError(f"column {column.name!r} gave a tensor {tuple(values.shape)}; it must give ({points},).")
    return Cell(tuple(values.tolist()), seconds)


def _basis(subject: Subject) -> str:
    """What all cells of a row depend on: the program, the network, the question; inputs come on top."""
    label = None if subject.label is None else subject.label.tolist()
    asked = [metadata.version("bnndp"), subject.network.digest(), subject.eps, subject.domain, label]
    bits = hashlib.sha256(subject.x.to(torch.float64).contiguous().numpy().tobytes()).hexdigest()
    return json.dumps(asked) + bits


def _digest(basis: str, column: str, points: int) -> str:
    return hashlib.sha256(json.dumps([basis, column, points]).encode()).hexdigest()[:16]
