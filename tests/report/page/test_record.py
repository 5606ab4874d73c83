"""Run folders are read with suspicion: what does not belong to the run, or is no answer, is refused in one line."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.run_folders import interval_answer, radius_answer, write_run

from bnndp.errors import RunStateError
from bnndp.questions.verdict import Verdict
from bnndp.report.page.outcome import Intervals, Radii, outcome_of
from bnndp.report.page.record import read_record
from bnndp.runs.sealed_lines import seal

X = np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
ANSWERS = [radius_answer(0.1, 0.2), radius_answer("nan", 0.3), radius_answer(0.3, "inf", label=1)]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", "radius", ANSWERS, x=X, made={"model": {"path": "m.safetensors"}})


def refused(folder: Path) -> str:
    with pytest.raises(RunStateError) as error:
        outcome_of(read_record(folder))
    text = str(error.value)
    assert "\n" not in text
    assert str(folder) in text
    return text


def test_a_run_is_read(run: Path) -> None:
    record = read_record(run)
    found = outcome_of(record)
    assert isinstance(found, Radii)
    assert np.array_equal(found.radius, [0.1, math.nan, 0.3], equal_nan=True)
    assert found.attack.tolist() == [0.2, 0.3, math.inf]
    assert found.label.tolist() == [0, 0, 1]
    assert record.lookup("model", "path") == "m.safetensors"
    assert record.lookup("model", "path", "deeper") is None
    assert record.inputs is not None
    assert np.array_equal(record.inputs.x, X)


def test_verdicts_are_those_of_the_numbers() -> None:
    found = Radii(
        label=np.array([0, 0, 0, 1, 1]),
        decision=np.array([0, 0, 0, 0, 0]),
        radius=np.array([0.1, math.nan, 0.3, math.nan, math.nan]),
        attack=np.array([0.2, 0.3, math.inf, 0.0, math.nan]),  # the last is wrong at the input, and was not attacked
        seconds=np.zeros(5),
        capped=np.zeros(5, dtype=bool),
    )
    certified, falsified, undecided = Verdict.CERTIFIED, Verdict.FALSIFIED, Verdict.UNDECIDED
    assert found.verdicts(0.1) == [certified, undecided, certified, falsified, falsified]
    assert found.verdicts(0.15) == [undecided, undecided, certified, falsified, falsified]
    assert found.verdicts(0.3) == [falsified, falsified, certified, falsified, falsified]
    assert np.array_equal(found.ratio, [0.5, 0.0, math.nan, math.nan, math.nan], equal_nan=True)


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(allow_nan=False, allow_infinity=False))
def test_a_width_is_the_least_number_that_is_not_below_it(one: float, other: float) -> None:
    lower, upper = sorted((one, other))
    ends = np.array([[lower]]), np.array([[upper]])
    width = Intervals(*ends, None, None, ("moment",), np.zeros(1), None).width.item()
    exact = Fraction(upper) - Fraction(lower)
    assert math.isinf(width) or Fraction(width) >= exact
    assert width == 0 or Fraction(math.nextafter(width, 0)) < exact


def test_a_verdict_is_by_the_lead_whatever_is_written(tmp_path: Path) -> None:
    claims = [
        {"label": 1, "verdict": "certified", "lead": -0.1},
        {"label": 1, "verdict": "certified", "lead": "nan"},
        {"label": 0, "verdict": "falsified", "lead": "-inf"},
        {"label": 0, "verdict": "undecided", "lead": 0.2},
    ]
    answers = [interval_answer([0.1, 0.2], [0.8, 0.9], rival=None, witness=None, **claim) for claim in claims]
    found = outcome_of(read_record(write_run(tmp_path / "run", "certify", answers)))
    assert isinstance(found, Intervals)
    assert found.claims is not None
    assert [v.value for v in found.claims.verdict] == ["undecided", "undecided", "falsified", "certified"]


def test_a_run_at_work_shows_what_it_has(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", "radius", {3: ANSWERS[0], 1: ANSWERS[1]}, points=9)
    with (folder / "results.jsonl").open("ab") as file:
        file.write(b'{"id":4,"sta')  # being written
    record = read_record(folder)
    assert record.index == [1, 3]
    assert record.points == 9


def test_later_stages_count_for_more(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", "radius", [radius_answer(0.1), radius_answer(0.1)], stages=("low", "medium"))
    with (folder / "results.jsonl").open("ab") as file:
        file.write(seal({"id": 1, "stage": 1, "whole": True, "answer": radius_answer(0.15)}))
    record = read_record(folder)
    assert record.levels == ["low", "medium"]
    assert outcome_of(record).radius.tolist() == [0.1, 0.15]  # type: ignore[union-attr]


def test_no_run_is_no_run(tmp_path: Path) -> None:
    assert "is not a run folder" in refused(tmp_path)


def test_no_answer_is_nothing_to_show(tmp_path: Path) -> None:
    assert "no answer yet" in refused(write_run(tmp_path / "run", "radius", {}, points=4))


def _append(name: str, payload: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes() + payload)


def _replace(name: str, old: bytes, new: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes().replace(old, new, 1))


def _save(name: str, **arrays: np.ndarray) -> Callable[[Path], object]:
    return lambda folder: np.savez(folder / name, **arrays)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (_replace("results.jsonl", b"bnndp-run-1", b"bnndp-run-2"), "first line is damaged"),
        (_replace("results.jsonl", b'"radius":0.1', b'"radius":0.9'), "damaged"),
        (_replace("run.json", b'"points": 3', b'"points": 4'), "another run"),
        (lambda folder: (folder / "run.json").write_text("[" * 10**5), "not JSON"),
        (lambda folder: (folder / "run.json").write_bytes(b"\xff\xfe"), "not JSON"),
        (_save("inputs.npz", x=X + 1), "digest"),
        (_save("inputs.npz", x=X[:2]), "does not hold the 3 inputs"),
        (_save("inputs.npz", x=np.full_like(X, np.nan)), "does not hold"),
        (_save("inputs.npz", y=X), "cannot be read"),
        (_save("inputs.npz", x=np.array([object()])), "cannot be read"),
        (lambda folder: (folder / "inputs.npz").write_bytes(b"PK\x03\x04"), "cannot be read"),
        (_save("witnesses.npz", index=np.array([7]), x=X[:1], rival=np.array([1])), "witnesses"),
        (_save("witnesses.npz", index=np.array([0]), x=X[:2], rival=np.array([1])), "witnesses"),
        (_save("witnesses.npz", index=np.array([0.5]), x=X[:1], rival=np.array([1])), "witnesses"),
    ],
)
def test_what_was_changed_is_refused(run: Path, harm: Callable[[Path], object], told: str) -> None:
    harm(run)
    assert told in refused(run)


@pytest.mark.parametrize(
    "answer",
    [
        radius_answer(-0.1),
        radius_answer("inf"),
        radius_answer("0.3"),
        radius_answer(0.1, -1.0),
        radius_answer(0.1, "-inf"),
        radius_answer(True),
        radius_answer(0.1) | {"label": "<b>"},
        radius_answer(0.1) | {"decision": 2**40},
        {"radius": 0.1},
    ],
)
def test_what_is_no_answer_is_refused(tmp_path: Path, answer: dict[str, object]) -> None:
    folder = write_run(tmp_path / "run", "radius", [ANSWERS[0], answer])
    assert "input 1 " in refused(folder)


@pytest.mark.parametrize(
    ("lower", "upper"),
    [
        ([0.2], [0.1]),
        (["nan"], [0.1]),
        ([0.0], ["nan"]),
        (["inf"], ["inf"]),
        (["-inf"], ["-inf"]),
        ([0.0, 0.0], [1.0]),
        ([], []),
    ],
)
def test_what_is_no_interval_is_refused(tmp_path: Path, lower: list[object], upper: list[object]) -> None:
    folder = write_run(tmp_path / "run", "certify", [interval_answer([0.0], [1.0]), interval_answer(lower, upper)])  # type: ignore[arg-type]
    assert "input 1 " in refused(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"points": 0},
        {"points": 10**15},
        {"points": True},
        {"stages": []},
        {"command": "train"},
        {"options": 3},
        {"model": 1},
    ],
)
def test_what_describes_no_run_is_refused(run: Path, change: dict[str, object]) -> None:
    lines = (run / "results.jsonl").read_bytes().splitlines(keepends=True)
    head = json.loads(lines[0])
    del head["crc"]
    (run / "results.jsonl").write_bytes(seal(head | change) + b"".join(lines[1:]))
    assert "start it again" in refused(run)
