"""Malformed and malicious model files: one clear line each, soon, and nothing in them runs.

The cases are those of ``make campaign-files``, which tries more of them, flips every bit, and measures.
"""

from __future__ import annotations

import os
import pickle
import tracemalloc
from pathlib import Path

import pytest
from benchmarks.fuzz import files as campaign_files
from benchmarks.fuzz.files import flips_unnoticed, open_file
from support.hostile_files import Case, good_network, malformed, malicious

from bnndp.errors import ModelFileError
from bnndp.files.posterior import load, save


def faults(cases: list[Case], folder: Path, mark: Path, way: str = "load") -> list[str]:
    trials = [open_file(case, folder / f"{way}-{index}", mark, way) for index, case in enumerate(cases)]
    return [f"{trial.name}: {trial.fault}" for trial in trials if trial.fault is not None]


def test_200_malformed_files_are_refused(tmp_path: Path) -> None:
    cases = list(malformed(tmp_path, 200))
    assert len(cases) >= 200
    assert len({case.name for case in cases}) == len(cases)
    assert faults(cases, tmp_path, tmp_path / "mark") == []


def test_malicious_files_are_refused_and_never_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    cases = list(malicious(mark))
    assert len(cases) >= 20
    assert faults(cases, tmp_path, mark) == []
    for index, case in enumerate(cases):
        if case.name.startswith(("pickle, ", "torch file, ", "old torch file")):
            with pytest.raises(ModelFileError, match="bnndp convert"):
                load(tmp_path / f"load-{index}")


def test_bit_flips_are_noticed(tmp_path: Path) -> None:
    missed, tried = flips_unnoticed(tmp_path, step=37)
    assert (missed, tried > 400) == (0, True)


def test_the_trial_notices_a_file_that_is_accepted(tmp_path: Path) -> None:
    good = Case("good", lambda path: save(good_network(), path))
    assert faults([good], tmp_path, tmp_path / "mark") == ["good: was accepted"]


def test_the_trial_notices_code_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(path: Path) -> object:
        pickle.loads(path.read_bytes())
        raise ModelFileError(f"{path}: refused too late")

    monkeypatch.setattr(campaign_files, "load", careless)
    mark = tmp_path / "mark"
    case = next(case for case in malicious(mark) if case.name == "pickle, os.system")
    (found,) = faults([case], tmp_path, mark)
    assert found.startswith("pickle, os.system: ran code")
    assert mark.exists()


def test_the_trial_notices_other_errors_and_unclear_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = Case("empty", lambda path: path.write_bytes(b""))
    for error, words in {
        ValueError("x"): "gave ValueError",
        ModelFileError("x"): "is not named",
        ModelFileError("a\nb"): "has no clear line",
    }.items():

        def fail(_: Path, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(campaign_files, "load", fail)
        (found,) = faults([empty], tmp_path, tmp_path / "mark")
        assert words in found


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelFileError, match="not a regular file"):
        load(tmp_path / "pipe")


def test_a_link_to_a_good_file_is_followed(tmp_path: Path) -> None:
    save(good_network(), tmp_path / "n")
    (tmp_path / "link").symlink_to(tmp_path / "n")
    assert load(tmp_path / "link").digest() == good_network().digest()


def test_a_huge_claim_costs_no_memory(tmp_path: Path) -> None:
    case = next(case for case in malformed(tmp_path) if case.name == "100 GB of holes")
    case.write(tmp_path / "holes")
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError, match="memory"):
            load(tmp_path / "holes")
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("path", ["nul\0byte", "x" * 5000, ""], ids=["nul", "long", "empty"])
def test_impossible_names_are_refused(path: str) -> None:
    with pytest.raises(ModelFileError, match="cannot be read"):
        load(path)
