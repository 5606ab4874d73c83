"""Certifying many boxes in chunks: rows as they are done, progress on a terminal, a summary at the end.

For a classifier with labels every row also has the verdict on its decision.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor

from bnndp.attacks import Inside, inside_range
from bnndp.bounds import Bounds
from bnndp.certify import certify
from bnndp.cli.rows import RowFile, plain
from bnndp.decision import Decision, robust_decision
from bnndp.errors import CertError, InputError
from bnndp.network import BayesianNetwork
from bnndp.options import Options
from bnndp.regions import Box
from bnndp.verdict import Verdict

__all__ = ["Job", "run", "show_progress"]

_CELLS = 4096  # cells a chunk: enough to fill the machine, few enough that the progress bar moves
_BOXES = 256  # boxes a chunk; fixed, so that the same command gives the same bits
_ATTACKED = 16  # boxes a chunk when they are attacked too


@dataclass(frozen=True, slots=True)
class Job:
    """What one command computes."""

    network: BayesianNetwork
    box: Box
    options: Options
    attack: bool = False
    seed: int = 0
    label: Tensor | None = None  # (boxes,): the decisions in question

    @property
    def chunk(self) -> int:
        """Boxes a chunk."""
        most = max(1, min(_BOXES, _CELLS // self.options.refine))
        return min(most, _ATTACKED) if self.attack or self.label is not None else most


@dataclass(frozen=True, slots=True)
class _Part:
    """The results of one chunk."""

    start: int
    bounds: Bounds
    inside: Inside | None
    decision: Decision | None
    seconds: float  # of the certification, without the attack

    def figures(self) -> _Figures:
        """What the summary needs; the affine bounds of thousands of boxes would fill the memory."""
        inside = None if self.inside is None else self.inside.width
        verdicts = () if self.decision is None else self.decision.verdict
        return _Figures(self.bounds.width, inside, verdicts, frozenset(self.bounds.method), self.seconds)


@dataclass(frozen=True, slots=True)
class _Figures:
    """The figures of one chunk for the summary."""

    width: Tensor  # (boxes, outputs)
    inside: Tensor | None  # (boxes, outputs)
    verdicts: tuple[Verdict, ...]
    methods: frozenset[str]
    seconds: float


def run(job: Job, rows: RowFile, *, source: Path) -> Table:
    """Write a row for every box, show the progress on a terminal, give back the summary."""
    figures = []
    with show_progress("certify", job.box.batch) as advance:
        for part in _parts(job, source):
            for row in _rows(part):
                rows.write(row)
            figures.append(part.figures())
            advance(part.bounds.lower.shape[0])
    return _summary(figures)


def _parts(job: Job, source: Path) -> Iterator[_Part]:
    total = job.box.batch
    limit = job.options.time_limit
    deadline = None if limit is None else time.monotonic() + limit
    stop = 0
    while stop < total:
        left = math.inf if deadline is None else deadline - time.monotonic()
        now = (
            job if left > 0 else replace(job, options=replace(job.options, refine=1))
        )  # the time for splitting is over
        start, stop = stop, min(stop + now.chunk, total)
        options = now.options
        if 0 < left < math.inf:  # it is shared among the boxes left
            options = replace(options, time_limit=left * (stop - start) / (total - start))
        box = job.box[start:stop]
        begin = time.perf_counter()
        try:
            bounds = certify(job.network, box, options)
            seconds = time.perf_counter() - begin
            decision = None if job.label is None else _decision(job, box, job.label[start:stop])
        except CertError as error:
            raise InputError(f"{source}: rows {start} to {stop - 1} (box 0 is row {start}): {error}") from error
        inside = inside_range(job.network, box, seed=job.seed) if job.attack else None
        yield _Part(start, bounds, inside, decision, seconds)


def _decision(job: Job, box: Box, label: Tensor) -> Decision:
    return robust_decision(job.network, box.project(box.centre), box, label, options=job.options)


def _rows(part: _Part) -> Iterator[dict[str, object]]:
    bounds, inside = part.bounds, part.inside
    count = bounds.lower.shape[0]
    columns = {"lower": bounds.lower, "upper": bounds.upper, "width": bounds.width}
    if inside is not None:
        columns |= {"inside_lower": inside.lower, "inside_upper": inside.upper}
    lists = {name: values.tolist() for name, values in columns.items()}
    for i in range(count):
        row: dict[str, object] = {"index": part.start + i}
        row |= dict.fromkeys(("lower", "upper", "width", "inside_lower", "inside_upper"))
        row |= {name: plain(values[i]) for name, values in lists.items()}
        row |= {"method": bounds.method[i], "seconds": part.seconds / count}
        yield row if part.decision is None else row | _verdict(part.decision, i)


def _verdict(decision: Decision, i: int) -> dict[str, object]:
    """What is known of the decision: certified by a lead over all others, or falsified by a witness and its rival."""
    falsified = decision.verdict[i] is Verdict.FALSIFIED
    return {
        "label": int(decision.label[i]),
        "verdict": decision.verdict[i].value,
        "lead": plain([decision.bound[i].item()]),
        "rival": int(decision.rival[i]) if falsified else None,
        "witness": decision.witness[i].tolist() if falsified else None,
    }


@contextlib.contextmanager
def show_progress(name: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr, moved by the function it gives; nothing at all where that is no terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(name, total=total)
        yield lambda count: progress.advance(task, count)


def _summary(figures: list[_Figures]) -> Table:
    width = torch.cat([part.width for part in figures])
    found = [part.inside for part in figures if part.inside is not None]
    table = Table("boxes", "outputs", "method", "mean width", "largest width")
    cells = [str(width.shape[0]), str(width.shape[1]), ", ".join(sorted(set().union(*(p.methods for p in figures))))]
    cells += [f"{width.mean().item():.4g}", f"{width.max().item():.4g}"]
    if found:
        table.add_column("mean inside")
        table.add_column("ratio")
        cells += _tightness(width, torch.cat(found))
    verdicts = [verdict for part in figures for verdict in part.verdicts]
    for verdict in Verdict if verdicts else ():
        table.add_column(verdict.value)
        cells.append(str(verdicts.count(verdict)))
    table.add_column("seconds")
    table.add_row(*cells, f"{sum(part.seconds for part in figures):.3g}")
    return table


def _tightness(width: Tensor, inside: Tensor) -> list[str]:
    """Mean range from inside, and certified over inside: a ratio of means, as single ranges may be zero."""
    mean = inside.mean().item()
    return [f"{mean:.4g}", f"{width.mean().item() / mean:.3f}" if mean > 0 else "-"]
