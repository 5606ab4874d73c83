"""``--effort``, ``--time-limit`` and Ctrl-C: what is written, what wins, and what is left where the time is over."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from tests.cli.conftest import interrupted_at, rows_of, timeless
from typer.testing import CliRunner

import bnndp as library
from bnndp.cli import boxes, radii
from bnndp.cli.main import app
from bnndp.files.posterior import load
from bnndp.options import LEVELS
from bnndp.questions.certify import better_bounds
from bnndp.questions.evaluate import better_evaluations

COMMANDS: dict[str, tuple[object, ...]] = {
    "certify": ("--eps", 0.5),
    "radius": ("--no-attack",),
    "evaluate": ("--eps", 0.1, "--no-attack"),
}


@pytest.fixture
def points(tmp_path: Path, moons: Path) -> Path:
    """Six points with the decisions of the network there."""
    path = tmp_path / "points.npz"
    x = torch.randn(6, 2, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    np.savez(path, x=x.numpy(), y=library.decide(load(moons), x).numpy())
    return path


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_the_levels_and_the_limit(command: str) -> None:
    text = " ".join(CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).stdout.split())
    for word in ("--effort", "low|medium|high", "--time-limit", "--refine", "--branch", "default: low"):
        assert word in text


class TestLevels:
    def test_bounds_are_recorded_and_no_worse(self, answers: Any, model: Path, inputs: Path) -> None:
        found = {level: answers("certify", model, inputs, "--eps", 0.2, "--effort", level) for level in LEVELS}
        for level, rows in found.items():
            assert {row["effort"] for row in rows} == {level}
        for low, medium, high in zip(*found.values(), strict=True):
            assert low["lower"] <= medium["lower"] <= high["lower"]
            assert low["upper"] >= medium["upper"] >= high["upper"]
            assert high["width"] < low["width"]
        x = torch.from_numpy(np.load(inputs)["x"])
        want = library.certify(load(model), library.Box.ball(x, 0.2), library.Options(effort="high"))
        assert [row["lower"] for row in found["high"]] == pytest.approx(want.lower[:, 0].tolist(), rel=1e-9, abs=1e-12)

    def test_verdicts_get_better(self, answers: Any, moons: Path, points: Path) -> None:
        found = {level: answers("certify", moons, points, "--eps", 0.5, "--effort", level) for level in LEVELS}
        verdicts = [[row["verdict"] for row in rows] for rows in found.values()]
        assert verdicts[0].count("certified") < verdicts[2].count("certified")
        for low, high in zip(found["low"], found["high"], strict=True):
            assert high["verdict"] == low["verdict"] or low["verdict"] == "undecided"
            assert high["lead"] >= low["lead"]
            assert (high["lead"] > 0) == (high["verdict"] == "certified")
            assert all(a <= b for a, b in zip(low["lower"], high["lower"], strict=True))

    def test_radii_are_recorded_and_no_worse(self, answers: Any, moons: Path, points: Path) -> None:
        command = ("radius", moons, points, "--limit", 3, "--tolerance", 0.05, "--effort")
        found = {level: answers(*command, level) for level in LEVELS}
        for level, rows in found.items():
            assert {row["effort"] for row in rows} == {level}
        for low, medium, high in zip(*found.values(), strict=True):
            assert low["radius"] <= medium["radius"] <= high["radius"] <= (high["attack_radius"] or 1.0)
        x, y = (torch.from_numpy(np.load(points)[name][:3]) for name in "xy")
        search, options = library.Search(tolerance=0.05), library.Options(effort="high")
        want = library.certified_radius(load(moons), x, y, search=search, options=options)
        assert [row["radius"] for row in found["high"]] == pytest.approx(want.radius.tolist(), rel=1e-9)

    def test_accuracies_are_recorded_and_no_worse(self, answers: Any, moons: Path, points: Path) -> None:
        command = ("evaluate", moons, points, "--eps", 0.2, 0.4, 0.495, 0.8, "--limit", 4, "--tolerance", 0.05)
        certified = []
        for level in LEVELS:
            rows = answers(*command, "--effort", level)
            assert {row["effort"] for row in rows} == {level}
            assert all(row["certified"] <= row["attacked"] for row in rows)
            certified.append([row["certified"] for row in rows])
        assert all(low <= medium <= high for low, medium, high in zip(*certified, strict=True))
        assert certified[0] != certified[2]

    def test_what_is_given_wins(self, answers: Any, model: Path, inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        spy = Mock(wraps=better_bounds)
        monkeypatch.setattr(boxes, "better_bounds", spy)
        start = ("certify", model, inputs, "--eps", 0.1, "--effort", "high")
        answers(*start, "--refine", 1)
        answers(*start, "--refine", 3, "--optimise", 2)
        asked = [call.args[2] for call in spy.call_args_list]
        assert [(options.refine, options.optimise) for options in asked] == [(1, 0), (1, 0), (3, 2)]


class TestInterruption:
    def test_of_bounds_writes_what_was_reached(
        self, bnndp: Any, model: Path, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        out = tmp_path / "o.jsonl"
        monkeypatch.setattr(boxes, "_BOXES", 1)
        # Three boxes at medium effort, then one at high.
        spy = interrupted_at(5, better_bounds, lambda network, box, options: options.refine > 1)
        monkeypatch.setattr(boxes, "better_bounds", spy)
        result = bnndp("certify", model, inputs, "--eps", 0.1, "--effort", "high", "--out", out)
        assert result.status == 130
        said = f"bnndp: interrupted; {out} has the bounds found so far, all of which hold.\n"
        assert result.stderr == said
        assert [row["effort"] for row in rows_of(out)] == ["high", "medium", "medium"]
        assert "mean width" in " ".join(result.stdout.split())

    def test_before_all_have_an_answer_nothing_is_written(
        self, bnndp: Any, model: Path, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(boxes, "_BOXES", 1)
        monkeypatch.setattr(boxes, "better_bounds", interrupted_at(3, better_bounds))
        result = bnndp("certify", model, inputs, "--eps", 0.1, "--effort", "high", "--out", tmp_path / "o.jsonl")
        assert (result.status, result.stdout) == (130, "")
        assert "no output file was written" in result.stderr
        assert not (tmp_path / "o.jsonl").exists()

    @pytest.mark.parametrize("command", ["radius", "evaluate"])
    def test_of_radii_writes_what_was_reached(
        self, bnndp: Any, moons: Path, points: Path, tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        out = tmp_path / "o.jsonl"
        monkeypatch.setattr(radii, "_STAGED", 4)
        later = interrupted_at(2, better_evaluations, lambda *_, **given: given["known"] is not None)
        monkeypatch.setattr(radii, "better_evaluations", later)
        result = bnndp(command, moons, points, *COMMANDS[command], "--effort", "medium", "--out", out)
        assert result.status == 130
        assert result.stderr == f"bnndp: interrupted; {out} has the results so far, all of them proved.\n"
        levels = [row["effort"] for row in rows_of(out)]
        assert levels == (["medium"] * 4 + ["low"] * 2 if command == "radius" else ["low"])


class TestTimeLimit:
    """It holds for the whole command, the first pass included."""

    @pytest.mark.parametrize("command", COMMANDS)
    def test_where_nothing_is_reached_there_are_rows_without_results(
        self, bnndp: Any, moons: Path, points: Path, tmp_path: Path, command: str
    ) -> None:
        out, run = tmp_path / "o.jsonl", tmp_path / "run"
        start = (command, moons, points, *COMMANDS[command])
        result = bnndp(*start, "--time-limit", 1e-9, "--out", out, "--run", run, "--json")
        assert result.status == 130
        said = f"bnndp: the time is over; 6 of 6 inputs were not reached; {out} has "
        assert result.stderr.startswith(said)
        assert f"`bnndp {command} " in result.stderr
        assert result.stderr.count("\n") == 1
        summary = json.loads(result.stdout)
        assert (summary["points"], summary["complete"], summary["interrupted"]) == (6, 0, True)
        assert (summary["certified"], summary["certified_share"]) == (0, 0.0)
        rows = rows_of(run / "rows.jsonl")
        assert [row["index"] for row in rows] == list(range(6))
        nothing = {"certify": ("lower", "upper", "width", "method", "lead")}.get(command, ("decision", "radius"))
        for row in rows:
            assert all(row[name] in (None, [None] * 3) for name in (*nothing, "effort"))
            assert row.get("verdict", "undecided") == "undecided"
        assert len(rows_of(out)) == (1 if command == "evaluate" else 6)
        again = bnndp(*start, "--out", out, "--run", run)  # with time
        assert (again.status, again.stderr) == (0, "")
        assert bnndp(*start, "--out", tmp_path / "want").status == 0
        assert timeless(rows_of(out)) == timeless(rows_of(tmp_path / "want"))

    @pytest.fixture
    def slow(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Every part takes a thousand seconds; with a time limit, and in later stages, each has one input."""
        spent, real = [0.0], time.monotonic
        monkeypatch.setattr(time, "monotonic", lambda: real() + spent[0])
        monkeypatch.setattr(boxes, "_CELLS", 8)
        monkeypatch.setattr(radii, "_STAGED", 1)
        for module, name in ((boxes, "better_bounds"), (radii, "better_evaluations")):
            question = getattr(module, name)

            def spy(*given: Any, _question: Any = question, **options: Any) -> Any:
                spent[0] += 1000.0
                return _question(*given, **options)

            monkeypatch.setattr(module, name, spy)

    @pytest.mark.usefixtures("slow")
    @pytest.mark.parametrize("command", COMMANDS)
    @pytest.mark.parametrize("reached", [0, 1, 2])
    def test_where_some_are_reached_the_others_have_no_result(
        self, bnndp: Any, moons: Path, points: Path, tmp_path: Path, command: str, reached: int, monkeypatch: Any
    ) -> None:
        """One input at a time, as each takes long; that under way has what it found, maybe less than one pass gives."""
        start = (command, moons, points, *COMMANDS[command], "--run")
        assert bnndp(*start, tmp_path / "want").status == 0
        for module, name in ((boxes, "_ATTACKED"), (radii, "_INPUTS")):
            monkeypatch.setattr(module, name, 2)
        result = bnndp(*start, tmp_path / "run", "--time-limit", 500 + 1000 * reached)
        assert result.status == 130
        assert f"the time is over; {6 - reached} of 6 inputs were not reached" in result.stderr
        rows, want = (rows_of(tmp_path / name / "rows.jsonl") for name in ("run", "want"))
        assert [row["effort"] for row in rows] == ["low"] * reached + [None] * (6 - reached)
        key, under_way = "upper" if command == "certify" else "radius", reached + 1
        assert [row[key] for row in rows[:under_way]] == [pytest.approx(row[key]) for row in want[:under_way]]
        assert all(row[key] in (None, [None] * 3) for row in rows[under_way:])

    @pytest.mark.usefixtures("slow")
    @pytest.mark.parametrize("command", COMMANDS)
    def test_after_the_first_pass_what_was_reached_is_the_answer(
        self, bnndp: Any, moons: Path, points: Path, tmp_path: Path, command: str
    ) -> None:
        start = (command, moons, points, *COMMANDS[command], "--effort", "medium", "--run", tmp_path / "run")
        result = bnndp(*start, "--time-limit", 8500)
        assert result.status == 0, result
        assert "the time is over; 4 of 6 answers are not complete; `bnndp " in result.stderr
        levels = [row["effort"] for row in rows_of(tmp_path / "run" / "rows.jsonl")]
        assert levels == ["medium"] * 2 + ["low"] * 4
        assert bnndp(*start, "--time-limit", 4500).status == 0  # the next call goes on
        assert {row["effort"] for row in rows_of(tmp_path / "run" / "rows.jsonl")} == {"medium"}

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            (("--effort", "huge"), "Invalid value for '--effort'"),
            (("--time-limit", 0), "0.0 is not a finite number above zero"),
            (("--time-limit", -1), "not a finite number above zero"),
            (("--time-limit", "nan"), "not a finite number above zero"),
            (("--time-limit", "inf"), "not a finite number above zero"),
        ],
    )
    @pytest.mark.parametrize("command", COMMANDS)
    def test_refusals(
        self, refused: Any, classifier: Path, labelled: Path, command: str, options: tuple[object, ...], words: str
    ) -> None:
        assert words in refused(command, classifier, labelled, *COMMANDS[command], *options)
