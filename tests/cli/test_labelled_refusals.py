"""Wrong input to ``bnndp radius`` and ``bnndp evaluate``: one line on stderr, exit status 2, no file left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

X = [[0.1, 0.2], [0.3, 0.4]]
COMMANDS = {"radius": (), "evaluate": ("--eps", 0.1)}

ARRAYS: dict[str, tuple[dict[str, Any], str]] = {
    "label too large": ({"x": X, "y": [0, 3]}, "y[1] is 3 (1 such of 2), but the classes of the network are 0 to 2"),
    "label negative": ({"x": X, "y": [-1, -2]}, "y[0] is -1 (2 such of 2)"),
    "huge label": ({"x": X, "y": np.array([0, 2**63], dtype=np.uint64)}, "y[1] is 9223372036854775808"),
    "labels as floats": ({"x": X, "y": [0.0, 1.0]}, "y has dtype float64; labels must be integers"),
    "labels as text": ({"x": X, "y": ["a", "b"]}, "y has dtype <U1"),
    "labels as truth values": ({"x": X, "y": [True, False]}, "y has dtype bool"),
    "labels as objects": ({"x": X, "y": np.array([{}, {}], dtype=object)}, "allow_pickle=False"),
    "too many labels": ({"x": X, "y": [0, 1, 2]}, "y has shape (3,), but there are 2 inputs"),
    "too few labels": ({"x": X, "y": [0]}, "y has shape (1,), but there are 2 inputs"),
    "one label": ({"x": X, "y": 1}, "y has shape (), but there are 2 inputs"),
    "labels one by one hot": ({"x": X, "y": [[1, 0, 0], [0, 1, 0]]}, "y has shape (2, 3)"),
    "no x": ({"y": [0, 1]}, "needs an array x of points; it holds y"),
    "boxes": ({"lower": X, "upper": X}, "needs an array x of points; it holds lower, upper"),
    "nothing": ({}, "it holds nothing"),
    "too many columns": ({"x": [[0.1, 0.2, 0.3]], "y": [0]}, "3 columns, but the network takes 2 inputs"),
    "a vector": ({"x": [0.1, 0.2], "y": [0, 0]}, "(n, 2)"),
    "no rows": ({"x": np.zeros((0, 2)), "y": np.zeros(0, dtype=int)}, "x has no rows"),
    "NaN pixels": ({"x": [[0.1, np.nan], [0.3, 0.4]], "y": [0, 1]}, "x at row 0, column 1 is nan (1 such values)"),
    "infinite pixels": ({"x": [[0.1, np.inf], [0.3, 0.4]], "y": [0, 1]}, "x at row 0, column 1 is inf"),
    "outside the domain": ({"x": [[0.1, 0.2], [0.3, 1.5]], "y": [0, 1]}, "point 1 lies outside the domain [0.0, 1.0]"),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("case", ARRAYS)
def test_bad_arrays(refused: Any, classifier: Path, tmp_path: Path, case: str, command: str) -> None:
    arrays, words = ARRAYS[case]
    path = tmp_path / "in.npz"
    np.savez(path, **arrays)
    options = (*COMMANDS[command], "--domain", 0, 1, "--out", tmp_path / "out.jsonl")
    line = refused(command, classifier, path, *options)
    assert str(path) in line
    assert words in line


@pytest.mark.parametrize("command", COMMANDS)
def test_a_network_for_regression(refused: Any, model: Path, inputs: Path, tmp_path: Path, command: str) -> None:
    arguments = (command, model, inputs, *COMMANDS[command], "--out", tmp_path / "out.jsonl")
    line = refused(*arguments)
    assert f"{model}: is a network for regression, which has no decisions" in line
    assert "bnndp certify" in line
    assert "bnndp convert --task classification" in line


OPTIONS: dict[str, tuple[tuple[object, ...], str]] = {
    "no radius at all": (("--upper", 0), "'--upper'"),
    "negative radius": (("--upper", -1), "'--upper'"),
    "infinite radius": (("--upper", "inf"), "'--upper'"),
    "NaN radius": (("--upper", "nan"), "'--upper'"),
    "no tolerance": (("--tolerance", 0), "'--tolerance'"),
    "tolerance of one": (("--tolerance", 1), "'--tolerance'"),
    "NaN tolerance": (("--tolerance", "nan"), "'--tolerance'"),
    "negative steps": (("--optimise", -1), "'--optimise'"),
    "no inputs": (("--limit", 0), "'--limit'"),
    "unknown norm": (("--norm", 3), "'--norm'"),
    "reversed domain": (("--domain", 1, 0), "low <= high"),
    "both sources": (("--data", "mnist"), "either the file INPUTS or a data set by --data"),
    "unknown set": (("--data", "letters"), "'--data'"),
    "a folder without a set": (("--data-dir", "."), "--data-dir belongs to --data"),
    "third argument": (("more",), "more"),
    "a given radius": (("--eps", 0.1), "searches for the radii, up to --upper; for given ones there are bnndp certify"),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_bad_options(refused: Any, classifier: Path, labelled: Path, tmp_path: Path, case: str) -> None:
    options, words = OPTIONS[case]
    out = tmp_path / "out.jsonl"
    assert words in refused("radius", classifier, labelled, "--out", out, *options)


RADII: dict[str, tuple[tuple[object, ...], str]] = {
    "none": ((), "--eps"),
    "negative": (("--eps", 0.1, -0.1), "-0.1"),
    "NaN": (("--eps", "nan"), "'--eps'"),
    "infinite": (("--eps", 0.1, "inf"), "'--eps'"),
    "a word": (("--eps", "small"), "'--eps'"),
    "two lists": (("--eps", "0.1,0.2"), "'--eps'"),
}


@pytest.mark.parametrize("case", RADII)
def test_bad_radii(refused: Any, classifier: Path, labelled: Path, tmp_path: Path, case: str) -> None:
    options, words = RADII[case]
    assert words in refused("evaluate", classifier, labelled, *options)


def test_accuracy_needs_labels(refused: Any, classifier: Path, inputs: Path, tmp_path: Path) -> None:
    line = refused("evaluate", classifier, inputs, "--eps", 0.1)
    assert f"{inputs}: needs an array y of labels" in line
    (tmp_path / "in.csv").write_text("0.1,0.2\n")
    assert "needs an array y" in refused("evaluate", classifier, tmp_path / "in.csv", "--eps", 0.1)


def test_no_inputs_at_all(refused: Any, classifier: Path, tmp_path: Path) -> None:
    assert "either the file INPUTS" in refused("radius", classifier, "--out", tmp_path / "o.jsonl")


def test_files_that_are_not_there_or_not_arrays(refused: Any, classifier: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("0.1,0.2")
    (tmp_path / "noise.npz").write_bytes(b"\x00\x01" * 40)
    cases = {"none.npz": "no such file", "in.txt": "'.txt'", "noise.npz": "cannot be read"}
    for name, words in cases.items():
        line = refused("radius", classifier, tmp_path / name, "--out", tmp_path / "o.jsonl")
        assert str(tmp_path / name) in line
        assert words in line


def test_a_set_that_is_not_there_or_does_not_fit(
    refused: Any, classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BNNDP_DATA", raising=False)
    arguments = ("radius", classifier, "--data", "mnist", "--out", tmp_path / "o.jsonl")
    assert "BNNDP_DATA" in refused(*arguments)
    assert "lacks" in refused(*arguments, "--data-dir", tmp_path)


def test_images_do_not_fit_a_small_network(refused: Any, classifier: Path, tmp_path: Path, data_folder: Path) -> None:
    arguments = ("--data", "mnist", "--data-dir", data_folder, "--out", tmp_path / "o.jsonl")
    line = refused("radius", classifier, *arguments)
    assert "mnist (test): x has 784 columns, but the network takes 2 inputs" in line


def test_bad_places_for_the_picture(refused: Any, classifier: Path, labelled: Path, tmp_path: Path) -> None:
    (tmp_path / "folder.png").mkdir()
    places = {
        tmp_path / "curve.txt": "'.txt'",
        tmp_path / "curve": "no suffix",
        tmp_path / "none" / "curve.png": "does not exist",
        tmp_path / "folder.png": "not a regular file",
    }
    for place, words in places.items():
        line = refused("evaluate", classifier, labelled, "--eps", 0.1, "--plot", place)
        assert str(place) in line
        assert words in line


def test_the_inputs_are_never_overwritten(refused: Any, classifier: Path, labelled: Path, tmp_path: Path) -> None:
    for command, options in COMMANDS.items():
        for place in (classifier, labelled):
            line = refused(command, classifier, labelled, *options, "--out", place)
            assert "input of this command" in line


CERTIFY: dict[str, tuple[str, tuple[object, ...], str]] = {
    "label too large": ("x", ("--label", 3), "--label is 3, but the classes of the network are 0 to 2"),
    "label negative": ("x", ("--label", -1), "'--label'"),
    "label and labels": ("xy", ("--label", 0), "holds labels y, and --label 0 was given too"),
    "attack": ("x", ("--attack",), "the range from inside is for regression"),
}


@pytest.mark.parametrize("case", CERTIFY)
def test_bad_labels_of_certify(refused: Any, classifier: Path, tmp_path: Path, case: str) -> None:
    kind, options, words = CERTIFY[case]
    np.savez(tmp_path / "in.npz", **({"x": X, "y": [0, 1]} if kind == "xy" else {"x": X}))
    arguments = ("certify", classifier, tmp_path / "in.npz", "--eps", 0.1, "--out", tmp_path / "out.jsonl")
    assert words in refused(*arguments, *options)


def test_a_label_for_a_network_of_regression(refused: Any, model: Path, inputs: Path, tmp_path: Path) -> None:
    arguments = ("certify", model, inputs, "--eps", 0.1, "--label", 0, "--out", tmp_path / "out.jsonl")
    assert "--label is for classifiers; this network is for regression" in refused(*arguments)
