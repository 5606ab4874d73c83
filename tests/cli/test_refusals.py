"""Wrong input: exit status 2, one line on stderr that names the cause, no file left behind, nothing overwritten."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from tests.cli.conftest import interrupted_at

from bnndp.cli import boxes
from bnndp.errors import InputError
from bnndp.questions.certify import better_bounds

GOOD = [[0.1, 0.2]]


def _npz(**arrays: Any) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        np.savez(folder / "in.npz", **arrays)
        return folder / "in.npz"

    return write


def _file(name: str, content: str | bytes) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        path = folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def _array(folder: Path) -> Path:
    np.save(folder / "a.npy", np.zeros((1, 2)))
    return (folder / "a.npy").rename(folder / "in.npz")


def _truncated(folder: Path) -> Path:
    path = _npz(x=np.zeros((100, 2)))(folder)
    path.write_bytes(path.read_bytes()[:900])
    return path


def _flipped(folder: Path) -> Path:
    path = _npz(x=np.arange(200.0).reshape(100, 2))(folder)
    data = bytearray(path.read_bytes())
    data[700] ^= 255  # inside the numbers: the checksum of the archive notices
    path.write_bytes(data)
    return path


def _folder(folder: Path) -> Path:
    (folder / "in.npz").mkdir()
    return folder / "in.npz"


INPUTS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "missing npz": (lambda folder: folder / "none.npz", "no such file"),
    "missing csv": (lambda folder: folder / "none.csv", "no such file"),
    "a folder": (_folder, "no such file"),
    "unknown suffix": (_file("in.txt", "0.1,0.2"), "'.txt'"),
    "no suffix": (_file("in", "0.1,0.2"), "no suffix"),
    "wrong key": (_npz(points=GOOD), "it holds points"),
    "no arrays": (_npz(), "it holds nothing"),
    "only lower": (_npz(lower=GOOD), "it holds lower"),
    "x and lower": (_npz(x=GOOD, lower=GOOD), "both x and lower"),
    "x, lower and upper": (_npz(x=GOOD, lower=GOOD, upper=GOOD), "both x and lower and upper"),
    "too many columns": (_npz(x=[[0.1, 0.2, 0.3]]), "3 columns, but the network takes 2"),
    "too few columns": (_npz(x=[[0.1]]), "1 columns, but the network takes 2"),
    "a vector": (_npz(x=[0.1, 0.2]), "(n, 2)"),
    "images": (_npz(x=np.zeros((1, 2, 2))), "(n, 2)"),
    "a scalar": (_npz(x=1.0), "(n, 2)"),
    "no rows": (_npz(x=np.zeros((0, 2))), "no rows"),
    "NaN": (_npz(x=[[0.1, 0.2], [0.3, np.nan]]), "row 1, column 1 is nan"),
    "infinity": (_npz(x=[[np.inf, 0.2]]), "row 0, column 0 is inf"),
    "text": (_npz(x=[["a", "b"]]), "dtype <U1"),
    "complex": (_npz(x=[[1j, 2j]]), "dtype complex128"),
    "truth values": (_npz(x=[[True, False]]), "dtype bool"),
    "objects": (_npz(x=np.array([[{}, {}]], dtype=object)), "allow_pickle=False"),
    "a pickle": (_file("in.npz", pickle.dumps({"x": GOOD})), "cannot be read"),
    "noise": (_file("in.npz", b"\x00\x01\x02" * 50), "cannot be read"),
    "empty npz": (_file("in.npz", b""), "cannot be read"),
    "one array": (_array, "single array"),
    "truncated npz": (_truncated, "cannot be read"),
    "flipped bits": (_flipped, "cannot be read"),
    "empty csv": (_file("in.csv", ""), "no rows"),
    "header only": (_file("in.csv", "a,b\n"), "no rows"),
    "blank csv": (_file("in.csv", "\n\n\n"), "no rows"),
    "csv NaN": (_file("in.csv", "0.1,0.2\nnan,0.3\n"), "row 1, column 0 is nan"),
    "csv infinity": (_file("in.csv", "0.1,-inf\n"), "row 0, column 1 is -inf"),
    "csv overflow": (_file("in.csv", "0.1,1e999\n"), "row 0, column 1 is inf"),
    "csv word": (_file("in.csv", "a,b\n0.1,0.2\n0.3,zero\n"), "line 3, column 2: 'zero'"),
    "csv misprint in the first line": (_file("in.csv", "0.1,O.2\n0.3,0.4\n"), "line 1, column 2: 'O.2'"),
    "csv missing value": (_file("in.csv", "0.1,0.2\n0.3,\n"), "line 2, column 2: ''"),
    "csv ragged": (_file("in.csv", "0.1,0.2\n0.3\n"), "line 2 has 1 values"),
    "csv blank line": (_file("in.csv", "0.1,0.2\n\n0.3,0.4\n"), "line 2 has 0 values"),
    "csv semicolons": (_file("in.csv", "a;b\n0.1;0.2\n"), "'0.1;0.2'"),
    "csv wrong columns": (_file("in.csv", "0.1,0.2,0.3\n"), "3 columns"),
    "csv underscore": (_file("in.csv", "1_0,0.2\n"), "'1_0'"),
    "csv binary": (_file("in.csv", b"\xff\xfe\x00\x01"), "UTF-8"),
    "csv with a long field": (_file("in.csv", "1" * 200_000 + ",0\n"), "cannot be read"),
}


@pytest.mark.parametrize("case", INPUTS)
def test_bad_inputs(refused: Any, model: Path, tmp_path: Path, case: str) -> None:
    make, words = INPUTS[case]
    path = make(tmp_path)
    refused("certify", model, path, "--eps", 0.1, "--out", tmp_path / "out.jsonl", says=(path, words))


BOXES: dict[str, tuple[dict[str, Any], tuple[object, ...], str]] = {
    "crossed": ({"lower": [[0.0, 0.5]], "upper": [[1.0, 0.4]]}, (), "box 0, input 1"),
    "eps with boxes": ({"lower": GOOD, "upper": GOOD}, ("--eps", 0.1), "leave out --eps"),
    "norm with boxes": ({"lower": GOOD, "upper": GOOD}, ("--norm", 2), "leave out --eps and --norm"),
    "other shape": ({"lower": GOOD, "upper": GOOD * 2}, (), "differ in shape"),
    "NaN": ({"lower": [[np.nan, 0.0]], "upper": GOOD}, (), "lower at row 0, column 0"),
    "outside the domain": ({"lower": [[0.0, 2.0]], "upper": [[1.0, 3.0]]}, ("--domain", 0, 1), "box 0 lies outside"),
    "reversed domain": ({"lower": GOOD, "upper": GOOD}, ("--domain", 1, 0), "LO <= HI"),
    "NaN domain": ({"lower": GOOD, "upper": GOOD}, ("--domain", "nan", 1), "LO <= HI"),
    "eps missing": ({"x": GOOD}, (), "add --eps"),
    "point outside the domain": ({"x": GOOD}, ("--eps", 0.1, "--domain", 0.15, 1), "point 0 lies outside the domain"),
    "reversed domain of points": ({"x": GOOD}, ("--eps", 0.1, "--domain", 1, 0), "low <= high"),
}


@pytest.mark.parametrize("case", BOXES)
def test_bad_boxes_and_domains(refused: Any, model: Path, tmp_path: Path, case: str) -> None:
    arrays, options, words = BOXES[case]
    path = _npz(**arrays)(tmp_path)
    refused("certify", model, path, *options, "--out", tmp_path / "out.jsonl", says=(path, words))


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
def test_bad_arrays_with_labels(refused: Any, classifier: Path, tmp_path: Path, case: str, command: str) -> None:
    arrays, words = ARRAYS[case]
    path = _npz(**arrays)(tmp_path)
    end = ("--domain", 0, 1, "--out", tmp_path / "out.jsonl")
    refused(command, classifier, path, *COMMANDS[command], *end, says=(path, words))


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
def test_bad_columns_of_labels(refused: Any, classifier: Path, tmp_path: Path, text: str) -> None:
    path = _file("in.csv", text)(tmp_path)
    for command, options in (*COMMANDS.items(), ("certify", ("--eps", 0.1))):
        refused(command, classifier, path, *options, says=(path, LABELS[text]))


def test_arrays_under_the_wrong_name(refused: Any, classifier: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=GOOD)
    (tmp_path / "in.npz").rename(tmp_path / "archive.npy")
    (tmp_path / "noise.npy").write_bytes(b"\x93NUMPY" + b"\x00" * 40)
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    words = {
        "archive.npy": "is an archive, not a single .npy array; name it .npz",
        "noise.npy": "cannot be read as a plain .npy array",
        "objects.npy": "allow_pickle=False",
    }
    for name, said in words.items():
        assert said in refused("certify", classifier, tmp_path / name, "--eps", 0.1)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_network_for_regression(refused: Any, model: Path, inputs: Path, command: str) -> None:
    words = f"{model}: is a network for regression, which has no decisions"
    advice = ("bnndp certify", "bnndp convert --task classification")
    refused(command, model, inputs, *COMMANDS[command], says=(words, *advice))


def test_accuracy_needs_labels(refused: Any, classifier: Path, inputs: Path, tmp_path: Path) -> None:
    for path in (inputs, _file("in.csv", "0.1,0.2\n")(tmp_path)):
        assert f"{path}: needs an array y of labels" in refused("evaluate", classifier, path, "--eps", 0.1)


CERTIFY: dict[str, tuple[bool, tuple[object, ...], str]] = {
    "label too large": (False, ("--label", 3), "--label is 3, but the classes of the network are 0 to 2"),
    "label negative": (False, ("--label", -1), "'--label'"),
    "label and labels": (True, ("--label", 0), "holds labels y, and --label 0 was given too"),
    "attack": (False, ("--attack",), "the range from inside is for regression"),
}


@pytest.mark.parametrize("case", CERTIFY)
def test_bad_labels_of_certify(refused: Any, classifier: Path, tmp_path: Path, case: str) -> None:
    labels, options, words = CERTIFY[case]
    path = _npz(x=X, **({"y": [0, 1]} if labels else {}))(tmp_path)
    assert words in refused("certify", classifier, path, "--eps", 0.1, *options)


def test_a_label_for_a_network_of_regression(refused: Any, model: Path, inputs: Path) -> None:
    words = "--label is for classifiers; this network is for regression"
    refused("certify", model, inputs, "--eps", 0.1, "--label", 0, says=(words,))


VALUES: dict[str, dict[str, tuple[object, ...]]] = {
    "certify": {
        "--eps": (-0.1, "nan", "inf", "small"),
        "--norm": (3,),
        "--method": ("magic",),
        "--refine": (0, 0.5),
        "--tolerance": (-1, "nan"),
        "--time-limit": (-1,),
        "--seed": (-1, 10**30),
    },
    "radius": {
        "--upper": (0, -1, "inf", "nan"),
        "--tolerance": (0, 1, "nan"),
        "--optimise": (-1,),
        "--limit": (0,),
        "--norm": (3,),
        "--data": ("letters",),
    },
    "evaluate": {"--eps": ("nan", "small", "0.1,0.2")},
}


@pytest.mark.parametrize(
    ("command", "option", "value"),
    [(command, option, value) for command, own in VALUES.items() for option, bad in own.items() for value in bad],
)
def test_bad_values_of_options(
    refused: Any, classifier: Path, labelled: Path, tmp_path: Path, command: str, option: str, value: object
) -> None:
    more = ("--eps", 0.1) if command == "certify" and option != "--eps" else ()
    refused(command, classifier, labelled, *more, option, value, "--out", tmp_path / "o.jsonl", says=(f"'{option}'",))


OPTIONS: list[tuple[str, tuple[object, ...], str]] = [
    ("certify", ("--eps", 0.1, "--domain", 0), "--domain"),
    ("certify", ("--eps", 0.1, "--fast"), "--fast"),
    ("certify", ("--eps", 0.1, "more"), "more"),
    ("radius", ("--domain", 1, 0), "low <= high"),
    ("radius", ("--data", "mnist"), "either the file INPUTS or a data set by --data"),
    ("radius", ("--data-dir", "."), "--data-dir belongs to --data"),
    ("radius", ("more",), "more"),
    ("radius", ("--eps", 0.1), "searches for the radii, up to --upper; for given ones there are bnndp certify"),
    ("evaluate", (), "--eps"),
    ("evaluate", ("--eps", 0.1, -0.1), "-0.1"),
    ("evaluate", ("--eps", 0.1, "inf"), "'--eps'"),
]


@pytest.mark.parametrize(("command", "options", "words"), OPTIONS)
def test_bad_options(
    refused: Any,
    classifier: Path,
    labelled: Path,
    tmp_path: Path,
    command: str,
    options: tuple[object, ...],
    words: str,
) -> None:
    refused(command, classifier, labelled, "--out", tmp_path / "out.jsonl", *options, says=(words,))


def test_no_inputs_at_all(refused: Any, classifier: Path) -> None:
    assert "either the file INPUTS" in refused("radius", classifier)


@pytest.mark.parametrize("arguments", [(), ("certify",), ("certify", "a", "b", "c"), ("prove",)])
def test_bad_commands(refused: Any, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    assert ("bnndp certify --help" if arguments[:1] == ("certify",) else "bnndp --help") in refused(*arguments)


def test_an_encrypted_archive(refused: Any, model: Path, tmp_path: Path) -> None:
    """zipfile raises a RuntimeError for it."""
    path = tmp_path / "locked.npz"
    np.savez(path, x=np.zeros((2, 1)))
    content = bytearray(path.read_bytes())
    content[6] |= 1  # the flag in the header of the file, and in the directory of the archive
    content[content.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(content)
    assert "cannot be read as plain .npz arrays" in refused("certify", model, path, "--eps", 0.1)


def test_bad_models(refused: Any, model: Path, inputs: Path, tmp_path: Path) -> None:
    good = model.read_bytes()
    (tmp_path / "truncated").write_bytes(good[:-8])
    (tmp_path / "header").write_bytes(good[:60] + b"\xff" + good[61:])
    (tmp_path / "not-finite").write_bytes(good[:-8] + b"\xff" * 8)
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "pickle").write_bytes(pickle.dumps({"a": 1}))
    (tmp_path / "folder").mkdir()
    words = {"not-finite": "the file is damaged or was changed", "missing": "no such file", "folder": "no such file"}
    for name in ("truncated", "header", "not-finite", "empty", "pickle", "folder", "missing"):
        says = (tmp_path / name, words.get(name, ""))
        refused("certify", tmp_path / name, inputs, "--eps", 0, "--out", tmp_path / "o.jsonl", says=says)


def test_bad_places_for_the_output(refused: Any, model: Path, inputs: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    places = {
        tmp_path / "missing" / "o.jsonl": "does not exist",
        tmp_path / "folder": "not a regular file",
        inputs / "o.jsonl": "does not exist",
        inputs: "input of this command",
        model: "input of this command",
        tmp_path / "folder" / ".." / "model.safetensors": "input of this command",
        Path("/dev/null"): "need a file of their own",
        Path("/dev/stdout"): "need a file of their own",
        tmp_path / ("n" * 250 + ".jsonl"): "cannot be written",
    }
    for place, words in places.items():
        refused("certify", model, inputs, "--eps", 0.1, "--out", place, says=(words,))
    assert Path("/dev/null").is_char_device()


def test_bad_places_for_the_picture(refused: Any, classifier: Path, labelled: Path, tmp_path: Path) -> None:
    (tmp_path / "folder.png").mkdir()
    places = {
        tmp_path / "curve.txt": "'.txt'",
        tmp_path / "curve": "no suffix",
        tmp_path / "none" / "curve.png": "does not exist",
        tmp_path / "folder.png": "not a regular file",
    }
    for place, words in places.items():
        refused("evaluate", classifier, labelled, "--eps", 0.1, "--plot", place, says=(place, words))


def test_the_inputs_are_never_overwritten(refused: Any, classifier: Path, labelled: Path) -> None:
    for command, options in COMMANDS.items():
        for place in (classifier, labelled):
            assert "input of this command" in refused(command, classifier, labelled, *options, "--out", place)


def test_a_failure_half_way_leaves_the_older_file(
    refused: Any, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(tmp_path / "many.npz", x=np.zeros((5, 2)))
    (tmp_path / "out.jsonl").write_text("older\n")
    monkeypatch.setattr(boxes, "_BOXES", 2)
    fails = interrupted_at(3, better_bounds, error=InputError("No bound for box 0."))
    monkeypatch.setattr(boxes, "better_bounds", fails)
    arguments = ("certify", model, tmp_path / "many.npz", "--eps", 0.1, "--out", tmp_path / "out.jsonl")
    assert "rows 4 to 4" in refused(*arguments)


def test_a_full_disk_is_one_line(
    bnndp: Any, model: Path, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.fsync", Mock(side_effect=OSError(28, "No space left on device")))
    arguments = ("certify", model, inputs, "--eps", 0.1, "--out", tmp_path / "out.jsonl")
    result = bnndp(*arguments)
    assert result.status == 2
    assert result.stderr.count("\n") == 1
    assert "No space left" in result.stderr
    assert not list(tmp_path.glob("*out.jsonl*"))


def test_a_bug_keeps_its_traceback(
    bnndp: Any, model: Path, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boxes, "better_bounds", Mock(side_effect=ZeroDivisionError))
    with pytest.raises(ZeroDivisionError):
        bnndp("certify", model, inputs, "--eps", 0.1, "--out", tmp_path / "out.jsonl")
    assert not list(tmp_path.glob("*out.jsonl*"))
