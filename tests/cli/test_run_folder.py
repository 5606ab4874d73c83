"""A run folder stands for itself: with it and the model everything can be shown, checked and asked again."""

from __future__ import annotations

import hashlib
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bnndp as library
from bnndp.cli import boxes, radii
from bnndp.files.posterior import load

COMMANDS: dict[str, tuple[object, ...]] = {
    "certify": ("--eps", 0.25, "--domain", -1, 1),
    "radius": ("--upper", 0.5, "--norm", 2, "--domain", -1, 1),
    "evaluate": ("--eps", 0.2, 0.1, "--domain", -1, 1, "--seed", 3),
}


def described(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "run.json").read_text())
    return found


@pytest.mark.parametrize("command", COMMANDS)
class TestEveryCommand:
    def test_it_says_what_was_asked(
        self, bnndp: Any, classifier: Path, labelled: Path, tmp_path: Path, command: str
    ) -> None:
        run = tmp_path / "runs" / "first"
        run.parent.mkdir()
        words = [str(word) for word in (command, classifier, labelled, *COMMANDS[command], "--run", run)]
        assert bnndp(*words).status == 0
        found = described(run)
        made = found["made"]
        assert (made["arguments"], made["command_line"]) == (words, shlex.join(["bnndp", *words]))
        for entry, path in ((made["model"], classifier), (made["inputs"], labelled)):
            assert entry["path"] == f"../../{path.name}"
            assert entry["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
        assert found["model"] == load(classifier).digest()
        assert (made["model"]["task"], made["model"]["outputs"], made["model"]["input_shape"]) == (
            "classification",
            3,
            [2],
        )
        assert (made["inputs"]["labels"], made["inputs"]["dataset"], made["device"]) == ("given", None, "cpu")
        question = made["question"]
        assert (question["domain"], question["quantity"]) == ([-1.0, 1.0], "decision")
        want = {
            "certify": ("inf", 0.25, None, 0),
            "radius": ("2", None, 0.5, 0),
            "evaluate": ("inf", [0.1, 0.2], 0.202, 3),
        }
        assert (question["norm"], question["eps"], question["upper"], question["seed"]) == want[command]
        assert {"begun", "python", "numpy", "platform", "threads"} <= set(made)

    def test_the_inputs_are_kept_and_give_the_same_answers(
        self, bnndp: Any, classifier: Path, labelled: Path, tmp_path: Path, read_rows: Any, command: str
    ) -> None:
        start = (command, classifier, labelled, *COMMANDS[command])
        assert bnndp(*start, "--run", tmp_path / "run").status == 0
        kept, given = np.load(tmp_path / "run" / "inputs.npz"), np.load(labelled)
        assert kept["x"].tobytes() == given["x"].tobytes()
        assert kept["y"].tolist() == given["y"].tolist()
        assert kept["input_shape"].tolist() == [2]
        again = (command, classifier, tmp_path / "run" / "inputs.npz", *COMMANDS[command], "--run", tmp_path / "again")
        assert bnndp(*again).status == 0
        first, second = (read_rows(tmp_path / name / "rows.jsonl") for name in ("run", "again"))
        assert [row | {"seconds": 0} for row in first] == [row | {"seconds": 0} for row in second]
        assert len(first) == 4

    def test_witnesses_break_the_decision_within_the_region(
        self, bnndp: Any, classifier: Path, labelled: Path, tmp_path: Path, read_rows: Any, command: str
    ) -> None:
        run = tmp_path / "run"
        assert bnndp(command, classifier, labelled, *COMMANDS[command], "--run", run).status == 0
        found, rows, x = np.load(run / "witnesses.npz"), read_rows(run / "rows.jsonl"), np.load(labelled)["x"]
        broken = [
            row["index"] for row in rows
            if (row["verdict"] == "falsified" if command == "certify" else row["attack_radius"])
        ]  # fmt: skip
        assert len(broken) >= 2
        assert found["index"].tolist() == broken
        decided = library.decide(load(classifier), torch.from_numpy(found["x"])).tolist()
        assert decided == found["rival"].tolist()
        for index, rival, witness in zip(found["index"], found["rival"], found["x"], strict=True):
            assert rival != rows[index]["label"]
            far = 0.25 if command == "certify" else rows[index]["attack_radius"]
            assert np.linalg.norm(witness - x[index], 2 if command == "radius" else np.inf) <= far * (1 + 1e-9)
            assert (abs(witness) <= 1).all()

    def test_a_resumed_run_has_the_same_tables(
        self,
        bnndp: Any,
        classifier: Path,
        labelled: Path,
        tmp_path: Path,
        read_rows: Any,
        command: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        for module in (boxes, radii):
            monkeypatch.setattr(module, "_ATTACKED", 2)
        start = (command, classifier, labelled, "--effort", "medium", *COMMANDS[command], "--run")
        assert bnndp(*start, tmp_path / "whole").status == 0
        module, name = (boxes, "better_bounds") if command == "certify" else (radii, "better_evaluations")
        real, calls = getattr(module, name), []

        def stop(*arguments: Any, **options: Any) -> Any:
            calls.append(1)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return real(*arguments, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, name, stop)
            assert bnndp(*start, tmp_path / "parts").status == 130
        assert not (tmp_path / "parts" / "rows.jsonl").exists()
        assert bnndp(*start, tmp_path / "parts").status == 0
        whole, parts = (tmp_path / each for each in ("whole", "parts"))
        first, second = (read_rows(each / "rows.jsonl") for each in (whole, parts))
        assert [row | {"seconds": 0} for row in first] == [row | {"seconds": 0} for row in second]
        one, other = (np.load(each / "witnesses.npz") for each in (whole, parts))
        assert {name: one[name].tolist() for name in one.files} == {name: other[name].tolist() for name in other.files}
        assert sorted(path.name for path in whole.iterdir()) == sorted(path.name for path in parts.iterdir())


def test_boxes_and_regression(bnndp: Any, model: Path, tmp_path: Path, read_rows: Any) -> None:
    np.savez(tmp_path / "b.npz", lower=[[0.0, 0.1]], upper=[[0.5, 0.2]])
    run = tmp_path / "run"
    start = ("certify", model, tmp_path / "b.npz", "--between", "-inf", 1, "--run", run)
    assert bnndp(*start, "--out", tmp_path / "o").status == 0
    found = np.load(run / "inputs.npz")
    assert sorted(found.files) == ["input_shape", "lower", "upper"]
    question = described(run)["made"]["question"]
    assert (question["quantity"], question["between"], question["eps"]) == ("between", ["-inf", 1.0], None)
    assert described(run)["made"]["inputs"]["labels"] == "none"
    assert read_rows(run / "rows.jsonl") == read_rows(tmp_path / "o")
    assert not (run / "witnesses.npz").exists()


def test_a_data_set_is_named(bnndp: Any, tmp_path: Path) -> None:
    from bnndp.data.demo import CLASSIFIER, network_path

    run = tmp_path / "run"
    with network_path(CLASSIFIER) as path:
        assert bnndp("radius", path, "--data", "moons", "--limit", 3, "--no-attack", "--run", run).status == 0
    entry = described(run)["made"]["inputs"]
    want = {"path": None, "sha256": None, "dataset": "moons", "split": "test", "fold": 0, "limit": 3, "labels": "given"}
    assert entry == want
    assert np.load(run / "inputs.npz")["x"].shape == (3, 2)


def test_nothing_is_said_of_a_table_that_nobody_asked_for(
    bnndp: Any, model: Path, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    run = tmp_path / "run"
    start = ("certify", model, inputs, "--eps", 0.1, "--run", run)
    result = bnndp(*start)
    assert (result.status, result.stderr) == (0, "")
    assert (run / "results.csv").exists()
    assert not (run / "results.parquet").exists()


class TestCertificates:
    def test_without_a_folder_they_go_into_that_of_the_run(
        self, bnndp: Any, classifier: Path, labelled: Path, tmp_path: Path
    ) -> None:
        pytest.importorskip("flint", reason="the checker needs python-flint")
        run = tmp_path / "run"
        result = bnndp(
            "radius", classifier, labelled, "--limit", 2, "--no-attack", "--certificates", "--run", run, "--json"
        )
        assert result.status == 0
        want = {"written": 2, "folder": str(run / "certificates")}
        assert json.loads(result.stdout)["certificates"] == want
        assert json.loads((run / "summary.json").read_text())["certificates"] == want
        assert sorted(path.name for path in (run / "certificates").iterdir()) == [
            "000000.json",
            "000001.json",
            "index.jsonl",
        ]
        # A second call with the option at the end, for the same run.
        assert (
            bnndp("radius", classifier, labelled, "--limit", 2, "--no-attack", "--run", run, "--certificates").status
            == 0
        )

    def test_without_a_run_they_need_a_folder(
        self, refused: Any, classifier: Path, labelled: Path, tmp_path: Path
    ) -> None:
        line = refused("radius", classifier, labelled, "--out", tmp_path / "o", "--certificates")
        assert "--certificates without a folder belongs to --run" in line

    def test_an_interruption_there_loses_no_row(
        self, bnndp: Any, classifier: Path, labelled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def stop(*_: Any) -> Any:
            raise KeyboardInterrupt

        monkeypatch.setattr("bnndp.certificates.issue.Office.of_radii", stop)
        start = (
            "radius",
            classifier,
            labelled,
            "--no-attack",
            "--out",
            tmp_path / "o",
            "--certificates",
            tmp_path / "c",
        )
        result = bnndp(*start)
        assert (result.status, result.stderr) == (130, "bnndp: stopped before the end; all rows were written before.\n")
        assert (tmp_path / "o").exists()
