"""Good runs of ``bnndp evaluate``: table, file and picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.cli.conftest import rows_of

import bnndp as library
from bnndp.files.posterior import load
from bnndp.layers import Linear

KEYS = ["eps", "points", "accuracy", "certified", "attacked", "effort"]


def _cells(stdout: str) -> list[list[str]]:
    """The cells of the lines of the table."""
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in stdout.splitlines() if line.startswith("│")]


def test_table_and_file_are_those_of_the_library(bnndp: Any, classifier: Path, labelled: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    arguments = ("--eps", 0.3, 0.05, 0.1, "--domain", 0, 1, "--out", out)
    result = bnndp("evaluate", classifier, labelled, *arguments)
    assert (result.status, result.stderr) == (0, "")
    arrays = np.load(labelled)
    x, y = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"].astype(int))
    curve = library.evaluate(load(classifier), x, y, (0.0, 1.0)).curve([0.05, 0.1, 0.3])
    rows = rows_of(out)
    assert [list(row) for row in rows] == [KEYS] * 3
    assert [row["eps"] for row in rows] == [0.05, 0.1, 0.3]
    assert {(row["points"], row["accuracy"]) for row in rows} == {(4, 0.75)}
    assert [row["certified"] for row in rows] == [count / 4 for count in curve.certified]
    assert curve.attacked is not None
    assert [row["attacked"] for row in rows] == [count / 4 for count in curve.attacked]
    assert curve.certified[0] > curve.certified[2]
    assert "4 inputs, accuracy 75.0 %" in result.stdout
    assert [line[0] for line in _cells(result.stdout)] == ["0.05", "0.1", "0.3"]
    assert _cells(result.stdout)[0][1] == f"{25 * curve.certified[0]:.1f} %"


def test_radii_may_be_given_in_any_way(bnndp: Any, classifier: Path, labelled: Path, tmp_path: Path) -> None:
    ways = (
        ("evaluate", classifier, labelled, "--eps", 0.1, 0.2, "--no-attack"),
        ("evaluate", classifier, labelled, "--eps", 0.2, "--eps", 0.1, 0.1, "--no-attack"),
        ("evaluate", "--no-attack", "--eps", 0.1, 0.2, classifier, labelled),
        ("evaluate", "--eps", 0.1, "--no-attack", classifier, labelled, "--eps", 2e-1),
        ("evaluate", classifier, labelled, "--eps=0.1", 0.2, "--no-attack"),
    )
    tables = [bnndp(*way) for way in ways]
    assert {table.status for table in tables} == {0}
    assert len({table.stdout for table in tables}) == 1
    assert [len(line) for line in _cells(tables[0].stdout)] == [2, 2]  # without an attack there is one column less
    assert sorted(path.name for path in tmp_path.iterdir()) == [classifier.name, labelled.name]  # no file was asked for


def test_the_radius_zero_is_the_input_itself(answers: Any, classifier: Path, labelled: Path) -> None:
    (row,) = answers("evaluate", classifier, labelled, "--eps", 0, "--no-attack")
    assert (row["certified"], row["attacked"]) == (0.75, None)


def test_the_picture_is_written(bnndp: Any, classifier: Path, labelled: Path, tmp_path: Path) -> None:
    picture = tmp_path / "curve.png"
    assert bnndp("evaluate", classifier, labelled, "--eps", 0.1, 0.3, "--plot", picture).status == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_an_attack_on_the_surface_of_the_last_ball_counts(answers: Any, tmp_path: Path) -> None:
    """The exact radius is 0.25: at 0.25 / 1.02 it holds, at 0.26 it is broken although nothing further was asked."""
    layer = Linear(torch.tensor([[1.0], [-1.0]]), torch.zeros(2, 1), torch.zeros(2), torch.zeros(2))
    library.save(library.BayesianNetwork.from_linears([layer], "classification"), tmp_path / "m")
    np.savez(tmp_path / "x.npz", x=[[0.25]], y=[0])
    for eps, certified, attacked in ((0.245, 1.0, 1.0), (0.26, 0.0, 0.0)):
        (row,) = answers("evaluate", tmp_path / "m", tmp_path / "x.npz", "--eps", eps)
        assert (row["certified"], row["attacked"]) == (certified, attacked)


def test_a_published_set(bnndp: Any, data_folder: Path, posteriors: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BNNDP_DATA", str(data_folder))
    model = posteriors / "mnist_2x64_vogn.safetensors"
    arguments = ("--data", "mnist", "--limit", 4, "--domain", 0, 1, "--no-attack", "--eps", 0.01, 0.5)
    result = bnndp("evaluate", model, *arguments)
    assert result.status == 0
    assert _cells(result.stdout) == [["0.01", "100.0 %"], ["0.5", "0.0 %"]]
