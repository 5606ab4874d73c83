"""Where a command keeps its answers while it works: in a run folder, or nowhere that lasts.

Both are journals and are filled and read in the same way. The answers in a run folder outlast the process, and the same
command goes on from them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import typer

from bnndp.cli.progress import show_progress
from bnndp.cli.stopped import Remarks, Stopped
from bnndp.options import Options
from bnndp.runs.folder import OWN, open_run
from bnndp.runs.identity import Identity, program
from bnndp.runs.journal import Journal
from bnndp.runs.lines import exact
from bnndp.runs.work import Budget, Job, work

__all__ = ["Asked", "Kept"]


@dataclass(frozen=True, slots=True)
class Asked:
    """What the answers of a command depend on, beside the stages of its job."""

    command: str
    model: str  # SHA-256
    data: str  # SHA-256
    options: Options
    more: Mapping[str, Any]  # other options

    def identity(self, job: Job[Any]) -> Identity:
        """That of the run. How long it may take is not part of it."""
        chosen = asdict(self.options) | {"fixed": sorted(self.options.fixed - {"time_limit"})}
        del chosen["time_limit"]
        options = {name: _plain(value) for name, value in {**chosen, **self.more}.items()}
        return Identity(self.command, self.model, self.data, options, program(), job.points, tuple(job.stages))


def _plain(value: Any) -> Any:
    """As JSON knows it: numbers that are not finite as texts."""
    if isinstance(value, float):
        return exact([value])[0]
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


@dataclass(frozen=True, slots=True)
class Kept:
    """The run folder of a command, if it was given one, and where its output goes, if it has one."""

    folder: Path | None
    out: Path | None
    remarks: Remarks | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        """Those of the folder that no output may replace."""
        return () if self.folder is None else tuple(self.folder / name for name in OWN)

    def expect_place(self) -> None:
        """Refuse a command whose answers would go nowhere."""
        if self.folder is None and self.out is None:
            raise typer.BadParameter("give --out FILE for the rows, --run FOLDER to keep every answer, or both.")

    @contextlib.contextmanager
    def journal(self, job: Job[Any], asked: Callable[[], Asked]) -> Iterator[Journal]:
        """The journal of the answers; of a run folder that is left early it is told how to go on."""
        if self.folder is None:
            with Journal.scratch(job.points, len(job.stages)) as journal:
                yield journal
            return
        with open_run(self.folder, asked().identity(job)) as journal:
            try:
                yield journal
            except BaseException:
                if self.remarks is not None:
                    done = f"{journal.count(0)} of {job.points} answers are kept in {self.folder}"
                    self.remarks.append(f"{done}, {self._go_on}")
                raise

    def fill(self, job: Job[Any], journal: Journal, name: str, budget: Budget) -> bool:
        """Work until all is done or the time is over; whether an interruption ended it, with an answer for all.

        What a run folder has already is told, and what it still lacks.
        """
        self._tell_resumed(job, journal)
        interrupted = work(job, journal, budget, show_progress, name)
        left = job.points - journal.count(len(job.stages) - 1)
        if left and not interrupted and self.folder is not None:
            rest = f"{left} of {job.points} answers are not complete"
            typer.echo(f"bnndp: {self.folder}: the time is over; {rest}; {self._go_on}.", err=True)
        return interrupted

    def end(self, *, interrupted: bool, holds: str) -> None:
        """Tell the user if the work was interrupted, and what the output then has."""
        if interrupted:
            more = "" if self.folder is None else f"; {self._go_on}"
            raise Stopped(f"interrupted; {self.out or self.folder or 'the table'} has {holds}{more}")

    @property
    def _go_on(self) -> str:
        command = "the same command" if self.remarks is None else f"`{self.remarks.command}`"
        return f"{command} goes on from there"

    def _tell_resumed(self, job: Job[Any], journal: Journal) -> None:
        first, last = journal.count(0), journal.count(len(job.stages) - 1)
        if first and self.folder is not None:
            complete = f", {last} of them complete" if len(job.stages) > 1 else ""
            typer.echo(f"bnndp: {self.folder}: resumed with {first} of {job.points} answers{complete}.", err=True)
