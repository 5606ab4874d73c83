"""Where a command keeps its answers while it works: in a run folder, or nowhere that lasts.

Both are journals and are filled and read in the same way. The answers in a run folder outlast the process, and the same
command goes on from them. At the end a run folder gets its results in formats of other programs, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import typer

from bnndp.cli.engine import LOCAL, Chosen
from bnndp.cli.manner import PLAIN, Manner
from bnndp.cli.origin import Origin
from bnndp.cli.rows import STDOUT
from bnndp.cli.stopped import Remarks, Stopped, Unmet
from bnndp.options import Options
from bnndp.runs.exports import Exports, write_summary
from bnndp.runs.folder import OWN, open_run
from bnndp.runs.identity import Identity, program
from bnndp.runs.job import Job
from bnndp.runs.journal import Journal
from bnndp.runs.lines import json_values
from bnndp.runs.work import Budget, work

__all__ = ["Asked", "End", "Kept"]


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
        options = {name: json_values(value) for name, value in {**chosen, **self.more}.items()}
        return Identity(self.command, self.model, self.data, options, program(), job.points, tuple(job.stages))


@dataclass(frozen=True, slots=True)
class End:
    """How the work of a command ended."""

    complete: int  # answers that are of the last stage
    interrupted: bool  # with an answer for every input

    def summary(self) -> dict[str, Any]:
        """The entries of every summary."""
        return {"complete": self.complete, "interrupted": self.interrupted}


@dataclass(frozen=True, slots=True)
class Kept:
    """The run folder of a command, if it was given one, and where its output goes, if it has one."""

    folder: Path | None
    out: Path | None
    remarks: Remarks | None = None
    manner: Manner = PLAIN
    engine: Chosen = LOCAL

    @classmethod
    def begin(cls, context: typer.Context, run: Path | None, out: Path | None, *, json: bool, quiet: bool) -> Kept:
        """By the options of a command."""
        return cls(run, out, context.find_object(Remarks), Manner(json, quiet, rows=out == STDOUT))

    def by(self, engine: Chosen) -> Kept:
        """The same with another engine."""
        return replace(self, engine=engine)

    @property
    def files(self) -> tuple[Path, ...]:
        """Those of the folder that no output may replace."""
        return () if self.folder is None else tuple(self.folder / name for name in OWN)

    def remind(self) -> None:
        """Say so where the answers themselves go nowhere, before they are computed."""
        if self.folder is None and self.out is None and not self.manner.json:
            self.manner.tell("only the summary is shown: --out FILE writes the rows, --run FOLDER keeps every answer.")

    @contextlib.contextmanager
    def journal(self, job: Job[Any], asked: Callable[[], Asked], origin: Origin) -> Iterator[Journal]:
        """The journal of the answers; of a run folder that is left early it is told how to go on."""
        folder = self.folder
        if folder is None:
            with Journal.scratch(job.points, len(job.stages)) as journal:
                yield journal
            return
        with open_run(folder, asked().identity(job), lambda: origin.beginning(folder)) as journal:
            try:
                yield journal
            except BaseException:
                if self.remarks is not None:
                    done = f"{journal.count(0)} of {job.points} answers are kept in {self.folder}"
                    self.remarks.append(f"{done}, {self._go_on}")
                raise

    def fill(self, job: Job[Any], journal: Journal, name: str, budget: Budget) -> End:
        """Work until all is done, the time is over, or an interruption ends it with an answer for all.

        What a run folder has already is told, and what it still lacks.
        """
        self._tell_resumed(job, journal)
        with self.engine.open(job, self.manner) as engine:
            interrupted = work(job, journal, budget, self.manner.progress, name, engine=engine)
        complete = journal.count(len(job.stages) - 1)
        if complete < job.points and not interrupted and self.folder is not None:
            rest = f"{job.points - complete} of {job.points} answers are not complete"
            self.manner.tell(f"{self.folder}: the time is over; {rest}; {self._go_on}.")
        return End(complete, interrupted)

    @contextlib.contextmanager
    def exports(self) -> Iterator[Exports | None]:
        """The tables of the run folder, to be filled with all rows; None without a folder."""
        if self.folder is None:
            yield None
            return
        with Exports(self.folder) as exports:
            yield exports

    def written(self) -> None:
        """From here on an interruption finds all rows in their place."""
        if self.remarks is not None:
            self.remarks.written = "all rows were written before"

    def conclude(self, end: End, holds: str, summary: Mapping[str, Any], required: float | None) -> None:
        """The summary into the folder and, with ``--json``, to stdout; then what the exit status is to say.

        That is whether the work was interrupted, and what the output then ``holds``; or whether less is certified than
        the share that is ``required``.
        """
        summary = {**summary, "certificates": summary.get("certificates")}
        if self.folder is not None:
            write_summary(self.folder, summary)
        self.manner.summary(summary)
        if end.interrupted:
            more = "" if self.folder is None else f"; {self._go_on}"
            raise Stopped(f"interrupted; {self._place} has {holds}{more}")
        share = summary["certified_share"]
        if required is not None and not (share is not None and share >= required):
            counts = f"{summary['certified']} of {summary['points']} are certified"
            raise Unmet(f"{counts}, a share of {share:.6g}; --require-certified asks for {required:g}")

    @property
    def _place(self) -> str:
        if self.out is not None:
            return "stdout" if self.out == STDOUT else str(self.out)
        return "the summary" if self.folder is None else str(self.folder)

    @property
    def _go_on(self) -> str:
        command = "the same command" if self.remarks is None else f"`{self.remarks.command}`"
        return f"{command} goes on from there"

    def _tell_resumed(self, job: Job[Any], journal: Journal) -> None:
        first, last = journal.count(0), journal.count(len(job.stages) - 1)
        if first and self.folder is not None:
            complete = f", {last} of them complete" if len(job.stages) > 1 else ""
            self.manner.tell(f"{self.folder}: resumed with {first} of {job.points} answers{complete}.")
