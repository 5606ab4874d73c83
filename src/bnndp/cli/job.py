"""Certifying many boxes in chunks: rows as they are done, progress on a terminal, a summary at the end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor

from bnndp.attacks import Inside, inside_range
from bnndp.bounds import Bounds
from bnndp.certify import Options, certify
from bnndp.cli.rows import RowFile, plain
from bnndp.errors import CertError, InputError
from bnndp.network import BayesianNetwork
from bnndp.regions import Box

__all__ = ["Job", "run"]

_CELLS = 4096  # cells a chunk: enough to fill the machine, few enough that the progress bar moves
_BOXES = 256  # boxes a chunk; fixed, so that the same command gives the same bits
_ATTACKED = 16  # boxes a chunk when they are attacked too
_LEAST_TIME = 1e-3  # seconds of refinement left to a chunk when the limit has passed


@dataclass(frozen=True, slots=True)
class Job:
    """What one command computes."""

    network: BayesianNetwork
    box: Box
    options: Options
    attack: bool = False
    seed: int = 0

    @property
    def chunk(self) -> int:
        """Boxes a chunk."""
        most = max(1, min(_BOXES, _CELLS // self.options.refine))
        return min(most, _ATTACKED) if self.attack else most


@dataclass(frozen=True, slots=True)
class _Part:
    """The results of one chunk."""

    start: int
    bounds: Bounds
    inside: Inside | None
    seconds: float  # of the certification, without the attack


def run(job: Job, rows: RowFile, *, source: Path) -> None:
    """Write a row for every box, show the progress on a terminal, print the summary."""
    parts = []
    with _progress() as progress:
        task = progress.add_task("certify", total=job.box.batch)
        for part in _parts(job, source):
            for row in _rows(part):
                rows.write(row)
            parts.append(part)
            progress.advance(task, part.bounds.lower.shape[0])
    Console().print(_summary(parts))


def _parts(job: Job, source: Path) -> Iterator[_Part]:
    total = job.box.batch
    limit = job.options.time_limit
    deadline = None if limit is None else time.monotonic() + limit
    for start in range(0, total, job.chunk):
        stop = min(start + job.chunk, total)
        options = job.options
        if deadline is not None:  # the time left is shared among the boxes left
            share = (deadline - time.monotonic()) * (stop - start) / (total - start)
            options = replace(options, time_limit=max(share, _LEAST_TIME))
        box = job.box[start:stop]
        begin = time.perf_counter()
        try:
            bounds = certify(job.network, box, options)
        except CertError as error:
            raise InputError(f"{source}: rows {start} to {stop - 1}, counted from {start}: {error}") from error
        seconds = time.perf_counter() - begin
        inside = inside_range(job.network, box, seed=job.seed) if job.attack else None
        yield _Part(start, bounds, inside, seconds)


def _rows(part: _Part) -> Iterator[dict[str, object]]:
    bounds, inside = part.bounds, part.inside
    count = bounds.lower.shape[0]
    columns = {
        "lower": bounds.lower,
        "upper": bounds.upper,
        "width": bounds.width,
        "inside_lower": None if inside is None else inside.lower,
        "inside_upper": None if inside is None else inside.upper,
    }
    lists = {name: [None] * count if values is None else values.tolist() for name, values in columns.items()}
    for i in range(count):
        row: dict[str, object] = {"index": part.start + i}
        row |= {name: None if values[i] is None else plain(values[i]) for name, values in lists.items()}
        yield row | {"method": bounds.method[i], "seconds": part.seconds / count}


def _progress() -> Progress:
    """A bar on stderr; nothing at all where that is no terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _summary(parts: list[_Part]) -> Table:
    width = torch.cat([part.bounds.width for part in parts])
    methods = sorted({name for part in parts for name in part.bounds.method})
    seconds = sum(part.seconds for part in parts)
    table = Table("boxes", "outputs", "method", "mean width", "largest width")
    cells = [str(width.shape[0]), str(width.shape[1]), ", ".join(methods), f"{width.mean():.6g}", f"{width.max():.6g}"]
    if parts[0].inside is not None:
        table.add_column("mean inside")
        table.add_column("ratio")
        cells += _tightness(width, torch.cat([part.inside.width for part in parts if part.inside is not None]))
    table.add_column("seconds")
    table.add_row(*cells, f"{seconds:.3g}")
    return table


def _tightness(width: Tensor, inside: Tensor) -> list[str]:
    """Mean range from inside, and certified over inside: a ratio of means, as single ranges may be zero."""
    mean = inside.mean().item()
    return [f"{mean:.6g}", f"{width.mean().item() / mean:.3f}" if mean > 0 else "-"]
