"""``--run FOLDER``: the same answers after any interruption, in a folder that stands for itself."""

from __future__ import annotations

import hashlib
import json
import resource
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.classifiers import classifier as random_classifier
from tests.cli.conftest import interrupted_at, rows_of, timeless
from tests.marks import slow_but

import bnndp as library
from bnndp.cli import boxes, job, radii
from bnndp.data.demo import CLASSIFIER, network_path
from bnndp.files.posterior import load, save
from bnndp.runs.identity import program

PROGRAM = [sys.executable, "-m", "bnndp"]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few points are many parts."""
    monkeypatch.setattr(boxes, "_BOXES", 3)
    monkeypatch.setattr(boxes, "_ATTACKED", 2)
    monkeypatch.setattr(radii, "_INPUTS", 3)
    monkeypatch.setattr(radii, "_STAGED", 2)


@pytest.fixture
def points(tmp_path: Path) -> Path:
    """Eight points with labels, some of them wrong."""
    path = tmp_path / "points.npz"
    x = torch.randn(8, 2, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    np.savez(path, x=x.numpy(), y=np.arange(8) % 3)
    return path


COMMANDS: dict[str, tuple[object, ...]] = {
    "certify": ("--eps", 0.3, "--effort", "medium"),
    "radius": ("--effort", "medium", "--tolerance", 0.1, "--upper", 4),
    "evaluate": ("--eps", 0.1, 0.2, "--effort", "medium", "--tolerance", 0.1, "--no-attack"),
}


def stop_at(monkeypatch: pytest.MonkeyPatch, call: int, error: type[BaseException]) -> None:
    """Let the n-th part of a command fail."""
    for module, name in ((boxes, "better_bounds"), (radii, "better_evaluations")):
        monkeypatch.setattr(module, name, interrupted_at(call, getattr(module, name), error=error))


@pytest.mark.parametrize("command", COMMANDS)
def test_resumed_after_every_part_it_gives_the_same_rows(
    bnndp: Any, moons: Path, points: Path, tmp_path: Path, command: str
) -> None:
    start = (command, moons, points, *COMMANDS[command])
    assert bnndp(*start, "--out", tmp_path / "want", "--run", tmp_path / "whole").status == 0
    want = timeless(rows_of(tmp_path / "want"))
    run, out = tmp_path / "run", tmp_path / "out.jsonl"
    stops = 0
    for _ in range(20):
        with pytest.MonkeyPatch.context() as patch:
            stop_at(patch, 2, KeyboardInterrupt)  # one part is done, the next is interrupted
            result = bnndp(*start, "--run", run, "--out", out)
        if result.status == 0:
            break
        stops += 1
        assert result.status == 130
        assert result.stderr.count("continues from there") == 1
        assert f"{command} {moons} {points}" in result.stderr
        assert result.stderr.count("\n") == 1 + (stops > 1)  # what it resumed, and what it leaves
        assert (run / "rows.jsonl").exists() == out.exists()
    assert stops >= 3
    before = (run / "results.jsonl").read_bytes()
    result = bnndp(*start, "--run", run, "--out", out)
    assert (result.status, (run / "results.jsonl").read_bytes()) == (0, before)
    assert result.stderr == f"bnndp: {run}: resumed with 8 of 8 answers, 8 of them complete.\n"
    assert timeless(rows_of(out)) == want
    whole = tmp_path / "whole"
    assert timeless(rows_of(run / "rows.jsonl")) == timeless(rows_of(whole / "rows.jsonl"))
    assert sorted(path.name for path in whole.iterdir()) == sorted(path.name for path in run.iterdir())
    if command != "evaluate":
        one, other = (np.load(each / "witnesses.npz") for each in (whole, run))
        assert {name: one[name].tolist() for name in one} == {name: other[name].tolist() for name in other}


def test_without_out_the_answers_are_in_the_folder(bnndp: Any, model: Path, inputs: Path, tmp_path: Path) -> None:
    result = bnndp("certify", model, inputs, "--eps", 0.1, "--run", tmp_path / "run")
    assert (result.status, result.stderr) == (0, "")
    assert "mean width" in " ".join(result.stdout.split())
    lines = [json.loads(line) for line in (tmp_path / "run" / "results.jsonl").read_text().splitlines()]
    assert sorted(line["id"] for line in lines[1:]) == [0, 1, 2]
    assert json.loads((tmp_path / "run" / "run.json").read_text())["command"] == "certify"


def test_the_rows_may_go_into_the_folder(bnndp: Any, classifier: Path, labelled: Path, tmp_path: Path) -> None:
    for start in (("certify", classifier, labelled, "--eps", 0.1), ("radius", classifier, labelled, "--no-attack")):
        run = tmp_path / start[0]
        for _ in range(2):
            assert bnndp(*start, "--run", run, "--out", run / "mine.jsonl").status == 0
            assert len(rows_of(run / "mine.jsonl")) == 4


def test_without_a_place_for_the_answers_the_summary_is_shown(
    bnndp: Any, model: Path, inputs: Path, classifier: Path, labelled: Path
) -> None:
    for start in (("certify", model, inputs, "--eps", 0.1), ("radius", classifier, labelled, "--no-attack")):
        done = bnndp(*start)
        assert done.status == 0
        assert "only the summary is shown" in done.stderr
        assert "seconds" in done.stdout
        assert bnndp(*start, "--quiet").stderr == ""


def test_an_output_does_not_replace_the_journal(
    refused: Any, bnndp: Any, model: Path, inputs: Path, tmp_path: Path
) -> None:
    start = ("certify", model, inputs, "--eps", 0.1, "--run", tmp_path / "run")
    assert bnndp(*start).status == 0
    for name in ("results.jsonl", "run.json", "lock", "inputs.npz", "rows.jsonl", "summary.json"):
        assert "would be overwritten" in refused(*start, "--out", tmp_path / "run" / name)


@pytest.mark.parametrize("command", COMMANDS)
def test_what_changed_is_named(
    refused: Any, bnndp: Any, moons: Path, points: Path, tmp_path: Path, command: str
) -> None:
    options = {"certify": ("--eps", 0.1), "evaluate": ("--eps", 0.1, "--no-attack")}.get(command, ("--no-attack",))
    end = ("--run", tmp_path / "run")
    assert bnndp(command, moons, points, *options, *end).status == 0
    save(random_classifier((2, 8, 3), 7, std=0.1, gain=2.0), tmp_path / "other.safetensors")
    x, y = (np.load(points)[name] for name in "xy")
    np.savez(tmp_path / "moved.npz", x=np.nextafter(x, np.inf), y=y)
    np.savez(tmp_path / "relabelled.npz", x=x, y=(y + 1) % 3)
    assert "something else: model " in refused(command, tmp_path / "other.safetensors", points, *options, *end)
    for name in ("moved", "relabelled"):
        assert "something else: data " in refused(command, moons, tmp_path / f"{name}.npz", *options, *end)
    line = refused(command, moons, points, *options, "--refine", 4, *end)
    assert "something else: options " in line
    assert "refine 1, now 4" in line
    assert "resume it with what it was begun with, or choose another folder" in line
    other = "radius" if command != "radius" else "evaluate"
    more = ("--eps", 0.1) if other == "evaluate" else ()
    assert f"command {command}, now {other}" in refused(other, moons, points, *more, "--no-attack", *end)


def test_another_program_is_refused(
    refused: Any, bnndp: Any, model: Path, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = ("certify", model, inputs, "--eps", 0.1, "--run", tmp_path / "run")
    assert bnndp(*start).status == 0
    known = program()
    monkeypatch.setattr(job, "program", lambda: {**known, "source": "0" * 64})
    assert f"(source {known['source'][:12]}, now 000000000000)" in refused(*start)


def test_a_fault_in_a_later_part_keeps_the_earlier_ones(bnndp: Any, model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "many.npz", x=np.linspace(0, 1, 20).reshape(10, 2))
    start = ("certify", model, tmp_path / "many.npz", "--eps", 0.1, "--run", tmp_path / "run")
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, 3, ZeroDivisionError)
        with pytest.raises(ZeroDivisionError):
            bnndp(*start)
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, 3, ZeroDivisionError)  # which is not reached: two parts are left
        result = bnndp(*start)
    assert result.status == 0
    assert "resumed with 6 of 10 answers" in result.stderr


def test_damage_in_the_middle_is_one_line(refused: Any, bnndp: Any, model: Path, inputs: Path, tmp_path: Path) -> None:
    start = ("certify", model, inputs, "--eps", 0.1, "--run", tmp_path / "run")
    assert bnndp(*start).status == 0
    path = tmp_path / "run" / "results.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"id":1', b'"id":3'))
    assert "line 3 is damaged, but whole lines follow" in refused(*start)


def test_a_full_disk_is_one_line_and_loses_nothing(
    bnndp: Any, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system refuses to let the journal grow; without that it goes on."""
    monkeypatch.undo()  # parts as in the other process
    np.savez(tmp_path / "many.npz", x=np.linspace(0, 1, 2000).reshape(1000, 2))
    start = ["certify", str(model), str(tmp_path / "many.npz"), "--eps", "0.1"]
    run = tmp_path / "run"

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, resource.RLIM_INFINITY))

    arguments = [*PROGRAM, *start, "--run", str(run)]
    result = subprocess.run(arguments, capture_output=True, text=True, preexec_fn=limit, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    assert "results.jsonl: cannot be written: File too large; what was done before is kept" in result.stderr
    kept = (run / "results.jsonl").read_bytes().count(b"\n") - 1
    assert kept in (256, 512, 768)
    again = bnndp(*start, "--run", run, "--out", tmp_path / "out")
    assert (again.status, again.stderr) == (0, f"bnndp: {run}: resumed with {kept} of 1000 answers.\n")
    assert bnndp(*start, "--out", tmp_path / "want").status == 0
    assert timeless(rows_of(tmp_path / "out")) == timeless(rows_of(tmp_path / "want"))


# A part that never ends after the first one, in a process of its own.
STUCK = """
import time
from bnndp.cli import boxes, main
boxes._BOXES = 2
real = boxes.better_bounds
def better_bounds(network, box, options):
    if box.lower[0, 0] > 0.5:
        print("working", flush=True)
        time.sleep(60)
    return real(network, box, options)
boxes.better_bounds = better_bounds
main.run()
"""


@pytest.mark.parametrize("sent", slow_but([signal.SIGTERM, signal.SIGKILL], signal.SIGTERM))
def test_signals_keep_what_was_done_and_free_the_folder(
    bnndp: Any, model: Path, inputs: Path, tmp_path: Path, sent: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    arguments = ["certify", str(model), str(inputs), "--eps", "0.1", "--run", str(run)]
    command = [sys.executable, "-c", STUCK, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "working\n"
        time.sleep(0.1)
        second = bnndp(*arguments)
        assert second.status == 2
        assert f"{run}: is in use by process {process.pid} on " in second.stderr
        process.send_signal(sent)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == {signal.SIGTERM: 143, signal.SIGKILL: -9}[sent]
    if sent != signal.SIGKILL:
        kept = "bnndp: stopped before the end; no output file was written; 2 of 3 answers are kept in "
        assert errors.startswith(kept)
        assert f"`bnndp {' '.join(arguments)}` continues from there" in errors
        assert errors.count("\n") == 1
    monkeypatch.setattr(boxes, "_BOXES", 2)
    result = bnndp(*arguments)
    assert (result.status, result.stderr) == (0, f"bnndp: {run}: resumed with 2 of 3 answers.\n")


QUESTIONS: dict[str, tuple[object, ...]] = {
    "certify": ("--eps", 0.25, "--domain", -1, 1),
    "radius": ("--upper", 0.5, "--norm", 2, "--domain", -1, 1),
    "evaluate": ("--eps", 0.2, 0.1, "--domain", -1, 1, "--seed", 3),
}


def described(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "run.json").read_text())
    return found


@pytest.mark.parametrize("command", QUESTIONS)
def test_the_folder_stands_for_itself(
    bnndp: Any, classifier: Path, labelled: Path, tmp_path: Path, command: str
) -> None:
    """It says what was asked, keeps the inputs, which give the same answers, and the witnesses."""
    run = tmp_path / "runs" / "first"
    run.parent.mkdir()
    words = [str(word) for word in (command, classifier, labelled, *QUESTIONS[command], "--run", run)]
    assert bnndp(*words).status == 0
    found = described(run)
    made = found["made"]
    assert (made["arguments"], made["command_line"]) == (words, shlex.join(["bnndp", *words]))
    for entry, path in ((made["model"], classifier), (made["inputs"], labelled)):
        assert entry["path"] == f"../../{path.name}"
        assert entry["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert found["model"] == load(classifier).digest()
    said = {name: made["model"][name] for name in ("task", "outputs", "input_shape", "source")}
    assert said == {"task": "classification", "outputs": 3, "input_shape": [2], "source": None}
    assert (made["inputs"]["labels"], made["inputs"]["dataset"], made["device"]) == ("given", None, "cpu")
    assert {"begun", "python", "numpy", "platform", "threads"} <= set(made)
    usual: dict[str, Any] = {"norm": "inf", "eps": None, "upper": None, "domain": [-1.0, 1.0], "quantity": "decision"}
    usual |= {"between": None, "attack": command != "certify", "seed": 0}
    own: dict[str, dict[str, Any]] = {"certify": {"eps": 0.25}, "radius": {"norm": "2", "upper": 0.5}}
    own["evaluate"] = {"eps": [0.1, 0.2], "upper": 0.202, "seed": 3}
    assert made["question"] == usual | own[command]
    kept, given = np.load(run / "inputs.npz"), np.load(labelled)
    assert kept["x"].tobytes() == given["x"].tobytes()
    assert kept["y"].tolist() == given["y"].tolist()
    assert kept["input_shape"].tolist() == [2]
    rows = rows_of(run / "rows.jsonl")
    again = (command, classifier, run / "inputs.npz", *QUESTIONS[command], "--run", tmp_path / "again")
    assert bnndp(*again).status == 0
    assert timeless(rows) == timeless(rows_of(tmp_path / "again" / "rows.jsonl"))
    _expect_witnesses(np.load(run / "witnesses.npz"), rows, classifier, given["x"], command)


def _expect_witnesses(found: Any, rows: list[dict[str, Any]], model: Path, x: np.ndarray, command: str) -> None:
    """They break the decision within the region."""
    certify = command == "certify"
    broken = [row["index"] for row in rows if (row["verdict"] == "falsified" if certify else row["attack_radius"])]
    assert len(broken) >= 2
    assert found["index"].tolist() == broken
    assert library.decide(load(model), torch.from_numpy(found["x"])).tolist() == found["rival"].tolist()
    for index, rival, witness in zip(found["index"], found["rival"], found["x"], strict=True):
        assert rival != rows[index]["label"]
        far = 0.25 if certify else rows[index]["attack_radius"]
        assert np.linalg.norm(witness - x[index], 2 if command == "radius" else np.inf) <= far * (1 + 1e-9)
        assert (abs(witness) <= 1).all()


def test_boxes_and_regression(bnndp: Any, model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "b.npz", lower=[[0.0, 0.1]], upper=[[0.5, 0.2]])
    run = tmp_path / "run"
    start = ("certify", model, tmp_path / "b.npz", "--between", "-inf", 1, "--run", run)
    assert bnndp(*start, "--out", tmp_path / "o").status == 0
    assert sorted(np.load(run / "inputs.npz").files) == ["input_shape", "lower", "upper"]
    made = described(run)["made"]
    question = made["question"]
    assert (question["quantity"], question["between"], question["eps"]) == ("between", ["-inf", 1.0], None)
    assert made["inputs"]["labels"] == "none"
    assert rows_of(run / "rows.jsonl") == rows_of(tmp_path / "o")
    assert not (run / "witnesses.npz").exists()


@pytest.mark.parametrize("command", [("radius", "--no-attack"), ("certify", "--eps", 0.01)])
def test_a_data_set_is_named(bnndp: Any, tmp_path: Path, command: tuple[object, ...]) -> None:
    run = tmp_path / "run"
    with network_path(CLASSIFIER) as path:
        assert bnndp(*command, path, "--data", "moons", "--limit", 3, "--run", run).status == 0
    want = {"path": None, "sha256": None, "dataset": "moons", "split": "test", "fold": 0, "limit": 3, "labels": "given"}
    assert described(run)["made"]["inputs"] == want
    found = np.load(run / "inputs.npz")
    assert (found["x"].shape, found["y"].shape) == ((3, 2), (3,))


def test_nothing_is_said_of_a_table_that_nobody_asked_for(
    bnndp: Any, model: Path, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    result = bnndp("certify", model, inputs, "--eps", 0.1, "--run", tmp_path / "run")
    assert (result.status, result.stderr) == (0, "")
    assert (tmp_path / "run" / "results.csv").exists()
    assert not (tmp_path / "run" / "results.parquet").exists()
