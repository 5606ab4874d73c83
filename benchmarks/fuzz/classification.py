"""Random classifiers and boxes, certified by every method and attacked: no bound of E softmax may be broken.

The ranges of all classes and lower bounds of decisions are held against probabilities at attacked points. Telling boxes
have a class whose range is not [0, 1]: only these can be wrong. Proved are those whose decision is. The gap is that
between what was found and the bound of the decisions. ``--seed S --only INDEX`` repeats a finding.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

import torch

import bnndp
from benchmarks.fuzz.campaign import Campaign, Report, attempt
from benchmarks.fuzz.classification_cases import make_classifier
from benchmarks.fuzz.classification_judge import Claim, Evidence, Questions, ask, gather, judge
from benchmarks.fuzz.margins_judge import bounds_of, judge_margins
from benchmarks.fuzz.regression_cases import Case
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box
from bnndp.network import BayesianNetwork
from bnndp.options import LEVELS, Options
from bnndp.questions.softmax import bound_rows, expected_softmax

__all__ = ["MARGINS", "METHODS", "certify", "examine", "main"]

BOXES = 5
MARGINS = "margins"  # not a method but what all of them rest on: see margins_judge
METHODS = {
    "moment": Options(method="moment"),
    "optimised": Options(method="moment", optimise=6),
    "branched": Options(method="moment", branch=8),
    "partition": Options(method="partition"),
    "best": Options(method="best", cells=4),
}
Certify = Callable[[BayesianNetwork, Box, Questions, str], list[Claim]]


def certify(network: BayesianNetwork, box: Box, questions: Questions, method: str) -> list[Claim]:
    """All that the package claims by one of METHODS or a level of effort, in answer to the questions."""
    if method in LEVELS:
        options = Options(effort=method)
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
    network, box, seed = case.network, case.box, seed + case.index
    blank = Report(case.index, f"{case.family}, {'-'.join(map(str, network.sizes))}", box.batch, network.depth)
    questions = ask(case, seed=seed)
    evidence = gather(case, questions, samples=samples, seed=seed)
    answers: dict[str, list[Claim]] = {}

    def certified(report: Report) -> Report:
        if report.method == MARGINS:
            found = judge_margins(case, questions, bounds_of(case, questions.label), evidence)
            return replace(report, findings=found)
        answers[report.method] = certifier(network, box, questions, report.method)
        return report

    reports = [attempt(replace(blank, method=method), certified) for method in methods]
    return [
        _judged(case, answers[report.method], report, evidence) if report.method in answers else report
        for report in reports
    ]


def _judged(case: Case, claims: list[Claim], report: Report, evidence: Evidence) -> Report:
    """The report with the findings on all claims of one method."""
    results = [judge(case, claim, evidence) for claim in claims]
    findings = [finding for found, _ in results for finding in found]
    margin = min(float(gap.nan_to_num(-torch.inf).min()) for _, gap in results)
    least, most, decision = claims[:3]
    counts = {
        "telling": int(((least.bound > 0) | (most.bound > -1)).any(-1).sum()),
        "proved": int((decision.bound > 0).all(-1).sum()),
    }
    return replace(report, findings=findings, margin=margin, counts=counts, ratios=results[2][1].amin(-1).tolist())


def _examine_index(index: int, *, methods: tuple[str, ...], seed: int, samples: int) -> list[Report]:
    return examine(make_classifier(seed, index, BOXES), methods, seed=seed, samples=samples)


CAMPAIGN = Campaign(__doc__ or "", _examine_index, (*METHODS, MARGINS), BOXES, "gap", more=LEVELS)
main = CAMPAIGN.main

if __name__ == "__main__":
    sys.exit(main())
