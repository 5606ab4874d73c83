"""The soundness campaign for classification: random classifiers and boxes, certified by every method and attacked.

    python -m benchmarks.fuzz.classification [--pairs N] [--seed S] [--methods moment,...] [--jobs J] [--out FILE]

The ranges of all classes and lower bounds of decisions are held against probabilities at attacked points. Exit status
1 when a bound is broken or a method crashes; ``--seed S --only INDEX`` repeats a finding.
"""

from __future__ import annotations

import argparse
import json
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
from benchmarks.fuzz.classification_cases import make_classifier
from benchmarks.fuzz.classification_judge import Claim, Evidence, Finding, Questions, ask, gather, judge
from benchmarks.fuzz.regression_cases import Case
from benchmarks.fuzz.tails import bounds_of, judge_margins
from bnndp.errors import CertError
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box
from bnndp.network import BayesianNetwork
from bnndp.options import LEVELS, Options
from bnndp.questions.softmax import bound_rows, expected_softmax

__all__ = ["MARGINS", "METHODS", "Report", "certify", "examine", "run"]

BOXES = 5
MARGINS = "margins"  # not a method but what all of them rest on: see campaign_tails
METHODS = {
    "moment": Options(method="moment"),
    "optimised": Options(method="moment", optimise=6),
    "branched": Options(method="moment", branch=8),
    "partition": Options(method="partition"),
    "best": Options(method="best", cells=4),
}
EFFORTS = {level: Options(effort=level) for level in LEVELS}
Certify = Callable[[BayesianNetwork, Box, Questions, str], list[Claim]]


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
    margin: float = float("inf")  # least distance of a bound from what was found, noise included
    telling: int = 0  # boxes with a class whose range is not [0, 1]: only these can be wrong
    certified: int = 0  # boxes whose decision is proved
    gaps: list[float] = field(default_factory=list)  # found minus bound of the decisions, the smallest of each box
    failure: str = ""
    refused: bool = False
    seconds: float = 0.0

    @property
    def violations(self) -> list[Finding]:
        """The suspicions that the oracle confirmed."""
        return [finding for finding in self.findings if finding.violation]


def certify(network: BayesianNetwork, box: Box, questions: Questions, method: str) -> list[Claim]:
    """All that the package claims by one of METHODS or a level of effort, in answer to the questions."""
    if method in EFFORTS:
        options = EFFORTS[method]
        bounds = bnndp.certify(network, box, options)
        found = Interval(bounds.lower, bounds.upper)
    else:
        options = METHODS[method]
        found, _ = expected_softmax(network, box, options)
    unit = torch.eye(network.n_out, dtype=torch.float64).expand(box.batch, -1, -1)
    claims = [Claim("least", unit, found.lower), Claim("most", -unit, -found.upper)]
    asked = (
        ("decision", questions.decisions, questions.label),
        ("rows", questions.rows, questions.label),
        ("rows of another", questions.rows, questions.other),
    )
    for kind, rows, reference in asked:
        claims.append(Claim(kind, rows, bound_rows(network, box, rows, reference, options)))
    return claims


def examine(
    case: Case, methods: tuple[str, ...], *, seed: int = 0, samples: int = 2048, certifier: Certify = certify
) -> list[Report]:
    """Certify all boxes of one case by each method, attack them, and judge every claim on the same points."""
    blank = Report(case.index, case.family, case.network.depth, case.network.sizes, "", case.box.batch)
    seed = seed + case.index
    questions = ask(case, seed=seed)
    evidence = gather(case, questions, samples=samples, seed=seed)
    reports: list[Report] = []
    for method in methods:
        start = time.perf_counter()
        report = replace(blank, method=method)
        try:
            if method == MARGINS:
                findings = judge_margins(case, questions, bounds_of(case, questions.label), evidence)
                reports.append(replace(report, findings=findings, seconds=time.perf_counter() - start))
                continue
            claims = certifier(case.network, case.box, questions, method)
        except CertError as error:
            reports.append(replace(report, failure=str(error), refused=True))
        except Exception:  # noqa: BLE001 (a crash is a result of the campaign, not its end)
            reports.append(replace(report, failure=traceback.format_exc()))
        else:
            report = replace(report, seconds=time.perf_counter() - start)
            reports.append(_judged(case, claims, report, evidence))
    return reports


