"""The damage that the campaign of long runs does: at the end of a journal, never to its first line."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from benchmarks.fuzz.runs import answers_of, cut_tail, flip_tail

from bnndp.runs.sealed_lines import seal, unseal

HEAD = seal({"format": "bnndp-run-1"})


def line(point: int, value: float = 0.5) -> bytes:
    answer = {"lower": [value], "seconds": random.Random(point).random()}
    return seal({"id": point, "stage": 0, "whole": True, "answer": answer})


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "results.jsonl"
    path.write_bytes(HEAD + b"".join(map(line, range(6))))
    return path


def test_cuts_reach_the_last_lines_only(journal: Path) -> None:
    payload, left = journal.read_bytes(), set()
    for seed in range(60):
        journal.write_bytes(payload)
        assert cut_tail(journal, random.Random(seed))
        cut = journal.read_bytes()
        assert payload.startswith(cut)
        assert len(cut) < len(payload)
        left.add(cut.count(b"\n") - 1)
    assert left == {3, 4, 5}


def test_flips_change_one_bit_of_the_last_line(journal: Path) -> None:
    payload = journal.read_bytes()
    last = len(payload) - len(line(5))
    for seed in range(60):
        journal.write_bytes(payload)
        assert flip_tail(journal, random.Random(seed))
        wrong = journal.read_bytes()
        assert len(wrong) == len(payload)
        assert wrong[:last] == payload[:last]
        assert sum((a ^ b).bit_count() for a, b in zip(wrong, payload, strict=True)) == 1
        assert unseal(wrong[last:]) is None


def test_a_journal_without_answers_is_left_alone(journal: Path) -> None:
    journal.write_bytes(HEAD)
    assert not cut_tail(journal, random.Random(0))
    assert not flip_tail(journal, random.Random(0))
    assert journal.read_bytes() == HEAD


def test_answers_are_compared_without_their_times_and_none_may_be_there_twice(journal: Path) -> None:
    assert answers_of(journal.parent) == {(point, 0): {"lower": [0.5]} for point in range(6)}
    for more, words in ((line(3), "two answers"), (line(7)[:-5], "not a whole answer")):
        whole = journal.read_bytes()
        journal.write_bytes(whole + more)
        with pytest.raises(SystemExit, match=words):
            answers_of(journal.parent)
        journal.write_bytes(whole)
