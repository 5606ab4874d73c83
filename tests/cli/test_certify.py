"""Good runs of ``bnndp certify``: what stands in the file is what the library says."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.networks import make_network
from tests.cli.conftest import read_strictly, rows_of

import bnndp as library
from bnndp.attack.inside import inside_range
from bnndp.cli import boxes
from bnndp.files.posterior import load, save
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork, Ensemble
from bnndp.questions.certify import better_bounds, probability

KEYS = ["index", "lower", "upper", "width", "inside_lower", "inside_upper", "method", "effort", "seconds"]
MORE = ["label", "verdict", "lead", "rival", "witness"]


def balls(inputs: Path, eps: float = 0.05, **more: Any) -> library.Box:
    return library.Box.ball(np.load(inputs)["x"].tolist(), eps, **more)


def ends(rows: list[dict[str, Any]]) -> tuple[list[Any], list[Any]]:
    return [row["lower"] for row in rows], [row["upper"] for row in rows]


def ends_of(bounds: Any) -> tuple[list[float], list[float]]:
    return bounds.lower[:, 0].tolist(), bounds.upper[:, 0].tolist()


@pytest.fixture
def ensemble(tmp_path: Path) -> Path:
    path = tmp_path / "ensemble.safetensors"
    save(Ensemble(tuple(make_network((2, 5, 1), seed) for seed in (1, 2, 3))), path)
    return path


@pytest.mark.parametrize("which", ["model", "ensemble"])
def test_rows_are_those_of_the_library(answers: Any, request: Any, which: str, inputs: Path, tmp_path: Path) -> None:
    model = request.getfixturevalue(which)
    rows = answers("certify", model, inputs, "--eps", 0.05)
    bounds = library.certify(load(model), balls(inputs))
    assert [row["index"] for row in rows] == [0, 1, 2]
    assert ends(rows) == ends_of(bounds)
    assert [row["width"] for row in rows] == bounds.width[:, 0].tolist()
    assert [row["method"] for row in rows] == list(bounds.method)
    for row in rows:
        assert list(row) == KEYS
        assert (row["inside_lower"], row["inside_upper"]) == (None, None)
        assert row["seconds"] > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["answers.jsonl", inputs.name, model.name])


@pytest.mark.parametrize("which", ["model", "ensemble"])
def test_attack_gives_the_range_from_inside(answers: Any, request: Any, which: str, inputs: Path) -> None:
    model = request.getfixturevalue(which)
    rows = answers("certify", model, inputs, "--eps", 0.05, "--attack", "--seed", 5)
    inside = inside_range(load(model), balls(inputs), seed=5)
    for row, lower, upper in zip(rows, *ends_of(inside), strict=True):
        assert (row["inside_lower"], row["inside_upper"]) == (lower, upper)
        assert row["lower"] <= lower <= upper <= row["upper"]


def test_several_outputs_are_lists(answers: Any, inputs: Path, tmp_path: Path) -> None:
    save(make_network((2, 4, 3), 1), tmp_path / "three.safetensors")
    for row in answers("certify", tmp_path / "three.safetensors", inputs, "--eps", 0, "--attack"):
        assert {len(row[key]) for key in KEYS[1:6]} == {3}


def test_csv_with_and_without_header_and_npz_agree(answers: Any, model: Path, inputs: Path, tmp_path: Path) -> None:
    body = "0.1,0.2\n 0.5 , 5e-1\n0.9,0\n"
    files = [inputs]
    for name, text in {"plain": body, "header": "a,b\n" + body, "bom": "\ufeff" + body + "\n\n"}.items():
        files.append(tmp_path / f"{name}.csv")
        files[-1].write_text(text, encoding="utf-8")
    found = [ends(answers("certify", model, path, "--eps", 0.01)) for path in files]
    assert found == [found[0]] * 4


def test_boxes_are_cut_to_the_domain(answers: Any, model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "wide.npz", lower=[[-1.0, -1.0]], upper=[[0.5, 2.0]])
    np.savez(tmp_path / "cut.npz", lower=[[0.0, 0.0]], upper=[[0.5, 1.0]])
    ways = (("wide.npz", "--domain", 0, 1), ("cut.npz",), ("wide.npz",))
    found = [ends(answers("certify", model, tmp_path / name, *options)) for name, *options in ways]
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize("norm", ["inf", "2", "1"])
def test_norms_reach_the_library(answers: Any, model: Path, inputs: Path, norm: str) -> None:
    options = ("--eps", 0.3, "--norm", norm, "--domain", -1, 1, "--method", "moment", "--refine", 4)
    box = balls(inputs, 0.3, norm=float(norm), domain=(-1, 1))
    bounds = library.certify(load(model), box, library.Options(method="moment", refine=4))
    assert ends(answers("certify", model, inputs, *options)) == ends_of(bounds)


def test_chunks_cover_all_rows_in_order(
    answers: Any, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(tmp_path / "many.npz", x=np.linspace(-1, 1, 22).reshape(11, 2))
    command = ("certify", model, tmp_path / "many.npz", "--eps", 0.1)
    whole = answers(*command)
    monkeypatch.setattr(boxes, "_BOXES", 4)
    parts = answers(*command)
    assert [row["index"] for row in parts] == list(range(11))
    # A matrix product may round otherwise in another batch: bounds agree to far less than their width.
    assert [row["lower"] for row in parts] == pytest.approx([row["lower"] for row in whole], rel=1e-9, abs=1e-12)


def test_an_older_file_is_replaced_and_a_link_is_followed(
    bnndp: Any, model: Path, inputs: Path, tmp_path: Path
) -> None:
    (tmp_path / "old.jsonl").write_text("old")
    (tmp_path / "link.jsonl").symlink_to("old.jsonl")
    assert bnndp("certify", model, inputs, "--eps", 0.1, "--out", tmp_path / "link.jsonl").status == 0
    assert (tmp_path / "link.jsonl").is_symlink()
    assert (tmp_path / "old.jsonl").read_text().startswith('{"index": 0')


def test_a_bound_that_is_infinite_is_null(
    bnndp: Any, model: Path, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spy(network: Any, box: Any, options: Any) -> Any:
        bounds = next(better_bounds(network, box, options))
        bounds.lower[0] = -torch.inf
        return iter([bounds])

    monkeypatch.setattr(boxes, "better_bounds", spy)
    result = bnndp("certify", model, inputs, "--eps", 0.1, "--json", "--out", tmp_path / "rows")
    rows, summary = rows_of(tmp_path / "rows"), read_strictly(result.stdout)
    assert (rows[0]["lower"], rows[0]["width"]) == (None, None)
    assert (summary["mean_width"], summary["largest_width"]) == (None, None)
    assert math.isfinite(rows[0]["upper"])
    assert math.isfinite(rows[1]["width"])


def test_labels_of_a_regression_network_are_said_to_be_unused(bnndp: Any, model: Path, tmp_path: Path) -> None:
    noted: dict[str, tuple[Any, bool]] = {"labels": ([0, 1], True), "targets": ([0.5, 1.0], False)}
    noted |= {"objects": (np.array([{}, {}], dtype=object), False), "texts": (np.array(["label"]), False)}
    for name, (y, told) in noted.items():
        path = tmp_path / f"{name}.npz"
        np.savez(path, x=np.array([[0, 1], [1, 0]], dtype=np.uint8), y=y)
        result = bnndp("certify", model, path, "--eps", 0.1)
        line = f"bnndp: {path}: its labels are not used: the network is for regression.\n"
        assert (result.status, line in result.stderr) == (0, told)
    assert bnndp("certify", model, tmp_path / "labels.npz", "--eps", 0.1, "--quiet").stderr == ""


class TestClassifier:
    def test_bounds_of_every_class(self, answers: Any, classifier: Path, inputs: Path) -> None:
        rows = answers("certify", classifier, inputs, "--eps", 0.05, "--refine", 4)
        bounds = library.certify(load(classifier), balls(inputs), library.Options(refine=4))
        assert [list(row) for row in rows] == [KEYS] * 3
        assert ends(rows) == (bounds.lower.tolist(), bounds.upper.tolist())

    def test_labels_bring_verdicts(self, answers: Any, classifier: Path, labelled: Path) -> None:
        rows = answers("certify", classifier, labelled, "--eps", 0.1, "--domain", 0, 1)
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

    def test_one_label_for_all(self, answers: Any, classifier: Path, tmp_path: Path) -> None:
        np.savez(tmp_path / "boxes.npz", lower=[[0.8, 0.0], [-1.0, 0.0]], upper=[[0.9, 0.1], [-0.9, 0.1]])
        rows = answers("certify", classifier, tmp_path / "boxes.npz", "--label", 0)
        assert [row["verdict"] for row in rows] == ["certified", "falsified"]

    @pytest.mark.parametrize("norm", ["1", "2"])
    def test_balls_in_other_norms_at_the_edge_of_the_domain(
        self, answers: Any, classifier: Path, tmp_path: Path, norm: str
    ) -> None:
        np.savez(tmp_path / "x.npz", x=[[1.0, 0.0], [0.0, 1.0]], y=[0, 1])
        rows = answers("certify", classifier, tmp_path / "x.npz", "--eps", 0.2, "--norm", norm, "--domain", 0, 1)
        assert [row["verdict"] for row in rows] == ["certified"] * 2

    def test_decisions_of_an_ensemble(self, answers: Any, inputs: Path, tmp_path: Path) -> None:
        path = tmp_path / "vote.safetensors"
        save(Ensemble(tuple(make_network((2, 5, 3), seed, task="classification") for seed in (1, 2))), path)
        rows = answers("certify", path, inputs, "--eps", 0.001, "--label", 0)
        assert {row["verdict"] for row in rows} <= {"certified", "falsified", "undecided"}
        for row in rows:
            assert len(row["lower"]) == 3
            if row["verdict"] == "certified":
                assert row["lead"] > 0
                assert row["upper"][0] >= max(row["lower"])
        for row in answers("radius", path, inputs):
            assert row["radius"] is None or row["radius"] <= (row["attack_radius"] or 1.0)


class TestQuantity:
    @pytest.mark.parametrize("which", ["model", "ensemble"])
    def test_the_variance(self, answers: Any, request: Any, which: str, inputs: Path) -> None:
        path = request.getfixturevalue(which)
        command = ("certify", path, inputs, "--eps", 0.05, "--quantity", "variance")
        rows = answers(*command)
        assert ends(rows) == ends_of(library.certify(load(path), balls(inputs), quantity="variance"))
        for row, coarse in zip(answers(*command, "--effort", "medium"), rows, strict=True):
            assert row["effort"] == "medium"
            assert coarse["lower"] <= row["lower"] <= row["upper"] <= coarse["upper"]
            assert row["width"] < coarse["width"]

    def test_the_probability_of_an_interval(self, answers: Any, model: Path, inputs: Path) -> None:
        rows = answers("certify", model, inputs, "--eps", 0.05, "--between", -3, "inf")
        assert ends(rows) == ends_of(probability(load(model), balls(inputs), -3.0, math.inf))

    def test_the_noise_of_a_head(self, answers: Any, inputs: Path, tmp_path: Path) -> None:
        head = BayesianNetwork((Linear(torch.ones(2, 2), torch.full((2, 2), 0.1), torch.zeros(2), torch.zeros(2)),))
        save(head, tmp_path / "head.safetensors")
        rows = answers("certify", tmp_path / "head.safetensors", inputs, "--eps", 0, "--quantity", "noise")
        x = np.load(inputs)["x"]
        truth = np.exp(x.sum(1) + 0.005 * (x**2).sum(1))
        for row, value in zip(rows, truth.tolist(), strict=True):
            assert row["lower"] == pytest.approx([value, value], rel=1e-7)
            assert row["upper"] == pytest.approx([value, value], rel=1e-7)

    @pytest.mark.parametrize(
        ("options", "said"),
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
        self, refused: Any, model: Path, inputs: Path, tmp_path: Path, options: tuple[object, ...], said: str
    ) -> None:
        assert said in refused("certify", model, inputs, "--eps", 0.1, *options, "--out", tmp_path / "out.jsonl")

    def test_classifiers_have_no_variance(self, refused: Any, classifier: Path, inputs: Path) -> None:
        for options in (("--quantity", "variance"), ("--between", 0, 1)):
            assert "is for regression" in refused("certify", classifier, inputs, "--eps", 0.1, *options)
