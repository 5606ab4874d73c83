"""Certifying many boxes in chunks, stage by stage: one pass for all of them, then what the effort adds.

For a classifier with labels every row also has the verdict on its decision. Once all boxes have had their first pass
there is a valid answer for every one, whenever the work stops; rows are written when it does.
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

from bnndp.attacks import inside_range
from bnndp.bounds import Bounds
from bnndp.certify import better_bounds, better_probabilities
from bnndp.classify import bound_rows
from bnndp.cli.rows import RowFile, plain
from bnndp.cli.stopped import Stopped
from bnndp.decision import Decision, robust_decision
from bnndp.effort import Stage
from bnndp.ensemble import Posterior
from bnndp.errors import CertError, InputError
from bnndp.evasion import decision_rows
from bnndp.methods import plan
from bnndp.options import Options
from bnndp.quantities import Between
from bnndp.regions import Box
from bnndp.verdict import Verdict

__all__ = ["Done", "Job", "run", "show_progress"]

_CELLS = 4096  # cells a chunk: enough to fill the machine, few enough that the progress bar moves
_BOXES = 256  # boxes a chunk; fixed, so that the same command gives the same bits
_ATTACKED = 16  # boxes a chunk when they are attacked too


@dataclass(frozen=True, slots=True)
class Job:
    """What one command computes."""

    network: Posterior
    box: Box
    options: Options
    attack: bool = False
    seed: int = 0
    label: Tensor | None = None  # (boxes,): the decisions in question
    quantity: str = "mean"
    between: Between | None = None  # bounds of the probability of this interval of outputs, and of nothing else

    @property
    def plan(self) -> tuple[Stage, ...]:
        """What is done one after the other."""
        return plan(self.network, self.options)

    def answers(self, box: Box, options: Options) -> Iterator[Bounds]:
        """Better and better bounds of what is asked for."""
        if self.between is not None:
            return better_probabilities(self.network, box, options, self.between)
        if self.quantity != "mean":
            return better_bounds(self.network, box, options, quantity=self.quantity)
        return better_bounds(self.network, box, options)

    def chunks(self, stage: Stage) -> Iterator[slice]:
        """The boxes that are worked on at once."""
        step = max(1, min(_BOXES, _CELLS // (stage.options.refine * stage.options.branch)))
        step = min(step, _ATTACKED) if self.attack or self.label is not None else step
        for start in range(0, self.box.batch, step):
            yield slice(start, min(start + step, self.box.batch))


@dataclass(frozen=True, slots=True)
class Done:
    """The summary of what was written, and whether the work was interrupted."""

    summary: Table
    interrupted: bool

    def expect_whole(self, out: Path) -> None:
        """Tell the user if it was."""
        if self.interrupted:
            raise Stopped(f"interrupted; {out} has the bounds that were reached until then, all of which hold")


@dataclass(slots=True)
class _Found:
    """What is known of every box so far; it only gets better. The affine bounds would fill the memory."""

    lower: Tensor  # (boxes, outputs)
    upper: Tensor  # (boxes, outputs)
    method: list[str]
    level: list[str]  # the last that was completed
    seconds: list[float]  # of the certification, without the attack
    inside: tuple[Tensor, Tensor] | None  # (boxes, outputs) each
    decision: Decision | None

    @property
    def width(self) -> Tensor:
        """Of the intervals, rounded up: (boxes, outputs)."""
        width = self.upper - self.lower
        return torch.where(width > 0, torch.nextafter(width, torch.full_like(width, torch.inf)), width)


def run(job: Job, rows: RowFile, *, source: Path) -> Done:
    """Write a row for every box, show the progress on a terminal, give back the summary."""
    first, *others = job.plan
    found = _first(job, first, source)
    interrupted = False
    try:
        _improve(job, others, found, source)
    except KeyboardInterrupt:
        interrupted = True
    for row in _rows(found):
        rows.write(row)
    return Done(_summary(found), interrupted)


def _first(job: Job, stage: Stage, source: Path) -> _Found:
    """One pass over all boxes, and the attack."""
    parts: list[_Found] = []
    with show_progress("certify", job.box.batch) as advance:
        for part in job.chunks(stage):
            box, begin = job.box[part], time.perf_counter()
            with _located(source, part):
                bounds = next(job.answers(box, stage.options))
                seconds = time.perf_counter() - begin
                decision = None if job.label is None else _decision(job, stage, part)
            found = inside_range(job.network, box, seed=job.seed) if job.attack else None
            inside = None if found is None else (found.lower, found.upper)
            share = [seconds / box.batch] * box.batch
            level = [stage.level] * box.batch
            parts.append(_Found(bounds.lower, bounds.upper, [*bounds.method], level, share, inside, decision))
            advance(box.batch)
    return _joined(parts)


def _decision(job: Job, stage: Stage, part: slice) -> Decision:
    box = job.box[part]
    label = None if job.label is None else job.label[part]
    return robust_decision(job.network, box.project(box.centre), box, label, options=stage.options)


def _improve(job: Job, plan: list[Stage], found: _Found, source: Path) -> None:
    """The later stages, one after the other over all boxes, until the time is over; ``found`` is updated."""
    limit = job.options.time_limit
    deadline = math.inf if limit is None else time.monotonic() + limit
    total = job.box.batch
    done = {replace(job.plan[0].options, branch=1)}
    for stage in plan:
        own = replace(stage.options, branch=1)  # signs are for decisions only
        again, done = own in done, done | {own}
        with show_progress(f"certify, {stage.level} effort", total) as advance:
            for part in job.chunks(stage):
                left = deadline - time.monotonic()
                if not left > 0:
                    return
                left *= (part.stop - part.start) / (total - part.start)  # shared among the boxes left
                until = time.monotonic() + left
                with _located(source, part):
                    whole = again or _improve_bounds(job, stage, part, found, until)
                    if whole and found.decision is not None:
                        found.decision = _better_decision(job, stage, part, found.decision)
                if whole:
                    found.level[part] = [stage.level] * (part.stop - part.start)
                advance(part.stop - part.start)


def _improve_bounds(job: Job, stage: Stage, part: slice, found: _Found, until: float) -> bool:
    """One stage for some boxes, and whether it was completed; every update by itself keeps ``found`` valid."""
    begin, whole = time.perf_counter(), True
    for bounds in job.answers(job.box[part], stage.options):
        found.lower[part] = torch.maximum(found.lower[part], bounds.lower)
        found.upper[part] = torch.minimum(found.upper[part], bounds.upper)
        found.method[part] = bounds.method
        whole = time.monotonic() < until
        if not whole:
            break
    each = (time.perf_counter() - begin) / (part.stop - part.start)
    found.seconds[part] = [seconds + each for seconds in found.seconds[part]]
    return whole


def _better_decision(job: Job, stage: Stage, part: slice, known: Decision) -> Decision:
    """With the verdicts of this stage on those that are undecided."""
    left = [i for i in range(part.start, part.stop) if known.verdict[i] is Verdict.UNDECIDED]
    if not left:
        return known
    at = torch.tensor(left)
    label = known.label[at]
    rows = decision_rows(label, job.network.n_out)[0]
    with torch.no_grad():
        lead = bound_rows(job.network, job.box[at], rows, label, stage.options).amin(-1)
    proved = dict(zip(left, (lead > 0).tolist(), strict=True))
    verdict = tuple(Verdict.CERTIFIED if proved.get(i) else old for i, old in enumerate(known.verdict))
    bound = known.bound.index_copy(0, at, torch.maximum(known.bound[at], lead))
    return replace(known, verdict=verdict, bound=bound)


@contextlib.contextmanager
def _located(source: Path, part: slice) -> Iterator[None]:
    """Put the file and its rows in front of whatever is wrong with a chunk."""
    try:
        yield
    except CertError as error:
        where = f"{source}: rows {part.start} to {part.stop - 1} (box 0 is row {part.start})"
        raise InputError(f"{where}: {error}") from error


def _joined(parts: list[_Found]) -> _Found:
    decisions = [part.decision for part in parts if part.decision is not None]
    inside = [part.inside for part in parts if part.inside is not None]
    return _Found(
        lower=torch.cat([part.lower for part in parts]),
        upper=torch.cat([part.upper for part in parts]),
        method=[name for part in parts for name in part.method],
        level=[level for part in parts for level in part.level],
        seconds=[seconds for part in parts for seconds in part.seconds],
        inside=(torch.cat([low for low, _ in inside]), torch.cat([high for _, high in inside])) if inside else None,
        decision=_joined_decisions(decisions) if decisions else None,
    )


def _joined_decisions(parts: list[Decision]) -> Decision:
    names = ("label", "bound", "witness", "margin", "error", "rival")
    tensors = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
    verdict, proved = (tuple(v for part in parts for v in getattr(part, name)) for name in ("verdict", "proved"))
    return Decision(verdict=verdict, proved=proved, **tensors)


def _rows(found: _Found) -> Iterator[dict[str, object]]:
    columns = {"lower": found.lower, "upper": found.upper, "width": found.width}
    if found.inside is not None:
        columns |= {"inside_lower": found.inside[0], "inside_upper": found.inside[1]}
    lists = {name: values.tolist() for name, values in columns.items()}
    for i in range(found.lower.shape[0]):
        row: dict[str, object] = {"index": i}
        row |= dict.fromkeys(("lower", "upper", "width", "inside_lower", "inside_upper"))
        row |= {name: plain(values[i]) for name, values in lists.items()}
        row |= {"method": found.method[i], "effort": found.level[i], "seconds": found.seconds[i]}
        yield row if found.decision is None else row | _verdict(found.decision, i)


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


def _summary(found: _Found) -> Table:
    width = found.width
    table = Table("boxes", "outputs", "method", "mean width", "largest width")
    cells = [str(width.shape[0]), str(width.shape[1]), ", ".join(sorted(set(found.method)))]
    cells += [f"{width.mean().item():.4g}", f"{width.max().item():.4g}"]
    if found.inside is not None:
        table.add_column("mean inside")
        table.add_column("ratio")
        cells += _tightness(width, found.inside[1] - found.inside[0])
    for verdict in Verdict if found.decision is not None else ():
        table.add_column(verdict.value)
        cells.append(str(found.decision.verdict.count(verdict)) if found.decision is not None else "-")
    table.add_column("seconds")
    table.add_row(*cells, f"{sum(found.seconds):.3g}")
    return table


def _tightness(width: Tensor, inside: Tensor) -> list[str]:
    """Mean range from inside, and certified over inside: a ratio of means, as single ranges may be zero."""
    mean = inside.mean().item()
    return [f"{mean:.4g}", f"{width.mean().item() / mean:.3f}" if mean > 0 else "-"]
