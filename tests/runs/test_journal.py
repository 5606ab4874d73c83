"""The journal: what is read back after any cut, after flipped bits, and in any order of the lines."""

from __future__ import annotations

import os
import random
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.runs.jobs import Squares, finished, identity_of, silent

from bnndp.errors import RunStateError
from bnndp.runs.folder import open_run
from bnndp.runs.job import Shard
from bnndp.runs.journal import Journal
from bnndp.runs.sealed_lines import seal
from bnndp.runs.work import Schedule, work


def finish(folder: Path, job: Squares) -> list[tuple[int, Any]]:
    """Open the run, do what is missing, and give its answers."""
    with open_run(folder, identity_of(job)) as journal:
        return finished(job, journal)


Whole = tuple[Path, Path, bytes, list[tuple[int, Any]]]


@pytest.fixture
def whole(tmp_path: Path) -> Whole:
    """A finished run, its journal, what stands there, and its answers."""
    answers, path = finish(tmp_path / "run", Squares()), tmp_path / "run" / "results.jsonl"
    return tmp_path / "run", path, path.read_bytes(), answers


def lines_of(folder: Path) -> list[bytes]:
    return (folder / "results.jsonl").read_bytes().splitlines(keepends=True)


@pytest.fixture
def journal() -> Iterator[Journal]:
    """Of five points and three stages, kept nowhere."""
    with Journal.scratch(5, 3) as journal:
        yield journal


def test_a_scratch_journal_gives_back_what_it_was_given(journal: Journal) -> None:
    journal.add(0, range(2, 4), [{"a": 2}, {"a": 3}])
    journal.add(0, range(2), [{"a": 0}, {"a": 1}])
    assert (journal.count(0), journal.count(1)) == (4, 0)
    assert journal.has(0, range(4))
    assert not journal.has(0, range(5))
    assert journal.before(1, range(1, 4)) == [{"a": 1}, {"a": 2}, {"a": 3}]
    assert journal.best(3) == (0, {"a": 3})
    with pytest.raises(RunStateError, match="no answer for point 4"):
        journal.best(4)


def test_the_first_whole_answer_counts_and_no_other_is_written(journal: Journal) -> None:
    journal.add(0, range(1, 2), [{"a": "first"}])
    end = journal.end
    journal.add(0, range(1, 2), [{"a": "second"}])
    assert journal.end == end
    journal.add(0, range(3), [{"a": 0}, {"a": "second"}, {"a": 2}])
    assert [journal.best(point)[1]["a"] for point in range(3)] == [0, "first", 2]


def test_what_a_stage_had_reached_is_the_best_but_not_built_upon(journal: Journal) -> None:
    journal.add(0, range(1), [{"a": "pass"}])
    journal.add(1, range(1), [{"a": "early"}], whole=False)
    journal.add(1, range(1), [{"a": "later"}], whole=False)
    assert journal.best(0) == (0, {"a": "later"})
    assert journal.count(1) == 0
    assert journal.before(1, range(1)) == [{"a": "pass"}]
    journal.add(1, range(1), [{"a": "medium"}])
    assert journal.best(0) == (1, {"a": "medium"})
    assert journal.before(2, range(1)) == [{"a": "medium"}]


def test_what_the_first_stage_had_reached_counts_until_it_is_completed(journal: Journal) -> None:
    assert not journal.answered(0)
    journal.add(0, range(1), [{"a": "early"}], whole=False)
    assert (journal.answered(0), journal.count(0), journal.best(0)) == (True, 0, (-1, {"a": "early"}))
    journal.add(0, range(1), [{"a": "pass"}])
    assert (journal.count(0), journal.best(0)) == (1, (0, {"a": "pass"}))


def test_after_a_cut_at_any_byte_the_run_ends_the_same(whole: Whole) -> None:
    folder, path, payload, want = whole
    head = len(lines_of(folder)[0])
    for cut in range(head, len(payload) + 1, 3):
        path.write_bytes(payload[:cut])
        kept = payload[:cut].count(b"\n") - 1
        with open_run(folder, identity_of(Squares())) as journal:
            assert journal.count(0) + journal.count(1) == kept
    for cut in random.Random(1).sample(range(head, len(payload)), 20):
        path.write_bytes(payload[:cut])
        assert finish(folder, Squares()) == want
        assert sorted(lines_of(folder)) == sorted(payload.splitlines(keepends=True))  # nothing lost, nothing twice


