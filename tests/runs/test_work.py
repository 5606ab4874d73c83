"""Going through the stages: resumed anywhere, the answers are those of a run that was never interrupted."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from tests.runs.jobs import Squares, answers_of, finished, identity_of, silent

from bnndp.errors import InputError
from bnndp.runs.folder import open_run
from bnndp.runs.job import Shard
from bnndp.runs.journal import Journal
from bnndp.runs.work import Advance, Schedule, work

STAGES = (4, 3, 5)


def uninterrupted(**given: Any) -> list[tuple[int, Any]]:
    job = Squares(sizes=STAGES, **given)
    with Journal.scratch(job.points, 3) as journal:
        assert work(job, journal, silent, Schedule()) is False
        assert job.calls == [(0, 0), (0, 4), (0, 8), (1, 0), (1, 3), (1, 6), (1, 9), (2, 0), (2, 5)]
        return answers_of(job, journal)


class Crash(Exception):
    """Stands for whatever may end a process."""


@pytest.mark.parametrize("error", [Crash, KeyboardInterrupt])
@pytest.mark.parametrize("stop", range(1, 16))
def test_stopped_before_any_round_it_ends_the_same(tmp_path: Path, stop: int, error: type[BaseException]) -> None:
    """Also with what the interrupted stage had reached: that is kept, but not built upon."""
    want, count = uninterrupted(), itertools.count(1)

    def crash(stage: int, part: range, round_: int) -> None:
        if next(count) == stop:
            raise error

    job = Squares(sizes=STAGES, before_round=crash)
    with open_run(tmp_path / "run", identity_of(job)) as journal:
        try:
            interrupted = work(job, journal, silent, Schedule())
        except (Crash, KeyboardInterrupt):
            assert error is Crash or stop <= 3  # Ctrl-C in the first stage, or a fault
        else:
            assert interrupted is (error is KeyboardInterrupt)
        done = list(job.calls[:-1])
        if stop > 3:
            for point in range(10):
                assert journal.best(point)[0] >= 0
    again = Squares(sizes=STAGES)
    with open_run(tmp_path / "run", identity_of(again)) as journal:
        assert work(again, journal, silent, Schedule()) is False
        assert answers_of(again, journal) == want
    assert not set(done) & set(again.calls)  # nothing is done twice


def test_a_part_of_which_some_answers_are_kept_is_computed_whole(tmp_path: Path) -> None:
    want = uninterrupted()
    job = Squares(sizes=STAGES)
    with open_run(tmp_path / "run", identity_of(job)) as journal:
        work(job, journal, silent, Schedule())
    path = tmp_path / "run" / "results.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(line for line in lines if b'"id":5,"stage":2' not in line))
    again = Squares(sizes=STAGES)
    with open_run(tmp_path / "run", identity_of(again)) as journal:
        work(again, journal, silent, Schedule())
        assert again.calls == [(2, 5)]
        assert answers_of(again, journal) == want
    assert sorted(path.read_bytes().splitlines(keepends=True)) == sorted(lines)


def clocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that moves by one second a look."""
    seconds = itertools.count()
    monkeypatch.setattr(time, "monotonic", lambda: float(next(seconds)))


def test_when_the_time_is_over_the_rest_is_left_and_another_call_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = uninterrupted()
    clocked(monkeypatch)
    calls = []
    for _ in range(20):
        job = Squares(sizes=STAGES)
        with open_run(tmp_path / "run", identity_of(job)) as journal:
            assert work(job, journal, silent, Schedule(time.monotonic() + 17.0)) is False
            found = answers_of(job, journal) if journal.count(0) == 10 else []
        calls.append(job.calls)
        if not job.calls:
            break
    assert 3 <= len(calls) <= 12
    assert calls[0][:2] == [(0, 0), (0, 1)]  # one point first, to see how long it takes
    assert found == want


