"""Good runs of ``bnndp certify``: what stands in the file is what the library says."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bnndp as library
from bnndp.attack.inside import inside_range
from bnndp.cli import boxes
from bnndp.files.posterior import load, save

KEYS = ["index", "lower", "upper", "width", "inside_lower", "inside_upper", "method", "effort", "seconds"]


def test_rows_are_those_of_the_library(bnndp: Any, model: Path, inputs: Path, tmp_path: Path, read_rows: Any) -> None:
    out = tmp_path / "out.jsonl"
    result = bnndp("certify", model, inputs, "--eps", 0.05, "--out", out)
    assert (result.status, result.stderr) == (0, "")
    rows = read_rows(out)
    box = library.Box.ball(np.load(inputs)["x"].tolist(), 0.05)
    bounds = library.certify(load(model), box)
    assert [row["index"] for row in rows] == [0, 1, 2]
    assert [row["lower"] for row in rows] == bounds.lower[:, 0].tolist()
    assert [row["upper"] for row in rows] == bounds.upper[:, 0].tolist()
    assert [row["width"] for row in rows] == bounds.width[:, 0].tolist()
    assert [row["method"] for row in rows] == list(bounds.method)
    for row in rows:
        assert list(row) == KEYS
        assert row["inside_lower"] is None
        assert row["inside_upper"] is None
        assert row["seconds"] > 0
    assert "boxes" in result.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["inputs.npz", "model.safetensors", "out.jsonl"]


def test_attack_gives_the_range_from_inside(
    bnndp: Any, model: Path, inputs: Path, tmp_path: Path, read_rows: Any
) -> None:
    out = tmp_path / "out.jsonl"
    assert bnndp("certify", model, inputs, "--eps", 0.05, "--attack", "--seed", 5, "--out", out).status == 0
    inside = inside_range(load(model), library.Box.ball(np.load(inputs)["x"].tolist(), 0.05), seed=5)
    for row, lower, upper in zip(read_rows(out), inside.lower[:, 0].tolist(), inside.upper[:, 0].tolist(), strict=True):
        assert row["inside_lower"] == lower
        assert row["inside_upper"] == upper
        assert row["lower"] <= lower <= upper <= row["upper"]


def test_several_outputs_are_lists(
    bnndp: Any, inputs: Path, tmp_path: Path, random_network: Any, read_rows: Any
) -> None:
    save(random_network((2, 4, 3), 1), tmp_path / "three.safetensors")
    out = tmp_path / "out.jsonl"
    assert bnndp("certify", tmp_path / "three.safetensors", inputs, "--eps", 0, "--attack", "--out", out).status == 0
    for row in read_rows(out):
        assert {len(row[key]) for key in KEYS[1:6]} == {3}


def test_csv_with_and_without_header_and_npz_agree(
    bnndp: Any, model: Path, inputs: Path, tmp_path: Path, read_rows: Any
) -> None:
    body = "0.1,0.2\n 0.5 , 5e-1\n0.9,0\n"
    files = [inputs]
    for name, text in {"plain": body, "header": "a,b\n" + body, "bom": "\ufeff" + body + "\n\n"}.items():
        files.append(tmp_path / f"{name}.csv")
        files[-1].write_text(text, encoding="utf-8")
    answers = []
    for path in files:
        out = tmp_path / "out.jsonl"
        assert bnndp("certify", model, path, "--eps", 0.01, "--out", out).status == 0
        answers.append([(row["lower"], row["upper"]) for row in read_rows(out)])
    assert answers == [answers[0]] * 4


def test_boxes_are_cut_to_the_domain(bnndp: Any, model: Path, tmp_path: Path, read_rows: Any) -> None:
    np.savez(tmp_path / "wide.npz", lower=[[-1.0, -1.0]], upper=[[0.5, 2.0]])
    np.savez(tmp_path / "cut.npz", lower=[[0.0, 0.0]], upper=[[0.5, 1.0]])
    out = tmp_path / "out.jsonl"
    found = []
    for arguments in (("wide.npz", "--domain", 0, 1), ("cut.npz",), ("wide.npz",)):
        assert bnndp("certify", model, tmp_path / arguments[0], *arguments[1:], "--out", out).status == 0
        found.append((read_rows(out)[0]["lower"], read_rows(out)[0]["upper"]))
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize("norm", ["inf", "2", "1"])
def test_norms_reach_the_library(
    bnndp: Any, model: Path, inputs: Path, tmp_path: Path, read_rows: Any, norm: str
) -> None:
    out = tmp_path / "out.jsonl"
    arguments = ("--eps", 0.3, "--norm", norm, "--domain", -1, 1, "--method", "moment", "--refine", 4)
    assert bnndp("certify", model, inputs, *arguments, "--out", out).status == 0
    box = library.Box.ball(np.load(inputs)["x"].tolist(), 0.3, norm=float(norm), domain=(-1, 1))
    bounds = library.certify(load(model), box, library.Options(method="moment", refine=4))
    assert [row["upper"] for row in read_rows(out)] == bounds.upper[:, 0].tolist()


def test_chunks_cover_all_rows_in_order(
    bnndp: Any, model: Path, tmp_path: Path, read_rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.linspace(-1, 1, 22).reshape(11, 2)
    np.savez(tmp_path / "many.npz", x=x)
    out = tmp_path / "out.jsonl"
    bnndp("certify", model, tmp_path / "many.npz", "--eps", 0.1, "--out", out)
    whole = read_rows(out)
    monkeypatch.setattr(boxes, "_BOXES", 4)
    bnndp("certify", model, tmp_path / "many.npz", "--eps", 0.1, "--out", out)
    parts = read_rows(out)
    assert [row["index"] for row in parts] == list(range(11))
    # A matrix product may round otherwise in another batch: bounds agree to far less than their width.
    assert [row["lower"] for row in parts] == pytest.approx([row["lower"] for row in whole], rel=1e-9, abs=1e-12)


def test_other_arrays_and_types_are_read(bnndp: Any, model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "more.npz", x=np.array([[0, 1]], dtype=np.uint8), y=np.array(["label"]))
    assert bnndp("certify", model, tmp_path / "more.npz", "--eps", 0.1, "--out", tmp_path / "o.jsonl").status == 0


def test_an_older_file_is_replaced_and_a_link_is_followed(
    bnndp: Any, model: Path, inputs: Path, tmp_path: Path
) -> None:
    (tmp_path / "old.jsonl").write_text("old")
    (tmp_path / "link.jsonl").symlink_to("old.jsonl")
    assert bnndp("certify", model, inputs, "--eps", 0.1, "--out", tmp_path / "link.jsonl").status == 0
    assert (tmp_path / "link.jsonl").is_symlink()
    assert (tmp_path / "old.jsonl").read_text().startswith('{"index": 0')


def test_a_bound_that_is_infinite_is_null(
    bnndp: Any, model: Path, inputs: Path, tmp_path: Path, read_rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Callable[..., Any] = boxes.better_bounds

    def spy(network: Any, box: Any, options: Any) -> Any:
        bounds = next(real(network, box, options))
        bounds.lower[0] = -torch.inf
        return iter([bounds])

    monkeypatch.setattr(boxes, "better_bounds", spy)
    assert bnndp("certify", model, inputs, "--eps", 0.1, "--out", tmp_path / "o.jsonl").status == 0
    rows = read_rows(tmp_path / "o.jsonl")
    assert (rows[0]["lower"], rows[0]["width"]) == (None, None)
    assert math.isfinite(rows[0]["upper"])
    assert math.isfinite(rows[1]["width"])


def test_labels_of_a_regression_network_are_said_to_be_unused(bnndp: Any, model: Path, tmp_path: Path) -> None:
    x = [[0.1, 0.2], [0.5, 0.5]]
    noted: dict[str, tuple[Any, bool]] = {"labels": ([0, 1], True), "targets": ([0.5, 1.0], False)}
    noted["objects"] = (np.array([{}, {}], dtype=object), False)
    for name, (y, told) in noted.items():
        path = tmp_path / f"{name}.npz"
        np.savez(path, x=x, y=y)
        result = bnndp("certify", model, path, "--eps", 0.1)
        line = f"bnndp: {path}: its labels are not used: the network is for regression.\n"
        assert (result.status, line in result.stderr) == (0, told)
    assert bnndp("certify", model, tmp_path / "labels.npz", "--eps", 0.1, "--quiet").stderr == ""
