"""The end of a command that was interrupted: what it says of what it leaves behind."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

__all__ = ["Remarks", "Stopped"]


class Stopped(Exception):
    """Raised after the output is written; its text says so, and the exit status is that of an interruption."""


class Remarks(list[str]):
    """What a command wants to be said when it is told to stop; it also knows how it was called."""

    def __init__(self, arguments: Sequence[str]) -> None:
        super().__init__()
        self.command = shlex.join(["bnndp", *arguments])
