"""How the program was called, and how a command ends that neither completes nor fails."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field


class Ended(Exception):
    """Raised when all output is written, if the exit status is to say more: INTERRUPTED or NOT_CERTIFIED."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(slots=True)
class Invocation:
    """The arguments of the program, when it began, and what is to be said if it is told to stop."""

    arguments: tuple[str, ...]
    begin: float  # on the monotonic clock
    written: str | None = "no output file was written"  # None: the command writes none
    remarks: list[str] = field(default_factory=list)

    @property
    def command(self) -> str:
        """The command, for a shell."""
        return shlex.join(["bnndp", *self.arguments])

    def __str__(self) -> str:
        """The line that is said when it is told to stop."""
        first = "ended" if self.written is None else f"stopped before the end; {self.written}"
        return "; ".join([first, *self.remarks])
