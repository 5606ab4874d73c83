"""``--vnnlib`` and ``--vnncomp-csv``: boxes and verdicts of other verifiers' formats."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest


def vnnlib(path: Path, lower: list[float], upper: list[float], more: str = "") -> Path:
    lines = [f"(declare-const X_{i} Real)" for i in range(len(lower))]
    for i, (low, high) in enumerate(zip(lower, upper, strict=True)):
        lines += [f"(assert (>= X_{i} {low!r}))", f"(assert (<= X_{i} {high!r}))"]
    path.write_text("\n".join([*lines, more]))
    return path


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Two boxes: class 0 in the first, several classes in the second."""
    first = vnnlib(tmp_path / "a.vnnlib", [0.875, 0.125], [1.0, 0.25])
    return [first, vnnlib(tmp_path / "b.vnnlib", [-1.0, -1.0], [1.0, 1.0], "(declare-const Y_0 Real)" * 0)]


def test_the_boxes_are_those_of_an_npz(
    bnndp: Any, classifier: Path, files: list[Path], tmp_path: Path, read_rows: Any
) -> None:
    np.savez(tmp_path / "b.npz", lower=[[0.875, 0.125], [-1, -1]], upper=[[1.0, 0.25], [1, 1]])
    out = [tmp_path / name for name in ("ours", "theirs")]
    verdicts = tmp_path / "verdicts.csv"
    start = ("--vnnlib", files[0], "--vnnlib", files[1], "--out", out[1], "--vnncomp-csv", verdicts)
    assert bnndp("certify", classifier, tmp_path / "b.npz", "--label", 0, "--out", out[0]).status == 0
    assert bnndp("certify", classifier, "--label", 0, *start).status == 0
    ours, theirs = ([row | {"seconds": 0} for row in read_rows(path)] for path in out)
    assert ours == theirs
    with verdicts.open(newline="") as file:
        lines = list(csv.reader(file))
    assert [line[:3] for line in lines] == [["bnndp", str(classifier), str(path)] for path in files]
    assert [line[4] for line in lines] == ["unsat", "sat"]
    assert all(float(line[5]) > 0 for line in lines)


def test_verdicts_of_rows_are_named_by_their_number(
    bnndp: Any, classifier: Path, labelled: Path, tmp_path: Path
) -> None:
    verdicts = tmp_path / "v.csv"
    assert bnndp("certify", classifier, labelled, "--eps", 0.01, "--json", "--vnncomp-csv", verdicts).status == 0
    with verdicts.open(newline="") as file:
        lines = list(csv.reader(file))
    assert [line[2] for line in lines] == [f"{labelled}#{i}" for i in range(4)]
    assert [line[4] for line in lines] == ["unsat", "unsat", "unsat", "sat"]


def test_what_does_not_fit_is_refused(
    refused: Any, classifier: Path, model: Path, inputs: Path, labelled: Path, files: list[Path], tmp_path: Path
) -> None:
    end = ("--label", 0, "--out", tmp_path / "o")
    start = ("certify", classifier)
    one = "give either the file INPUTS, a data set by --data NAME or --vnnlib FILE, one of them"
    assert one in refused(*start, *end)
    assert one in refused(*start, inputs, "--vnnlib", files[0], *end)
    assert one in refused(*start, "--data", "moons", "--vnnlib", files[0], *end)
    assert "--limit goes with INPUTS or --data" in refused(*start, "--vnnlib", files[0], "--limit", 1, *end)
    assert "leave out --eps" in refused(*start, "--vnnlib", files[0], "--eps", 0.1, *end)
    assert "none.vnnlib: no such file" in refused(*start, "--vnnlib", tmp_path / "none.vnnlib", *end)
    wide = vnnlib(tmp_path / "w.vnnlib", [0.0] * 3, [1.0] * 3)
    assert "declares 3 variables X, but the network has 2 inputs" in refused(*start, "--vnnlib", wide, *end)
    outputs = vnnlib(tmp_path / "y.vnnlib", [0.0] * 2, [1.0] * 2, "(declare-const Y_0 Real)")
    assert "declares 1 variables Y, but the network has 3 outputs" in refused(*start, "--vnnlib", outputs, *end)
    binary = tmp_path / "binary.vnnlib"
    binary.write_bytes(b"\xff\xfe")
    assert "UTF-8" in refused(*start, "--vnnlib", binary, *end)
    claim = vnnlib(tmp_path / "c.vnnlib", [0.0] * 2, [1.0] * 2, "(assert (or (<= X_0 1)))")
    assert f"{claim}: (or (<= X_0 1)) is not read" in refused(*start, "--vnnlib", claim, *end)
    outside = ("--vnnlib", files[0], "--vnnlib", files[1], "--domain", 2, 3)
    assert f"{files[0]}: box 0 lies outside the domain" in refused(*start, *outside, *end)
    needs = ("certify", model, inputs, "--eps", 0.1, "--out", tmp_path / "o", "--vnncomp-csv")
    assert "--vnncomp-csv is about verdicts" in refused(*needs, tmp_path / "v.csv")
    for place in (classifier, labelled):
        line = refused(*start, labelled, "--eps", 0.1, "--out", tmp_path / "o", "--vnncomp-csv", place)
        assert "would be overwritten; change --vnncomp-csv" in line
