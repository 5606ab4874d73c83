"""``bnndp certify`` on a classifier: bounds of every class, and verdicts where there are labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

import bnndp as library
from bnndp.files.posterior import load

KEYS = ["index", "lower", "upper", "width", "inside_lower", "inside_upper", "method", "effort", "seconds"]
MORE = ["label", "verdict", "lead", "rival", "witness"]


def test_bounds_of_every_class(bnndp: Any, classifier: Path, inputs: Path, tmp_path: Path, read_rows: Any) -> None:
    out = tmp_path / "out.jsonl"
    result = bnndp("certify", classifier, inputs, "--eps", 0.05, "--refine", 4, "--out", out)
    assert (result.status, result.stderr) == (0, "")
    box = library.Box.ball(np.load(inputs)["x"].tolist(), 0.05)
    bounds = library.certify(load(classifier), box, library.Options(refine=4))
    rows = read_rows(out)
    assert [list(row) for row in rows] == [KEYS] * 3
    assert [row["lower"] for row in rows] == bounds.lower.tolist()
    assert [row["upper"] for row in rows] == bounds.upper.tolist()
    assert "certified" not in result.stdout


def test_labels_bring_verdicts(bnndp: Any, classifier: Path, labelled: Path, tmp_path: Path, read_rows: Any) -> None:
    out = tmp_path / "out.jsonl"
    result = bnndp("certify", classifier, labelled, "--eps", 0.1, "--domain", 0, 1, "--out", out)
    assert (result.status, result.stderr) == (0, "")
    rows = read_rows(out)
    assert [list(row) for row in rows] == [KEYS + MORE] * 4
    assert [row["label"] for row in rows] == [0, 1, 0, 2]
    assert [row["verdict"] for row in rows] == ["certified", "certified", "falsified", "falsified"]
    layer = load(classifier).linears[0]
    for row, x in zip(rows, np.load(labelled)["x"], strict=True):
        if row["verdict"] == "certified":
            assert row["lead"] > 0
            assert (row["rival"], row["witness"]) == (None, None)
        else:
            witness = torch.tensor(row["witness"], dtype=torch.float64)
            assert bool(((witness - torch.tensor(x)).abs() <= 0.1 + 1e-12).all() & (witness >= 0).all())
            logits = layer.weight_mean @ witness
            assert logits[row["rival"]] > logits[row["label"]]
    assert [cell.strip() for cell in result.stdout.splitlines()[-2].split("│")[6:9]] == ["2", "2", "0"]


def test_one_label_for_all(bnndp: Any, classifier: Path, tmp_path: Path, read_rows: Any) -> None:
    np.savez(tmp_path / "boxes.npz", lower=[[0.8, 0.0], [-1.0, 0.0]], upper=[[0.9, 0.1], [-0.9, 0.1]])
    out = tmp_path / "out.jsonl"
    assert bnndp("certify", classifier, tmp_path / "boxes.npz", "--label", 0, "--out", out).status == 0
    assert [row["verdict"] for row in read_rows(out)] == ["certified", "falsified"]


def test_balls_in_other_norms_at_the_edge_of_the_domain(
    bnndp: Any, classifier: Path, tmp_path: Path, read_rows: Any
) -> None:
    np.savez(tmp_path / "x.npz", x=[[1.0, 0.0], [0.0, 1.0]], y=[0, 1])
    for norm in ("1", "2"):
        out = tmp_path / "out.jsonl"
        arguments = ("--eps", 0.2, "--norm", norm, "--domain", 0, 1, "--out", out)
        assert bnndp("certify", classifier, tmp_path / "x.npz", *arguments).status == 0
        assert [row["verdict"] for row in read_rows(out)] == ["certified"] * 2
