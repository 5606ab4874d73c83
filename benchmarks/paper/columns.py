"""The columns of the tables: each is a function from a row's network and inputs to a number for every input."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

import torch
from torch import Tensor

from bnndp.attack import AttackBudget, Reach, attack_radius
from bnndp.attack.inside import inside_range
from bnndp.errors import InputError
from bnndp.geometry.box import Box
from bnndp.network import BayesianNetwork
from bnndp.options import Options
from bnndp.questions.certify import certify
from bnndp.questions.radius import Search, certified_radius

__all__ = ["COLUMNS", "EFFORT", "Cell", "Column", "Subject", "ball_of", "labels_of"]

MOMENT, PARTITION, INSIDE, CLIPPED, POINT = "moment", "partition", "inside", "moment, x >= 0", "moment, point"
ATTACK, NO_DOMAIN = "attack", "moment, no domain"
_BOXES = 256  # certified at once


@dataclass(frozen=True, slots=True)
class Subject:
    """What a row is measured on.

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
    """One way to measure: ``measure`` gives a width or a radius for every input (points,)."""

    name: str
    measure: Callable[[Subject], Tensor]
    whole: bool = True  # holds for the whole posterior; otherwise it is marked in the table
    points: int | None = None  # only the first inputs, for what is slow
    attack: bool = False  # radii at which a decision was changed, infinite where it was not
    version: str = ""  # a measurement of another version is not reused


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
        found = [value for value in self.values if math.isfinite(value)]
        return fmean(found) if found else math.nan

    @property
    def seconds_per_point(self) -> float:
        """CPU seconds for one input."""
        return self.seconds / len(self.values)


def ball_of(subject: Subject) -> Box:
    """The balls whose radius a subject of regression names."""
    if subject.eps is None:
        raise InputError("a width is that of a ball, but the subject has eps=None; give it a radius.")
    return Box.ball(subject.x, subject.eps, domain=subject.domain)


def labels_of(subject: Subject) -> Tensor:
    """The labels (points,) whose decisions a subject of classification asks about."""
    if subject.label is None:
        raise InputError("a radius is that of a decision, but the subject has label=None; give it one for each input.")
    return subject.label


def width(subject: Subject, options: Options) -> Tensor:
    """Certified widths on the balls, the largest output's: (points,)."""
    return _widths(subject, ball_of(subject), options)


def clipped_width(subject: Subject, options: Options) -> Tensor:
    """The same on what the paper's code makes of the balls: the part with x >= 0, or zero where there is none."""
    ball = ball_of(subject)
    return _widths(subject, Box(ball.lower.clamp_min(0), ball.upper.clamp_min(0)), options)


def point_width(subject: Subject, options: Options) -> Tensor:
    """Certified widths at the inputs themselves: what is lost to the posterior alone."""
    return _widths(subject, Box(subject.x, subject.x), options)


def inside_width(subject: Subject) -> Tensor:
    """The ranges that an attack finds in the balls: (points,).

    In balls as small as those of the table the mean is nearly linear: a short search finds what a long one does.
    """
    return inside_range(subject.network, ball_of(subject), samples=2048, restarts=1, steps=10).width.amax(-1)


def radius(subject: Subject, options: Options, *, domain: bool = True) -> Tensor:
    """Certified radii of the decisions, NaN where not even the input itself is certified: (points,)."""
    limits = subject.domain if domain else None
    search = Search(attack=False)
    return certified_radius(subject.network, subject.x, subject.label, limits, search=search, options=options).radius


def broken_radius(subject: Subject) -> Tensor:
    """The smallest radii at which an attack changes the decisions, infinite where none does: (points,)."""
    label, reach = labels_of(subject), Reach(domain=subject.domain)
    return attack_radius(subject.network, subject.x, label, reach=reach, budget=AttackBudget()).radius


def _widths(subject: Subject, box: Box, options: Options) -> Tensor:
    parts = [box[start : start + _BOXES] for start in range(0, box.batch, _BOXES)]
    with torch.no_grad():
        return torch.cat([certify(subject.network, part, options).width.amax(-1) for part in parts])


_ATTACK = Column(ATTACK, broken_radius, whole=False, attack=True)
_ONE_PASS, _PAPER = Options(method="moment"), Options(method="partition")
COLUMNS = {
    "table-1a": (
        Column(MOMENT, partial(width, options=_ONE_PASS)),
        Column(PARTITION, partial(width, options=_PAPER)),
        Column(INSIDE, inside_width, whole=False),
        Column(CLIPPED, partial(clipped_width, options=_ONE_PASS)),
        Column(POINT, partial(point_width, options=_ONE_PASS)),
    ),
    "table-1b": (
        Column(MOMENT, partial(radius, options=_ONE_PASS)),
        Column(PARTITION, partial(radius, options=_PAPER)),
        _ATTACK,
        Column(NO_DOMAIN, partial(radius, options=_ONE_PASS, domain=False)),
    ),
    "table-2": (
        Column(MOMENT, partial(radius, options=Options())),
        _ATTACK,
        Column(NO_DOMAIN, partial(radius, options=Options(), domain=False)),
    ),
}
"""Of each table."""

EFFORT = {
    "table-1a": (
        Column("medium effort", partial(width, options=Options(effort="medium"))),
        Column("high effort", partial(width, options=Options(effort="high"))),
    ),
    "table-1b": (
        Column("medium effort", partial(radius, options=Options(effort="medium"))),
        Column("high effort", partial(radius, options=Options(effort="high")), points=10),
    ),
}
"""The levels of effort beyond one pass, which take long."""