def _judged(case: Case, claims: list[Claim], report: Report, evidence: Evidence) -> Report:
    """The report with the findings on all claims of one method."""
    results = [judge(case, claim, evidence) for claim in claims]
    findings = [finding for found, _ in results for finding in found]
    margin = min(float(gap.nan_to_num(-torch.inf).min()) for _, gap in results)
    least, most, decision = claims[:3]
    telling = int(((least.bound > 0) | (most.bound > -1)).any(-1).sum())
    certified = int((decision.bound > 0).all(-1).sum())
    gaps = results[2][1].amin(-1).tolist()
    return replace(report, findings=findings, margin=margin, telling=telling, certified=certified, gaps=gaps)


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
    return examine(make_classifier(seed, index, BOXES), methods, seed=seed, samples=samples)


def summary(reports: list[Report]) -> str:
    """A table with a row for each method and depth; pairs that a method refused or crashed on are not counted."""
    names = ("pairs", "violated", "telling", "proved", "cleared", "refused", "crashed", "margin", "gap", "s/net")
    lines = [f"{'method':<10}{'depth':>6}" + "".join(f"{name:>9}" for name in names)]
    for method, depth in sorted({(report.method, report.depth) for report in reports}):
        group = [report for report in reports if (report.method, report.depth) == (method, depth)]
        judged = [report for report in group if not report.failure]
        gaps = [gap for report in judged for gap in report.gaps]
        counts = (
            sum(report.boxes for report in judged),
            sum(len({finding.box for finding in report.violations}) for report in judged),
            sum(report.telling for report in judged),
            sum(report.certified for report in judged),
            sum(len(report.findings) - len(report.violations) for report in judged),
            sum(report.refused for report in group),
            len(group) - len(judged) - sum(report.refused for report in group),
        )
        margin = min((report.margin for report in judged), default=float("nan"))
        seconds = sum(report.seconds for report in judged) / max(1, len(judged))
        row = "".join(f"{count:>9}" for count in counts)
        row += f"{margin:>9.0e}{median(gaps) if gaps else float('nan'):>9.1e}{seconds:>9.3f}"
        lines.append(f"{method:<10}{depth:>6}{row}")
    networks = {report.index: report.boxes for report in reports if not report.failure}
    pairs, rate = sum(networks.values()), 3 / max(1, len(networks))
    lines.append(f"{pairs} network x box pairs on {len(networks)} classifiers; boxes and methods are not independent:")
    lines.append(f"no violation excludes a rate above {rate:.1e} a network (95 %), 3/n of n networks.")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Run the campaign from the command line."""
    parser = argparse.ArgumentParser(prog="campaign_softmax", description=__doc__)
    parser.add_argument("--pairs", type=int, default=2000, help="network x box pairs (five boxes a network)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--samples", type=int, default=2048, help="draws behind a sampled mean; 16 and 64 times as many to settle"
    )
    parser.add_argument("--methods", default=",".join((*METHODS, MARGINS)))
    parser.add_argument("--only", type=int, nargs="*", help="indices of single networks")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, help="file for one JSON line a network and method")
    options = parser.parse_args(arguments)
    methods = tuple(options.methods.split(","))
    known = (*METHODS, MARGINS, *EFFORTS)
    if unknown := set(methods) - set(known):
        parser.error(f"unknown methods {sorted(unknown)}; known: {', '.join(known)}")
    indices = options.only or range(-(-options.pairs // BOXES))
    reports: list[Report] = []
    start = time.perf_counter()
    sink = options.out.open("w", encoding="utf-8") if options.out else None
    work = run(indices, methods, seed=options.seed, samples=options.samples, jobs=options.jobs)
    for count, batch in enumerate(work, 1):
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
            f"VIOLATION {where}: box {finding.box}, {finding.kind} {finding.row}, bound {finding.bound:.17g}, "
            f"mean {finding.mean:.17g} +- {finding.error:.1e} ({finding.judge}), outside by {finding.excess:.3e}",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
