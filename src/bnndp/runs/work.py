"""Going through all points of a job, stage by stage, from what a journal has to what was asked for.

The first stage gives every point an answer; each later one goes on from the whole answers of the stage before. A stage
cuts the points into parts, always the same ones, and every part is computed at once, by whatever engine: how a matrix
product is rounded may depend on the size of the batch, so the same parts are what makes a resumed run equal to one that
was never interrupted, bit for bit. A part of which only some answers were kept is computed whole, and the missing ones
are added.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from bnndp.runs.engine import Done, Engine, Local, Shard
from bnndp.runs.job import Job
from bnndp.runs.journal import Journal

__all__ = ["Advance", "Budget", "Show", "work"]


class Advance(Protocol):
    """Moves a progress on."""

    def __call__(self, points: int, certified: int | None = None, *, known: bool = False) -> None:
        """By so many points, so many of them certified (None: that is not asked); ``known``: they took no time."""


Show = Callable[[str, int], contextlib.AbstractContextManager[Advance]]
"""Shows a progress: by its name and length; the function it gives moves it on."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The time for what goes beyond the first stage; ``shared``: every part may have its share of it, and no more.

    Sharing treats all points alike. Without it parts are completed one after the other, which a resumed run builds on.
    """

    seconds: float | None = None
    shared: bool = False


def work(
    job: Job[Any], journal: Journal, budget: Budget, show: Show, name: str, *, engine: Engine | None = None
) -> bool:
    """Add to ``journal`` what it lacks; whether an interruption (Ctrl-C) ended that when all points had an answer.

    An interruption of the first stage is passed on. When the time is over the rest is left as it is. The engine is one
    for this job, the local one if none is given.
    """
    engine = Local(job) if engine is None else engine
    with show(name, job.points) as advance:
        _Stage(job, journal, 0, advance).complete(engine, _Clock())
    clock = _Clock(math.inf if budget.seconds is None else time.monotonic() + budget.seconds, budget.shared)
    try:
        for stage in range(1, len(job.stages)):
            with show(f"{name}, {job.stages[stage]} effort", job.points) as advance:
                if not _Stage(job, journal, stage, advance).complete(engine, clock):
                    break
    except KeyboardInterrupt:
        return True
    return False


@dataclass(frozen=True, slots=True)
class _Clock:
    deadline: float = math.inf
    shared: bool = False

    def until(self, share: float) -> float | None:
        """When to stop with a part that is such a share of what is left; None: it need not be begun."""
        if self.deadline == math.inf:
            return math.inf
        left = self.deadline - time.monotonic()
        if not left > 0:
            return None
        return time.monotonic() + left * min(1.0, share) if self.shared else self.deadline


@dataclass(slots=True)
class _Stage:
    """One stage of a job: what the journal lacks of it goes to an engine, and what comes back into the journal."""

    job: Job[Any]
    journal: Journal
    index: int
    advance: Advance
    in_time: bool = True

    def complete(self, engine: Engine, clock: _Clock) -> bool:
        """All points; whether there was time to begin each part."""
        engine.compute(self._shards(clock, engine.width), self._keep)
        return self.in_time

    def _shards(self, clock: _Clock, width: int) -> Iterator[Shard]:
        """What the journal lacks, made when it is asked for; ``width`` of them share the time that is left."""
        job, journal, stage = self.job, self.journal, self.index
        left = sum(len(part) for part in job.parts(stage) if not journal.has(stage, part))
        for part in job.parts(stage):
            if journal.has(stage, part):
                self._advance(part, known=True)
                continue
            until = clock.until(width * len(part) / left)
            if until is None:
                self.in_time = False
                return
            left -= len(part)
            yield Shard(stage, part, journal.before(stage, part) if stage else (), until)

    def _keep(self, done: Done) -> None:
        self.journal.add(self.index, done.shard.part, done.answers, whole=done.whole)
        self._advance(done.shard.part, known=False)

    def _advance(self, part: range, *, known: bool) -> None:
        """How many points of a part are certified by the best answers there are goes into the progress."""
        job, journal = self.job, self.journal
        certified = sum(job.certified(journal.best(point)[1]) for point in part) if job.decides else None
        self.advance(len(part), certified, known=known)
