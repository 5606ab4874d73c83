"""Wrong input: exit status 2, one line on stderr that names the cause, no file left behind, nothing overwritten."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bnndp.cli import boxes
from bnndp.errors import InputError

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
    line = refused("certify", model, path, "--eps", 0.1, "--out", tmp_path / "out.jsonl")
    assert str(path) in line
    assert words in line


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
    line = refused("certify", model, path, *options, "--out", tmp_path / "out.jsonl")
    assert str(path) in line
    assert words in line


USAGE: dict[str, tuple[tuple[object, ...], str]] = {
    "negative eps": (("--eps", -0.1), "'--eps'"),
    "NaN eps": (("--eps", "nan"), "'--eps'"),
    "infinite eps": (("--eps", "inf"), "'--eps'"),
    "word for eps": (("--eps", "small"), "'--eps'"),
    "unknown norm": (("--eps", 0.1, "--norm", 3), "'--norm'"),
    "unknown method": (("--eps", 0.1, "--method", "magic"), "'--method'"),
    "no cells": (("--eps", 0.1, "--refine", 0), "'--refine'"),
    "half a cell": (("--eps", 0.1, "--refine", 0.5), "'--refine'"),
    "negative tolerance": (("--eps", 0.1, "--tolerance", -1), "'--tolerance'"),
    "NaN tolerance": (("--eps", 0.1, "--tolerance", "nan"), "'--tolerance'"),
    "negative time": (("--eps", 0.1, "--time-limit", -1), "'--time-limit'"),
    "negative seed": (("--eps", 0.1, "--seed", -1), "'--seed'"),
    "huge seed": (("--eps", 0.1, "--seed", 10**30), "'--seed'"),
    "one end of the domain": (("--eps", 0.1, "--domain", 0), "--domain"),
    "unknown option": (("--eps", 0.1, "--fast"), "--fast"),
    "third argument": (("--eps", 0.1, "more"), "more"),
}


@pytest.mark.parametrize("case", USAGE)
def test_bad_options(refused: Any, model: Path, inputs: Path, tmp_path: Path, case: str) -> None:
    options, words = USAGE[case]
    assert words in refused("certify", model, inputs, "--out", tmp_path / "out.jsonl", *options)


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
    words = {
        "not-finite": "the file is damaged or was changed",
        "missing": "no such file",
        "folder": "no such file",
    }
    for name in ("truncated", "header", "not-finite", "empty", "pickle", "folder", "missing"):
        line = refused("certify", tmp_path / name, inputs, "--eps", 0, "--out", tmp_path / "o.jsonl")
        assert str(tmp_path / name) in line
        assert words.get(name, "") in line


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
        line = refused("certify", model, inputs, "--eps", 0.1, "--out", place)
        assert words in line
    assert Path("/dev/null").is_char_device()


def test_a_failure_half_way_leaves_the_older_file(
    refused: Any, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(tmp_path / "many.npz", x=np.zeros((5, 2)))
    (tmp_path / "out.jsonl").write_text("older\n")
    monkeypatch.setattr(boxes, "_BOXES", 2)
    real, calls = boxes.better_bounds, []

    def fail_later(network: Any, box: Any, options: Any) -> Any:
        calls.append(box.batch)
        if len(calls) == 3:
            raise InputError("No bound for box 0.")
        return real(network, box, options)

    monkeypatch.setattr(boxes, "better_bounds", fail_later)
    arguments = ("certify", model, tmp_path / "many.npz", "--eps", 0.1, "--out", tmp_path / "out.jsonl")
    line = refused(*arguments)
    assert "rows 4 to 4" in line
    assert calls == [2, 2, 1]


def test_a_full_disk_is_one_line(
    bnndp: Any, model: Path, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    arguments = ("certify", model, inputs, "--eps", 0.1, "--out", tmp_path / "out.jsonl")
    result = bnndp(*arguments)
    assert result.status == 2
    assert result.stderr.count("\n") == 1
    assert "No space left" in result.stderr
    assert not list(tmp_path.glob("*out.jsonl*"))


def test_a_bug_keeps_its_traceback(
    bnndp: Any, model: Path, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bug(*_arguments: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(boxes, "better_bounds", bug)
    with pytest.raises(ZeroDivisionError):
        bnndp("certify", model, inputs, "--eps", 0.1, "--out", tmp_path / "out.jsonl")
    assert not list(tmp_path.glob("*out.jsonl*"))
