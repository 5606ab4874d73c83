"""Holds every closed formula that bounds rest on against ball arithmetic, at random arguments of all sizes.

What is promised as a bound must lie on its side of the truth, what is promised within an error term within it. For
each formula one line is printed: comparisons made, failures (none is allowed), bounds that say nothing (infinite, or
zero for a variance, or one for a probability), the largest share of an error term that was used, and the largest
relative loss by outward rounding, where it is defined.

Means of smooth activations need an integral in Arb for each point: they get fewer points.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from flint import ctx
from support.oracles import PRECISION

from benchmarks.fuzz.formulas import activations, exponential, laws, maths
from benchmarks.fuzz.formulas.draws import Draw
from benchmarks.fuzz.formulas.judge import Judge, Tally

__all__ = ["FORMULAS", "Formula", "examine"]

_CHUNK = 2000  # points drawn at once


@dataclass(frozen=True, slots=True)
class Formula:
    """Formulas of one kind: ``check`` draws points and has what the package says there judged."""

    name: str
    check: Callable[[Judge, Draw, int], None]
    share: float = 1.0  # of the points that are asked for


FORMULAS = (
    Formula("normal", maths.normal_law),
    Formula("normal", maths.probabilities),
    Formula("normal", maths.intervals),
    Formula("normal", maths.quantiles),
    Formula("normal", maths.differences),
    Formula("rectified", maths.rectified_moments),
    Formula("rectified", maths.raw_moments),
    Formula("hinge", maths.hinges),
    Formula("hinge", maths.clipped),
    Formula("rounding", maths.sums),
    Formula("tails", laws.scarf),
    Formula("tails", laws.constants),
    Formula("logistic", laws.logistic),
    Formula("softmax", laws.softmax),
    Formula("softmax", laws.probabilities),
    Formula("exponential", exponential.log_moments),
    Formula("exponential", exponential.chernoff),
    Formula("exponential", exponential.lipschitz),
    Formula("exponential", exponential.sub_gaussian),
    Formula("exponential", exponential.parabolas),
    Formula("exponential", exponential.squares),
    *(Formula(kind.name, kind.closed, kind.share) for kind in activations.CLOSED),
    *(Formula(kind.name, kind.means, 0.1) for kind in activations.SMOOTH),
    *(Formula(kind.name, kind.centrals, 0.02) for kind in activations.INTEGRATED),
    *(Formula(kind.name, kind.shapes, 0.01) for kind in activations.SMOOTH),
)


def examine(formula: Formula, points: int, seed: int) -> dict[str, Tally]:
    """Tallies of the claims of a formula at its share of ``points``, by their names."""
    judge, draw = Judge(), Draw(seed)
    judge.prefix = formula.name
    left = max(1, round(points * formula.share))
    with ctx.workprec(PRECISION):
        while left > 0:
            formula.check(judge, draw, min(left, _CHUNK))
            left -= _CHUNK
    return judge.tallies


def _lines(tallies: dict[str, Tally]) -> Iterator[str]:
    for name, tally in tallies.items():
        used, loss = (f"{x:9.2e}" if x >= 0 else "        -" for x in (tally.used, tally.loss))
        yield f"{name:<44} {tally.claims:>8} {tally.failures:>8} {tally.silent:>8} {used} {loss}"
        yield from (f"    WRONG {example}" for example in tally.examples)


def main() -> int:
    """Print the table; 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=100_000, help="for each formula")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[""], help="only formulas whose name has one of these in it")
    given = parser.parse_args()
    torch.set_num_threads(1)
    start, claims, failures, names = time.monotonic(), 0, 0, 0
    print(f"{'formula':<44} {'points':>8} {'failures':>8} {'nothing':>8} {'used':>9} {'loss':>9}", flush=True)
    for index, formula in enumerate(FORMULAS):
        if not any(part in formula.name for part in given.only):
            continue
        tallies = examine(formula, given.points, 1000 * given.seed + index)
        print("\n".join(_lines(tallies)), flush=True)
        names += len(tallies)
        claims += sum(tally.claims for tally in tallies.values())
        failures += sum(tally.failures for tally in tallies.values())
    if names == 0:
        print(f"no formula has one of {given.only} in its name; there are {sorted({f.name for f in FORMULAS})}")
        return 1
    print(f"{names} formulas, {claims} comparisons, {failures} failures, {time.monotonic() - start:.0f} s")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
