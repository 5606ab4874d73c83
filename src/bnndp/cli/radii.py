"""The radii of many inputs in batches, stage by stage: by one pass and an attack, then with what the effort adds.

Once all inputs have had the first there is a valid answer for every one, whenever the work stops.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table
from torch import Tensor

from bnndp.cli.job import show_progress
from bnndp.cli.labelled import Points
from bnndp.cli.rows import RowFile
from bnndp.cli.stopped import Stopped
from bnndp.effort import Stage
from bnndp.ensemble import Posterior
from bnndp.errors import CertError, InputError
from bnndp.evaluate import Evaluation, better_evaluations
from bnndp.methods import plan
from bnndp.options import LEVELS, Options
from bnndp.radius import Search

__all__ = ["DoneRadii", "RadiusJob", "run", "summary"]

_INPUTS = 256  # inputs a batch; fixed, so that the same command gives the same bits
_ATTACKED = 64  # inputs a batch when they are attacked too
_STAGED = 16  # inputs a batch of a later stage: a trial of a batch is what an interruption loses


@dataclass(frozen=True, slots=True)
class RadiusJob:
    """What one command computes."""

    network: Posterior
    points: Points
    domain: tuple[float, float] | None
    search: Search
    options: Options

    @property
    def plan(self) -> tuple[Stage, ...]:
        """What is done one after the other."""
        return plan(self.network, self.options)

    def batches(self, size: int) -> Iterator[slice]:
        """The inputs that are worked on at once."""
        total = self.points.x.shape[0]
        for start in range(0, total, size):
            yield slice(start, min(start + size, total))

    def answers(self, part: slice, stage: Stage, known: Evaluation | None = None) -> Iterator[Evaluation]:
        """Better and better answers for some inputs."""
        points = self.points[part]
        try:
            yield from better_evaluations(
                self.network,
                points.x,
                points.label,
                self.domain,
                search=self.search,
                options=stage.options,
                known=known,
            )
        except CertError as error:
            where = f"{points.source}: inputs from {part.start} (input 0 is {part.start})"
            raise InputError(f"{where}: {error}") from error


@dataclass(slots=True)
class DoneRadii:
    """What is known of every input so far; it only gets better."""

    found: Evaluation
    levels: list[str]  # of every input: the last that was completed
    seconds: list[float]  # of every input
    interrupted: bool = False

    @property
    def level(self) -> str:
        """The last that was completed for all inputs."""
        return min(self.levels, key=LEVELS.index)

    def expect_whole(self, out: Path | None) -> None:
        """Tell the user if the work was interrupted."""
        if self.interrupted:
            raise Stopped(f"interrupted; {out or 'the table'} has what was reached until then, all of it proved")


def run(job: RadiusJob, rows: RowFile | None = None) -> DoneRadii:
    """The radii of all inputs; the progress is shown on a terminal, and a row is written for each if wanted."""
    first, *others = job.plan
    done = _first(job, first)
    try:
        _improve(job, others, done)
    except KeyboardInterrupt:
        done.interrupted = True
    if rows is not None:
        for row in _rows(done):
            rows.write(row)
    return done


def _first(job: RadiusJob, stage: Stage) -> DoneRadii:
    parts: list[Evaluation] = []
    seconds: list[float] = []
    with show_progress("radius", job.points.x.shape[0]) as advance:
        for part in job.batches(_ATTACKED if job.search.attack else _INPUTS):
            count, begin = part.stop - part.start, time.perf_counter()
            parts.append(next(job.answers(part, stage)))
            seconds += [(time.perf_counter() - begin) / count] * count
            advance(count)
    return DoneRadii(Evaluation.joined(parts), [stage.level] * len(seconds), seconds)


def _improve(job: RadiusJob, plan: list[Stage], done: DoneRadii) -> None:
    """The later stages, one after the other over all inputs, until the time is over; ``done`` is updated."""
    limit = job.options.time_limit
    deadline = math.inf if limit is None else time.monotonic() + limit
    for stage in plan:
        with show_progress(f"radius, {stage.level} effort", len(done.levels)) as advance:
            for part in job.batches(_STAGED):
                if not _improve_batch(job, stage, part, done, deadline):
                    return
                advance(part.stop - part.start)


def _improve_batch(job: RadiusJob, stage: Stage, part: slice, done: DoneRadii, deadline: float) -> bool:
    """One stage for some inputs; whether it was completed in time."""
    begin, count = time.perf_counter(), part.stop - part.start
    radius = done.found.radius
    for answer in job.answers(part, stage, done.found[part]):
        radius[part] = answer.radius
        if not time.monotonic() < deadline:
            return False
    done.levels[part] = [stage.level] * count
    each = (time.perf_counter() - begin) / count
    done.seconds[part] = [seconds + each for seconds in done.seconds[part]]
    return True


def _rows(done: DoneRadii) -> Iterator[dict[str, object]]:
    found = done.found
    columns = {"label": found.label, "radius": found.radius, "attack_radius": found.attack, "ratio": found.ratio}
    lists = {name: [_plain(value) for value in column.tolist()] for name, column in columns.items()}
    for i, (level, seconds) in enumerate(zip(done.levels, done.seconds, strict=True)):
        row: dict[str, object] = {"index": i}
        yield row | {name: values[i] for name, values in lists.items()} | {"effort": level, "seconds": seconds}


def _plain(value: float) -> float | None:
    """The number, or null where there is none: JSON knows neither NaN nor infinity."""
    return value if math.isfinite(value) else None


def summary(found: Evaluation, seconds: float) -> Table:
    """Means over the inputs that are classified correctly; what is not certified counts as a radius of zero."""
    right = found.correct
    table = Table("inputs", "correct", "certified", "mean certified radius")
    cells = [str(right.numel()), str(int(right.sum())), str(int(found.radius.isfinite().sum()))]
    cells.append(_mean(found.radius[right].nan_to_num(0.0)))
    if not found.attack.isnan().any():
        table.add_column("mean attack radius")
        table.add_column("mean ratio")
        broken, ratio = found.attack[right], found.ratio[right]
        cells += [_mean(broken[broken.isfinite()]), _mean(ratio[ratio.isfinite()])]
    table.add_column("seconds")
    table.add_row(*cells, f"{seconds:.3g}")
    return table


def _mean(values: Tensor) -> str:
    return f"{values.mean().item():.4g}" if values.numel() else "-"
