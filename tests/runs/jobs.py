"""A small job whose answers depend on the parts it is cut into, as rounding does, and that counts what it computes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from bnndp.runs.identity import Identity
from bnndp.runs.job import Shard
from bnndp.runs.journal import Answer, Journal
from bnndp.runs.sealed_lines import number
from bnndp.runs.work import Advance, Schedule, work


def _nothing(stage: int, part: range, round_: int) -> None:
    """A function that can be sent to other processes."""


@dataclass
class Squares:
    """Adds up squares; a later stage goes on in rounds. Every answer names the start of the part it was computed in."""

    points: int = 10
    sizes: tuple[int, ...] = (4, 3)  # of the parts, by stage
    rounds: int = 2
    calls: list[tuple[int, int]] = field(default_factory=list)  # stage and start of every part that was begun
    before_round: Callable[[int, range, int], None] = _nothing

    @property
    def stages(self) -> tuple[str, ...]:
        return ("low", "medium", "high")[: len(self.sizes)]

    def parts(self, stage: int) -> Iterator[range]:
        for start in range(0, self.points, self.sizes[stage]):
            yield range(start, min(start + self.sizes[stage], self.points))

    def search(self, shard: Shard) -> Iterator[list[Answer]]:
        stage, part = shard.stage, shard.part
        self.calls.append((stage, part.start))
        for round_ in range(self.rounds if stage else 1):
            self.before_round(stage, part, round_)
            start = [0.0] * len(part) if stage == 0 else [number(answer["value"]) for answer in shard.known]
            values = [old + (point + 0.1) ** 2 / 3 + round_ for old, point in zip(start, part, strict=True)]
            yield [{"value": value, "part": [stage, part.start]} for value in values]

    def answers(self, found: list[Answer]) -> list[Answer]:
        return found

    def title(self, stage: int) -> str:
        return f"squares {stage}"

    def where(self, part: range) -> str:
        return f"squares from {part.start}"

    decides: bool = False

    def certified(self, answer: Answer) -> bool:
        return number(answer["value"]) > 10


@contextlib.contextmanager
def silent(name: str, total: int) -> Iterator[Advance]:
    """No progress."""
    yield lambda points, certified=None, *, known=False: None


def identity_of(job: Squares, **changes: object) -> Identity:
    given: dict[str, object] = {
        "model": "a" * 64,
        "data": "b" * 64,
        "options": {"refine": 1},
        "version": {"bnndp": "1"},
    }
    given |= changes
    return Identity("squares", points=job.points, stages=job.stages, **given)  # type: ignore[arg-type]


def finished(job: Squares, journal: Journal) -> list[tuple[int, Answer]]:
    """Do what the journal lacks, and give all answers."""
    assert work(job, journal, silent, Schedule()) is False
    return answers_of(job, journal)


def answers_of(job: Squares, journal: Journal) -> list[tuple[int, Answer]]:
    return [journal.best(point) for point in range(job.points)]
