"""Going through all points of a job, stage by stage, from what a journal has to what was asked for.

The first stage gives every point an answer; each later one goes on from the whole answers of the stage before. A stage
cuts the points into parts, always the same ones, and every part is computed at once: how a matrix product is rounded
may depend on the size of the batch, so the same parts are what makes a resumed run equal to one that was never
interrupted, bit for bit. A part of which only some answers were kept is computed whole, and the missing ones are added.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from bnndp.runs.journal import Answer, Journal

__all__ = ["Advance", "Budget", "Job", "Show", "work"]

Found = TypeVar("Found")


class Advance(Protocol):
    """Moves a progress on."""

    def __call__(self, points: int, certified: int | None = None, *, known: bool = False) -> None:
        """By so many points, so many of them certified (None: that is not asked); ``known``: they took no time."""


Show = Callable[[str, int], contextlib.AbstractContextManager[Advance]]
"""Shows a progress: by its name and length; the function it gives moves it on."""


class Job(Protocol[Found]):
    """What is asked of every point, in stages. All it does is decided by its arguments: there is no state."""

    @property
    def points(self) -> int:
        """How many there are; each is known by its number."""

    @property
    def stages(self) -> Sequence[str]:
        """The names of the stages."""

    def parts(self, stage: int) -> Iterator[range]:
        """The points that are worked on at once, in this stage; together they are all of them."""

    def search(self, stage: int, part: range, known: Sequence[Answer]) -> Iterator[Found]:
        """Better and better results for some points: one for the first stage, at least one for the others.

        ``known`` are the answers of the stage before, none for the first.
        """

    def answers(self, found: Found) -> list[Answer]:
        """A result as one answer a point."""

    @property
    def decides(self) -> bool:
        """Whether an answer certifies something or does not."""

    def certified(self, answer: Answer) -> bool:
        """Whether this one does; asked only where the job ``decides``."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The time for what goes beyond the first stage; ``shared``: every part may have its share of it, and no more.

    Sharing treats all points alike. Without it parts are completed one after the other, which a resumed run builds on.
    """

    seconds: float | None = None
    shared: bool = False


def work(job: Job[Found], journal: Journal, budget: Budget, show: Show, name: str) -> bool:
    """Add to ``journal`` what it lacks; whether an interruption (Ctrl-C) ended that when all points had an answer.

    An interruption of the first stage is passed on. When the time is over the rest is left as it is.
    """
    with show(name, job.points) as advance:
        for part in job.parts(0):
            known = journal.has(0, part)
            if not known:
                (found,) = job.search(0, part, ())
                journal.add(0, part, job.answers(found))
            advance(len(part), _certified(job, journal, part), known=known)
    deadline = math.inf if budget.seconds is None else time.monotonic() + budget.seconds
    try:
        for stage in range(1, len(job.stages)):
            with show(f"{name}, {job.stages[stage]} effort", job.points) as advance:
                if not _improve(job, stage, journal, _Clock(deadline, budget.shared), advance):
                    break
    except KeyboardInterrupt:
        return True
    return False


@dataclass(frozen=True, slots=True)
class _Clock:
    deadline: float
    shared: bool

    def until(self, share: float) -> float | None:
        """When to stop with a part that is such a share of what is left; None: it need not be begun."""
        left = self.deadline - time.monotonic()
        if not left > 0:
            return None
        return time.monotonic() + left * share if self.shared else self.deadline


def _certified(job: Job[Found], journal: Journal, part: range) -> int | None:
    """How many points of a part are certified by the best answers there are."""
    return sum(job.certified(journal.best(point)[1]) for point in part) if job.decides else None


def _improve(job: Job[Found], stage: int, journal: Journal, clock: _Clock, advance: Advance) -> bool:
    """One stage for all points; whether there was time to begin each part."""
    left = sum(len(part) for part in job.parts(stage) if not journal.has(stage, part))
    for part in job.parts(stage):
        known = journal.has(stage, part)
        if not known:
            until = clock.until(len(part) / left)
            if until is None:
                return False
            _improve_part(job, stage, part, journal, until)
            left -= len(part)
        advance(len(part), _certified(job, journal, part), known=known)
    return True


def _improve_part(job: Job[Found], stage: int, part: range, journal: Journal, until: float) -> None:
    """One stage for some points; what was reached is kept whatever ends it."""
    latest: Found | None = None
    whole = False
    try:
        for found in job.search(stage, part, journal.before(stage, part)):
            latest = found
            if not time.monotonic() < until:
                break
        else:
            whole = True
    finally:
        if latest is not None:
            journal.add(stage, part, job.answers(latest), whole=whole)
