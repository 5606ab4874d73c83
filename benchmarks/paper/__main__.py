"""Make a table or a figure of the paper anew, with the paper's numbers, ours, and what an attack finds.

The networks are trained as by ``bnndp train``, and kept. The results go to the folder of --out as Markdown, as .csv and
as a picture. An interrupted run continues: every number that was measured is in the folder's journal.
"""

from __future__ import annotations

import argparse
import hashlib
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks import baselines
from benchmarks.cache import NetworkCache
from benchmarks.paper.columns import EFFORT, Column
from benchmarks.paper.experiments import EXPERIMENTS, Setting, reproduce
from bnndp.data.folder import open_store
from bnndp.errors import CertError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the experiment that is asked for; the exit status."""
    given = _options(arguments)
    torch.set_num_threads(1)
    plan = {name: getattr(given, name) for name in ("inference", "temperature", "prior", "steps")}
    words = sys.argv[1:] if arguments is None else arguments
    setting = Setting(
        out=given.out,
        cache=NetworkCache(given.cache or given.out / "networks", open_store(given.data_dir)),
        plan={name: value for name, value in plan.items() if value is not None},
        quick=given.quick,
        points=given.points,
        only=given.only,
        more=_more(given.baselines, given.effort),
        restart=given.restart,
        jobs=given.jobs,
        command=shlex.join(["python", "-m", "benchmarks.paper", *words]),
    )
    try:
        outcome = reproduce(given.experiment, setting)
    except (CertError, OSError) as error:
        print(f"benchmarks.paper: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command continues from what is measured.", file=sys.stderr)
        return 130
    print(outcome.text)
    print("written: " + ", ".join(map(str, outcome.files)), file=sys.stderr)
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper", description=__doc__)
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument("--quick", action="store_true", help="layers of 64 only, 10 inputs of each set")
    parser.add_argument("--out", type=Path, default=Path("reproduction"), metavar="DIR", help="folder of the results")
    parser.add_argument("--only", metavar="DATASET", help="only the rows on this data set")
    parser.add_argument("--points", type=int, help="inputs of each data set; 100 unless --quick")
    parser.add_argument("--inference", metavar="METHOD", help="how networks are trained; vogn, bbb for table-2")
    parser.add_argument("--temperature", type=float, help="1e-6 for table-1b, 1e-5 for table-2, 1 otherwise")
    parser.add_argument("--prior", metavar="KIND", help="prior of the training: unit or fan_in")
    parser.add_argument("--steps", type=int, help="steps of the training")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="folder of trained networks; OUT/networks by default")
    parser.add_argument("--baselines", action="store_true", help="with the columns of benchmarks.baselines")
    parser.add_argument("--effort", action="store_true", help="with columns of medium and high effort")
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="folder of the data sets; BNNDP_DATA by default")
    parser.add_argument("--restart", action="store_true", help="measure again what was measured before")
    parser.add_argument("--jobs", type=int, default=1, help="processes, one thread each, that measure a row each")
    given = parser.parse_args(arguments)
    for name in ("points", "steps", "temperature", "jobs"):
        value = getattr(given, name)
        if value is not None and not value > 0:
            parser.error(f"--{name} must be positive, got {value}")
    return given


def _more(with_baselines: bool, effort: bool) -> dict[str, tuple[Column, ...]]:
    """Further columns; those of the baselines are measured again when their code changes."""
    files = sorted(Path(baselines.__file__).parent.glob("*.py"))
    version = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]
    found: dict[str, tuple[Column, ...]] = {}
    if with_baselines:
        found = {table: tuple(replace(c, version=version) for c in own) for table, own in baselines.COLUMNS.items()}
    if effort:
        found |= {table: (*found.get(table, ()), *own) for table, own in EFFORT.items()}
    return found


if __name__ == "__main__":
    sys.exit(main())
