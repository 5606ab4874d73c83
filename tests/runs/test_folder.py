"""The run folder: what it holds, who may resume it, and that it has one process at a time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.runs.jobs import Squares, identity_of, silent

from bnndp.errors import RunStateError
from bnndp.runs.folder import open_run
from bnndp.runs.identity import data_digest, program
from bnndp.runs.work import Schedule, work


def test_the_folder_says_what_the_run_is_of(tmp_path: Path) -> None:
    job = Squares()
    with open_run(tmp_path / "run", identity_of(job)) as journal:
        work(job, journal, silent, Schedule())
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["lock", "results.jsonl", "run.json"]
    described = json.loads((tmp_path / "run" / "run.json").read_text())
    lines = [json.loads(line) for line in (tmp_path / "run" / "results.jsonl").read_text().splitlines()]
    assert {key: value for key, value in lines[0].items() if key != "crc"} == described
    assert described["format"] == "bnndp-run-1"
    assert (described["points"], described["stages"]) == (10, ["low", "medium"])
    assert sorted((line["id"], line["stage"]) for line in lines[1:]) == [(i, s) for i in range(10) for s in (0, 1)]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "c" * 64}, "model aaaaaaaaaaaa, now cccccccccccc"),
        ({"data": "d" * 64}, "data bbbbbbbbbbbb, now dddddddddddd"),
        ({"options": {"refine": 4}}, "(refine 1, now 4)"),
        ({"options": {"refine": 1, "seed": 3}}, "(seed None, now 3)"),
        ({"version": {"bnndp": "2"}}, "(bnndp 1, now 2)"),
    ],
)
def test_a_change_is_refused_and_named(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    job = Squares()
    with open_run(tmp_path / "run", identity_of(job)):
        pass
    before = (tmp_path / "run" / "results.jsonl").read_bytes()
    with pytest.raises(RunStateError) as caught, open_run(tmp_path / "run", identity_of(job, **changes)):
        pass
    message = str(caught.value)
    assert words in message
    (name,) = changes
    assert [
        word for word in ("model", "data", "options", "version") if f"{word} " in message.split("of something")[1]
    ] == [name]
    assert "\n" not in message
    assert (tmp_path / "run" / "results.jsonl").read_bytes() == before


def test_other_points_are_refused(tmp_path: Path) -> None:
    with open_run(tmp_path / "run", identity_of(Squares())):
        pass
    with pytest.raises(RunStateError, match="points 10, now 11"), open_run(tmp_path / "run", identity_of(Squares(11))):
        pass


HOLDER = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from runs.jobs import Squares, identity_of
from bnndp.runs.folder import open_run
with open_run(Path(sys.argv[1]), identity_of(Squares())) as journal:
    print("holding", flush=True)
    time.sleep(60)
"""


def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", HOLDER, str(tmp_path / "run"), str(Path(__file__).parents[1])]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "holding\n"
        before = (tmp_path / "run" / "results.jsonl").read_bytes()
        with pytest.raises(RunStateError, match=rf"in use by process {process.pid} on "):
            open_run(tmp_path / "run", identity_of(Squares())).__enter__()
        assert (tmp_path / "run" / "results.jsonl").read_bytes() == before
        process.send_signal(signal.SIGKILL)
        process.wait()
    with open_run(tmp_path / "run", identity_of(Squares())) as journal:  # no stale lock
        assert journal.count(0) == 0


def test_the_same_process_is_refused_too(tmp_path: Path) -> None:
    words = f"in use by process {os.getpid()} on "
    with open_run(tmp_path / "run", identity_of(Squares())), pytest.raises(RunStateError, match=words):
        open_run(tmp_path / "run", identity_of(Squares())).__enter__()


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("text")
    (tmp_path / "file").write_text("text")
    places = {"thesis": "'chapter.tex', but no run", "file": "is a file, not a folder", "no/run": "does not exist"}
    for name, words in places.items():
        with pytest.raises(RunStateError, match=words):
            open_run(tmp_path / name, identity_of(Squares())).__enter__()
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["chapter.tex"]
    assert not (tmp_path / "no").exists()


def test_what_a_killed_beginning_leaves_is_taken_over(tmp_path: Path) -> None:
    """The journal comes last: whatever is there without it is of a process that was killed before."""
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("lock", "run.json", ".run.json.00ff", ".results.jsonl.00ff"):
        (folder / name).write_text("{")
    with open_run(folder, identity_of(Squares())) as journal:
        assert journal.count(0) == 0
    assert sorted(path.name for path in folder.iterdir()) == ["lock", "results.jsonl", "run.json"]
    assert json.loads((folder / "run.json").read_text())["command"] == "squares"


def test_files_beside_the_journal_do_not_hinder_a_resumption(tmp_path: Path) -> None:
    with open_run(tmp_path / "run", identity_of(Squares())):
        pass
    (tmp_path / "run" / "report.html").write_text("<html>")
    with open_run(tmp_path / "run", identity_of(Squares())) as journal:
        assert journal.count(0) == 0


@pytest.mark.parametrize("first", [b"", b"{}\n", b'{"format":"bnndp-run-1"'])
def test_a_damaged_first_line_is_refused(tmp_path: Path, first: bytes) -> None:
    with open_run(tmp_path / "run", identity_of(Squares())):
        pass
    (tmp_path / "run" / "results.jsonl").write_bytes(first)
    with pytest.raises(RunStateError, match="its first line is damaged"):
        open_run(tmp_path / "run", identity_of(Squares())).__enter__()
    assert (tmp_path / "run" / "results.jsonl").read_bytes() == first


def test_a_journal_of_another_format_is_refused(tmp_path: Path) -> None:
    from bnndp.runs.sealed_lines import seal

    (tmp_path / "results.jsonl").write_bytes(seal({"format": "bnndp-run-9"}))
    with pytest.raises(RunStateError, match="'bnndp-run-9', this version reads 'bnndp-run-1'"):
        open_run(tmp_path, identity_of(Squares())).__enter__()


def test_a_full_disk_at_the_beginning_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RunStateError, match="No space left on device; choose another folder"):
        open_run(tmp_path / "run", identity_of(Squares())).__enter__()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["lock"]


def test_digests_know_every_bit_shape_and_absence() -> None:
    x = torch.tensor([[0.1, 0.2]], dtype=torch.float64)
    y = x.clone()
    y[0, 1] = torch.nextafter(y[0, 1], torch.tensor(1.0, dtype=torch.float64))
    given = ({"x": x}, {"x": y}, {"x": x.mT}, {"x": x.float()}, {"x": x, "label": None}, {"z": x})
    assert len({data_digest(**arrays) for arrays in given}) == len(given)
    assert data_digest(x=x) == data_digest(x=x.clone())


def test_the_program_is_known_by_its_source() -> None:
    found = program()
    assert sorted(found) == ["bnndp", "source", "torch"]
    assert len(found["source"]) == 64
