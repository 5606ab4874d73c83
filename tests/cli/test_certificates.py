"""``--certificates`` and ``bnndp-check``: from a command to files that another program accepts."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from tests.cli.conftest import rows_of

from bnndp.certificates.issue import Office
from bnndp.data.demo import CLASSIFIER, NAME, network_path

pytest.importorskip("flint", reason="the checker needs python-flint")


@pytest.fixture
def demo(tmp_path: Path) -> dict[str, Path]:
    """The networks that come with the package, as files."""
    for name in (NAME, CLASSIFIER):
        with network_path(name) as path:
            (tmp_path / name).write_bytes(path.read_bytes())
    return {name: tmp_path / name for name in (NAME, CLASSIFIER)}


def checked(certificate: Path, model: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bnndp_checker", str(certificate), str(model)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_radii_that_the_checker_accepts(bnndp: Any, tmp_path: Path, demo: dict[str, Path]) -> None:
    inputs, folder = tmp_path / "inputs.npz", tmp_path / "certificates"
    np.savez(inputs, x=np.array([[0.0, 1.0], [1.0, -0.5]]))
    end = ("--no-attack", "--out", tmp_path / "r.jsonl", "--certificates", folder)
    result = bnndp("radius", demo[CLASSIFIER], inputs, *end)
    assert result.status == 0
    assert "certificates: 2 of 2" in result.stdout
    rows = rows_of(folder / "index.jsonl")
    for row, known in zip(rows, rows_of(tmp_path / "r.jsonl"), strict=True):
        assert 0 < row["radius"] <= known["radius"]
        found = checked(folder / row["certificate"], demo[CLASSIFIER])
        assert (found.returncode, found.stdout) == (0, "accepted\n")
    other = checked(folder / rows[0]["certificate"], demo[NAME])
    assert other.returncode == 1
    assert other.stdout.startswith("rejected: the certificate is about another model")


def test_intervals_that_the_checker_accepts(bnndp: Any, tmp_path: Path, demo: dict[str, Path]) -> None:
    np.savez(tmp_path / "x.npz", x=np.array([[0.1], [0.7]]))
    out, folder = tmp_path / "b.jsonl", tmp_path / "c"
    end = ("--eps", 0.02, "--out", out, "--certificates", folder, "--effort", "medium")
    result = bnndp("certify", demo[NAME], tmp_path / "x.npz", *end)
    assert result.status == 0
    assert "certificates: 2 of 2" in result.stdout
    certificate = json.loads((folder / "000001.json").read_text())
    assert certificate["claim"]["of"] == "mean"
    assert certificate["proof"]["kind"] == "split"
    assert checked(folder / "000001.json", demo[NAME]).returncode == 0
    bounds = rows_of(out)[1]
    low, high = (float.fromhex(text) for text in certificate["claim"]["at_least"])
    assert low <= bounds["upper"]
    assert -high >= bounds["lower"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--norm", "2"), "certificates are about boxes"),
        (("--quantity", "variance"), "certificates are about means and decisions"),
    ],
)
def test_what_has_no_certificate_is_refused(
    refused: Any, model: Path, inputs: Path, tmp_path: Path, words: tuple[str, ...], reason: str
) -> None:
    assert reason in refused("certify", model, inputs, "--eps", 0.1, "--certificates", tmp_path / "c", *words)
    assert not (tmp_path / "c").exists()


def test_without_a_folder_they_go_into_that_of_the_run(
    bnndp: Any, refused: Any, classifier: Path, labelled: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    start = ("radius", classifier, labelled, "--limit", 2, "--no-attack", "--certificates")
    assert "--certificates without a folder belongs to --run" in refused(*start)
    result = bnndp(*start, "--run", run, "--json")
    assert result.status == 0
    want = {"written": 2, "folder": str(run / "certificates")}
    assert json.loads(result.stdout)["certificates"] == want
    assert json.loads((run / "summary.json").read_text())["certificates"] == want
    names = sorted(path.name for path in (run / "certificates").iterdir())
    assert names == ["000000.json", "000001.json", "index.jsonl"]
    assert bnndp(*start[:-1], "--run", run, "--certificates").status == 0  # at the end, for the same run


def test_an_interruption_there_loses_no_row(
    bnndp: Any, classifier: Path, labelled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bnndp.certificates.issue.Office.of_radii", Mock(side_effect=KeyboardInterrupt))
    end = ("--no-attack", "--out", tmp_path / "o", "--certificates", tmp_path / "c")
    result = bnndp("radius", classifier, labelled, *end)
    assert (result.status, result.stderr) == (130, "bnndp: stopped before the end; all rows were written before.\n")
    assert (tmp_path / "o").exists()


def test_there_are_as_many_as_there_is_time_for(
    bnndp: Any, classifier: Path, labelled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent, real, issue = [0.0], time.monotonic, Office._issue

    def slow(*given: Any, **named: Any) -> Any:
        spent[0] += 1000.0
        return issue(*given, **named)

    monkeypatch.setattr(time, "monotonic", lambda: real() + spent[0])
    monkeypatch.setattr(Office, "_issue", slow)
    end = ("--no-attack", "--json", "--certificates", tmp_path / "c", "--time-limit", 1500)
    result = bnndp("radius", classifier, labelled, *end)
    assert (result.status, json.loads(result.stdout)["certificates"]["written"]) == (0, 2)
    rows = rows_of(tmp_path / "c" / "index.jsonl")
    assert [row["index"] for row in rows] == [0, 1, 2, 3]
    assert [row["reason"] for row in rows] == [None, None, "the time is over", "the time is over"]
