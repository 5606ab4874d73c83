"""``--run FOLDER``: the same answers after any interruption, and one line where it cannot go on."""

from __future__ import annotations

import json
import resource
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

from bnndp.cli import boxes, radii
from bnndp.files.posterior import save

PROGRAM = [sys.executable, "-c", "from bnndp.cli.main import run; run()"]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few points are many parts."""
    monkeypatch.setattr(boxes, "_BOXES", 3)
    monkeypatch.setattr(boxes, "_ATTACKED", 2)
    monkeypatch.setattr(radii, "_INPUTS", 3)
    monkeypatch.setattr(radii, "_ATTACKED", 3)
    monkeypatch.setattr(radii, "_STAGED", 2)


@pytest.fixture
def moons(tmp_path: Path) -> Path:
    """A small random classifier of two inputs."""
    path = tmp_path / "moons.safetensors"
    save(random_classifier((2, 8, 3), 6, std=0.1, gain=2.0), path)
    return path


@pytest.fixture
def points(tmp_path: Path) -> Path:
    """Eight points with labels, some of them wrong."""
    path = tmp_path / "points.npz"
    x = torch.randn(8, 2, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    np.savez(path, x=x.numpy(), y=np.arange(8) % 3)
    return path


COMMANDS: dict[str, tuple[object, ...]] = {
    "certify": ("--eps", 0.3, "--effort", "medium"),
    "radius": ("--effort", "medium", "--tolerance", 0.1),
    "evaluate": ("--eps", 0.1, 0.2, "--effort", "medium", "--tolerance", 0.1, "--no-attack"),
}


def timeless(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def stop_at(monkeypatch: pytest.MonkeyPatch, call: int, error: type[BaseException]) -> list[int]:
    """Let the so many-th part of a command fail; gives the count of the calls."""
    seen: list[int] = []
    for module, name in ((boxes, "better_bounds"), (radii, "better_evaluations")):
        real = getattr(module, name)

        def spy(*arguments: Any, _real: Any = real, **options: Any) -> Any:
            seen.append(1)
            if len(seen) == call:
                raise error
            return _real(*arguments, **options)

        monkeypatch.setattr(module, name, spy)
    return seen


@pytest.mark.parametrize("command", COMMANDS)
def test_resumed_after_every_part_it_gives_the_same_rows(
    bnndp: Any, moons: Path, points: Path, tmp_path: Path, read_rows: Any, command: str
) -> None:
    start = (command, moons, points, *COMMANDS[command])
    assert bnndp(*start, "--out", tmp_path / "want.jsonl").status == 0
    want = timeless(read_rows(tmp_path / "want.jsonl"))
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
        assert result.stderr.count("goes on from there") == 1
        assert f"{command} {moons} {points}" in result.stderr
        assert result.stderr.count("\n") == 1 + (stops > 1)  # what it resumed, and what it leaves
    assert stops >= 3
    assert timeless(read_rows(out)) == want
    before = (run / "results.jsonl").read_bytes()
    result = bnndp(*start, "--run", run, "--out", out)
    assert (result.status, (run / "results.jsonl").read_bytes()) == (0, before)
    assert result.stderr == f"bnndp: {run}: resumed with 8 of 8 answers, 8 of them complete.\n"
    assert timeless(read_rows(out)) == want


def test_without_out_the_answers_are_in_the_folder(bnndp: Any, model: Path, inputs: Path, tmp_path: Path) -> None:
    result = bnndp("certify", model, inputs, "--eps", 0.1, "--run", tmp_path / "run")
    assert (result.status, result.stderr) == (0, "")
    assert "mean width" in " ".join(result.stdout.split())
    lines = [json.loads(line) for line in (tmp_path / "run" / "results.jsonl").read_text().splitlines()]
    assert sorted(line["id"] for line in lines[1:]) == [0, 1, 2]
    assert json.loads((tmp_path / "run" / "run.json").read_text())["command"] == "certify"


def test_the_rows_may_go_into_the_folder(
    bnndp: Any, classifier: Path, labelled: Path, tmp_path: Path, read_rows: Any
) -> None:
    for start in (("certify", classifier, labelled, "--eps", 0.1), ("radius", classifier, labelled, "--no-attack")):
        run = tmp_path / start[0]
        for _ in range(2):
            assert bnndp(*start, "--run", run, "--out", run / "mine.jsonl").status == 0
            assert len(read_rows(run / "mine.jsonl")) == 4


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
    options = {"certify": ("--eps", 0.1), "radius": ("--no-attack",), "evaluate": ("--eps", 0.1, "--no-attack")}[
        command
    ]
    end = ("--run", tmp_path / "run")
    assert bnndp(command, moons, points, *options, *end).status == 0
    save(random_classifier((2, 8, 3), 7, std=0.1, gain=2.0), tmp_path / "other.safetensors")
    x = np.load(points)["x"]
    np.savez(tmp_path / "moved.npz", x=np.nextafter(x, np.inf), y=np.load(points)["y"])
    np.savez(tmp_path / "relabelled.npz", x=x, y=(np.load(points)["y"] + 1) % 3)
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
    from bnndp.cli import kept

    start = ("certify", model, inputs, "--eps", 0.1, "--run", tmp_path / "run")
    assert bnndp(*start).status == 0
    known = kept.program()
    monkeypatch.setattr(kept, "program", lambda: {**known, "source": "0" * 64})
    line = refused(*start)
    assert f"(source {known['source'][:12]}, now 000000000000)" in line


def test_how_long_it_may_take_is_no_change(
    bnndp: Any, moons: Path, points: Path, tmp_path: Path, read_rows: Any
) -> None:
    start = ("radius", moons, points, "--no-attack", "--effort", "medium")
    assert bnndp(*start, "--out", tmp_path / "want.jsonl").status == 0
    end = ("--run", tmp_path / "run", "--out", tmp_path / "out.jsonl")
    result = bnndp(*start, *end, "--time-limit", 1e-9)
    assert result.status == 0
    assert "the time is over; 8 of 8 answers are not complete; `bnndp radius" in result.stderr
    assert {row["effort"] for row in read_rows(tmp_path / "out.jsonl")} == {"low"}
    assert bnndp(*start, *end).status == 0
    assert timeless(read_rows(tmp_path / "out.jsonl")) == timeless(read_rows(tmp_path / "want.jsonl"))


def test_a_fault_in_a_later_part_keeps_the_earlier_ones(
    bnndp: Any, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(tmp_path / "many.npz", x=np.linspace(0, 1, 20).reshape(10, 2))
    start = ("certify", model, tmp_path / "many.npz", "--eps", 0.1, "--run", tmp_path / "run")
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, 3, ZeroDivisionError)
        with pytest.raises(ZeroDivisionError):
            bnndp(*start)
    seen = stop_at(monkeypatch, 0, ZeroDivisionError)
    result = bnndp(*start)
    assert (result.status, len(seen)) == (0, 2)
    assert "resumed with 6 of 10 answers" in result.stderr


def test_damage_in_the_middle_is_one_line(refused: Any, bnndp: Any, model: Path, inputs: Path, tmp_path: Path) -> None:
    start = ("certify", model, inputs, "--eps", 0.1, "--run", tmp_path / "run")
    assert bnndp(*start).status == 0
    path = tmp_path / "run" / "results.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"id":1', b'"id":3'))
    assert "line 3 is damaged, but whole lines follow" in refused(*start)


def test_a_full_disk_is_one_line_and_loses_nothing(
    bnndp: Any, model: Path, tmp_path: Path, read_rows: Any, monkeypatch: pytest.MonkeyPatch
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
    assert timeless(read_rows(tmp_path / "out")) == timeless(read_rows(tmp_path / "want"))


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


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_signals_keep_what_was_done_and_free_the_folder(
    bnndp: Any, model: Path, inputs: Path, tmp_path: Path, sent: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    arguments = ["certify", str(model), str(inputs), "--eps", "0.1", "--run", str(run)]
    with subprocess.Popen(
        [sys.executable, "-c", STUCK, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "working\n"
        time.sleep(0.1)
        second = bnndp(*arguments)
        assert second.status == 2
        assert f"{run}: is in use by process {process.pid} on " in second.stderr
        process.send_signal(sent)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == {signal.SIGTERM: 143, signal.SIGKILL: -9}[sent]
    if sent != signal.SIGKILL:
        assert errors.startswith(
            "bnndp: stopped before the end; no output file was written; 2 of 3 answers are kept in "
        )
        assert f"`bnndp {' '.join(arguments)}` goes on from there" in errors
        assert errors.count("\n") == 1
    monkeypatch.setattr(boxes, "_BOXES", 2)
    result = bnndp(*arguments)
    assert (result.status, result.stderr) == (0, f"bnndp: {run}: resumed with 2 of 3 answers.\n")
