"""``make tightness``: certified results beside those from inside, and the gap by source (docs/tightness.md).

Options: ``--quick`` (few networks and inputs, below two minutes), ``--only NAME ...`` (networks, or ``regression``,
``classification``, ``layers``, ``widening``), ``--jobs N`` (processes, one thread each). The full run writes
``benchmarks/results-tightness.json`` and ``docs/results/tightness.md``; others print only, unless ``--out FOLDER``.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks.pool import call, mapped
from benchmarks.tightness import layers
from benchmarks.tightness.measure import FULL, QUICK_SIZE, Size, measure, measure_layers
from benchmarks.tightness.report import markdown, sections
from benchmarks.tightness.suite import CLASSIFICATION, QUICK, REGRESSION
from benchmarks.tightness.widening import WIDTHS, Posteriors, growth, of_width
from bnndp.errors import InputError

__all__ = ["main"]

ROOT = Path(__file__).resolve().parents[2]
Job = Callable[[], dict[str, Any]]
PARTS = ("regression", "classification", "layers", "widening")
FAMILIES = (Posteriors(0.1), Posteriors(0.5), Posteriors(None))


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is measured: networks by name, and how much of them."""

    names: frozenset[str]
    widening: bool
    size: Size
    widths: tuple[int, ...]

    def jobs(self) -> list[tuple[str, str, Job]]:
        """Part, name and work of every row."""
        found: list[tuple[str, str, Job]] = []
        fitting = [case for case in REGRESSION if case.name in self.names]
        found += [("regression", case.name, partial(measure, case, self.size)) for case in fitting]
        classifiers = [case for case in CLASSIFICATION if case.name in self.names]
        found += [("classification", case.name, partial(measure, case, self.size)) for case in classifiers]
        layered = [name for name in layers.NAMES if name in self.names]
        found += [("layers", name, partial(measure_layers, name, self.size)) for name in layered]
        if self.widening:
            few = self.size is not FULL
            for family in FAMILIES:
                several = Posteriors(family.std, (0,)) if few else family
                found += [
                    (
                        "widening",
                        f"{family.name}, 2x{width}",
                        partial(of_width, several, width, draws=self.size.draws // 2),
                    )
                    for width in self.widths
                ]
        return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is asked for, print the tables, write the files."""
    options = _options(arguments)
    asked = _asked(options.only, options.quick)
    console = Console(width=None if sys.stdout.isatty() else 230)  # a pipe has no width, and 80 columns cut the tables
    start = time.monotonic()
    results = _run(asked.jobs(), options.jobs, console)
    results["seconds"] = round(time.monotonic() - start)
    results["command"] = " ".join(["make tightness", *_given(options)])
    for section in sections(results):
        console.print(section.table())
    console.print(f"{results['seconds']} s with {options.jobs} process(es)", style="dim")
    if "stopped" in results:
        raise SystemExit(f"make tightness: stopped, nothing written: {results['stopped']}")
    whole = not options.quick and options.only is None
    if whole or options.out is not None:
        _write(results, console, options.out)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make tightness", description="Certified against inside; the gap by source.")
    parser.add_argument("--quick", action="store_true", help="few networks and inputs, below two minutes")
    parser.add_argument("--only", nargs="+", metavar="NAME", help=f"networks of the suite, or {', '.join(PARTS)}")
    parser.add_argument("--jobs", type=int, default=2, help="processes, one thread each")
    parser.add_argument("--out", type=Path, help="folder for both files, instead of their usual places")
    options = parser.parse_args(arguments)
    if options.jobs < 1:
        parser.error(f"--jobs must be at least 1, got {options.jobs}")
    if options.out is not None and options.out.exists() and not options.out.is_dir():
        parser.error(f"--out {options.out}: that is a file; give a folder")
    known = {*PARTS, *(case.name for case in REGRESSION), *(case.name for case in CLASSIFICATION), *layers.NAMES}
    unknown = [name for name in options.only or () if name not in known]
    if unknown:
        parser.error(f"--only {unknown[0]}: no such network; there are {', '.join(sorted(known))}")
    return options


def _given(options: argparse.Namespace) -> list[str]:
    """The options, as they were given to make."""
    words = (["--quick"] if options.quick else []) + (["--only", *options.only] if options.only else [])
    return [f"ARGS='{' '.join(words)}'"] if words else []


def _asked(only: Sequence[str] | None, quick: bool) -> _Asked:
    names = {case.name for case in REGRESSION if only is None or "regression" in only}
    names |= {case.name for case in CLASSIFICATION if only is None or "classification" in only}
    names |= {name for name in layers.NAMES if only is None or "layers" in only}
    if quick and only is None:
        names &= set(QUICK)
    names |= set(only or ()) - set(PARTS)
    widening = only is None or "widening" in only
    return _Asked(frozenset(names), widening, QUICK_SIZE if quick else FULL, WIDTHS[:2] if quick else WIDTHS)


def _run(jobs: Sequence[tuple[str, str, Job]], processes: int, console: Console) -> dict[str, Any]:
    """The rows of all parts; where one cannot be measured those before it are kept, and ``stopped`` says why."""
    results: dict[str, Any] = {"torch": torch.__version__, "python": platform.python_version()}
    try:
        for (part, name, _), row in zip(jobs, mapped(call, [job for _, _, job in jobs], processes), strict=True):
            results.setdefault(part, []).append(row)
            console.print(f"{name}: {row['seconds']:.0f} s CPU", style="dim")
    except InputError as error:
        results["stopped"] = str(error)
    measured = results.get("widening", [])
    families = dict.fromkeys(row["family"] for row in measured)
    results["widening"] = [*measured, *(growth([r for r in measured if r["family"] == name]) for name in families)]
    return results


def _write(results: dict[str, Any], console: Console, folder: Path | None) -> None:
    figures = ROOT / "benchmarks" / "results-tightness.json" if folder is None else folder / "results-tightness.json"
    page = ROOT / "docs" / "results" / "tightness.md" if folder is None else folder / "tightness.md"
    for path, text in ((figures, json.dumps(results, indent=2) + "\n"), (page, markdown(results))):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        console.print(f"written: {path.relative_to(ROOT) if folder is None else path}")


if __name__ == "__main__":
    main()
