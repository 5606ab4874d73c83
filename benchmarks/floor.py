"""How far a pass is from its floor: the operations of its matrix products at the rate of a large product.

python -m benchmarks.floor MODEL.safetensors --images 1000 --threads 2

The operations are counted twice: on paper, for one ball of a dense network, all of whose rows are carried to the input,
and as they run: fewer, as rows of dead neurons are left out. The rate is that of a product of two square matrices of
float64 in the same process, measured before and after. The search is :func:`bnndp.certified_radius` without the attack,
to 1 %.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.gpu.counting import counted
from bnndp.data import registry
from bnndp.files.posterior import load
from bnndp.questions import radius
from bnndp.questions.decision import labels_of
from bnndp.questions.radius import Search, certified_radius

__all__ = ["Floor", "measure", "on_paper"]

_SIDE = 2048  # of the square matrices whose product gives the rate
_PAPER = 15.2  # seconds per image on 8 cores: the paper's figure for MNIST 2x64
_FEW = 64  # images of which the operations are counted


@dataclass(slots=True)
class Passes:
    """How many passes there were, and over how many balls in all."""

    calls: int = 0
    balls: int = 0


@contextmanager
def passes_of(module: Any) -> Iterator[Passes]:
    """Counts the passes that ``module`` asks for by the names ``bound_rows`` and ``one_pass_rows``."""
    counted = Passes()

    def counting(true: Callable[..., Any]) -> Callable[..., Any]:
        def asked(network: Any, box: Any, *args: Any, **named: Any) -> Any:
            counted.calls, counted.balls = counted.calls + 1, counted.balls + box.batch
            return true(network, box, *args, **named)

        return asked

    with ExitStack() as stack:
        for name in ("bound_rows", "one_pass_rows"):
            stack.enter_context(mock.patch.object(module, name, counting(getattr(module, name))))
        yield counted


@dataclass(frozen=True, slots=True)
class Floor:
    """Of one search over ``images`` images."""

    images: int
    threads: int
    seconds: float
    balls: float  # an image: how many were tried
    on_paper: float  # operations of a ball in matrix products, counted by hand; NaN for other networks
    operations: float  # the same, of an image, as they ran
    rate: float  # operations per second of a large product

    @property
    def floor(self) -> float:
        """Seconds that the products on paper would take for an image."""
        return self.on_paper * self.balls / self.rate

    @property
    def ratio(self) -> float:
        """What an image takes over that."""
        return self.seconds / self.images / self.floor

    @property
    def ratio_as_run(self) -> float:
        """What it takes over the products that run."""
        return self.seconds / self.images / (self.operations / self.rate)


def on_paper(sizes: Sequence[int]) -> float:
    """Operations of one ball of a dense network with hidden layers, in the products that carry rows to the input.

    The means of hidden layer k > 1 are bounded by 2 n_k rows, which go through every layer below it, the margins by one
    row per class, through the last layer too. A layer takes one product with the means of its weights; the first one
    takes another with their variances. The other hidden layers take three more where their planes have a slope in the
    variance: with the variances of the weights for the tangent of s and for the variances of the inputs, and with the
    squares of the means for the latter. Products with variances are counted for all neurons, but run only for those
    whose planes have such a slope.
    """
    n_in, first, *above = sizes
    total = 0
    for k, rows in enumerate(above):
        last = k + 1 == len(above)
        below = [first, *above[:k]]
        inner = 4 * sum(a * b for a, b in zip(below[1:], below, strict=False))
        total += 2 * (rows if last else 2 * rows) * (inner + 2 * first * n_in)
        total += 2 * rows * rows * below[-1] if last else 0
    return float(total)


def rate() -> float:
    """Operations per second of a product of large square matrices, the best of five."""
    a, b = (torch.randn(_SIDE, _SIDE, dtype=torch.float64) for _ in range(2))
    best = float("inf")
    for _ in range(6):
        start = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - start)
    return 2 * _SIDE**3 / best


def measure(model: Path, data: str, images: int, threads: int) -> Floor:
    """Search the radii of the first images of a test set, after the same search to warm up."""
    torch.set_num_threads(threads)
    network = load(model)
    x = registry.load(data, "test").x[:images]
    label = labels_of(network, x, None, None)
    search = Search(attack=False)

    def go(count: int) -> object:
        return certified_radius(network, x[:count], label[:count], (0.0, 1.0), search=search)

    few = min(_FEW, images)
    done = counted(lambda: go(few))
    go(images)
    before = rate()
    with passes_of(radius) as passes:
        start = time.perf_counter()
        go(images)
        seconds = time.perf_counter() - start
    sizes = getattr(network, "sizes", ())
    return Floor(
        images=x.shape[0],
        threads=threads,
        seconds=seconds,
        balls=passes.balls / x.shape[0],
        on_paper=on_paper(sizes) if len(sizes) > 2 else float("nan"),
        operations=done.matrix / few,
        rate=max(before, rate()),
    )


def main() -> None:
    """Print one line for each number of threads."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    for threads in args.threads:
        found = measure(args.model, args.data, args.images, threads)
        if args.json:
            print(
                json.dumps(asdict(found) | {"floor": found.floor, "ratio": found.ratio, "as run": found.ratio_as_run})
            )
            continue
        each = found.seconds / found.images
        print(
            f"{threads} threads: {1 / each:.0f} images/s ({_PAPER / each:.0f} x the paper's figure), "
            f"{found.balls:.2f} balls per image, {found.on_paper * found.balls / 1e6:.0f} MFLOP per image on paper "
            f"({found.operations / 1e6:.0f} as run), {found.rate / 1e9:.0f} GFLOP/s, floor {1e3 * found.floor:.2f} ms, "
            f"measured {1e3 * each:.2f} ms: {found.ratio:.2f} x ({found.ratio_as_run:.1f} x what runs)"
        )


if __name__ == "__main__":
    main()
