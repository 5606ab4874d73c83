"""The soundness campaign: thousands of random networks and boxes, certified by every method and attacked.

    python -m benchmarks.fuzz.regression [--pairs N] [--seed S] [--methods moment,partition,best,high] [--jobs J] [--out FILE]

Exit status 1 when a bound is broken or a method crashes. Every network is determined by the seed and its index, so a
line of the log is enough to repeat a finding: ``--seed S --only INDEX``.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import torch

import bnndp
from benchmarks.fuzz.regression_cases import Case, make_case
from benchmarks.fuzz.regression_judge import Evidence, Finding, attack, claims_of, gather, judge
from benchmarks.fuzz.regression_oracle import has_exact_mean
from bnndp.attack.inside import Inside, candidates
from bnndp.errors import CertError
from bnndp.geometry.box import Box
from bnndp.network import BayesianNetwork
from bnndp.options import LEVELS, Options
from bnndp.questions.bounds import Bounds

__all__ = ["METHODS", "Report", "examine", "run"]

BOXES = 5
METHODS = ("moment", "partition", "best", "refined")
HUNTED = ("moment", "partition", "low")  # climbed towards; the others are made of their functions
Certify = Callable[[BayesianNetwork, Box, str], Bounds]


@dataclass(frozen=True, slots=True)
class Report:
    """All that is known about one method on the boxes of one network."""

    index: int
    family: str
    depth: int
    sizes: tuple[int, ...]
    method: str
    boxes: int
    findings: list[Finding] = field(default_factory=list)
    margin: float = float("inf")
    blind: int = 0  # boxes with an output whose interval is narrower than twice the slack of its mean: no test of it
    ratios: list[float] = field(default_factory=list)  # certified width : range from inside, where that is positive
    failure: str = ""
    refused: bool = False
    seconds: float = 0.0

    @property
    def violations(self) -> list[Finding]:
        """The suspicions that the oracle confirmed."""
        return [finding for finding in self.findings if finding.violation]


def certify(network: BayesianNetwork, box: Box, method: str) -> Bounds:
    """Bounds by one of METHODS or a level of effort; ``refined`` is the moment method, at most eight cells a box."""
    if method in LEVELS:
        return bnndp.certify(network, box, Options(effort=method))
    options = Options(method="moment", refine=8) if method == "refined" else Options(method=method)
    return bnndp.certify(network, box, options)


def examine(
    case: Case, methods: tuple[str, ...], *, seed: int = 0, samples: int = 4096, certifier: Certify = certify
) -> list[Report]:
    """Certify all boxes of one case by each method, attack them, and judge every claim on the same points."""
    blank = Report(case.index, case.family, case.network.depth, case.network.sizes, "", case.box.batch)
    seed = seed + case.index
    reports: list[Report] = []
    answers: list[tuple[Bounds, Report]] = []
    for method in methods:
        start = time.perf_counter()
        try:
            bounds = certifier(case.network, case.box, method)
        except CertError as error:
            reports.append(replace(blank, method=method, failure=str(error), refused=True))
        except Exception:  # noqa: BLE001 (a crash is a result of the campaign, not its end)
            reports.append(replace(blank, method=method, failure=traceback.format_exc()))
        else:
            answers.append((bounds, replace(blank, method=method, seconds=time.perf_counter() - start)))
    inside, points = attack(case, seed=seed, samples=samples)
    own = [claims_of(bounds, case.box)[1] for bounds, report in answers if report.method in HUNTED]
    evidence = gather(case, case.box, points, own, samples=samples, seed=seed)
    reports += [_judged(case, bounds, report, evidence, inside) for bounds, report in answers]
    return reports


def _judged(case: Case, bounds: Bounds, report: Report, evidence: Evidence, inside: Inside) -> Report:
    """The report with the findings on all claims of one method."""
    whole, cells = claims_of(bounds, case.box)[:2], claims_of(bounds, case.box)[2:]
    trials = [(claim, evidence) for claim in whole]
    if cells:
        region = cells[0].region
        start = candidates(region, seed=evidence.seed, points=4, vertices=8)
        within = gather(case, region, start, cells[1:], samples=evidence.samples // 4, seed=evidence.seed)
        trials += [(claim, within) for claim in cells]
    results = [judge(case, claim, given) for claim, given in trials]
    findings = [finding for found, _ in results for finding in found] + _uncovered(case, bounds, evidence)
    scale = inside.upper.abs().maximum(inside.lower.abs())
    wide = inside.width > 1e-6 * scale + 5 * inside.width_error  # else the range drowns in the noise
    ratios = (bounds.width / inside.width)[wide].tolist()
    blind = 0 if has_exact_mean(case.network) else int((evidence.slack.amin(0) > 0.5 * bounds.width).any(-1).sum())
    report = replace(report, blind=blind)
    return replace(report, findings=findings, margin=min(margin for _, margin in results), ratios=ratios)


def _uncovered(case: Case, bounds: Bounds, evidence: Evidence) -> list[Finding]:
    """Points of a box that lie in none of its cells: the refinement would claim nothing about them."""
    if bounds.cells is None:
        return []
    points, region, owner = evidence.points, bounds.cells.pieces.region, bounds.cells.owner
    held = region.contains(points[:, owner])  # (points, cells)
    count = torch.zeros(points.shape[0], case.box.batch).index_add_(1, owner, held.to(torch.float32))
    return [
        Finding(case.family, case.index, b, 0, "cover", "both", points[p, b].tolist(), 0, 0, 0, 0, True, "exact")
        for p, b in ((count == 0) & evidence.inside).nonzero().tolist()
    ]


def run(
    indices: range | list[int], methods: tuple[str, ...], *, seed: int, samples: int, jobs: int
) -> Iterator[list[Report]]:
    """Examine the cases in turn, in ``jobs`` processes; reports come in the order of the indices."""
    work = partial(_examine_index, methods=methods, seed=seed, samples=samples)
    if jobs <= 1:
        yield from map(work, indices)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(work, indices)


def _examine_index(index: int, *, methods: tuple[str, ...], seed: int, samples: int) -> list[Report]:
    torch.set_num_threads(1)
    chosen = methods if index % 4 == 0 else tuple(method for method in methods if method != "refined")
    return examine(make_case(seed, index, BOXES), chosen, seed=seed, samples=samples)


def summary(reports: list[Report]) -> str:
    """A table with a row for each method and depth; pairs that a method refused or crashed on are not counted."""
    names = ("pairs", "violated", "blind", "cleared", "refused", "crashed", "margin", "ratio", "s/net")
    lines = [f"{'method':<10}{'depth':>6}" + "".join(f"{name:>10}" for name in names)]
    for method, depth in sorted({(report.method, report.depth) for report in reports}):
        group = [report for report in reports if (report.method, report.depth) == (method, depth)]
        judged = [report for report in group if not report.failure]
        ratios = [ratio for report in judged for ratio in report.ratios]
        counts = (
            sum(report.boxes for report in judged),
            sum(len({finding.box for finding in report.violations}) for report in judged),
            sum(report.blind for report in judged),
            sum(len(report.findings) - len(report.violations) for report in judged),
            sum(report.refused for report in group),
            len(group) - len(judged) - sum(report.refused for report in group),
        )
        margin = min((report.margin for report in judged), default=math.nan)
        seconds = sum(report.seconds for report in judged) / max(1, len(judged))
        row = "".join(f"{count:>10}" for count in counts)
        row += f"{margin:>10.1e}{median(ratios) if ratios else math.nan:>10.2f}{seconds:>10.3f}"
        lines.append(f"{method:<10}{depth:>6}{row}")
    networks = {report.index: report.boxes for report in reports if not report.failure}
    pairs, rate = sum(networks.values()), 3 / max(1, len(networks))
    lines.append(f"{pairs} network x box pairs on {len(networks)} networks; boxes and methods are not independent:")
    lines.append(f"no violation excludes a rate above {rate:.1e} a network (95 %). Blind: noise would hide any error.")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Run the campaign from the command line."""
    parser = argparse.ArgumentParser(prog="campaign", description=__doc__)
    parser.add_argument("--pairs", type=int, default=2000, help="network x box pairs (five boxes a network)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--samples", type=int, default=4096, help="draws behind a sampled mean; 16 times as many to settle"
    )
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--only", type=int, nargs="*", help="indices of single networks")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, help="file for one JSON line a network and method")
    options = parser.parse_args(arguments)
    methods = tuple(options.methods.split(","))
    known = (*METHODS, *LEVELS)
    if unknown := set(methods) - set(known):
        parser.error(f"unknown methods {sorted(unknown)}; known: {', '.join(known)}")
    indices = options.only or range(-(-options.pairs // BOXES))
    reports: list[Report] = []
    start = time.perf_counter()
    sink = options.out.open("w", encoding="utf-8") if options.out else None
    for count, batch in enumerate(
        run(indices, methods, seed=options.seed, samples=options.samples, jobs=options.jobs), 1
    ):
        reports += batch
        for report in batch:
            if sink:
                sink.write(json.dumps(asdict(report)) + "\n")
                sink.flush()
            _announce(report)
        if count % 20 == 0 or count == len(indices):
            bad = sum(len(report.violations) for report in reports)
            print(f"{count}/{len(indices)} networks, {bad} violations, {time.perf_counter() - start:.0f} s", flush=True)
    if sink:
        sink.close()
    print(summary(reports))
    crashed = any(report.failure and not report.refused for report in reports)
    return int(crashed or any(report.violations for report in reports))


def _announce(report: Report) -> None:
    where = f"network {report.index} ({report.family}, {'-'.join(map(str, report.sizes))}), {report.method}"
    if report.failure:
        print(
            f"{'REFUSED' if report.refused else 'CRASH'} {where}: {report.failure.strip().splitlines()[-1]}", flush=True
        )
    for finding in report.violations:
        print(
            f"VIOLATION {where}: box {finding.box}, output {finding.output}, {finding.kind} {finding.side}, "
            f"bound {finding.bound:.17g}, mean {finding.mean:.17g} +- {finding.error:.1e} ({finding.judge}), "
            f"outside by {finding.excess:.3e}",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
