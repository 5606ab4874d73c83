"""``make bench``: bnndp beside what a user would pick instead, and its speed, cost and memory, in one run.

Everything runs on one thread. Networks that are not in the cache are trained first (minutes). The comparisons are in
``against_others.py`` and ``against_crown.py``; ``--only tightness`` compares certified widths with ranges from inside.
Figures go to ``benchmarks/results.json``, those of comparisons and exponents to a ``results-*.json`` of their own.
Options: ``--quick`` (fewer boxes, methods and sizes), ``--only PART ...``.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import against_crown, against_others, exponents, memory, speed, tightness

__all__ = ["main"]

FOLDER = Path(__file__).resolve().parent
PARTS = ("others", "crown", "exponents", "speed", "cost", "memory", "tightness")
USUAL = PARTS[:-1]
_ALONE = ("others", "crown", "exponents")  # have files of their own


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the parts asked for, print their tables, write their figures."""
    parser = argparse.ArgumentParser(description="Comparisons, speed, cost, memory and tightness of the certifier.")
    parser.add_argument("--quick", action="store_true", help="fewer boxes, methods and sizes")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=USUAL, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the files of figures")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    console = Console(width=None if sys.stdout.isatty() else 150)  # a pipe has no width, and 80 columns cut the tables
    parts: dict[str, Callable[[Console, bool], Any]] = {
        "others": _others,
        "crown": _crown,
        "exponents": _exponents,
        "speed": _speed,
        "cost": _cost,
        "memory": _memory,
        "tightness": _tightness,
    }
    for part in options.only:
        _write(options.out, part, parts[part](console, options.quick), quick=options.quick)
    console.print(f"figures: {options.out}")


def _write(folder: Path, part: str, found: Any, *, quick: bool) -> None:
    """Into the file of the part; in one of several parts the others stay as they are."""
    path = folder / (f"results-{part}.json" if part in _ALONE else "results.json")
    before = json.loads(path.read_text()) if path.exists() and part not in _ALONE else {}
    about = {"torch": torch.__version__, "python": platform.python_version(), "quick": quick}
    path.write_text(json.dumps(before | about | {part: found}, indent=2, allow_nan=False) + "\n")


def _others(console: Console, quick: bool) -> list[dict[str, Any]]:
    rows = against_others.measure(8 if quick else against_others.BOXES)
    if not against_crown.available():
        console.print("auto_LiRPA is not installed (make bench tries): there are no rows of CROWN.")
    table = Table(
        "network", "radius", "way", "holds for", "time", "CPU time", "width", "draws",
        title="What else there is: seconds a box, in batches, on one thread; medians by turns",
    )  # fmt: skip
    for index, row in enumerate(rows):
        table.add_row(
            row.case, f"{row.eps:g}", row.way, row.holds, _time(row.wall), _time(row.cpu), f"{row.width:.5f}",
            "" if row.draws is None else f"{row.draws:,.0f}",
            end_section=index + 1 == len(rows) or rows[index + 1].case != row.case,
        )  # fmt: skip
    console.print(table)
    console.print(
        "Sampling says nothing about the box, CROWN nothing about the posterior (benchmarks/against_others.py)."
    )
    return [asdict(row) for row in rows]


def _crown(console: Console, quick: bool) -> list[dict[str, Any]]:
    if not against_crown.available():
        console.print("auto_LiRPA is not installed (make bench tries): the comparison with CROWN is left out.")
        return []
    rows = against_crown.measure(8 if quick else against_crown.BOXES)
    table = Table(
        "network", "radius", "bnndp", "CROWN", "ratio", "CPU ratio", "width", "CROWN's width", "as tight",
        title=f"Networks without variance: {rows[0].boxes} boxes, one thread, float64, medians by turns",
    )  # fmt: skip
    for row in rows:
        table.add_row(
            row.network, f"{row.eps:g}", _time(row.wall), _time(row.crown_wall), f"{row.ratio:.2f}",
            f"{row.cpu / row.crown_cpu:.2f}", f"{row.width:.4f}", f"{row.crown_width:.4f}", f"{100 * row.tight:.1f} %",
        )  # fmt: skip
    console.print(table)
    return [asdict(row) | {"ratio": row.ratio} for row in rows]


