"""What is asked of many points, in stages, and the shards that it is cut into, whoever computes them.

A stage cuts the points into parts, always the same ones, and a shard is one part of one stage. How a matrix product is
rounded may depend on the size of the batch: the same parts are what makes a resumed run equal to one that was never
interrupted, and the answers of a cluster equal to those of this process, bit for bit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

from bnndp.runs.journal import Answer

_SHORTEST = 1e-3  # seconds that a shard is given at least, once it is begun

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Shard:
    """Some points of one stage, which are computed at once."""

    stage: int
    part: range
    known: Sequence[Answer] = ()  # of the stage before, one per point; none for the first
    until: float = math.inf  # on the monotonic clock of this process: then it ends with what it has reached

    @property
    def over(self) -> bool:
        """Whether the time is over."""
        return not time.monotonic() < self.until

    @property
    def slice(self) -> slice:
        """Its points, to index tensors with."""
        return slice(self.part.start, self.part.stop)

    @property
    def time_limit(self) -> float | None:
        """The seconds left, as :class:`bnndp.options.Options` takes them."""
        return None if self.until == math.inf else max(self.until - time.monotonic(), _SHORTEST)


Keep: TypeAlias = Callable[[Shard, Sequence[Answer], bool], None]
"""Takes the answers of a shard, one per point, and whether its stage was completed; always called by the process that
holds the journal."""


class Job(Protocol[Result]):
    """What is asked of every point, in stages. All it does is decided by its arguments: there is no state."""

    @property
    def points(self) -> int:
        """How many there are; each is known by its number."""

    @property
    def stages(self) -> Sequence[str]:
        """The names of the stages."""

    def parts(self, stage: int) -> Iterator[range]:
        """The points that are worked on at once, in this stage; together they are all of them."""

    def search(self, shard: Shard) -> Iterator[Result]:
        """Better and better results for the points of a shard, at least one if there is time for it."""

    def answers(self, result: Result) -> Sequence[Answer]:
        """A result as one answer per point."""

    def title(self, stage: int) -> str:
        """The name of a stage, for the progress."""

    def where(self, part: range) -> str:
        """The place of some points in the source of the user, for messages."""

    @property
    def decides(self) -> bool:
        """Whether an answer certifies something or does not."""

    def certified(self, answer: Answer) -> bool:
        """Whether this one does; asked only where the job ``decides``."""
