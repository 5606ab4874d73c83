"""Results on boxes: stages and chunks, leads and verdicts; what is no number proves nothing."""

from __future__ import annotations

import itertools
import math
import time
from fractions import Fraction
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from support.classifiers import classifier
from support.networks import make_network
from torch import Tensor

from bnndp.cli import boxes as subject
from bnndp.cli.boxes import BoxJob, BoxResult, Decisions, lead_by_bounds, verdict_of
from bnndp.cli.progress import show_progress
from bnndp.data.demo import CLASSIFIER, network_path
from bnndp.geometry.box import Box
from bnndp.options import Options
from bnndp.questions.certify import better_bounds
from bnndp.questions.verdict import Verdict
from bnndp.runs.job import Shard
from bnndp.runs.journal import Journal
from bnndp.runs.work import Schedule, work


def job_of(network: Any, box: Box, options: Options | None = None, label: Tensor | None = None) -> BoxJob:
    return BoxJob("certify", network, options or Options(), label, "the boxes", box=box)


def intervals(count: int) -> Box:
    return Box.ball(torch.linspace(-1, 1, count, dtype=torch.float64)[:, None], 0.3)


def rows_of(job: BoxJob, schedule: Schedule | None = None) -> list[dict[str, Any]]:
    with Journal.scratch(job.points, len(job.stages)) as journal:
        assert work(job, journal, show_progress, schedule or Schedule()) is False
        return [dict(row) for row, *_ in job.rows(journal)]


def test_all_boxes_have_one_pass_before_any_is_refined(monkeypatch: pytest.MonkeyPatch) -> None:
    network = make_network((1, 4, 1), 0)
    before = [row["width"] for row in rows_of(job_of(network, intervals(600)))]
    spy = Mock(wraps=better_bounds)
    monkeypatch.setattr(subject, "better_bounds", spy)
    found = rows_of(job_of(network, intervals(600), Options.of("medium", refine=64)))
    asked = [(call.args[1].batch, call.args[2].refine) for call in spy.call_args_list]  # boxes and cells
    assert asked == [(256, 1), (256, 1), (88, 1)] + [(64, 64)] * 9 + [(24, 64)]
    assert {row["effort"] for row in found} == {"medium"}
    assert all(row["width"] <= width for row, width in zip(found, before, strict=True))
    assert sum(row["width"] for row in found) < sum(before)


@pytest.mark.parametrize("labels", [False, True])
def test_what_is_not_reached_in_time_has_no_result(monkeypatch: pytest.MonkeyPatch, labels: bool) -> None:
    """A clock that moves by one second a look: there is time for some of the parts of the first stage."""
    network = make_network((1, 4, 2), 0, task="classification" if labels else "regression")
    job = job_of(network, intervals(600), label=torch.zeros(600, dtype=torch.int64) if labels else None)
    seconds = itertools.count()
    monkeypatch.setattr(time, "monotonic", lambda: float(next(seconds)))
    found = rows_of(job, Schedule(5.0))
    reached = [row["upper"] != [None, None] for row in found]
    assert 0 < sum(reached) < 600
    for row in found[sum(reached) :]:
        assert (row["lower"], row["upper"], row["width"]) == ([None] * 2,) * 3
        assert row["method"] in (None, "none")
        assert row["seconds"] < 1
        assert not labels or (row["label"], row["verdict"], row["lead"], row["witness"]) == (0, "undecided", None, None)


@pytest.mark.parametrize("attack", [False, True])
def test_what_was_not_reached_has_the_columns_of_what_was(attack: bool) -> None:
    """Lists and numbers in the same places, as a table needs."""
    network = make_network((1, 4, 2), 0, task="regression" if attack else "classification")
    label = None if attack else torch.tensor([1, 0])
    job = BoxJob("certify", network, Options(), label, "the boxes", box=intervals(2), attack=attack)
    assert job._unknown(job.box, label).answers() == [job.unanswered(0), job.unanswered(1)]
    *_, found = job.search(Shard(0, range(2)))
    rows = [job.row(0, None, answer) for answer in (job.unanswered(0), found.answers()[0])]
    ends = [[(name, isinstance(value, list)) for name, value in row.items() if name != "witness"] for row in rows]
    assert ends[0] == ends[1]


def test_a_library_that_finds_nothing_in_time_is_not_asked_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "better_bounds", lambda *_: iter(()))
    monkeypatch.setattr(subject, "robust_decision", lambda *_, **__: pytest.fail("there was no time"))
    network, label = make_network((1, 4, 2), 0, task="classification"), torch.tensor([1, 0])
    job = job_of(network, intervals(2), label=label)
    assert job.answers(*job.search(Shard(0, range(2)))) == [job.unanswered(0), job.unanswered(1)]


def test_the_time_left_reaches_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    spy = Mock(wraps=better_bounds)
    monkeypatch.setattr(subject, "better_bounds", spy)
    job = job_of(make_network((1, 4, 1), 0), intervals(2), Options(refine=8))
    rows_of(job, Schedule(time.monotonic() + 100.0))
    rows_of(job)
    *timed, first, second = (call.args[2].time_limit for call in spy.call_args_list)
    assert len(timed) >= 2
    assert all(50 < seconds <= 100 for seconds in timed)
    assert (first, second) == (None, None)


