"""What a search in float32 saves: seconds and passes of ``certified_radius`` in both precisions, by turns.

python -m benchmarks.precision MODEL.safetensors --data mnist --images 200
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import bnndp.radius
import bnndp.single
from bnndp.data import registry
from bnndp.decision import labels_of
from bnndp.ensemble import Posterior
from bnndp.files import load
from bnndp.options import LEVELS, Options
from bnndp.radius import PRECISIONS, Search, certified_radius

__all__ = ["Cost", "Passes", "cost", "counted"]


@dataclass(slots=True)
class Passes:
    """How many passes there were, and over how many balls in all."""

    calls: int = 0
    balls: int = 0


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one search over all images: seconds (CPU time of this process), passes of each precision, and the radii."""

    seconds: float
    double: Passes
    single: Passes
    radius: Tensor  # (images,)


@contextmanager
def counted(module: Any) -> Iterator[Passes]:
    """Counts the passes that ``module`` asks for by the names ``bound_rows`` and ``quick_rows``."""
    seen = Passes()

    def counting(true: Callable[..., Any]) -> Callable[..., Any]:
        def asked(network: Posterior, box: Any, *rest: Any) -> Any:
            seen.calls, seen.balls = seen.calls + 1, seen.balls + box.batch
            return true(network, box, *rest)

        return asked

    with ExitStack() as stack:
        for name in ("bound_rows", "quick_rows"):
            if hasattr(module, name):
                stack.enter_context(mock.patch.object(module, name, counting(getattr(module, name))))
        yield seen


def cost(network: Posterior, x: Tensor, label: Tensor, search: Search, options: Options) -> Cost:
    """One search, counted."""
    with counted(bnndp.radius) as double, counted(bnndp.single) as single:
        start = time.process_time()
        found = certified_radius(network, x, label, (0.0, 1.0), search=search, options=options)
        seconds = time.process_time() - start
    return Cost(seconds, double, single, found.radius)


def main() -> None:
    """Print a line for each precision."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--data-dir", type=Path, help="folder of the data sets; the one that BNNDP_DATA names")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--effort", default="low", choices=LEVELS)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    network = load(given.model).to(given.device)
    data = registry.load(given.data, "test", folder=given.data_dir)
    x = data.x[: given.images].flatten(1).to(given.device)
    label = labels_of(network, x, None, None)
    search, options = Search(attack=False), Options(effort=given.effort)
    runs: dict[str, list[Cost]] = {precision: [] for precision in PRECISIONS}
    for _ in range(given.rounds):
        for precision, found in runs.items():
            found.append(cost(network, x, label, replace(search, precision=precision), options))
    print(f"{network}, {len(x)} images of {given.data}, {given.effort} effort, {given.rounds} rounds by turns")
    for precision, found in runs.items():
        seconds, one = statistics.median(each.seconds for each in found), found[0]
        print(
            f"search in {precision}: {seconds:.2f} s; float64 {one.double.calls} passes over {one.double.balls} balls, "
            f"float32 {one.single.calls} over {one.single.balls}; mean radius {one.radius.nanmean().item():.6f}, "
            f"none for {int(one.radius.isnan().sum())}"
        )
    wide, narrow = (runs[precision][0].radius for precision in PRECISIONS)
    apart = (wide / narrow - 1).abs()
    print(f"radii differ by at most {apart[apart.isfinite()].amax().item():.2e}, relative")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
