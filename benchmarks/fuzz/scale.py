"""The campaign of scale: ten times as many boxes take ten times as long and no more memory.

    python -m benchmarks.fuzz.scale [--boxes N] [--engine local|ray] [--keep FOLDER]

Each command is run for N/10 and for N boxes, in a process of its own with a run folder: ``certify`` and ``radius`` of
the networks that come with the package, and both again on their complete folders, which is what resuming costs. Peak
memory is the resident memory of the process that holds the journal; inputs, two float64 a box or less, are part of it.
Every folder must have all rows, in order, in every format, the .parquet file in groups that can be read one by one.
Exit status 1 if the peak at N boxes is more than 1.15 times that at N/10, or the time of the processor, without that of
a run of 16 boxes, more than 15 times, or anything is missing.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet

from bnndp.data.demo import CLASSIFIER, NAME, network_path
from bnndp.runs.sealed_lines import unseal

__all__ = ["faults_of", "measured", "missing"]

PROGRAM = (sys.executable, "-c", "from bnndp.cli.main import run; run()")
_MEMORY, _TIME = 1.15, 15.0  # the largest ratios allowed
_NOISE = 2.0  # seconds that starting a process may take more or less
_START = 16  # boxes of a run whose time is that of starting
_RANGE = 1.0  # inputs are drawn from [-1, 1]


@dataclass(frozen=True, slots=True)
class Spent:
    """What a process took; without the workers of a cluster."""

    seconds: float
    processor: float  # seconds, which other programs do not change
    peak: int  # bytes


@dataclass(frozen=True, slots=True)
class Case:
    """A command of one network, for any number of inputs."""

    name: str
    network: str
    inputs: int
    words: tuple[str, ...]


CASES = (
    Case("certify", NAME, 1, ("--eps", "0.01")),
    Case("radius", CLASSIFIER, 2, ("--no-attack",)),
)


def measured(command: Sequence[str]) -> Spent:
    """Run a command to its end; its faults end the campaign."""
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)  # noqa: S603 (our own)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit status {process.returncode}")
    return Spent(time.perf_counter() - begin, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def written(folder: Path, case: Case, boxes: int) -> tuple[Path, Path]:
    """The model and the inputs as files."""
    model, inputs = folder / f"{case.name}.safetensors", folder / f"{case.name}-{boxes}.npz"
    with network_path(case.network) as path:
        model.write_bytes(path.read_bytes())
    np.savez(inputs, x=np.random.default_rng(0).uniform(-_RANGE, _RANGE, (boxes, case.inputs)))
    return model, inputs


def missing(run: Path, boxes: int) -> str | None:
    """What a run folder lacks; None if every format has every row, in order."""
    with (run / "rows.jsonl").open() as rows:
        shown = [json.loads(line)["index"] for line in rows]
    with (run / "results.csv").open(newline="") as table:
        listed = [int(row["index"]) for row in csv.DictReader(table)]
    with (run / "results.jsonl").open("rb") as journal:
        next(journal)
        kept = sorted(record["id"] for record in map(unseal, journal) if record is not None)
    found: dict[str, list[int]] = {"rows.jsonl": shown, "results.csv": listed, "results.jsonl": kept}
    file = parquet.ParquetFile(run / "results.parquet")
    groups = [file.read_row_group(group, columns=["index"]) for group in range(file.num_row_groups)]
    found["results.parquet"] = [index for group in groups for index in group["index"].to_pylist()]
    if any(group.num_rows > 10_000 for group in groups):
        return "results.parquet has a row group of more than 10,000 rows"
    points = json.loads((run / "summary.json").read_text())["points"]
    wrong = [name for name, indices in found.items() if indices != list(range(boxes))]
    return f"{wrong} lack rows" if wrong or points != boxes else None


def measurements(folder: Path, boxes: int, engine: Sequence[str]) -> Iterator[dict[str, Any]]:
    """A line per command: what it took for a tenth and for all of the boxes."""
    for case in CASES:
        spent: dict[tuple[int, bool], Spent] = {}
        for count in (_START, boxes // 10, boxes):
            model, inputs = written(folder, case, count)
            run = folder / f"{case.name}-{count}-run"
            words = [case.name, str(model), str(inputs), *case.words, "--run", str(run), "--quiet", *engine]
            for again in (False, True):
                spent[count, again] = measured([*PROGRAM, *words])
            fault = missing(run, count)
            if fault is not None:
                raise SystemExit(f"{run}: {fault}")
        for again in (False, True):
            few, many, none = (spent[count, again] for count in (boxes // 10, boxes, _START))
            yield {
                "command": f"{case.name}, again" if again else case.name,
                "boxes": [_START, boxes // 10, boxes],
                "seconds": [each.seconds for each in (none, few, many)],
                "processor seconds": [each.processor for each in (none, few, many)],
                "peak MB": [each.peak / 1e6 for each in (none, few, many)],
            }


def faults_of(line: dict[str, Any]) -> list[str]:
    """What is not flat, or not linear."""
    _, few, many = line["peak MB"]
    found = [] if many <= _MEMORY * few else [f"{line['command']}: the peak grows from {few:.0f} to {many:.0f} MB"]
    start, short, long = line["processor seconds"]
    if not long - start <= _TIME * max(0.0, short - start) + _NOISE:
        found.append(f"{line['command']}: {start:.1f}, {short:.1f} and {long:.1f} seconds are not linear")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--boxes", type=int, default=100_000)
    parser.add_argument("--engine", choices=["local", "ray"], default="local")
    parser.add_argument("--keep", type=Path, help="an empty folder for all files, which stay there")
    given = parser.parse_args(arguments)
    faults: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        for line in measurements(given.keep or Path(scratch), given.boxes, ("--engine", given.engine)):
            print(json.dumps(line), flush=True)
            faults += faults_of(line)
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