def test_flipped_bits_of_the_last_line_are_cut_off(whole: Whole) -> None:
    folder, path, payload, want = whole
    last = len(lines_of(folder)[-1])
    for place in range(len(payload) - last, len(payload)):
        wrong = bytearray(payload)
        wrong[place] ^= 1 << (place % 8)
        path.write_bytes(bytes(wrong))
        with open_run(folder, identity_of(Squares())) as journal:
            assert journal.end == len(payload) - last
    assert finish(folder, Squares()) == want
    assert path.read_bytes() == payload


@pytest.mark.parametrize("tail", [b"\0" * 5000, b"{", b"\n\n\n", os.urandom(3000), b'{"id":1}\n'])
def test_rubbish_at_the_end_is_cut_off(whole: Whole, tail: bytes) -> None:
    folder, path, payload, want = whole
    half = b"".join(payload.splitlines(keepends=True)[:7])
    path.write_bytes(half + tail)
    assert finish(folder, Squares()) == want
    assert sorted(lines_of(folder)) == sorted(payload.splitlines(keepends=True))


def test_a_damaged_line_in_the_middle_is_refused_and_may_be_deleted(whole: Whole) -> None:
    folder, path, payload, want = whole
    lines = lines_of(folder)
    for number in range(1, len(lines) - 1):
        wrong = bytearray(lines[number])
        wrong[len(wrong) // 2] ^= 1
        path.write_bytes(b"".join([*lines[:number], bytes(wrong), *lines[number + 1 :]]))
        with pytest.raises(RunStateError, match=rf"line {number + 1} is damaged, but whole lines follow"):
            finish(folder, Squares())
        assert path.stat().st_size == len(payload)  # as it was
        path.write_bytes(b"".join([*lines[:number], *lines[number + 1 :]]))
        assert finish(folder, Squares()) == want


def test_a_newline_that_is_lost_in_the_middle_is_refused(whole: Whole) -> None:
    folder, path, _, _ = whole
    lines = lines_of(folder)
    path.write_bytes(b"".join([*lines[:3], lines[3].rstrip(b"\n"), *lines[4:]]))
    with pytest.raises(RunStateError, match="line 4 is damaged"):
        finish(folder, Squares())


def test_lines_may_come_in_any_order_and_twice(whole: Whole) -> None:
    folder, path, _, want = whole
    head, *lines = lines_of(folder)
    random.Random(3).shuffle(lines)
    other = seal({"id": 3, "stage": 1, "whole": True, "answer": {"value": 0.0}})  # the first one counts
    path.write_bytes(b"".join([head, *lines, *lines[:5], other]))
    job = Squares()
    assert finish(folder, job) == want
    assert job.calls == []


@pytest.mark.parametrize(
    "record",
    [
        {"id": 10, "stage": 0, "whole": True, "answer": {}},
        {"id": -1, "stage": 0, "whole": True, "answer": {}},
        {"id": 0, "stage": 2, "whole": True, "answer": {}},
        {"id": True, "stage": 0, "whole": True, "answer": {}},
        {"id": 0, "stage": 0, "whole": 1, "answer": {}},
        {"id": 0, "stage": 0, "whole": True, "answer": []},
        {"id": 0, "stage": 0, "whole": True},
        {"format": "bnndp-run-1"},
    ],
)
def test_a_sealed_line_of_something_else_is_refused(whole: Whole, record: dict[str, Any]) -> None:
    folder, path, _, _ = whole
    with path.open("ab") as file:
        file.write(seal(record))
    with pytest.raises(RunStateError, match="line 22 is not an answer of this run"):
        finish(folder, Squares())


class Failing:
    """A file with space for ``capacity`` bytes; as on a full disk, the last write is a short one."""

    def __init__(self, file: Any, capacity: int) -> None:
        self.file, self.capacity = file, capacity

    def write(self, data: Any) -> int:
        if self.capacity <= 0:
            raise OSError(28, "No space left on device")
        written = self.file.write(bytes(data[: self.capacity]))
        self.capacity -= written
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def fill_disk(folder: Path, capacity: int) -> int:
    """Go on with a run on a disk that is full after ``capacity`` bytes; how many answers it had before."""
    with open_run(folder, identity_of(Squares())) as journal:
        done = journal.count(0) + journal.count(1)
        journal.file = Failing(journal.file, capacity)  # type: ignore[assignment]
        with pytest.raises(RunStateError) as caught:
            work(Squares(), journal, silent, Schedule())
    assert "\n" not in str(caught.value)
    assert "No space left on device; what was done before is kept" in str(caught.value)
    return done


def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path: Path) -> None:
    want = finish(tmp_path / "other", Squares())
    folder = tmp_path / "run"
    counts = []
    for capacity in (0, 1, 50, 300, 390, 420, 500, 0):
        counts.append(fill_disk(folder, capacity))
        payload = (folder / "results.jsonl").read_bytes()
        assert payload.endswith(b"\n")  # the torn line was taken back
        assert payload.count(b"\n") - 1 >= counts[-1]
    assert counts == sorted(counts)
    assert 0 < counts[-1] < 20
    assert finish(folder, Squares()) == want


