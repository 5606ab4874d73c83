"""The radii of many inputs in batches: rows as they are done, progress on a terminal, a summary at the end."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

from rich.table import Table
from torch import Tensor

from bnndp.cli.job import show_progress
from bnndp.cli.labelled import Points
from bnndp.cli.rows import RowFile
from bnndp.errors import CertError, InputError
from bnndp.evaluate import Evaluation, evaluate
from bnndp.network import BayesianNetwork
from bnndp.options import Options
from bnndp.radius import Search

__all__ = ["RadiusJob", "run", "summary"]

_INPUTS = 256  # inputs a batch; fixed, so that the same command gives the same bits
_ATTACKED = 64  # inputs a batch when they are attacked too


@dataclass(frozen=True, slots=True)
class RadiusJob:
    """What one command computes."""

    network: BayesianNetwork
    points: Points
    domain: tuple[float, float] | None
    search: Search
    options: Options

    @property
    def batch(self) -> int:
        """Inputs a batch."""
        return _ATTACKED if self.search.attack else _INPUTS


def run(job: RadiusJob, rows: RowFile | None = None) -> Evaluation:
    """The radii of all inputs; the progress is shown on a terminal, and a row is written for each if wanted."""
    parts = []
    with show_progress("radius", job.points.x.shape[0]) as advance:
        for start, found, seconds in _parts(job):
            if rows is not None:
                for row in _rows(start, found, seconds):
                    rows.write(row)
            parts.append(found)
            advance(found.label.numel())
    return Evaluation.joined(parts)


def _parts(job: RadiusJob) -> Iterator[tuple[int, Evaluation, float]]:
    """The index of the first input of each batch, its results and the seconds they took."""
    for start in range(0, job.points.x.shape[0], job.batch):
        part = job.points[start : start + job.batch]
        begin = time.perf_counter()
        try:
            found = evaluate(job.network, part.x, part.label, job.domain, search=job.search, options=job.options)
        except CertError as error:
            raise InputError(f"{part.source}: inputs from {start} (input 0 is {start}): {error}") from error
        yield start, found, time.perf_counter() - begin


def _rows(start: int, found: Evaluation, seconds: float) -> Iterator[dict[str, object]]:
    count = found.label.numel()
    columns = {"label": found.label, "radius": found.radius, "attack_radius": found.attack, "ratio": found.ratio}
    lists = {name: [_plain(value) for value in column.tolist()] for name, column in columns.items()}
    for i in range(count):
        row: dict[str, object] = {"index": start + i}
        yield row | {name: values[i] for name, values in lists.items()} | {"seconds": seconds / count}


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