def test_the_time_is_shared_among_the_boxes_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that moves by one second a look: half of the time is for the first of two chunks."""
    job = job_of(make_network((1, 4, 1), 0), intervals(2), Options.of("high", refine=10**6))
    monkeypatch.setattr(subject, "_CELLS", 1)
    rounds = [0, 0]

    def spy(network: Any, box: Any, options: Any) -> Any:
        for bounds in better_bounds(network, box, options):
            rounds[int(box.lower[0, 0] > -1.2)] += options.refine > 1
            yield bounds

    seconds = itertools.count()
    monkeypatch.setattr(subject, "better_bounds", spy)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(seconds)))
    found = rows_of(job, Schedule(400.0, shared=True))
    assert 2 <= rounds[0] <= 40
    assert 2 <= rounds[1] <= 40
    assert [row["effort"] for row in found] == ["low", "low"]  # neither was completed


@pytest.fixture
def decided() -> BoxResult:
    """Bounds and verdicts of some boxes, one of each kind."""
    x = torch.randn(12, 2, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    job = job_of(classifier((2, 8, 3), 6, std=0.1, gain=2.0), Box.ball(x, 0.8), label=torch.arange(12) % 3)
    *_, found = job.search(Shard(0, range(12)))
    assert set(found.decisions.verdict) == set(Verdict)
    return found


def test_answers_are_read_back_bit_for_bit(decided: BoxResult) -> None:
    decided.lower[0, 0], decided.upper[1, 1] = -torch.inf, torch.inf
    again = BoxResult.read(decided.answers(), 2)
    for name in ("lower", "upper", "seconds"):
        assert torch.equal(getattr(again, name), getattr(decided, name))
    assert again.method == decided.method
    found, want = again.decisions, decided.decisions
    assert found.verdict == want.verdict
    assert torch.equal(found.lead, want.lead)
    assert torch.equal(found.label, want.label)
    falsified = torch.tensor([verdict is Verdict.FALSIFIED for verdict in want.verdict])
    assert torch.equal(found.witness[falsified], want.witness[falsified])
    assert torch.equal(found.rival[falsified], want.rival[falsified])


@pytest.mark.parametrize("lead", ["nan", 0.0, -0.1, "-inf"])
def test_nothing_is_certified_without_a_lead(decided: BoxResult, lead: float | str) -> None:
    """Whatever the text of an answer says: only the one function that judges gives the verdict."""
    job = job_of(make_network((1, 1), 0), intervals(1))
    for answer in decided.answers():
        claimed = {**answer, "verdict": "certified", "lead": lead}
        assert verdict_of(claimed) is Verdict.UNDECIDED
        assert job.row(0, "low", claimed)["verdict"] == "undecided"
        decisions = BoxResult.read([claimed], 2).decisions
        assert decisions.verdict == (Verdict.UNDECIDED,)


def rows(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


def led(lower: Tensor, upper: Tensor, lead: float, verdict: Verdict = Verdict.UNDECIDED, label: int = 0) -> Decisions:
    """What the bounds of the classes make of a decision."""
    broken = torch.tensor([verdict is Verdict.FALSIFIED])
    decisions = Decisions(torch.tensor([label]), rows(lead)[0], broken, torch.tensor([1]), rows(0.25, 0.5))
    found = BoxResult(lower, upper, ("moment",), torch.zeros(1, dtype=torch.float64)).led(decisions).decisions
    assert found is not None
    return found


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
    found = led(ends["lower"], ends["upper"], -0.5)
    assert (found.lead.item(), found.verdict) == (-0.5, (Verdict.UNDECIDED,))


def test_the_larger_lead_counts() -> None:
    lower, upper = rows(0.5, 0.0, 0.0), rows(0.75, 0.25, 0.25)
    raised = led(lower, upper, -0.5)
    assert raised.verdict == (Verdict.CERTIFIED,)
    assert 0.25 - 1e-15 < raised.lead.item() < 0.25
    assert led(lower, upper, 0.375, Verdict.CERTIFIED).lead.item() == 0.375
    apart = led(lower, upper, -0.875, Verdict.FALSIFIED, label=1)  # 0 - 0.75
    assert apart.verdict == (Verdict.FALSIFIED,)
    assert -0.75 - 1e-15 < apart.lead.item() < -0.75
    assert led(rows(0.5, 0.0), rows(1.0, 0.5), -0.5).verdict == (Verdict.UNDECIDED,)  # they touch
    unknown = led(rows(0.5, 0.0), rows(0.75, 0.25), math.nan)
    assert math.isnan(unknown.lead.item())
    assert unknown.verdict == (Verdict.UNDECIDED,)


@pytest.mark.parametrize("effort", ["low", "medium"])
def test_rows_have_the_larger_lead(answers: Any, effort: str) -> None:
    with network_path(CLASSIFIER) as path:
        found = answers("certify", path, "--data", "moons", "--limit", 12, "--eps", 0.05, "--effort", effort)
    for row in found:
        own = row["label"]
        assert row["lead"] >= math.nextafter(row["lower"][own] - row["upper"][1 - own], -math.inf)
        assert row["verdict"] == "certified" or not row["lead"] > 0
