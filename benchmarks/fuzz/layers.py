"""Random networks of every kind of layer and posterior, judged by draws: what the moment pass says must hold.

The methods are the kinds of networks. For every network and box the mean outputs, the variances of random rows of
outputs, and for every node of the pass means, variances, norms and the standard deviations of random rows are
compared with draws at points of the box. ``--seed S --methods KIND --only INDEX`` repeats a finding.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace

from support.layer_judge import examine
from support.layer_networks import KINDS, make_case

from benchmarks.fuzz.campaign import Campaign, Finding, Report, attempt

__all__ = ["main"]

BOXES = 3


def _examine_index(index: int, *, methods: tuple[str, ...], seed: int, samples: int) -> list[Report]:
    def judged(report: Report) -> Report:
        case = make_case(seed, report.method, index, BOXES)
        report = replace(report, network=f"{case.kind}, {case.act}, {case.twist}")
        found = examine(case, draws=samples, seed=seed)
        if found.failure:
            return replace(report, failure=found.failure)
        nothing = (math.nan,) * 4
        findings = [Finding(0, violation, "", [], *nothing, True, "sampled") for violation in found.violations]
        return replace(report, findings=findings, ratios=found.ratios, counts={"no bound": found.unbounded})

    return [attempt(Report(index, kind, BOXES, 0, kind), judged) for kind in methods]


CAMPAIGN = Campaign(__doc__ or "", _examine_index, KINDS, BOXES, "ratio", pairs=500, samples=2000)
main = CAMPAIGN.main

if __name__ == "__main__":
    sys.exit(main())
