"""What all commands say: data on stdout, the rest on stderr, and what the exit status tells."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from tests.cli.conftest import read_strictly, rows_of, terminal, timeless

from bnndp.cli import progress
from bnndp.cli.progress import Pace, show_progress
from bnndp.files.posterior import load
from bnndp.questions import decision, radius

PROGRAM = [sys.executable, "-m", "bnndp"]

COMMANDS: dict[str, tuple[object, ...]] = {
    "certify": ("--eps", 0.05),
    "radius": ("--no-attack",),
    "evaluate": ("--eps", 0.05, 0.3, "--no-attack"),
}


@pytest.mark.parametrize("command", COMMANDS)
class TestJson:
    def test_one_object_in_place_of_the_table(self, bnndp: Any, classifier: Path, labelled: Path, command: str) -> None:
        result = bnndp(command, classifier, labelled, *COMMANDS[command], "--json")
        assert (result.status, result.stderr, result.stdout.count("\n")) == (0, "", 1)
        found = read_strictly(result.stdout)
        assert (found["command"], found["points"], found["complete"], found["interrupted"]) == (command, 4, 4, False)
        assert found["certified_share"] == found["certified"] / 4
        assert found["certificates"] is None

    def test_rows_may_go_to_stdout(
        self, bnndp: Any, classifier: Path, labelled: Path, tmp_path: Path, command: str
    ) -> None:
        start = (command, classifier, labelled, *COMMANDS[command])
        assert bnndp(*start, "--out", tmp_path / "rows").status == 0

        want = timeless(rows_of(tmp_path / "rows"))
        alone = bnndp(*start, "--out", "-")
        assert timeless([read_strictly(line) for line in alone.stdout.splitlines()]) == want
        assert "certified" in alone.stderr  # the table
        silent = bnndp(*start, "--out", "-", "--quiet")
        assert (timeless([read_strictly(line) for line in silent.stdout.splitlines()]), silent.stderr) == (want, "")
        both = bnndp(*start, "--out", "-", "--json")
        *rows, summary = [read_strictly(line) for line in both.stdout.splitlines()]
        assert (timeless(rows), summary["command"], both.stderr) == (want, command, "")


def test_the_figures_are_those_of_the_rows(bnndp: Any, classifier: Path, labelled: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows"
    found = read_strictly(bnndp("radius", classifier, labelled, "--json", "--out", out).stdout)
    right = [row for row in rows_of(out) if row["label"] == row["decision"]]
    assert (found["correct"], found["certified"]) == (3, 3)
    for name, key in (("mean_radius", "radius"), ("mean_attack_radius", "attack_radius"), ("mean_ratio", "ratio")):
        assert found[name] == pytest.approx(sum(row[key] for row in right) / 3, rel=1e-12)
    found = read_strictly(bnndp("certify", classifier, labelled, "--eps", 0.1, "--json", "--out", out).stdout)
    rows = rows_of(out)
    for verdict in ("certified", "falsified", "undecided"):
        assert found[verdict] == sum(row["verdict"] == verdict for row in rows)
    assert found["largest_width"] == max(max(row["width"]) for row in rows)
    assert found["mean_width"] == pytest.approx(sum(sum(row["width"]) for row in rows) / 12, rel=1e-12)
    assert (found["mean_inside"], found["ratio"]) == (None, None)
    found = read_strictly(bnndp("evaluate", classifier, labelled, "--eps", 0.3, 0.05, "--json", "--out", out).stdout)
    assert found["curve"] == rows_of(out)
    assert found["certified_share"] == found["curve"][-1]["certified"] < found["curve"][0]["certified"]


def test_regression_has_nothing_to_decide(bnndp: Any, model: Path, inputs: Path) -> None:
    found = read_strictly(bnndp("certify", model, inputs, "--eps", 0.1, "--json").stdout)
    assert [found[name] for name in ("certified", "certified_share", "falsified", "undecided")] == [None] * 4


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("share", "status"), [(0.0, 0), (0.75, 0), (0.76, 3), (1.0, 3)])
def test_a_share_may_be_required(
    bnndp: Any, classifier: Path, labelled: Path, tmp_path: Path, command: str, share: float, status: int
) -> None:
    """Three of the four are right; all output is there in any case."""
    options = {"certify": ("--eps", 1e-3), "evaluate": ("--eps", 0, 1e-3, "--no-attack")}.get(command, ("--no-attack",))
    end = ("--out", tmp_path / "out", "--run", tmp_path / "run", "--json", "--quiet", "--require-certified", share)
    result = bnndp(command, classifier, labelled, *options, *end)
    assert result.status == status
    assert rows_of(tmp_path / "out")
    assert read_strictly(result.stdout) == read_strictly((tmp_path / "run" / "summary.json").read_text())
    want = f"bnndp: 3 of 4 are certified, a share of 0.75; --require-certified asks for {share:g}.\n"
    assert result.stderr == (want if status else "")


def test_a_share_needs_verdicts_and_is_one(
    refused: Any, model: Path, inputs: Path, classifier: Path, tmp_path: Path
) -> None:
    start = ("certify", model, inputs, "--eps", 0.1, "--out", tmp_path / "o", "--require-certified")
    assert "about verdicts: it needs a classifier, and labels or --label" in refused(*start, 0.5)
    for share in (-0.1, 1.1, "nan"):
        assert "is not a share" in refused(*start, share)


def test_quiet_leaves_only_errors(
    bnndp: Any, refused: Any, classifier: Path, labelled: Path, tmp_path: Path, unsealed: Path
) -> None:
    start = ("radius", unsealed, labelled, "--no-attack", "--run", tmp_path / "run")
    loud = bnndp(*start)
    assert "has no digest" in loud.stderr
    assert "resumed with 4 of 4" in bnndp(*start).stderr
    silent = bnndp(*start, "--quiet")
    assert (silent.status, silent.stderr) == (0, "")
    assert silent.stdout.split() == bnndp(*start).stdout.split()
    assert "'--upper'" in refused(*start, "--quiet", "--upper", -1)


@pytest.fixture
def unsealed(classifier: Path, tmp_path: Path) -> Path:
    """The same network in a file without a digest."""
    from safetensors.torch import save as serialise

    from bnndp.files.container import read_container

    metadata, tensors = read_container(classifier)
    header = json.loads(metadata["bnndp"])
    del header["sha256"]
    path = tmp_path / "unsealed.safetensors"
    path.write_bytes(serialise(tensors, metadata={"bnndp": json.dumps(header)}))
    assert load(path).digest() == load(classifier).digest()
    return path


ATTACKS = ((radius, "attack_radius"), (decision, "evade"))


@pytest.mark.parametrize("start", [("radius",), ("evaluate", "--eps", 0.1), ("certify", "--eps", 0.2)])
def test_the_seed_reaches_the_attack(
    bnndp: Any, classifier: Path, labelled: Path, start: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    spies = {(module, name): Mock(wraps=getattr(module, name)) for module, name in ATTACKS}
    for (module, name), spy in spies.items():
        monkeypatch.setattr(module, name, spy)
    assert bnndp(*start, classifier, labelled, "--seed", 7, "--json").status == 0
    assert {call.kwargs["budget"].seed for spy in spies.values() for call in spy.call_args_list} == {7}


class TestPace:
    def test_what_it_says(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now = [100.0]
        monkeypatch.setattr(time, "perf_counter", lambda: now[0])
        pace = Pace(1000)
        assert str(pace) == "0 of 1000"
        pace.advance(200, 190, known=True)
        assert str(pace) == "200 of 1000, 95 % certified"  # what was known says nothing of the time
        now[0] += 10.0
        pace.advance(56, 40)
        assert str(pace) == "256 of 1000, 89 % certified, 2 min left"
        now[0] += 10.0
        pace.advance(744, 740)
        assert str(pace) == "1000 of 1000, 97 % certified"

    def test_a_line_at_most_every_interval(
        self, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = [0.0]
        monkeypatch.setattr(time, "perf_counter", lambda: now[0])
        monkeypatch.setattr(progress, "_INTERVAL", 5.0)
        with show_progress("certify", 10) as advance:
            for _ in range(10):
                now[0] += 2.0
                advance(1)
        said = [f"certify: {done} of 10, {left} s left" for done, left in ((3, 15), (6, 9), (9, 3))]
        assert capfd.readouterr().err.splitlines() == said
        with show_progress("certify", 2, quiet=True) as advance:
            now[0] += 20.0
            advance(1)
        assert capfd.readouterr().err == ""


def test_a_table_wider_than_the_terminal_stands_upright(
    bnndp: Any, classifier: Path, labelled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("certify", classifier, labelled, "--eps", 0.05, "--out", tmp_path / "rows")
    words = ("mean width", "largest width", "certified", "falsified", "undecided", "seconds")
    for columns, lines in (("120", 5), ("60", 11)):
        monkeypatch.setenv("COLUMNS", columns)
        printed = bnndp(*command).stdout
        assert printed.count("\n") == lines
        assert all(word in printed for word in words)
        assert "…" not in printed


def test_on_a_terminal_there_is_a_bar_with_the_share(classifier: Path, labelled: Path, tmp_path: Path) -> None:
    arguments = ["radius", str(classifier), str(labelled), "--no-attack", "--json"]
    status, out, seen = terminal([*PROGRAM, *arguments])
    assert (status, read_strictly(out.decode())["points"]) == (0, 4)
    assert b"4 of 4, 75 % certified" in seen
    assert b"\x1b[38" in seen or b"\x1b[3" in seen
    _, _, plain = terminal([*PROGRAM, *arguments], NO_COLOR="1")
    assert b"4 of 4, 75 % certified" in plain
    assert b"\x1b[3" not in plain  # no colour


class TestDevice:
    @pytest.mark.parametrize("command", COMMANDS)
    def test_one_that_is_not_there_is_refused(
        self, refused: Any, classifier: Path, labelled: Path, command: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        start = (command, classifier, labelled, *COMMANDS[command], "--json", "--device")
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)
        assert "--device cuda: this machine has no CUDA device" in refused(*start, "cuda")
        monkeypatch.setattr("torch.cuda.is_available", lambda: True)
        monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
        assert "has CUDA devices 0 to 1 only" in refused(*start, "cuda:2")
        for name in ("gpu", "cuda:", "cuda:-1", "CPU", ""):
            assert "is not a device; use cpu, cuda or cuda:N" in refused(*start, name)

    @pytest.mark.parametrize("command", COMMANDS)
    def test_answers_are_the_same_where_there_is_one(
        self, bnndp: Any, classifier: Path, labelled: Path, tmp_path: Path, command: str
    ) -> None:
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")
        start = (command, classifier, labelled, "--effort", "medium", *COMMANDS[command], "--out")
        for name in ("cpu", "cuda"):
            assert bnndp(*start, tmp_path / name, "--device", name).status == 0
        for one, other in zip(rows_of(tmp_path / "cpu"), rows_of(tmp_path / "cuda"), strict=True):
            for key in set(one) - {"seconds"}:
                if isinstance(one[key], float | list):  # a search may branch otherwise where two ways are equally good
                    found, want = (np.array(row[key], float) for row in (other, one))
                    assert found == pytest.approx(want, rel=0.01, nan_ok=True)
                else:
                    assert one[key] == other[key]
