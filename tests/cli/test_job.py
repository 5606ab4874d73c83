"""The stages of a job: one pass for all boxes first, then what the effort adds, within the time."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from bnndp.cli import job as subject
from bnndp.cli.job import Job, _first, _improve
from bnndp.options import Options
from bnndp.regions import Box

SOURCE = Path("inputs.npz")


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


def test_all_boxes_have_one_pass_before_any_is_refined(random_network: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(random_network((1, 4, 1), 0), boxes(600), Options(refine=64))
    seen = calls_of(monkeypatch)
    first, *others = job.plan
    found = _first(job, first, SOURCE)
    before = found.width.clone()
    _improve(job, others, found, SOURCE)
    assert seen == [(256, 1), (256, 1), (88, 1)] + [(64, 64)] * 9 + [(24, 64)]
    assert bool((found.width <= before).all())
    assert float(found.width.mean()) < float(before.mean())


def test_when_the_time_is_over_the_rest_keeps_its_first_pass(
    random_network: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(random_network((1, 4, 1), 0), boxes(600), Options(refine=64, time_limit=1e-9))
    seen = calls_of(monkeypatch)
    first, *others = job.plan
    found = _first(job, first, SOURCE)
    _improve(job, others, found, SOURCE)
    assert len(seen) == 3
    assert found.level == ["low"] * 600


def test_the_time_is_shared_among_the_boxes_left(random_network: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that moves by one second a look: half of the time is for the first of two chunks."""
    job = Job(random_network((1, 4, 1), 0), boxes(2), Options.of("high", refine=10**6, time_limit=21.0))
    monkeypatch.setattr(subject, "_CELLS", 1)
    first, *others = job.plan
    found = _first(job, first, SOURCE)
    rounds = [0, 0]
    real = subject.better_bounds

    def spy(network: Any, box: Any, options: Any) -> Any:
        for bounds in real(network, box, options):
            rounds[int(box.lower[0, 0] > -1.2)] += 1
            yield bounds

    seconds = itertools.count()
    monkeypatch.setattr(subject, "better_bounds", spy)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(seconds)))
    _improve(job, others, found, SOURCE)
    assert 8 <= rounds[0] <= 11
    assert 8 <= rounds[1] <= 11
    assert found.level == ["low", "low"]  # neither was completed
