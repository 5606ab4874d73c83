"""Fail closed: whatever goes wrong inside, a false claim is never certified.

``make campaign-faults`` puts errors, want of memory, interrupts, time-outs and NaN into every function of the
certifier that a claim passes through (``fault_injection.py``), computes claims that are known to be false
(``fault_claims.py``), and fails if one of them is certified, if a bound leaves out the truth, or if a bound is NaN.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.fuzz.fault_claims import Claim, claims
from benchmarks.fuzz.fault_injection import FAULTS, Fault, HarnessError, Point, hits, injected, points
from bnndp import deadline

__all__ = ["Finding", "check_unharmed", "clock_faults", "drawn", "examine"]


@dataclass(frozen=True)
class Finding:
    """What came of one claim with one fault."""

    claim: str
    point: str
    fault: str
    outcome: str  # an error's name, "no false answer", or what is wrong
    wrong: bool


def examine(claim: Claim, point: Point, fault: Fault) -> Finding:
    """Compute the claim with the fault in place."""
    with injected(point, fault):
        outcome, wrong = _outcome(claim)
    return Finding(claim.name, str(point), fault.name, outcome, wrong)


def _outcome(claim: Claim) -> tuple[str, bool]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # an interrupt that leaves a valid answer says so
            found = claim.judge()
    except HarnessError:
        raise
    except BaseException as error:  # noqa: BLE001 (whatever is raised is no answer)
        return type(error).__name__, False
    return ("no false answer", False) if found is None else (found, True)


def drawn(among: list[Claim], faults: list[Fault], each: int, seed: int) -> Iterator[tuple[Claim, Point, Fault]]:
    """Every point with every fault, in random order, on ``each`` of the claims that pass through it."""
    passing: dict[Point, list[Claim]] = {}
    everywhere = points()
    for claim in among:
        for point in hits(claim.judge, everywhere):
            passing.setdefault(point, []).append(claim)
    draw = random.Random(seed)
    couples = [(point, fault) for point in passing for fault in faults]
    draw.shuffle(couples)
    for point, fault in couples:
        for claim in draw.sample(passing[point], min(each, len(passing[point]))):
            yield claim, point, fault


def clock_faults(claim: Claim, ticks: int = 6) -> Iterator[Finding]:
    """The time is over at the n-th look at the clock, for all n up to ``ticks`` that there are."""
    module: Any = deadline
    real = module.time

    class Clock:
        def __init__(self, leap: int) -> None:
            self.left = leap

        def monotonic(self) -> float:
            self.left -= 1
            return real.monotonic() + (1e9 if self.left < 0 else 0.0)

    for leap in range(ticks):
        module.time = clock = Clock(leap)
        try:
            outcome, wrong = _outcome(claim)
        finally:
            module.time = real
        if clock.left >= 0:  # nobody looked as often
            return
        yield Finding(claim.name, "clock", f"time over at look {leap}", outcome, wrong)


def check_unharmed(among: list[Claim]) -> list[Finding]:
    """Without any fault every claim has its right answer."""
    found = []
    for claim in among:
        outcome, wrong = _outcome(claim)
        wrong = wrong or outcome != "no false answer"
        found.append(Finding(claim.name, "nowhere", "none", outcome, wrong))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--claims", type=int, default=4, help="for each point and fault, drawn of those that pass there"
    )
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after this time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="only claims whose name has this in it")
    parser.add_argument("--fault", default="", help="only faults whose name has this in it")
    given = parser.parse_args()
    torch.set_num_threads(1)
    start = time.monotonic()
    some = [claim for claim in claims(given.only) if given.only in claim.name]
    found = check_unharmed(some)
    faults = [fault for fault in FAULTS if given.fault in fault.name]
    trials = list(drawn(some, faults, given.claims, given.seed))
    print(f"{len(some)} claims, {len({str(point) for _, point, _ in trials})} points, {len(trials)} trials", flush=True)
    for claim, point, fault in trials:
        if time.monotonic() - start > given.seconds:
            break
        found.append(examine(claim, point, fault))
        if found[-1].wrong:
            print(_line(found[-1]), flush=True)
    for claim in some:
        found += clock_faults(claim)
    return _report(found)


def _line(finding: Finding) -> str:
    return f"WRONG {finding.point}: {finding.fault}: {finding.claim}: {finding.outcome}"


def _report(found: list[Finding]) -> int:
    for finding in found:
        if finding.wrong and finding.point in ("nowhere", "clock"):
            print(_line(finding))
    outcomes = Counter("wrong" if finding.wrong else finding.outcome for finding in found)
    print(f"{len(found)} trials at {len({finding.point for finding in found})} points: {dict(outcomes.most_common())}")
    print(f"optimised: {sys.flags.optimize}, wrong: {outcomes['wrong']}")
    return int(outcomes["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())