def _exponents(console: Console, quick: bool) -> list[dict[str, Any]]:
    rows = exponents.measure([exponents.smaller(axis) for axis in exponents.AXES] if quick else exponents.AXES)
    table = Table(
        "against", "sizes", "fixed", "CPU time of a batch", "exponent", "of the larger half",
        title="Cost of a pass (mean output, random weights)",
    )  # fmt: skip
    for row in rows:
        table.add_row(
            row.axis, f"{row.sizes[0]} to {row.sizes[-1]}", row.fixed,
            f"{_time(row.seconds[0])} to {_time(row.seconds[-1])}", f"{row.exponent:.2f}", f"{row.of_larger:.2f}",
        )  # fmt: skip
    console.print(table)
    return [asdict(row) for row in rows]


def _time(seconds: float) -> str:
    """With the unit that suits it."""
    unit, factor = next(((u, f) for u, f in (("s", 1.0), ("ms", 1e3)) if seconds * f >= 1), ("us", 1e6))
    return f"{seconds * factor:.3g} {unit}"


def _tightness(console: Console, quick: bool) -> list[dict[str, Any]]:
    rows = tightness.measure_shared()
    if not rows:
        console.print("The authors' posteriors are absent (BNNDP_DATA is not set): sine1d_1x256 is skipped.")
    methods = ("moment",) if quick else tightness.METHODS
    for case in tightness.CASES:
        for suffix in ("", "-scaled"):
            console.print(f"measuring {case.name}{suffix} ...", style="dim")
            rows += tightness.measure(case, suffix, methods=methods, boxes=10 if quick else tightness.BOXES)
    table = Table(
        "network", "boxes", "method", "certified width", "range from inside", "ratio", "point gap", "paper's width",
        title="Tightness (means over the boxes; ratio = certified width / range from inside)",
    )  # fmt: skip
    for index, row in enumerate(rows):
        table.add_row(
            row.network, row.box, row.method, f"{row.width:.5f}", f"{row.inside:.5f} ±{row.inside_error:.0e}",
            f"{row.ratio:.3f}", f"{row.point_gap:.2e}", "" if row.paper is None else f"{row.paper:.3f}",
            end_section=index + 1 == len(rows) or rows[index + 1].network != row.network,
        )  # fmt: skip
    console.print(table)
    return [asdict(row) for row in rows]


def _speed(console: Console, _quick: bool) -> dict[str, Any]:
    found = speed.speed()
    table = Table("what", "time", "ratio", title="Speed, sine2d-2x64, default method, one thread (medians of CPU time)")
    table.add_row("one certified box", f"{1e3 * found.single:.2f} ms", "1")
    share = found.in_batch / found.single
    table.add_row(
        f"a box in a batch of {speed.BATCH}", f"{1e3 * found.in_batch:.3f} ms", f"1/{1 / share:.1f} of one alone"
    )
    for label, seconds in found.passes.items():
        passes = found.single / seconds
        table.add_row(f"one forward pass: {label}", f"{1e6 * seconds:.2f} us", f"one box = {passes:,.0f} passes")
    console.print(table)
    console.print(
        f"A forward pass draws all weights once; 'batched' runs {speed.PASSES}, 50 at a time. Bounds are "
        "float64. Local reparametrisation draws pre-activations, not weights: the cheapest way to sample one output."
    )
    passes_by = {label: found.single / seconds for label, seconds in found.passes.items()}
    return {**asdict(found), "batch_share": share, "box_in_passes": passes_by}


def _cost(console: Console, quick: bool) -> list[dict[str, Any]]:
    rows = speed.costs(speed.SIZES[:4] if quick else speed.SIZES)
    first = next(row for row in rows if (row.depth, row.width) == (1, 64))
    table = Table(
        "hidden", "one box", "in a batch of 64", "against 1x64", "one box in forward passes",
        title="Cost against depth and width (two inputs; random weights)",
    )  # fmt: skip
    for row in rows:
        table.add_row(
            f"{row.depth}x{row.width}", f"{1e3 * row.single:.2f} ms", f"{1e3 * row.in_batch:.3f} ms",
            f"{row.single / first.single:.1f}", f"{row.single / row.forward:,.0f}",
        )  # fmt: skip
    console.print(table)
    return [asdict(row) for row in rows]


def _memory(console: Console, quick: bool) -> dict[str, Any]:
    peak = memory.measure(1000 if quick else 10_000)
    table = Table("network", "boxes", "before", "peak", "time", title="Memory, in a process of its own")
    table.add_row(
        peak.network,
        f"{peak.boxes:,}",
        f"{peak.before / 1e9:.2f} GB",
        f"{peak.peak / 1e9:.2f} GB",
        f"{peak.seconds:.1f} s",
    )
    console.print(table)
    return asdict(peak)


if __name__ == "__main__":
    main()
