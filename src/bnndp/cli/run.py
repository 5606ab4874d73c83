"""A command at work on many inputs: where its answers are kept, who computes them, and what is said of its end.

The answers are kept in a journal. That of a run folder outlasts the process, and the same command continues from it;
any other is deleted with the process. At the end a run folder also gets its results in the formats of other programs.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import typer

from bnndp.certificates.certificate import file_digest
from bnndp.cli.exit_status import INTERRUPTED, NOT_CERTIFIED
from bnndp.cli.inputs import Inputs
from bnndp.cli.invocation import Ended, Invocation
from bnndp.cli.job import Job
from bnndp.cli.messages import Messages
from bnndp.cli.output import STDOUT, open_rows
from bnndp.files.posterior import ModelFile
from bnndp.runs.exports import Row, open_exports, write_summary
from bnndp.runs.folder import OWN, Description, open_run
from bnndp.runs.journal import Answer, Journal
from bnndp.runs.work import Schedule, Workers


class _Summary(Protocol):
    def add(self, row: Row, level: str | None, answer: Answer, /) -> None: ...


@dataclass(frozen=True, slots=True)
class End:
    """How the work of a command ended."""

    complete: int  # answers that are of the last stage
    why: str | None = None  # it did not come to its end, in words


@dataclass(frozen=True, slots=True)
class Run:
    """One call of a command: its run folder and its output, if it has any, what it says and how long it may take."""

    invocation: Invocation
    folder: Path | None
    out: Path | None
    messages: Messages
    schedule: Schedule

    @classmethod
    def of(
        cls,
        context: typer.Context,
        folder: Path | None,
        out: Path | None,
        messages: Messages,
        seconds: float | None,
        *,
        shared: bool = False,
    ) -> Run:
        """By the options of a command; its time began with the program."""
        invocation = context.find_object(Invocation) or Invocation((), time.monotonic())
        at = math.inf if seconds is None else invocation.begin + seconds
        return cls(invocation, folder, out, messages, Schedule(at, shared))

    def files(self, model: Path, inputs: Inputs) -> tuple[Path, ...]:
        """Those that no output may replace: what is read, and what is in the folder."""
        return (model, *inputs.source.files, *(() if self.folder is None else (self.folder / name for name in OWN)))

    @contextlib.contextmanager
    def opened(
        self, job: Job, model: tuple[Path, ModelFile], inputs: Inputs, engine: tuple[str, str | None]
    ) -> Iterator[tuple[Journal, Callable[[Row], object] | None, Workers | None]]:
        """Where answers are kept, what takes rows, and who computes (None: this process), by its name and address."""
        with (
            self._journal(job, model, inputs) as journal,
            open_rows(self.out, keep=self.files(model[0], inputs)) as write,
            self._workers(job, journal, *engine) as workers,
        ):
            yield journal, write, workers

    @contextlib.contextmanager
    def _journal(self, job: Job, model: tuple[Path, ModelFile], inputs: Inputs) -> Iterator[Journal]:
        """The journal of the answers; of a run folder that is left early it is told how to go on."""
        if self.folder is None:
            if self.out is None and not self.messages.json and job.command != "evaluate":
                self.messages.tell(
                    "only the summary is shown: --out FILE writes the rows, --run FOLDER keeps every answer."
                )
            with Journal.scratch(job.points, len(job.stages)) as journal:
                yield journal
        else:
            with open_run(self.folder, job.identity(), lambda: self._described(job, *model, inputs)) as journal:
                try:
                    yield journal
                except BaseException:
                    kept = f"{journal.count(0)} of {job.points} answers are kept in {self.folder}"
                    self.invocation.remarks.append(f"{kept}, {self._go_on}")
                    raise
        self.invocation.written = "all rows were written before"

    def _described(self, job: Job, path: Path, model: ModelFile, inputs: Inputs) -> Description:
        """What ``run.json`` and ``inputs.npz`` say of the beginning of a run (docs/runs.md)."""
        folder, network, source = self.folder or Path(), model.posterior, inputs.source
        shape, unlabelled = network.input_shape or (), "none" if job.command == "certify" else "network"
        made: dict[str, Any] = {"arguments": list(self.invocation.arguments), "command_line": self.invocation.command}
        made |= {
            "begun": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "platform": platform.platform(),
            "device": next(str(tensor.device) for tensor in job.tensors.values() if tensor is not None),
            "threads": torch.get_num_threads(),
            "model": _file_entry(path, folder)
            | {"task": network.task, "input_shape": list(shape), "outputs": network.n_out}
            | {"network": repr(network), "source": model.source},
            "inputs": _file_entry(source.files[0] if source.files else None, folder)
            | {name: None if source.files else getattr(source, name) for name in ("data", "split", "fold")}
            | {"limit": source.limit, "labels": "given" if inputs.label is not None else unlabelled},
            "question": job.question(),
        }
        made["inputs"]["dataset"] = made["inputs"].pop("data")
        labels = {} if inputs.label is None else {"y": inputs.label.numpy()}
        return Description(made, {**inputs.arrays, **labels, "input_shape": np.array(shape, dtype=np.int64)})

    @contextlib.contextmanager
    def _workers(self, job: Job, journal: Journal, engine: str, address: str | None) -> Iterator[Workers | None]:
        """Who computes: this process (None), or the workers of a cluster. What there is to begin with is told."""
        first, last = journal.count(0), journal.count(len(job.stages) - 1)
        if first:
            complete = f", {last} of them complete" if len(job.stages) > 1 else ""
            self.messages.tell(f"{self.folder}: resumed with {first} of {job.points} answers{complete}.")
        if engine == "local":
            yield None
            return
        from bnndp.runs.ray_cluster.crew import open_crew

        if address is not None:
            self.messages.tell(f"joining the Ray cluster at {address}.")
        with open_crew(job, address) as crew:
            threads = "1 thread each" if crew.threads == 1 else f"{crew.threads} threads each"
            self.messages.tell(f"a Ray cluster with {crew.width} workers, {threads}.")
            yield crew

    def write(
        self, job: Job, journal: Journal, summary: _Summary, write: Callable[[Row], object] | None, *, interrupted: bool
    ) -> End:
        """The row of every input into the summary, into the tables of the run folder and, unless None, to ``write``."""
        with contextlib.nullcontext() if self.folder is None else open_exports(self.folder) as export:
            for index, (row, level, answer) in enumerate(job.rows(journal)):
                summary.add(row, level, answer)
                if write is not None:
                    write(row)
                if export is not None:
                    export(row, job.witness(journal, index))
        reached, complete = journal.count(0), journal.count(len(job.stages) - 1)
        if reached < job.points:
            return End(complete, f"the time is over; {job.points - reached} of {job.points} inputs were not reached")
        if interrupted:
            return End(complete, "interrupted")
        if complete < job.points and self.folder is not None:
            missing = f"{job.points - complete} of {job.points} answers are not complete"
            self.messages.tell(f"{self.folder}: the time is over; {missing}; {self._go_on}.")
        return End(complete)

    def conclude(self, job: Job, end: End, summary: Mapping[str, Any], holds: str, required: float | None) -> None:
        """The summary into the folder and, with ``--json``, to stdout; then what the exit status is to say.

        That is whether the work came to its end, and what the output otherwise ``holds``; or whether less is certified
        than the share that is ``required``.
        """
        first = {"command": job.command, "points": job.points, "complete": end.complete}
        summary = {**first, "interrupted": end.why is not None, "certificates": None, **summary}
        summary["certificates"] = summary.pop("certificates")  # the last
        if self.folder is not None:
            write_summary(self.folder, summary)
        self.messages.summary(summary)
        if end.why is not None:
            more = "" if self.folder is None else f"; {self._go_on}"
            raise Ended(f"{end.why}; {self._place} has {holds}{more}", INTERRUPTED)
        share = summary["certified_share"]
        if required is not None and not (share is not None and share >= required):
            counts = f"{summary['certified']} of {summary['points']} are certified"
            raise Ended(f"{counts}, a share of {share:.6g}; --require-certified asks for {required:g}", NOT_CERTIFIED)

    @property
    def _place(self) -> str:
        if self.out is not None:
            return "stdout" if self.out == STDOUT else str(self.out)
        return "the summary" if self.folder is None else str(self.folder)

    @property
    def _go_on(self) -> str:
        return f"`{self.invocation.command}` continues from there"


def _file_entry(path: Path | None, folder: Path) -> dict[str, str | None]:
    """Where a file lies, as seen from ``folder``, and its SHA-256."""
    if path is None:
        return {"path": None, "sha256": None}
    return {"path": os.path.relpath(path, folder), "sha256": file_digest(path)}
