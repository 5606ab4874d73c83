"""Where inputs and labels come from: arrays, tables, data sets and VNN-LIB files; the same for all commands."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.cli.conftest import timeless

from bnndp.data.demo import CLASSIFIER, NAME, network_path
from bnndp.files.posterior import save
from bnndp.layers import Conv2d, Flatten, Linear
from bnndp.network import BayesianNetwork

X = [[0.9, 0.2], [0.1, 0.6], [0.2, 0.1], [0.9, 0.5]]
Y = [0, 1, 0, 2]
COMMANDS: dict[str, tuple[object, ...]] = {
    "certify": ("--eps", 0.01),
    "radius": ("--no-attack",),
    "evaluate": ("--eps", 0.01, "--no-attack"),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("header", ["label,a,b", "0,label,1", "a,b, label "])
def test_a_column_of_labels(
    answers: Any, classifier: Path, labelled: Path, tmp_path: Path, command: str, header: str
) -> None:
    place = [name.strip() for name in header.split(",")].index("label")
    lines = [[*map(str, x[:place]), str(y), *map(str, x[place:])] for x, y in zip(X, Y, strict=True)]
    table = tmp_path / "in.csv"
    table.write_text("\n".join([header, *(",".join(line) for line in lines)]) + "\n")
    one, other = (timeless(answers(command, classifier, path, *COMMANDS[command])) for path in (table, labelled))
    assert one == other


@pytest.mark.parametrize("command", ["certify", "radius"])
def test_a_single_array(answers: Any, classifier: Path, tmp_path: Path, command: str) -> None:
    np.save(tmp_path / "in.npy", np.array(X))
    np.savez(tmp_path / "in.npz", x=X)
    files = (tmp_path / "in.npy", tmp_path / "in.npz")
    one, other = (timeless(answers(command, classifier, path, *COMMANDS[command])) for path in files)
    assert one == other


def test_images_become_rows_where_their_order_is_sure(answers: Any, refused: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    dense, convolution = tmp_path / "dense.safetensors", tmp_path / "conv.safetensors"
    save(BayesianNetwork.from_linears([Linear.fixed(torch.randn(2, 12), torch.zeros(2))]), dense)
    layers = (Conv2d.fixed(torch.randn(1, 3, 2, 2), torch.zeros(1)), Flatten(), Linear.fixed(torch.randn(2, 1)))
    save(BayesianNetwork(layers, input_shape=(3, 2, 2)), convolution)
    path, rows = tmp_path / "in.npy", tmp_path / "rows.npy"
    for model, shape in ((dense, (2, 3, 4)), (dense, (2, 1, 3, 4)), (convolution, (2, 3, 2, 2))):
        images = np.random.default_rng(0).random(shape)
        np.save(path, images)
        np.save(rows, images.reshape(2, 12))
        one, other = (timeless(answers("certify", model, each, "--eps", 0.01)) for each in (path, rows))
        assert one == other
    unsure = ((dense, (2, 3, 2, 2)), (convolution, (2, 2, 2, 3)), (convolution, (2, 3, 4)), (dense, (2, 3, 3)))
    for model, shape in unsure:
        np.save(path, np.zeros(shape))
        assert f"x must have shape (n, 12), got {shape}" in refused("certify", model, path, "--eps", 0.1)


def test_certify_takes_data_sets(answers: Any, tmp_path: Path) -> None:
    from bnndp.data import ClassificationData, load

    def found(path: Path, *source: object) -> list[dict[str, Any]]:
        return timeless(answers("certify", path, *source, "--eps", 0.01))

    moons = load("moons", "train")
    assert isinstance(moons, ClassificationData)
    np.savez(tmp_path / "moons.npz", x=moons.x[:3].numpy(), y=moons.y[:3].numpy())
    np.savez(tmp_path / "sine.npz", x=load("sine1d", "test").x[:3].numpy())
    with network_path(CLASSIFIER) as path:
        rows = found(path, "--data", "moons", "--split", "train", "--limit", 3)
        assert rows == found(path, tmp_path / "moons.npz")
        assert rows[:2] == found(path, tmp_path / "moons.npz", "--limit", 2)
        assert all(row["verdict"] == "certified" for row in rows)
    with network_path(NAME) as path:
        rows = found(path, "--data", "sine1d", "--limit", 3)
        assert rows == found(path, tmp_path / "sine.npz")
        assert "label" not in rows[0]


def test_sources_that_exclude_each_other(refused: Any, classifier: Path, model: Path, labelled: Path) -> None:
    one = "give either the file INPUTS, a data set by --data NAME or --vnnlib FILE, one of them"
    assert one in refused("certify", classifier, labelled, "--data", "moons", "--eps", 0.1)
    assert one in refused("certify", classifier, "--eps", 0.1)
    assert "--data-dir belongs to --data" in refused("certify", classifier, labelled, "--eps", 0.1, "--data-dir", ".")
    words = ("certify", classifier, "--eps", 0.1, "--data")
    assert "kin8nm is for regression and has no labels; choose one of moons" in refused(*words, "kin8nm")
    both = refused(*words, "moons", "--label", 0)
    assert "moons (test): holds labels y, and --label 0 was given too" in both
    words = ("certify", model, "--eps", 0.1, "--data")
    wrong = refused(*words, "moons")
    assert "moons is for classification and the network for regression; choose one of sine1d" in wrong
    assert "there is no data set 'letters'" in refused(*words, "letters")
    assert "the radius of the balls around them is needed; add --eps" in refused("certify", model, "--data", "sine2d")


def test_sets_that_are_not_there_or_do_not_fit(
    refused: Any, classifier: Path, tmp_path: Path, data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BNNDP_DATA", raising=False)
    command = ("radius", classifier, "--data", "mnist", "--out", tmp_path / "o.jsonl")
    assert "BNNDP_DATA" in refused(*command)
    assert "lacks" in refused(*command, "--data-dir", tmp_path)
    line = refused(*command, "--data-dir", data_folder)
    assert "mnist (test): x has 784 columns, but the network takes 2 inputs" in line


class TestVnnlib:
    """``--vnnlib`` and ``--vnncomp-csv``: boxes and verdicts in the formats of other verifiers."""

    @staticmethod
    def written(path: Path, lower: list[float], upper: list[float], more: str = "") -> Path:
        lines = [f"(declare-const X_{i} Real)" for i in range(len(lower))]
        for i, (low, high) in enumerate(zip(lower, upper, strict=True)):
            lines += [f"(assert (>= X_{i} {low!r}))", f"(assert (<= X_{i} {high!r}))"]
        path.write_text("\n".join([*lines, more]))
        return path

    @pytest.fixture
    def files(self, tmp_path: Path) -> list[Path]:
        """Two boxes: class 0 in the first, several classes in the second."""
        first = self.written(tmp_path / "a.vnnlib", [0.875, 0.125], [1.0, 0.25])
        return [first, self.written(tmp_path / "b.vnnlib", [-1.0, -1.0], [1.0, 1.0])]

    def test_the_boxes_are_those_of_an_npz(
        self, answers: Any, classifier: Path, files: list[Path], tmp_path: Path
    ) -> None:
        np.savez(tmp_path / "b.npz", lower=[[0.875, 0.125], [-1, -1]], upper=[[1.0, 0.25], [1, 1]])
        verdicts = tmp_path / "verdicts.csv"
        ours = timeless(answers("certify", classifier, tmp_path / "b.npz", "--label", 0))
        theirs = ("--vnnlib", files[0], "--vnnlib", files[1], "--vnncomp-csv", verdicts)
        assert timeless(answers("certify", classifier, "--label", 0, *theirs)) == ours
        with verdicts.open(newline="") as file:
            lines = list(csv.reader(file))
        assert [line[:3] for line in lines] == [["bnndp", str(classifier), str(path)] for path in files]
        assert [line[4] for line in lines] == ["unsat", "sat"]
        assert all(float(line[5]) > 0 for line in lines)

    def test_verdicts_of_rows_are_named_by_their_number(
        self, answers: Any, classifier: Path, labelled: Path, tmp_path: Path
    ) -> None:
        verdicts = tmp_path / "v.csv"
        answers("certify", classifier, labelled, "--eps", 0.01, "--json", "--vnncomp-csv", verdicts)
        with verdicts.open(newline="") as file:
            lines = list(csv.reader(file))
        assert [line[2] for line in lines] == [f"{labelled}#{i}" for i in range(4)]
        assert [line[4] for line in lines] == ["unsat", "unsat", "unsat", "sat"]

    def test_what_does_not_fit_is_refused(
        self, refused: Any, classifier: Path, inputs: Path, files: list[Path], tmp_path: Path
    ) -> None:
        start, end = ("certify", classifier, "--vnnlib"), ("--label", 0)
        one = "give either the file INPUTS, a data set by --data NAME or --vnnlib FILE, one of them"
        assert one in refused(*start, files[0], *end, inputs)
        assert one in refused(*start, files[0], *end, "--data", "moons")
        assert "--limit goes with INPUTS or --data" in refused(*start, files[0], "--limit", 1, *end)
        assert "leave out --eps" in refused(*start, files[0], "--eps", 0.1, *end)
        assert "none.vnnlib: no such file" in refused(*start, tmp_path / "none.vnnlib", *end)
        wide = self.written(tmp_path / "w.vnnlib", [0.0] * 3, [1.0] * 3)
        assert "declares 3 variables X, but the network has 2 inputs" in refused(*start, wide, *end)
        outputs = self.written(tmp_path / "y.vnnlib", [0.0] * 2, [1.0] * 2, "(declare-const Y_0 Real)")
        assert "declares 1 variables Y, but the network has 3 outputs" in refused(*start, outputs, *end)
        binary = tmp_path / "binary.vnnlib"
        binary.write_bytes(b"\xff\xfe")
        assert "UTF-8" in refused(*start, binary, *end)
        claim = self.written(tmp_path / "c.vnnlib", [0.0] * 2, [1.0] * 2, "(assert (not (<= X_0 1)))")
        assert f"{claim}: line 7: (not (<= X_0 1)) is not supported" in refused(*start, claim, *end)
        outside = refused(*start, files[1], "--vnnlib", files[0], "--domain", -2, 0, *end)
        assert f"bnndp: {files[0]}: box 0 lies outside the domain" in outside

    def test_verdicts_need_decisions_and_a_place(
        self, refused: Any, classifier: Path, model: Path, inputs: Path, labelled: Path, tmp_path: Path
    ) -> None:
        needs = ("certify", model, inputs, "--eps", 0.1, "--vnncomp-csv", tmp_path / "v.csv")
        assert "--vnncomp-csv is about verdicts" in refused(*needs)
        for place in (classifier, labelled):
            line = refused("certify", classifier, labelled, "--eps", 0.1, "--vnncomp-csv", place)
            assert "would be overwritten; change --vnncomp-csv" in line
