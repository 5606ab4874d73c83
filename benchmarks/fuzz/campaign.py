"""What the campaigns on random networks share: the report of a case, the program, its table and its exit status."""

from __future__ import annotations

import argparse
import json
import math
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.pool import mapped
from bnndp.errors import CertError

__all__ = ["SIGMAS", "Campaign", "Finding", "Report", "attempt"]

SIGMAS = 6.0
"""Standard errors by which a sampled mean has to lie outside of a bound."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One suspicion against a claim, and how it was settled."""

    box: int
    kind: str
    claim: str  # which one of its kind
    x: list[float]
    bound: float
    mean: float
    error: float  # half-width of the confidence interval of the mean, rounding included; 0 in Arb
    excess: float  # by how much the mean lies outside, positive for a violation
    violation: bool
    judge: str  # arb, quadrature or sampled


@dataclass(frozen=True, slots=True)
class Report:
    """All that is known about one method on the boxes of one network."""

    index: int
    network: str
    boxes: int
    depth: int
    method: str = ""
    findings: list[Finding] = field(default_factory=list)
    margin: float = math.inf  # least distance of a bound from what was found, noise included
    counts: dict[str, int] = field(default_factory=dict)  # of boxes, by what the campaign calls them
    ratios: list[float] = field(default_factory=list)  # what the campaign takes the median of
    failure: str = ""
    refused: bool = False
    seconds: float = 0.0

    @property
    def violations(self) -> list[Finding]:
        """The suspicions that the oracle confirmed."""
        return [finding for finding in self.findings if finding.violation]

    @property
    def bad(self) -> bool:
        """Whether a bound is broken, or the method crashed."""
        return bool(self.violations) or (bool(self.failure) and not self.refused)

    def lines(self) -> list[str]:
        """What is to be said about it at once."""
        where = f"network {self.index} ({self.network}), {self.method}"
        if self.failure:
            return [f"{'REFUSED' if self.refused else 'CRASH'} {where}: {self.failure.strip().splitlines()[-1]}"]
        return [
            f"VIOLATION {where}: box {finding.box}, {finding.kind} {finding.claim}, bound {finding.bound:.17g}, "
            f"mean {finding.mean:.17g} +- {finding.error:.1e} ({finding.judge}), outside by {finding.excess:.3e}"
            for finding in self.violations
        ]


def attempt(blank: Report, work: Callable[[Report], Report]) -> Report:
    """The report that ``work`` makes of a blank one; a refusal or a crash is a result, not the end."""
    start = time.perf_counter()
    try:
        return replace(work(blank), seconds=time.perf_counter() - start)
    except CertError as error:
        return replace(blank, failure=str(error), refused=True)
    except Exception:  # noqa: BLE001 (a crash is a result of the campaign)
        return replace(blank, failure=traceback.format_exc())


@dataclass(frozen=True, slots=True)
class Campaign:
    """A campaign: ``examine`` reports on the case of an index, which the seed decides, by each method."""

    about: str
    examine: Callable[..., list[Report]]  # (index, *, methods, seed, samples)
    methods: tuple[str, ...]
    boxes: int  # of each case
    median: str  # heading of the median of ratios
    more: tuple[str, ...] = ()  # methods that are known, but not among the usual ones
    pairs: int = 2000
    samples: int = 2048

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Run from the command line; 1 if a bound is broken or a method crashes."""
        given = self._options(arguments)
        indices = given.only or range(-(-given.pairs // self.boxes))
        methods = tuple(given.methods.split(","))
        work = partial(self.examine, methods=methods, seed=given.seed, samples=given.samples)
        if given.out:
            given.out.write_text("")
        reports: list[Report] = []
        start = time.perf_counter()
        for count, batch in enumerate(mapped(work, indices, given.jobs), 1):
            reports += batch
            for report in batch:
                if given.out:
                    with given.out.open("a", encoding="utf-8") as sink:
                        sink.write(json.dumps(asdict(report)) + "\n")
                print("".join(f"{line}\n" for line in report.lines()), end="", flush=True)
            if count % 20 == 0 or count == len(indices):
                bad, seconds = sum(len(report.violations) for report in reports), time.perf_counter() - start
                print(f"{count}/{len(indices)} networks, {bad} violations, {seconds:.0f} s", flush=True)
        print(self.summary(reports))
        return int(any(report.bad for report in reports))

    def _options(self, arguments: Sequence[str] | None) -> argparse.Namespace:
        parser = argparse.ArgumentParser(description=self.about, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument(
            "--pairs", type=int, default=self.pairs, help=f"network x box pairs ({self.boxes} a network)"
        )
        parser.add_argument("--seed", type=int, default=0)
        parser.add_argument("--samples", type=int, default=self.samples, help="draws; 16 times as many to settle")
        parser.add_argument("--methods", default=",".join(self.methods), help=", ".join((*self.methods, *self.more)))
        parser.add_argument("--only", type=int, nargs="*", help="indices of single networks, to repeat a finding")
        parser.add_argument("--jobs", type=int, default=1)
        parser.add_argument("--out", type=Path, help="file to which one JSON line per network and method is appended")
        given = parser.parse_args(arguments)
        if unknown := set(given.methods.split(",")) - {*self.methods, *self.more}:
            parser.error(f"unknown methods {sorted(unknown)}; known: {', '.join((*self.methods, *self.more))}")
        return given

    def summary(self, reports: Sequence[Report]) -> str:
        """A table with a row for each method and depth; pairs that a method refused or crashed on are not counted."""
        names = tuple(dict.fromkeys(name for report in reports for name in report.counts))
        heads = ("pairs", "violated", *names, "cleared", "refused", "crashed", "margin", self.median, "s/net")
        lines = [f"{'method':<20}{'depth':>6}" + "".join(f"{head:>10}" for head in heads)]
        for method, depth in sorted({(report.method, report.depth) for report in reports}):
            group = [report for report in reports if (report.method, report.depth) == (method, depth)]
            done = [report for report in group if not report.failure]
            refused = sum(report.refused for report in group)
            counts = (
                sum(report.boxes for report in done),
                sum(len({finding.box for finding in report.violations}) for report in done),
                *(sum(report.counts.get(name, 0) for report in done) for name in names),
                sum(len(report.findings) - len(report.violations) for report in done),
                refused,
                len(group) - len(done) - refused,
            )
            ratios = [ratio for report in done for ratio in report.ratios]
            values = (
                f"{min((report.margin for report in done), default=math.nan):.1e}",
                f"{median(ratios) if ratios else math.nan:.2g}",
                f"{sum(report.seconds for report in done) / max(1, len(done)):.3f}",
            )
            lines.append(f"{method:<20}{depth:>6}" + "".join(f"{cell:>10}" for cell in (*counts, *values)))
        networks = {(report.network, report.index): report.boxes for report in reports if not report.failure}
        pairs, rate = sum(networks.values()), 3 / max(1, len(networks))
        lines.append(f"{pairs} network x box pairs on {len(networks)} networks; boxes and methods are not independent:")
        lines.append(f"no violation excludes a rate above {rate:.1e} a network (95 %), 3/n of n networks.")
        return "\n".join(lines)
