"""Good runs of ``bnndp radius``: what stands in the file is what the library says, and JSON to the letter."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from tests.cli.conftest import rows_of

import bnndp as library
from bnndp.cli import radii
from bnndp.data.demo import CLASSIFIER, network_path
from bnndp.data.moons import two_moons
from bnndp.files.posterior import load, save
from bnndp.layers import Linear
from bnndp.questions.evaluate import better_evaluations

KEYS = ["index", "label", "decision", "radius", "capped", "attack_radius", "ratio", "effort", "seconds"]


def test_rows_are_those_of_the_library(bnndp: Any, classifier: Path, labelled: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    result = bnndp("radius", classifier, labelled, "--domain", 0, 1, "--out", out)
    assert (result.status, result.stderr) == (0, "")
    rows = rows_of(out)
    arrays = np.load(labelled)
    y = torch.from_numpy(arrays["y"].astype(int))
    found = library.certified_radius(load(classifier), torch.from_numpy(arrays["x"]), y, (0.0, 1.0))
    assert [row["index"] for row in rows] == [0, 1, 2, 3]
    assert [row["label"] for row in rows] == [0, 1, 0, 2]
    assert [row["decision"] for row in rows] == [0, 1, 0, 0]
    assert [row["radius"] for row in rows] == [*found.radius[:3].tolist(), None]  # the last label is wrong
    assert [row["attack_radius"] for row in rows] == found.attack.tolist()
    assert rows[3]["attack_radius"] == 0
    assert rows[3]["ratio"] is None
    for row in rows:
        assert list(row) == KEYS
        assert row["seconds"] > 0
    for row in rows[:3]:
        assert 0.9 < row["ratio"] == row["radius"] / row["attack_radius"] <= 1
    assert [cell.strip() for cell in result.stdout.splitlines()[-2].split("│")[1:4]] == ["4", "3", "3"]
    assert f"{found.radius[:3].mean().item():.4g}" in result.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == [classifier.name, labelled.name, "out.jsonl"]


def test_without_labels_the_network_decides(answers: Any, bnndp: Any, classifier: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=[[0.9, 0.2], [0.1, 0.6]])
    (tmp_path / "x.csv").write_text("a,b\n0.9,0.2\n0.1,0.6\n")
    for name in ("x.npz", "x.csv"):
        rows = answers("radius", classifier, tmp_path / name)
        assert [row["label"] for row in rows] == [0, 1]
        assert all(row["radius"] > 0 for row in rows)
    shown = bnndp("radius", classifier, tmp_path / "x.npz").stdout  # nothing is correct without labels
    assert [cell.strip() for cell in shown.splitlines()[-2].split("│")[1:4]] == ["2", "-", "2"]
    assert json.loads(bnndp("radius", classifier, tmp_path / "x.npz", "--json").stdout)["correct"] is None


def test_without_an_attack_there_is_nothing_to_compare(answers: Any, classifier: Path, labelled: Path) -> None:
    rows = answers("radius", classifier, labelled, "--no-attack")
    assert {(row["attack_radius"], row["ratio"]) for row in rows} == {(None, None)}


def test_a_decision_without_an_end_has_the_largest_radius(answers: Any, labelled: Path, tmp_path: Path) -> None:
    layer = Linear(torch.zeros(3, 2), torch.zeros(3, 2), torch.tensor([1.0, 0.0, 0.0]), torch.zeros(3))
    save(library.BayesianNetwork.from_linears([layer], "classification"), tmp_path / "constant")
    rows = answers("radius", tmp_path / "constant", labelled, "--upper", 0.3)
    assert [row["radius"] for row in rows] == [0.3, None, 0.3, None]
    assert [row["attack_radius"] for row in rows] == [None, 0.0, None, 0.0]
    assert {row["ratio"] for row in rows} == {None}
    assert [row["capped"] for row in rows] == [True, False, True, False]


def test_radii_at_the_cap_are_marked_everywhere(bnndp: Any, classifier: Path, labelled: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    start = ("radius", classifier, labelled, "--no-attack", "--upper", 0.1, "--run", run)
    shown = bnndp(*start).stdout  # radii of 0.23, 0.1 (which the cap ends) and 0.05
    summary = json.loads(bnndp(*start, "--json").stdout)
    with (run / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    capped = [row["capped"] for row in rows]
    assert capped == [str(row["radius"] == "0.1") for row in rows]
    assert 0 < capped.count("True") < 3
    assert summary["capped"] == capped.count("True")
    assert f">= {summary['mean_radius']:.4g}" in shown
    assert "radius >= 0.1" in shown
    below = bnndp(*start[:-4], "--upper", 1).stdout
    assert ">=" not in below
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    assert parquet.read_table(run / "results.parquet")["capped"].to_pylist() == [each == "True" for each in capped]


def test_options_reach_the_library(
    answers: Any, classifier: Path, labelled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spy = Mock(wraps=better_evaluations)
    monkeypatch.setattr(radii, "better_evaluations", spy)
    searched = ("--norm", 2, "--upper", 0.5, "--tolerance", 0.1, "--domain", -1, 1, "--limit", 2)
    answers("radius", classifier, labelled, *searched, "--optimise", 3, "--branch", 2, "--method", "moment")
    # one pass first, then what was asked for
    for call, (steps, cells) in zip(spy.call_args_list, ((0, 1), (3, 2)), strict=True):
        assert (len(call.args[1]), call.args[3]) == (2, (-1.0, 1.0))
        search, how = call.kwargs["search"], call.kwargs["options"]
        assert (search.norm, search.upper, search.tolerance, search.attack) == (2.0, 0.5, 0.1, True)
        assert (how.optimise, how.branch, how.method, how.time_limit) == (steps, cells, "moment", None)


def test_batches_cover_all_inputs_in_order(
    answers: Any, classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(tmp_path / "many.npz", x=np.linspace(-1, 1, 22).reshape(11, 2))
    whole = answers("radius", classifier, tmp_path / "many.npz", "--no-attack")
    monkeypatch.setattr(radii, "_INPUTS", 4)
    parts = answers("radius", classifier, tmp_path / "many.npz", "--no-attack")
    assert [row["index"] for row in parts] == list(range(11))
    assert [row["radius"] for row in parts] == pytest.approx([row["radius"] for row in whole], rel=1e-9)


def test_a_published_set_is_read_from_its_folder(answers: Any, data_folder: Path, posteriors: Path) -> None:
    source = ("--data", "mnist", "--data-dir", data_folder, "--limit", 3, "--domain", 0, 1)
    rows = answers("radius", posteriors / "mnist_2x64_vogn.safetensors", *source, "--no-attack", "--quiet")
    assert [row["label"] for row in rows] == [7, 2, 1]  # the first test images
    assert all(row["radius"] > 0.015 for row in rows)


def test_the_posterior_of_the_readme_is_certified(answers: Any, tmp_path: Path) -> None:
    data = two_moons(12, noise_std=0.2, seed=2)
    np.savez(tmp_path / "moons.npz", x=data.x.numpy(), y=data.y.numpy())
    with network_path(CLASSIFIER) as path:
        rows = answers("radius", path, tmp_path / "moons.npz")
    assert sum(row["radius"] is not None for row in rows) >= 10
    assert all(row["radius"] <= row["attack_radius"] for row in rows if row["radius"] is not None)


@pytest.mark.parametrize("command", [("radius",), ("evaluate", "--eps", 0.1), ("certify", "--eps", 0.1)])
def test_what_is_beyond_the_limit_is_not_looked_at(bnndp: Any, classifier: Path, tmp_path: Path, command: Any) -> None:
    x, path = np.array([[0.9, 0.2], [0.1, 0.6], [7.0, 0.1], [np.nan, 0.5]]), tmp_path / "in.npz"
    np.savez(path, x=x, y=[0, 1, 0, 9])
    start = (*command, classifier, path, "--domain", 0, 1, "--json")
    result = bnndp(*start, "--limit", 2)
    assert result.status == 0, result.stderr
    assert json.loads(result.stdout)["points"] == 2
    assert "nan" in bnndp(*start).stderr
    np.savez(path, x=x[:3], y=[0, 1, 0])
    assert "point 2 lies outside the domain" in bnndp(*start, "--limit", 3).stderr
    np.savez(path, x=x[:2], y=[0, 9])
    assert "y[1] is 9" in bnndp(*start, "--limit", 2).stderr


def test_means_of_the_attack_say_over_what_they_are(answers: Any, bnndp: Any, classifier: Path, labelled: Path) -> None:
    all_broken = bnndp("radius", classifier, labelled).stdout
    assert "mean attack radius ┃ mean ratio ┃" in all_broken
    capped = bnndp("radius", classifier, labelled, "--upper", 0.1).stdout  # attacks end at about 0.23, 0.2 and 0.05
    assert "mean attack radius (1 of 3) ┃ mean ratio (1 of 3) ┃" in capped
    rows = answers("radius", classifier, labelled, "--upper", 0.1)
    (broken,) = [row["attack_radius"] for row in rows[:3] if row["attack_radius"] is not None]
    assert f"{broken:.4g}" in capped