def test_an_interrupted_write_leaves_no_torn_line_before_the_next(tmp_path: Path) -> None:
    """Ctrl-C in the midst of a write, after which the answers reached so far are still added."""

    class Interrupted(Failing):
        def write(self, data: Any) -> int:
            if self.capacity:
                self.capacity = 0
                self.file.write(bytes(data[:100]))
                raise KeyboardInterrupt
            return self.file.write(data)

    job = Squares()
    with open_run(tmp_path / "run", identity_of(job)) as journal:
        journal.add(0, range(4), next(job.search(Shard(0, range(4)))))
        journal.file = Interrupted(journal.file, 1)  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            journal.add(0, range(4, 8), next(job.search(Shard(0, range(4, 8)))))
        journal.add(0, range(8, 10), next(job.search(Shard(0, range(8, 10)))))
    with open_run(tmp_path / "run", identity_of(job)) as journal:
        assert journal.count(0) == 6


def test_a_journal_that_is_changed_under_way_is_noticed(tmp_path: Path) -> None:
    job = Squares()
    with open_run(tmp_path, identity_of(job)) as journal:
        journal.add(0, range(4), next(job.search(Shard(0, range(4)))))
        payload = bytearray((tmp_path / "results.jsonl").read_bytes())
        payload[-60] ^= 4
        (tmp_path / "results.jsonl").write_bytes(bytes(payload))
        assert journal.best(2)[0] == 0
        with pytest.raises(RunStateError, match="changed by another program"):
            journal.best(3)


@pytest.mark.parametrize(("takes", "asked"), [(0.0, 20), (0.001, 20), (0.01, 4), (0.1, 1)])
def test_lines_outlast_a_power_cut_soon_and_at_little_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, takes: float, asked: int
) -> None:
    """Twenty seconds with ten answers each: the disk is asked once a second if it is fast, less often if it is slow."""
    clock, synced = [0.0], []

    def fsync(_descriptor: int) -> None:
        synced.append(clock[0])
        clock[0] += takes

    with open_run(tmp_path / "run", identity_of(Squares(200))) as journal:
        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(time, "monotonic", lambda: clock[0])
        for point in range(200):
            clock[0] += 0.1
            journal.add(0, range(point, point + 1), [{"a": point}])
        assert asked - 2 <= len(synced) <= asked
        assert len(synced) * takes <= 0.006 * clock[0]
        before = len(synced)
    assert len(synced) == before + 1  # and at the end


def test_memory_does_not_grow_with_the_answers(tmp_path: Path) -> None:
    """Of a point there are two numbers in memory, its place in the file; its answer is read when it is wanted."""
    count, piece = 4000, 250
    answer = {"lower": [0.1] * 10, "upper": [0.2] * 10}
    tracemalloc.start()
    with Journal((tmp_path / "journal").open("w+b", buffering=0), "journal", count, 1) as journal:
        journal.add(0, range(piece), [answer] * piece)
        before = tracemalloc.get_traced_memory()[0]
        for start in range(piece, count, piece):
            journal.add(0, range(start, start + piece), [answer] * piece)
        assert tracemalloc.get_traced_memory()[0] - before < 20_000
        assert sum(len(journal.best(point)[1]["lower"]) for point in range(count)) == 10 * count
        assert journal.end > 600_000
        assert tracemalloc.get_traced_memory()[1] < 16 * count + 250_000
    tracemalloc.stop()
