"""The ends of a command that are neither good nor errors: an interruption, and a requirement that is not met."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

__all__ = ["Remarks", "Stopped", "Unmet"]


class Stopped(Exception):
    """Raised after the output is written; its text says so, and the exit status is that of an interruption."""

    status = 130


class Unmet(Exception):
    """Raised after the output is written, if less is certified than was required; its text says how much."""

    status = 3


class Remarks(list[str]):
    """What a command wants to be said when it is told to stop; it also knows how it was called."""

    def __init__(self, arguments: Sequence[str]) -> None:
        super().__init__()
        self.arguments = tuple(arguments)
        self.written: str | None = "no output file was written"  # None: the command writes none
        self.command = shlex.join(["bnndp", *arguments])

    def __str__(self) -> str:
        """The line that is said then."""
        first = "ended" if self.written is None else f"stopped before the end; {self.written}"
        return "; ".join([first, *self])
