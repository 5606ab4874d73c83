"""``bnndp certify`` with ensembles, ``--quantity`` and ``--between``: the rows are those of the library."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bnndp.files.posterior import load, save
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork, Ensemble
from bnndp.questions.certify import certify, probability


def boxes(inputs: Path, eps: float) -> Box:
    return Box.ball(np.load(inputs)["x"].tolist(), eps)


@pytest.fixture
def ensemble(tmp_path: Path, random_network: Any) -> Path:
    path = tmp_path / "ensemble.safetensors"
    save(Ensemble(tuple(random_network((2, 5, 1), seed) for seed in (1, 2, 3))), path)
    return path


def test_the_mean_of_an_ensemble(bnndp: Any, ensemble: Path, inputs: Path, tmp_path: Path, read_rows: Any) -> None:
    out = tmp_path / "out.jsonl"
    assert bnndp("certify", ensemble, inputs, "--eps", 0.05, "--attack", "--out", out).status == 0
    bounds = certify(load(ensemble), boxes(inputs, 0.05))
    rows = read_rows(out)
    assert [row["lower"] for row in rows] == bounds.lower[:, 0].tolist()
    assert [row["upper"] for row in rows] == bounds.upper[:, 0].tolist()
    for row in rows:
        assert row["lower"] <= row["inside_lower"] <= row["inside_upper"] <= row["upper"]


@pytest.mark.parametrize("which", ["model", "ensemble"])
def test_the_variance(
    bnndp: Any, request: pytest.FixtureRequest, which: str, inputs: Path, tmp_path: Path, read_rows: Any
) -> None:
    path, out = request.getfixturevalue(which), tmp_path / "out.jsonl"
    assert bnndp("certify", path, inputs, "--eps", 0.05, "--quantity", "variance", "--out", out).status == 0
    bounds = certify(load(path), boxes(inputs, 0.05), quantity="variance")
    rows = read_rows(out)
    assert [row["lower"] for row in rows] == bounds.lower[:, 0].tolist()
    assert [row["upper"] for row in rows] == bounds.upper[:, 0].tolist()
    fine = tmp_path / "fine.jsonl"
    arguments = ("certify", path, inputs, "--eps", 0.05, "--quantity", "variance", "--effort", "medium")
    assert bnndp(*arguments, "--out", fine).status == 0
    for row, coarse in zip(read_rows(fine), rows, strict=True):
        assert row["effort"] == "medium"
        assert coarse["lower"] <= row["lower"] <= row["upper"] <= coarse["upper"]
        assert row["width"] < coarse["width"]


def test_the_probability_of_an_interval(bnndp: Any, model: Path, inputs: Path, tmp_path: Path, read_rows: Any) -> None:
    out = tmp_path / "out.jsonl"
    assert bnndp("certify", model, inputs, "--eps", 0.05, "--between", -3, "inf", "--out", out).status == 0
    bounds = probability(load(model), boxes(inputs, 0.05), -3.0, math.inf)
    rows = read_rows(out)
    assert [row["lower"] for row in rows] == bounds.lower[:, 0].tolist()
    assert [row["upper"] for row in rows] == bounds.upper[:, 0].tolist()


def test_the_noise_of_a_head(bnndp: Any, inputs: Path, tmp_path: Path, read_rows: Any) -> None:
    head = BayesianNetwork((Linear(torch.ones(2, 2), torch.full((2, 2), 0.1), torch.zeros(2), torch.zeros(2)),))
    save(head, tmp_path / "head.safetensors")
    out = tmp_path / "out.jsonl"
    arguments = ("certify", tmp_path / "head.safetensors", inputs, "--eps", 0, "--quantity", "noise", "--out", out)
    assert bnndp(*arguments).status == 0
    x = np.load(inputs)["x"]
    truth = np.exp(x.sum(1) + 0.005 * (x**2).sum(1))
    for row, value in zip(read_rows(out), truth.tolist(), strict=True):
        assert row["lower"] == pytest.approx([value, value], rel=1e-7)
        assert row["upper"] == pytest.approx([value, value], rel=1e-7)


def test_decisions_of_an_ensemble(
    bnndp: Any, inputs: Path, tmp_path: Path, random_network: Any, read_rows: Any
) -> None:
    members = tuple(random_network((2, 5, 3), seed, task="classification") for seed in (1, 2))
    save(Ensemble(members), tmp_path / "vote.safetensors")
    out = tmp_path / "out.jsonl"
    assert (
        bnndp("certify", tmp_path / "vote.safetensors", inputs, "--eps", 0.001, "--label", 0, "--out", out).status == 0
    )
    rows = read_rows(out)
    assert {row["verdict"] for row in rows} <= {"certified", "falsified", "undecided"}
    for row in rows:
        assert len(row["lower"]) == 3
        if row["verdict"] == "certified":
            assert row["lead"] > 0
            assert row["upper"][0] >= max(row["lower"])
    radii = tmp_path / "radii.jsonl"
    result = bnndp("radius", tmp_path / "vote.safetensors", inputs, "--out", radii)
    assert result.status == 0, result
    for row in read_rows(radii):
        assert row["radius"] is None or row["radius"] <= (row["attack_radius"] or 1.0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--between", 2, 1), "a <= b"),
        (("--between", "nan", 1), "a <= b"),
        (("--between", 0, 1, "--quantity", "variance"), "not both"),
        (("--between", 0, 1, "--attack"), "leave out --attack or --between"),
        (("--quantity", "noise"), "not known to be finite"),
        (("--quantity", "median"), "median"),
        (("--quantity", "variance", "--method", "partition"), "bounds the mean only"),
    ],
)
def test_wrong_questions(
    refused: Any, model: Path, inputs: Path, tmp_path: Path, arguments: tuple[object, ...], said: str
) -> None:
    assert said in refused("certify", model, inputs, "--eps", 0.1, *arguments, "--out", tmp_path / "out.jsonl")


def test_classifiers_have_no_variance(refused: Any, classifier: Path, inputs: Path, tmp_path: Path) -> None:
    for arguments in (("--quantity", "variance"), ("--between", 0, 1)):
        line = refused("certify", classifier, inputs, "--eps", 0.1, *arguments, "--out", tmp_path / "out.jsonl")
        assert "is for regression" in line
