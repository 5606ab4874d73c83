"""The tables of a run folder: the same rows in every format, whole or not at all."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from bnndp.errors import RunStateError
from bnndp.runs.exports import EXPORTS, npz, open_exports, write_summary

ROWS: list[dict[str, Any]] = [
    {"index": 0, "lower": [0.1, None], "method": "moment", "seconds": 5e-324, "label": 2, "rival": None,
     "witness": None},
    {"index": 1, "lower": [-1e308, 0.3], "method": "best", "seconds": 0.5, "label": 0, "rival": 1,
     "witness": [0.1, 0.2]},
]  # fmt: skip


def exported(folder: Path, rows: list[dict[str, Any]] = ROWS) -> None:
    with open_exports(folder) as export:
        for row in rows:
            export(row, {})


def test_all_formats_hold_the_same_rows(tmp_path: Path) -> None:
    exported(tmp_path)
    assert [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()] == ROWS
    with (tmp_path / "results.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert list(table[0]) == ["index", "lower_0", "lower_1", "method", "seconds", "label", "rival"]
    assert [row["lower_1"] for row in table] == ["", "0.3"]
    assert [float(row["seconds"]) for row in table] == [5e-324, 0.5]
    found = np.load(tmp_path / "witnesses.npz")
    assert {name: found[name].tolist() for name in found.files} == {"index": [1], "rival": [1], "x": [[0.1, 0.2]]}
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(set(EXPORTS) - {"summary.json"})


def test_parquet_has_types_and_every_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    monkeypatch.setattr("bnndp.runs.exports._GROUP", 3)
    many = [ROWS[i % 2] | {"index": i} for i in range(7)]
    exported(tmp_path, many)
    table = parquet.read_table(tmp_path / "results.parquet")
    assert table.to_pylist() == [{name: row[name] for name in row if name != "witness"} for row in many]
    kinds = {field.name: str(field.type) for field in table.schema}
    assert (kinds["index"], kinds["rival"], kinds["seconds"], kinds["method"]) == ("int64", "int64", "double", "string")
    assert kinds["lower"].startswith("list<")


def test_without_pyarrow_there_is_no_parquet_and_no_older_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "results.parquet").write_bytes(b"older")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    exported(tmp_path)
    assert not (tmp_path / "results.parquet").exists()
    assert (tmp_path / "results.csv").exists()


def test_witnesses_of_older_answers_do_not_stay(tmp_path: Path) -> None:
    exported(tmp_path)
    exported(tmp_path, ROWS[:1])
    assert not (tmp_path / "witnesses.npz").exists()


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_an_interruption_leaves_what_was_there(tmp_path: Path, error: type[BaseException]) -> None:
    exported(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(error), open_exports(tmp_path) as export:  # noqa: PT012 (the row is part of it)
        export(ROWS[0], {})
        raise error
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_what_json_does_not_know_is_no_row(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"), open_exports(tmp_path) as export:
        export({"index": 0, "radius": float("nan")}, {})
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", Mock(side_effect=OSError(28, "No space left on device")))
    for attempt in (lambda: exported(tmp_path), lambda: write_summary(tmp_path, {"points": 1})):
        with pytest.raises(RunStateError, match="No space left on device; every answer is kept"):
            attempt()
    assert list(tmp_path.iterdir()) == []


def test_arrays_come_back_bit_for_bit(tmp_path: Path) -> None:
    x = np.array([[0.1, -0.0, 5e-324, 1e308]])
    (tmp_path / "a.npz").write_bytes(npz({"x": x, "y": np.array([3])}))
    found = np.load(tmp_path / "a.npz", allow_pickle=False)
    assert found["x"].tobytes() == x.tobytes()
    assert found["y"].tolist() == [3]


def test_many_witnesses_come_back_bit_for_bit_and_leave_nothing_else(tmp_path: Path) -> None:
    """They are not held in memory; the file is that of an array all the same."""
    x = np.random.default_rng(0).standard_normal((3000, 7))
    x[0, :3] = [5e-324, -0.0, 1.7976931348623157e308]
    with open_exports(tmp_path) as export:
        for index in range(0, 6000, 2):
            export(ROWS[0] | {"index": index}, {"rival": index % 5, "witness": x[index // 2].tolist()})
    found = np.load(tmp_path / "witnesses.npz")
    assert found["x"].tobytes() == x.tobytes()
    assert (found["x"].dtype, found["x"].shape) == (np.float64, (3000, 7))
    assert found["index"].tolist() == list(range(0, 6000, 2))
    assert found["rival"].tolist() == [index % 5 for index in range(0, 6000, 2)]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(set(EXPORTS) - {"summary.json"})


def test_witnesses_of_another_length_are_refused_and_nothing_is_replaced(tmp_path: Path) -> None:
    exported(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    rows = [ROWS[1], ROWS[1] | {"index": 4, "witness": [0.1, 0.2, 0.3]}]
    with pytest.raises(RunStateError, match="the witness of input 4 has 3 numbers, those before 2"):
        exported(tmp_path, rows)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_disk_that_is_full_at_the_witnesses_replaces_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exported(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(path: Path, *_: object) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bnndp.runs.exports._write_witnesses", full)
    with pytest.raises(RunStateError, match="No space left on device; every answer is kept"):
        exported(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
