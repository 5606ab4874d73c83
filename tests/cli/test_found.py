"""The lead of a decision is at least what the bounds of the classes give; what is no number proves nothing."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bnndp.cli.found import Claim, Found, lead_by_bounds
from bnndp.data.demo import CLASSIFIER, network_path
from bnndp.questions.verdict import Verdict


def rows(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


def found(lower: Tensor, upper: Tensor, lead: float, verdict: Verdict = Verdict.UNDECIDED, label: int = 0) -> Found:
    claim = Claim(torch.tensor([label]), rows(lead)[0], (verdict,), torch.tensor([1]), rows(0.25, 0.5))
    return Found(lower, upper, ("moment",), torch.zeros(1, dtype=torch.float64), None, claim)


def claim_of(given: Found) -> Claim:
    assert given.claim is not None
    return given.claim


def test_the_lead_by_bounds_is_below_the_exact_difference() -> None:
    torch.manual_seed(0)
    ends = torch.rand(2, 500, 4, dtype=torch.float64) ** 8  # of many magnitudes, so that differences are rounded
    lower, upper = ends.amin(0), ends.amax(0)
    label = torch.randint(4, (500,))
    for row, lead in enumerate(lead_by_bounds(lower, upper, label).tolist()):
        own = int(label[row])
        others = [Fraction(upper[row, k].item()) for k in range(4) if k != own]
        exact = Fraction(lower[row, own].item()) - max(others)
        assert Fraction(lead) <= exact
        assert float(exact) - lead <= 1e-15 * max(1.0, abs(lead))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("end", ["lower", "upper"])
@pytest.mark.parametrize("place", range(3))
def test_what_is_not_finite_proves_nothing(bad: float, end: str, place: int) -> None:
    ends = {"lower": rows(0.8, 0.0, 0.0), "upper": rows(0.9, 0.1, 0.1)}
    assert lead_by_bounds(ends["lower"], ends["upper"], torch.tensor([0])).item() > 0
    ends[end][0, place] = bad
    assert lead_by_bounds(ends["lower"], ends["upper"], torch.tensor([0])).item() == -math.inf
    claim = claim_of(found(ends["lower"], ends["upper"], -0.5).led())
    assert (claim.lead.item(), claim.verdict) == (-0.5, (Verdict.UNDECIDED,))


def test_the_larger_lead_counts() -> None:
    lower, upper = rows(0.5, 0.0, 0.0), rows(0.75, 0.25, 0.25)
    raised = claim_of(found(lower, upper, -0.5).led())
    assert raised.verdict == (Verdict.CERTIFIED,)
    assert 0.25 - 1e-15 < raised.lead.item() < 0.25
    assert claim_of(found(lower, upper, 0.375, Verdict.CERTIFIED).led()).lead.item() == 0.375
    apart = claim_of(found(lower, upper, -0.875, Verdict.FALSIFIED, label=1).led())  # 0 - 0.75
    assert apart.verdict == (Verdict.FALSIFIED,)
    assert -0.75 - 1e-15 < apart.lead.item() < -0.75
    touching = claim_of(found(rows(0.5, 0.0), rows(1.0, 0.5), -0.5).led())
    assert touching.verdict == (Verdict.UNDECIDED,)


def test_a_lead_that_is_no_number_stays_so() -> None:
    claim = claim_of(found(rows(0.5, 0.0), rows(0.75, 0.25), math.nan).led())
    assert math.isnan(claim.lead.item())
    assert claim.verdict == (Verdict.UNDECIDED,)


@pytest.mark.parametrize("effort", ["low", "medium"])
def test_rows_have_the_larger_lead(bnndp: Any, tmp_path: Path, read_rows: Any, effort: str) -> None:
    out = tmp_path / "out.jsonl"
    options = ("--data", "moons", "--limit", 12, "--eps", 0.05, "--effort", effort, "--out", out)
    with network_path(CLASSIFIER) as path:
        assert bnndp("certify", path, *options).status == 0
    for row in read_rows(out):
        own = row["label"]
        assert row["lead"] >= math.nextafter(row["lower"][own] - row["upper"][1 - own], -math.inf)
        assert row["verdict"] == "certified" or not row["lead"] > 0
