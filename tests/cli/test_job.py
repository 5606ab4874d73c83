"""The stages of a job: one pass for all boxes first, then what the effort adds, within the time."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest
import torch
from support.classifiers import classifier

from bnndp.cli import job as subject
from bnndp.cli.found import Found, row_of, verdict_of
from bnndp.cli.job import Job
from bnndp.cli.progress import show_progress
from bnndp.geometry.box import Box
from bnndp.options import Options
from bnndp.questions.verdict import Verdict
from bnndp.runs.journal import Answer, Journal
from bnndp.runs.work import Budget, work


def boxes(count: int) -> Box:
    return Box.ball(torch.linspace(-1, 1, count, dtype=torch.float64)[:, None], 0.3)


def calls_of(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """How many boxes and cells each call asks for, from now on."""
    seen: list[tuple[int, int]] = []
    real = subject.better_bounds

    def spy(network: Any, box: Any, options: Any) -> Any:
        seen.append((box.batch, options.refine))
        return real(network, box, options)

    monkeypatch.setattr(subject, "better_bounds", spy)
    return seen


def carried_out(job: Job, **budget: Any) -> list[tuple[int, Answer]]:
    """The last stage that was completed for every box, and its answer."""
    with Journal.scratch(job.points, len(job.stages)) as journal:
        assert work(job, journal, Budget(job.options.time_limit, **budget), show_progress, "certify") is False
        return [journal.best(index) for index in range(job.points)]


def widths(found: list[tuple[int, Answer]]) -> torch.Tensor:
    rows = [row_of(index, "low", answer) for index, (_, answer) in enumerate(found)]
    return torch.tensor([row["width"] for row in rows], dtype=torch.float64)


def test_all_boxes_have_one_pass_before_any_is_refined(random_network: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    network = random_network((1, 4, 1), 0)
    before = widths(carried_out(Job(network, boxes(600), Options())))
    seen = calls_of(monkeypatch)
    found = carried_out(Job(network, boxes(600), Options(refine=64)))
    assert seen == [(256, 1), (256, 1), (88, 1)] + [(64, 64)] * 9 + [(24, 64)]
    assert {stage for stage, _ in found} == {1}
    assert bool((widths(found) <= before).all())
    assert float(widths(found).mean()) < float(before.mean())


def test_when_the_time_is_over_the_rest_keeps_its_first_pass(
    random_network: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(random_network((1, 4, 1), 0), boxes(600), Options(refine=64, time_limit=1e-9))
    seen = calls_of(monkeypatch)
    found = carried_out(job)
    assert len(seen) == 3
    assert {stage for stage, _ in found} == {0}


def test_the_time_is_shared_among_the_boxes_left(random_network: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that moves by one second a look: half of the time is for the first of two chunks."""
    job = Job(random_network((1, 4, 1), 0), boxes(2), Options.of("high", refine=10**6, time_limit=21.0))
    monkeypatch.setattr(subject, "_CELLS", 1)
    rounds = [0, 0]
    real = subject.better_bounds

    def spy(network: Any, box: Any, options: Any) -> Any:
        for bounds in real(network, box, options):
            rounds[int(box.lower[0, 0] > -1.2)] += options.refine > 1
            yield bounds

    seconds = itertools.count()
    monkeypatch.setattr(subject, "better_bounds", spy)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(seconds)))
    found = carried_out(job, shared=True)
    assert 5 <= rounds[0] <= 11
    assert 5 <= rounds[1] <= 11
    assert [stage for stage, _ in found] == [0, 0]  # neither was completed


@pytest.fixture
def decided() -> Found:
    """Bounds and verdicts of some boxes, one of each kind."""
    network = classifier((2, 8, 3), 6, std=0.1, gain=2.0)
    x = torch.randn(12, 2, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    label = torch.arange(12) % 3
    job = Job(network, Box.ball(x, 0.8), Options(), label=label)
    (found,) = job.search(0, range(12), ())
    assert found.claim is not None
    assert set(found.claim.verdict) == set(Verdict)
    return found


def test_answers_are_read_back_bit_for_bit(decided: Found) -> None:
    decided.lower[0, 0], decided.upper[1, 1] = -torch.inf, torch.inf
    again = Found.read(decided.answers(), 2)
    assert torch.equal(again.lower, decided.lower)
    assert torch.equal(again.upper, decided.upper)
    assert torch.equal(again.seconds, decided.seconds)
    assert again.method == decided.method
    assert again.claim is not None
    assert decided.claim is not None
    assert again.claim.verdict == decided.claim.verdict
    assert torch.equal(again.claim.lead, decided.claim.lead)
    assert torch.equal(again.claim.label, decided.claim.label)
    falsified = torch.tensor([verdict is Verdict.FALSIFIED for verdict in decided.claim.verdict])
    assert torch.equal(again.claim.witness[falsified], decided.claim.witness[falsified])
    assert torch.equal(again.claim.rival[falsified], decided.claim.rival[falsified])


@pytest.mark.parametrize("lead", ["nan", 0.0, -0.1, "-inf"])
def test_nothing_is_certified_without_a_lead(decided: Found, lead: float | str) -> None:
    """Whatever the text of an answer says: only the one function that judges gives the verdict."""
    for answer in decided.answers():
        claimed = {**answer, "verdict": "certified", "lead": lead}
        assert verdict_of(claimed) is Verdict.UNDECIDED
        assert row_of(0, "low", claimed)["verdict"] == "undecided"
        claim = Found.read([claimed], 2).claim
        assert claim is not None
        assert claim.verdict == (Verdict.UNDECIDED,)
