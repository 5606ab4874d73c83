"""Random networks and boxes, certified by every method and attacked: no bound of a mean output may be broken.

Every network is determined by the seed and its index, so a line of the log is enough to repeat a finding:
``--seed S --only INDEX``. Blind boxes have an output whose interval is narrower than twice the slack of its mean: noise
would hide any error. The ratio is certified width over range from inside.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

import torch

import bnndp
from benchmarks.fuzz.campaign import Campaign, Finding, Report, attempt
from benchmarks.fuzz.regression_cases import Case, make_case
from benchmarks.fuzz.regression_judge import Evidence, attack, claims_of, gather, judge
from benchmarks.fuzz.regression_oracle import has_exact_mean
from bnndp.attack.inside import Inside, candidates
from bnndp.geometry.box import Box
from bnndp.network import BayesianNetwork
from bnndp.options import LEVELS, Options
from bnndp.questions.bounds import Bounds

__all__ = ["METHODS", "certify", "examine", "main"]

BOXES = 5
METHODS = ("moment", "partition", "best", "refined")
HUNTED = ("moment", "partition", "low")  # climbed towards; the others are made of their functions
Certify = Callable[[BayesianNetwork, Box, str], Bounds]


def certify(network: BayesianNetwork, box: Box, method: str) -> Bounds:
    """Bounds by one of METHODS or a level of effort; ``refined`` is the moment method, at most eight cells per box."""
    if method in LEVELS:
        return bnndp.certify(network, box, Options(effort=method))
    options = Options(method="moment", refine=8) if method == "refined" else Options(method=method)
    return bnndp.certify(network, box, options)


def examine(
    case: Case, methods: tuple[str, ...], *, seed: int = 0, samples: int = 4096, certifier: Certify = certify
) -> list[Report]:
    """Certify all boxes of one case by each method, attack them, and judge every claim on the same points."""
    network, box, seed = case.network, case.box, seed + case.index
    blank = Report(case.index, f"{case.family}, {'-'.join(map(str, network.sizes))}", box.batch, network.depth)
    answers: dict[str, Bounds] = {}

    def certified(report: Report) -> Report:
        answers[report.method] = certifier(network, box, report.method)
        return report

    reports = [attempt(replace(blank, method=method), certified) for method in methods]
    inside, points = attack(case, seed=seed, samples=samples)
    own = [claims_of(bounds, box)[1] for method, bounds in answers.items() if method in HUNTED]
    evidence = gather(case, box, points, own, samples=samples, seed=seed)
    return [
        _judged(case, answers[report.method], report, evidence, inside) if report.method in answers else report
        for report in reports
    ]


def _judged(case: Case, bounds: Bounds, report: Report, evidence: Evidence, inside: Inside) -> Report:
    """The report with the findings on all claims of one method."""
    claims = claims_of(bounds, case.box)
    whole, cells = claims[:2], claims[2:]
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
    margin = min(margin for _, margin in results)
    return replace(report, findings=findings, margin=margin, ratios=ratios, counts={"blind": blind})


def _uncovered(case: Case, bounds: Bounds, evidence: Evidence) -> list[Finding]:
    """Points of a box that lie in none of its cells: the refinement would claim nothing about them."""
    if bounds.cells is None:
        return []
    points, region, owner = evidence.points, bounds.cells.pieces.region, bounds.cells.owner
    held = region.contains(points[:, owner])  # (points, cells)
    count = torch.zeros(points.shape[0], case.box.batch).index_add_(1, owner, held.to(torch.float32))
    return [
        Finding(b, "cover", "", points[p, b].tolist(), 0, 0, 0, 0, True, "exact")
        for p, b in ((count == 0) & evidence.inside).nonzero().tolist()
    ]


def _examine_index(index: int, *, methods: tuple[str, ...], seed: int, samples: int) -> list[Report]:
    chosen = methods if index % 4 == 0 else tuple(method for method in methods if method != "refined")
    return examine(make_case(seed, index, BOXES), chosen, seed=seed, samples=samples)


CAMPAIGN = Campaign(__doc__ or "", _examine_index, METHODS, BOXES, "ratio", more=LEVELS, samples=4096)
main = CAMPAIGN.main

if __name__ == "__main__":
    sys.exit(main())
