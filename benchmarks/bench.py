"""``make bench``: tightness, speed and memory in one run, as tables and in ``benchmarks/results.json``.

Everything runs on one thread. Networks that are not in the cache are trained first (minutes). Options:
``--quick`` (10 boxes, default method, few sizes), ``--only tightness speed cost memory``.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import memory, speed, tightness

__all__ = ["main"]

RESULTS = Path(__file__).resolve().parent / "results.json"
PARTS = ("tightness", "speed", "cost", "memory")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the parts asked for, print their tables, write their figures."""
    parser = argparse.ArgumentParser(description="Tightness, speed and memory of the certifier.")
    parser.add_argument("--quick", action="store_true", help="fewer boxes, methods and sizes")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    console = Console(width=None if sys.stdout.isatty() else 150)  # a pipe has no width, and 80 columns cut the tables
    results: dict[str, Any] = {"torch": torch.__version__, "python": platform.python_version(), "quick": options.quick}
    parts = {"tightness": _tightness, "speed": _speed, "cost": _cost, "memory": _memory}
    for part in options.only:
        results[part] = parts[part](console, options.quick)
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    console.print(f"figures: {RESULTS.relative_to(RESULTS.parent.parent)}")


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
