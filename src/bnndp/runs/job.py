"""What is asked of many points, in stages: the question, whoever computes the answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

from bnndp.runs.journal import Answer

__all__ = ["Found", "Job"]

Found = TypeVar("Found")


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
