"""Going through all points of a job, stage by stage, from what a journal has to what was asked for.

The first stage gives every point an answer; each later one continues from the answers of the stage before. A part of
which only some answers were kept is computed whole, and the missing ones are added.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from bnndp.deadline import NEVER, Deadline
from bnndp.engine.chunks import Pace
from bnndp.errors import CertError, InputError
from bnndp.runs.job import Job, Keep, Shard
from bnndp.runs.journal import Answer, Journal


class Advance(Protocol):
    """Moves a progress on."""

    def __call__(self, points: int, certified: int | None = None, *, known: bool = False) -> None:
        """Add finished points and how many of them are certified (None: not asked); ``known`` ones took no time."""


Show = Callable[[str, int], contextlib.AbstractContextManager[Advance]]
"""Shows a progress: by its name and length; the function it gives moves it on."""


class Workers(Protocol):
    """Other processes that compute shards of the job they were started for, in any order."""

    @property
    def width(self) -> int:
        """How many shards they compute at the same time."""

    def compute(self, shards: Iterator[Shard], keep: Keep) -> None:
        """Every shard, each kept once; a shard is asked for when it can be begun, so that none wait in a queue.

        An error of a shard is raised; whatever ends it, what was done before is kept.
        """


@dataclass(frozen=True, slots=True)
class Schedule:
    """When the work ends, on the monotonic clock, and how its time is shared.

    ``shared``: beyond the first stage every part has its share of the time that is left, which treats all points alike.
    Without it parts are completed one after the other, which a resumed run builds on.
    """

    at: float = math.inf
    shared: bool = False

    def until(self, stage: int, share: float) -> float | None:
        """When to stop with a part that is such a share of what is left; None: it need not be begun."""
        if self.at == math.inf:
            return math.inf
        now = time.monotonic()
        if not now < self.at:
            return None
        return now + (self.at - now) * min(1.0, share) if self.shared and stage else self.at


def work(job: Job[Any], journal: Journal, show: Show, schedule: Schedule, workers: Workers | None = None) -> bool:
    """Add to ``journal`` what it lacks; whether an interruption (Ctrl-C) ended that when all points had an answer.

    An interruption of the first stage is passed on. When the time is over the rest is left as it is. Shards are
    computed by this process, or by ``workers`` that were started for this job.
    """
    for index in range(len(job.stages)):
        try:
            with show(job.title(index), job.points) as advance:
                stage = _Stage(job, journal, index, advance)
                shards = stage.lacking(schedule, 1 if workers is None else workers.width)
                if workers is not None:
                    workers.compute(shards, stage.keep)
                    shards = iter(())
                for shard in shards:
                    with Keeping(job, shard, stage.keep) as keeping:
                        for keeping.latest in job.search(shard):
                            if shard.over:
                                break
                        else:
                            keeping.whole = True
        except KeyboardInterrupt:
            if index == 0:
                raise
            return True
        if not stage.in_time or journal.count(0) < job.points:
            break
    return False


@dataclass(slots=True)
class Keeping:
    """While a shard is computed: the latest result, which is kept whatever ends the work.

    The loop over the results of ``job.search(shard)`` sets ``latest``, and ``whole`` if it comes to its end.
    """

    job: Job[Any]
    shard: Shard
    keep: Keep
    latest: Any = None
    whole: bool = False

    def __enter__(self) -> Keeping:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self.latest is not None:
            self.keep(self.shard, self.job.answers(self.latest), self.whole)
        if isinstance(error, CertError):
            raise InputError(f"{self.job.where(self.shard.part)}: {error}") from error


@dataclass(slots=True)
class _Stage:
    """One stage of a job: the shards that the journal lacks, and what comes back into the journal."""

    job: Job[Any]
    journal: Journal
    index: int
    advance: Advance
    in_time: bool = True  # whether there was time to begin every part

    def lacking(self, schedule: Schedule, width: int) -> Iterator[Shard]:
        """What the journal lacks, made when it is asked for; ``width`` of them share the time that is left."""
        job, journal, stage = self.job, self.journal, self.index
        left = sum(len(part) for part in job.parts(stage) if not journal.has(stage, part))
        paced = stage == 0 and width == 1 and schedule.at < math.inf  # a first answer cannot be stopped half-way
        pace = Pace.of(job.points, torch.device("cpu"), Deadline(schedule.at) if paced else NEVER)
        for part in job.parts(stage):
            if journal.has(stage, part):
                self._advance(part, known=True)
                continue
            start = part.start
            while start < part.stop:
                if paced and journal.has(stage, range(start, start + 1)):
                    self._advance(range(start, start + 1), known=True)
                    start, left = start + 1, left - 1
                    continue
                piece = range(start, min(start + pace.size, part.stop)) if paced else part
                until = schedule.until(stage, width * len(piece) / left)
                if until is None:
                    self.in_time = False
                    return
                left -= len(piece)
                with pace.timed(len(piece)):
                    yield Shard(stage, piece, journal.before(stage, piece) if stage else (), until)
                start = piece.stop

    def keep(self, shard: Shard, answers: Sequence[Answer], whole: bool) -> None:
        """Into the journal, and on with the progress."""
        self.journal.add(self.index, shard.part, answers, whole=whole)
        self._advance(shard.part, known=False)

    def _advance(self, part: range, *, known: bool) -> None:
        """How many points of a part are certified by the best answers there are goes into the progress."""
        job, journal = self.job, self.journal
        certified = sum(job.certified(journal.best(point)[1]) for point in part) if job.decides else None
        self.advance(len(part), certified, known=known)