@pytest.mark.parametrize("seconds", range(14))
def test_the_first_stage_ends_with_the_time_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    """What it did not begin has no answer, what it began has one that is not whole, and no later stage begins."""
    job = Squares(sizes=STAGES)
    with open_run(tmp_path, identity_of(job)) as journal, monkeypatch.context() as patch:
        clocked(patch)
        assert work(job, journal, silent, Schedule(float(seconds))) is False
        begun = [start for stage, start in job.calls if stage == 0]
        answered = [point for point in range(10) if journal.answered(point)]
        assert answered == list(range(len(answered)))
        assert set(begun) <= set(answered)
        assert len(answered) <= 2 * len(begun) + 4
        assert journal.count(0) == 10 or not any(stage for stage, _ in job.calls)
    assert job.calls == [] if seconds == 0 else len(job.calls) <= seconds
    with open_run(tmp_path, identity_of(job)) as journal:
        assert finished(Squares(sizes=STAGES), journal) == uninterrupted()


@pytest.fixture
def journal() -> Iterator[Journal]:
    """Of ten points and two stages, kept nowhere."""
    with Journal.scratch(10, 2) as journal:
        yield journal


@pytest.mark.parametrize("shared", [True, False])
def test_time_is_shared_or_spent_on_one_part_after_the_other(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    rounds = dict.fromkeys(range(4), 0)

    def count(stage: int, part: range, round_: int) -> None:
        if stage:
            rounds[part.start] += 1

    job = Squares(points=4, sizes=(4, 1), rounds=10**6, before_round=count)
    clocked(monkeypatch)
    assert work(job, journal, silent, Schedule(84.0, shared)) is False
    if shared:
        assert min(rounds.values()) >= 8
        assert max(rounds.values()) <= 24
    else:
        assert 50 <= rounds[0] <= 70
        assert [rounds[start] for start in (1, 2, 3)] == [0, 0, 0]
    assert [journal.best(point)[0] for point in range(4)] == [0] * 4  # none was completed
    reached = [1, 1, 1, 1] if shared else [1, 0, 0, 0]
    assert [journal.best(point)[1]["part"][0] for point in range(4)] == reached


def test_a_shard_knows_how_long_it_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    assert Shard(0, range(1)).time_limit is None
    assert Shard(0, range(1), until=107.0).time_limit == 7.0
    assert 0 < (Shard(0, range(1), until=99.0).time_limit or 0) < 0.01


def test_a_fault_names_the_points(journal: Journal) -> None:
    with pytest.raises(InputError, match=r"^squares from 0: no bound$"):
        work(Squares(before_round=Mock(side_effect=InputError("no bound"))), journal, silent, Schedule())


def test_a_journal_with_everything_asks_for_nothing(journal: Journal) -> None:
    job = Squares()
    work(job, journal, silent, Schedule())
    end = journal.end
    job.calls.clear()
    work(job, journal, silent, Schedule())
    assert (job.calls, journal.end) == ([], end)


@pytest.mark.parametrize("decides", [False, True])
def test_progress_counts_what_was_done_before(journal: Journal, decides: bool) -> None:
    seen: dict[str, list[tuple[int, int | None, bool]]] = {}

    @contextlib.contextmanager
    def show(name: str, total: int) -> Iterator[Advance]:
        seen[name] = []

        def advance(points: int, certified: int | None = None, *, known: bool = False) -> None:
            seen[name].append((points, certified, known))

        yield advance

    job = Squares(decides=decides)
    journal.add(0, range(4), next(job.search(Shard(0, range(4)))))
    work(job, journal, show, Schedule())
    # The first stage gives (point + 0.1)^2 / 3, the second as much again, and one more: above 10 from point 6 and 4 on.
    found = [(0, 2, 2), (0, 2, 3, 1)]
    first, second = ([None] * len(each) for each in found) if not decides else found
    known = {"squares 0": [True, False, False], "squares 1": [False] * 4}
    sizes = {"squares 0": ([4, 4, 2], first), "squares 1": ([3, 3, 3, 1], second)}
    assert seen == {name: list(zip(*sizes[name], known[name], strict=True)) for name in seen}
