"""A table of measurements: each row is a network with its inputs, each column one way to bound or to attack it.

A cell is measured once, by one call over all inputs of its row, and kept (:mod:`benchmarks.paper.journal`); an
interrupted run goes on with the cells that are missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import fmean

from torch import Tensor

from bnndp.network import BayesianNetwork

__all__ = ["Cell", "Column", "Subject"]


@dataclass(frozen=True, slots=True)
class Subject:
    """What a row is measured on: a network, inputs, and what is asked about them.

    Regression asks for the range of the mean on the balls of radius ``eps``; classification, where ``eps`` is None, for
    the largest radius at which the decision is ``label``.
    """

    network: BayesianNetwork
    x: Tensor  # (points, n), in the units of the file
    eps: float | None = None
    label: Tensor | None = None  # (points,)
    domain: tuple[float, float] | None = None

    def __getitem__(self, part: slice) -> Subject:
        return replace(self, x=self.x[part], label=None if self.label is None else self.label[part])


@dataclass(frozen=True, slots=True)
class Column:
    """One way to measure: ``measure`` gives a number for every input (points,): a width, or a radius.

    ``whole`` says whether the number holds for the whole posterior; a column of which it does not (a posterior cut off,
    a sample) is marked in the table. ``points`` limits the inputs to the first so many, for what is slow. ``attack``
    marks radii at which a decision was changed, infinite where it was not. ``version`` is part of what a measurement is
    found again by: change it when ``measure`` changes.
    """

    name: str
    measure: Callable[[Subject], Tensor]
    whole: bool = True
    points: int | None = None
    attack: bool = False
    version: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """What one column gave for one row."""

    values: tuple[float, ...]  # one for every input; a radius is NaN where nothing is certified
    seconds: float  # of CPU time, for all inputs together

    @property
    def width(self) -> float:
        """Mean over the inputs; NaN if any is."""
        return fmean(self.values)

    @property
    def radius(self) -> float:
        """Mean over the inputs; one that is not certified counts as zero."""
        return fmean(value if value == value else 0.0 for value in self.values)

    @property
    def broken(self) -> float:
        """Mean over the inputs whose decision an attack changed, which is where its radius is finite; NaN if none."""
        finite = [value for value in self.values if math.isfinite(value)]
        return fmean(finite) if finite else math.nan

    @property
    def seconds_a_point(self) -> float:
        """CPU seconds for one input."""
        return self.seconds / len(self.values)
