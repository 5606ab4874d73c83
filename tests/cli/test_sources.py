"""Where inputs and labels come from: arrays, tables with a column of labels, data sets; the same for all commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

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


def without_times(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


@pytest.fixture
def answers(bnndp: Any, tmp_path: Path, read_rows: Any) -> Callable[..., list[dict[str, Any]]]:
    """The rows of a command, without their times."""

    def run(command: str, *arguments: object) -> list[dict[str, Any]]:
        out = tmp_path / "out.jsonl"
        result = bnndp(command, *arguments, *COMMANDS[command], "--out", out)
        assert result.status == 0, result.stderr
        return without_times(read_rows(out))

    return run


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("header", ["label,a,b", "0,label,1", "a,b, label "])
def test_a_column_of_labels(
    answers: Any, classifier: Path, labelled: Path, tmp_path: Path, command: str, header: str
) -> None:
    place = [name.strip() for name in header.split(",")].index("label")
    lines = [[*map(str, x[:place]), str(y), *map(str, x[place:])] for x, y in zip(X, Y, strict=True)]
    table = tmp_path / "in.csv"
    table.write_text("\n".join([header, *(",".join(line) for line in lines)]) + "\n")
    assert answers(command, classifier, table) == answers(command, classifier, labelled)


LABELS = {
    "a,label\n0.1,1\n": "x has 1 columns, but the network takes 2 inputs",
    "a,b,label\n0.1,0.2,0\n0.3,0.4,0.5\n": "line 3: the label is 0.5; labels are whole numbers",
    "a,b,label\n0.1,0.2,nan\n": "line 2: the label is nan",
    "a,b,label\n0.1,0.2,3\n": "y[0] is 3 (1 such of 1), but the classes of the network are 0 to 2",
    "a,b,label\n0.1,0.2,cat\n": "line 2, column 3: 'cat' is not a number",
    "label,b,label\n0,0.2,1\n": "its first line has 3 names, 2 of them label, for 3 columns",
    "a,label\n0.1,0.2,0\n": "its first line has 2 names, 1 of them label, for 3 columns",
    "a,b,class\n0.1,0.2,0\n": "a column that the first line of a .csv calls label",
}


@pytest.mark.parametrize("text", LABELS)
def test_wrong_columns_of_labels(refused: Any, classifier: Path, tmp_path: Path, text: str) -> None:
    path = tmp_path / "in.csv"
    path.write_text(text)
    for command, options in COMMANDS.items():
        line = refused(command, classifier, path, *options)
        assert str(path) in line
        assert LABELS[text] in line


@pytest.mark.parametrize("command", ["certify", "radius"])
def test_a_single_array(answers: Any, classifier: Path, tmp_path: Path, command: str) -> None:
    np.save(tmp_path / "in.npy", np.array(X))
    np.savez(tmp_path / "in.npz", x=X)
    assert answers(command, classifier, tmp_path / "in.npy") == answers(command, classifier, tmp_path / "in.npz")


def test_arrays_under_the_wrong_name(refused: Any, classifier: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "in.npy", np.array(X))
    np.savez(tmp_path / "in.npz", x=X)
    (tmp_path / "in.npy").rename(tmp_path / "array.npz")
    (tmp_path / "in.npz").rename(tmp_path / "archive.npy")
    (tmp_path / "noise.npy").write_bytes(b"\x93NUMPY" + b"\x00" * 40)
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    words = {
        "array.npz": "is a single array, not a .npz archive; name it .npy",
        "archive.npy": "is an archive, not a single .npy array; name it .npz",
        "noise.npy": "cannot be read as a plain .npy array",
        "objects.npy": "allow_pickle=False",
    }
    for name, said in words.items():
        assert said in refused("certify", classifier, tmp_path / name, "--eps", 0.1)


def images(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(0).random(shape)


def test_images_become_rows_where_their_order_is_sure(answers: Any, refused: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    dense, convolution = tmp_path / "dense.safetensors", tmp_path / "conv.safetensors"
    save(BayesianNetwork.from_linears([Linear.fixed(torch.randn(2, 12), torch.zeros(2))]), dense)
    layers = (Conv2d.fixed(torch.randn(1, 3, 2, 2), torch.zeros(1)), Flatten(), Linear.fixed(torch.randn(2, 1)))
    save(BayesianNetwork(layers, input_shape=(3, 2, 2)), convolution)
    path, rows = tmp_path / "in.npy", tmp_path / "rows.npy"
    for model, shape in ((dense, (2, 3, 4)), (dense, (2, 1, 3, 4)), (convolution, (2, 3, 2, 2))):
        np.save(path, images(shape))
        np.save(rows, images(shape).reshape(2, 12))
        assert answers("certify", model, path) == answers("certify", model, rows)
    for model, shape in (
        (dense, (2, 3, 2, 2)),
        (convolution, (2, 2, 2, 3)),
        (convolution, (2, 3, 4)),
        (dense, (2, 3, 3)),
    ):
        np.save(path, images(shape))
        assert f"x must have shape (n, 12), got {shape}" in refused("certify", model, path, "--eps", 0.1)


def test_certify_takes_data_sets(answers: Any, bnndp: Any, tmp_path: Path) -> None:
    from bnndp.data import ClassificationData, load

    moons = load("moons", "train")
    assert isinstance(moons, ClassificationData)
    np.savez(tmp_path / "moons.npz", x=moons.x[:3].numpy(), y=moons.y[:3].numpy())
    np.savez(tmp_path / "sine.npz", x=load("sine1d", "test").x[:3].numpy())
    with network_path(CLASSIFIER) as path:
        found = answers("certify", path, "--data", "moons", "--split", "train", "--limit", 3)
        assert found == answers("certify", path, tmp_path / "moons.npz")
        assert found[:2] == answers("certify", path, tmp_path / "moons.npz", "--limit", 2)
        assert all(row["verdict"] == "certified" for row in found)
    with network_path(NAME) as path:
        found = answers("certify", path, "--data", "sine1d", "--limit", 3)
        assert found == answers("certify", path, tmp_path / "sine.npz")
        assert "label" not in found[0]


def test_the_run_says_which_set_it_is_of(bnndp: Any, tmp_path: Path) -> None:
    import json

    run = tmp_path / "run"
    with network_path(CLASSIFIER) as path:
        assert bnndp("certify", path, "--data", "moons", "--limit", 3, "--eps", 0.01, "--run", run).status == 0
        entry = json.loads((run / "run.json").read_text())["made"]["inputs"]
        want = {"path": None, "sha256": None, "dataset": "moons", "split": "test", "fold": 0, "limit": 3}
        assert entry == want | {"labels": "given"}
        assert np.load(run / "inputs.npz")["y"].shape == (3,)


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
    assert "moons is for classification and the network for regression; choose one of sine1d" in refused(
        *words, "moons"
    )
    assert "there is no data set 'letters'" in refused(*words, "letters")
    assert "the radius of the balls around them is needed; add --eps" in refused("certify", model, "--data", "sine2d")
