"""``make bench``: bnndp beside what a user would pick instead, and its speed, cost and memory, in one run.

Everything runs on one thread. Networks that are not in the cache are trained first (minutes). Each part writes its
figures to ``benchmarks/results-PART.json``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks import alternatives, cost, crown, memory
from benchmarks.results import FOLDER, keep, show

__all__ = ["main"]

PARTS: dict[str, tuple[str, Callable[[bool], Sequence[Any]]]] = {
    "others": (
        "Beside other ways (benchmarks/alternatives.py): time a box, in batches, on one thread; medians by turns",
        lambda quick: alternatives.measure(8 if quick else alternatives.BOXES),
    ),
    "crown": (
        "Networks without variance beside auto_LiRPA's CROWN: one thread, float64, medians by turns",
        lambda quick: crown.measure(8 if quick else crown.BOXES) if crown.available() else [],
    ),
    "exponents": (
        "Cost of a pass over a batch, mean output, random weights: CPU time, and the exponent in what varies",
        lambda quick: cost.exponents(quick=quick),
    ),
    "speed": (
        f"sine2d-2x64, default method: a box alone, in a batch of {cost.BATCH}, and forward passes; per box: how many",
        lambda _: cost.speed(),
    ),
    "cost": (
        "Cost against depth and width (two inputs; random weights): a box alone, in a batch of 64, a forward pass",
        lambda quick: cost.costs(cost.SIZES[:4] if quick else cost.SIZES),
    ),
    "memory": (
        "Memory in a process of its own, in bytes",
        lambda quick: [memory.measure(1000 if quick else 10_000)],
    ),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the parts asked for, print their tables, write their figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer boxes and sizes")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the files of figures")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if not crown.available():
        print("auto_LiRPA is not installed (make bench tries): there are no rows of CROWN.")
    for part in options.only:
        title, measure = PARTS[part]
        rows = [asdict(row) for row in measure(options.quick)]
        if rows:
            show(title, rows)
            keep(part, part, rows, options.out)


if __name__ == "__main__":
    main()
