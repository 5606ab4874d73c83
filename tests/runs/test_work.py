"""Going through the stages: resumed anywhere, the answers are those of a run that was never interrupted."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.runs.jobs import Squares, answers_of, identity_of, silent

from bnndp.runs.folder import open_run
from bnndp.runs.journal import Journal
from bnndp.runs.work import Advance, Budget, work

STAGES = (4, 3, 5)


def uninterrupted(**given: Any) -> list[tuple[int, Any]]:
    job = Squares(sizes=STAGES, **given)
    with Journal.scratch(job.points, 3) as journal:
        assert work(job, journal, Budget(), silent, "squares") is False
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
            interrupted = work(job, journal, Budget(), silent, "squares")
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
        assert work(again, journal, Budget(), silent, "squares") is False
        assert answers_of(again, journal) == want
    assert not set(done) & set(again.calls)  # nothing is done twice


def test_a_part_of_which_some_answers_are_kept_is_computed_whole(tmp_path: Path) -> None:
    want = uninterrupted()
    job = Squares(sizes=STAGES)
    with open_run(tmp_path / "run", identity_of(job)) as journal:
        work(job, journal, Budget(), silent, "squares")
    path = tmp_path / "run" / "results.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(line for line in lines if b'"id":5,"stage":2' not in line))
    again = Squares(sizes=STAGES)
    with open_run(tmp_path / "run", identity_of(again)) as journal:
        work(again, journal, Budget(), silent, "squares")
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
    found, calls = [], []
    for _ in range(20):
        job = Squares(sizes=STAGES)
        with open_run(tmp_path / "run", identity_of(job)) as journal:
            assert work(job, journal, Budget(11.0), silent, "squares") is False
            found.append(answers_of(job, journal))
        calls.append(job.calls)
        if not job.calls:
            break
    assert 3 <= len(calls) <= 12
    assert calls[0][:3] == [(0, 0), (0, 4), (0, 8)]
    assert {stage for stage, _ in found[0]} == {0, 1}  # some were improved, not all
    assert found[-1] == want


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
    assert work(job, journal, Budget(60.0, shared=shared), silent, "squares") is False
    if shared:
        assert min(rounds.values()) >= 8
        assert max(rounds.values()) <= 16
    else:
        assert 50 <= rounds[0] <= 60
        assert [rounds[start] for start in (1, 2, 3)] == [0, 0, 0]
    assert [journal.best(point)[0] for point in range(4)] == [0] * 4  # none was completed
    reached = [[1, point] for point in range(4)] if shared else [[1, 0], [0, 0], [0, 0], [0, 0]]
    assert [journal.best(point)[1]["part"] for point in range(4)] == reached


def test_a_journal_with_everything_asks_for_nothing(journal: Journal) -> None:
    job = Squares()
    work(job, journal, Budget(), silent, "squares")
    end = journal.end
    job.calls.clear()
    work(job, journal, Budget(), silent, "squares")
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
    journal.add(0, range(4), job.answers(next(job.search(0, range(4), ()))))
    work(job, journal, Budget(), show, "squares")
    # The first stage gives (point + 0.1)^2 / 3, the second as much again, and one more: above 10 from point 6 and 4 on.
    found = [(0, 2, 2), (0, 2, 3, 1)]
    first, second = ([None] * len(each) for each in found) if not decides else found
    known = {"squares": [True, False, False], "squares, medium effort": [False] * 4}
    sizes = {"squares": ([4, 4, 2], first), "squares, medium effort": ([3, 3, 3, 1], second)}
    assert seen == {name: list(zip(*sizes[name], known[name], strict=True)) for name in seen}
