"""Who computes the answers: an engine takes shards of a job and gives back their answers, in any order.

A shard is one part of one stage, and is the same for every engine: how a matrix product is rounded may depend on the
size of the batch, so the answers of a shard are the same bits wherever it is computed, on machines that are alike and
with as many threads. The local engine computes one shard after the other, in this process.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from bnndp.runs.job import Found, Job
from bnndp.runs.journal import Answer

__all__ = ["Done", "Engine", "Keep", "Local", "Shard", "compute"]


@dataclass(frozen=True, slots=True)
class Shard:
    """Some points of one stage, which are computed at once."""

    stage: int
    part: range
    known: Sequence[Answer] = ()  # of the stage before, one a point; none for the first
    until: float = math.inf  # on the monotonic clock of this process: then it ends with what it has reached


@dataclass(frozen=True, slots=True)
class Done:
    """The answers of a shard, one a point; not ``whole``: what its stage had reached when it was stopped."""

    shard: Shard
    answers: Sequence[Answer]
    whole: bool


Keep: TypeAlias = Callable[[Done], None]
"""Takes the answers of a shard as soon as they are there; always called by the process that holds the journal."""


class Engine(Protocol):
    """Computes shards of the job it was made for."""

    @property
    def width(self) -> int:
        """How many shards it computes at the same time."""

    def compute(self, shards: Iterator[Shard], keep: Keep) -> None:
        """Every shard, each kept once; a shard is asked for when it can be begun, so that none wait in a queue.

        An error of a shard is raised; whatever ends it, what was done before is kept.
        """


def compute(job: Job[Found], shard: Shard, keep: Keep) -> None:
    """One shard, here; of a later stage what was reached is kept whatever ends it."""
    latest: Found | None = None
    whole = False
    try:
        for found in job.search(shard.stage, shard.part, shard.known):
            latest = found
            if not time.monotonic() < shard.until:
                break
        else:
            whole = True
    finally:
        if latest is not None and (whole or shard.stage > 0):
            keep(Done(shard, job.answers(latest), whole))


@dataclass(frozen=True, slots=True)
class Local:
    """One shard after the other, in this process."""

    job: Job[Any]
    width: int = 1

    def compute(self, shards: Iterator[Shard], keep: Keep) -> None:
        """In the order in which they come."""
        for shard in shards:
            compute(self.job, shard, keep)
