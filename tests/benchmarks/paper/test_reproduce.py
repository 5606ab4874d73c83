"""``bnndp reproduce``: small tables end to end, interruption, refusals."""

from __future__ import annotations

import csv
import importlib
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import benchmarks.paper.reproduce as experiments
import pytest
import torch
from benchmarks.paper import paper, tables
from benchmarks.paper.networks import Shelf

from bnndp.data import Store
from bnndp.files.posterior import load

SMALL = ("--points", 3, "--steps", 25)


@pytest.fixture(autouse=True)
def _small_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables and figures of the same kind as the paper's, of a few neurons."""
    widths = [paper.Width("sine2d", hidden, 1e-2, 0.04, 1.8, 0.8) for hidden in ((8,), (8, 8))]
    monkeypatch.setattr(tables, "TABLE_1A", (*widths, paper.Width("sine1d", (8,), 1e-2, 0.04, 1.8, 0.8)))
    monkeypatch.setattr(tables, "TABLE_1B", (paper.Radius("digits", (16,), 0.01, 0.005, 0.006),))
    monkeypatch.setattr(tables, "TABLE_2", (paper.Convolutional("digits", 2, 2, (8,), 6e-4, 1e-3, 1.1e-3),))
    monkeypatch.setattr(tables, "SECONDS", {"sine2d": 1.0, "sine1d": 1.0, "digits": 1.0})
    monkeypatch.setattr(tables, "SECONDS_2", {"digits": 1.0})
    panels = [paper.Interval1D(hidden, 0.7, 0.075, (-1.0, 1.0), (-9.0, 9.0)) for hidden in ((16,), (8, 8))]
    monkeypatch.setattr(experiments, "FIGURE_1", tuple(panels))


def test_a_table_of_regression(bnndp: Any, tmp_path: Path) -> None:
    out = tmp_path / "results"
    result = bnndp("reproduce", "table-1a", "--only", "sine2d", *SMALL, "--out", out)
    assert result.status == 0, result.stderr
    assert "sine2d 1x8: training" in result.stderr
    assert {"table-1a.md", "table-1a.csv", "table-1a.png", "journal.jsonl", "networks"} == {
        p.name for p in out.iterdir()
    }
    rows = list(csv.DictReader((out / "table-1a.csv").read_text().splitlines()))
    assert [row["hidden"] for row in rows] == ["1x8", "2x8"]
    assert all(0 < float(row["inside"]) <= 1.001 * float(row["moment"]) for row in rows)
    text = (out / "table-1a.md").read_text()
    assert text.rstrip("\n") in result.stdout
    assert "## 2D noisy sine" in text
    assert "Made by `" in text
    again = bnndp("reproduce", "table-1a", "--only", "sine2d", *SMALL, "--out", out)
    assert again.status == 0
    assert "training" not in again.stderr  # nothing is done twice
    assert ": moment" not in again.stderr
    figure = bnndp("reproduce", "figure-3", "--only", "sine2d", *SMALL, "--out", out)
    assert figure.status == 0
    assert "training" not in figure.stderr
    assert (out / "figure-3.png").stat().st_size > 5000
    assert (out / "figure-3-spread.png").stat().st_size > 5000


def test_a_table_of_classification(bnndp: Any, tmp_path: Path) -> None:
    out = tmp_path / "results"
    result = bnndp("reproduce", "table-1b", "--points", 4, "--steps", 300, "--out", out)
    assert result.status == 0, result.stderr
    (row,) = csv.DictReader((out / "table-1b.csv").read_text().splitlines())
    assert row["hidden"] == "1x16"
    assert 0 < float(row["moment"]) <= float(row["attack"])
    assert float(row["logit_std"]) < 0.2  # the temperature is low
    warm = bnndp("reproduce", "table-1b", "--points", 4, "--steps", 300, "--out", out, "--temperature", 1)
    assert "digits 1x16: training" in warm.stderr
    (other,) = csv.DictReader((out / "table-1b.csv").read_text().splitlines())
    assert float(other["logit_std"]) > 5 * float(row["logit_std"])
    assert (out / "table-1b.png").stat().st_size > 5000


def test_a_table_of_convolutions(bnndp: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The certified columns are of a stand-in here: what they measure has tests of its own."""
    stand_in = tuple(
        replace(column, measure=lambda subject: torch.full((subject.x.shape[0],), 3e-3, dtype=torch.float64))
        for column in experiments.CONVOLUTION_COLUMNS
        if not column.attack
    )
    attack = tuple(column for column in experiments.CONVOLUTION_COLUMNS if column.attack)
    monkeypatch.setattr(experiments, "CONVOLUTION_COLUMNS", (*stand_in, *attack))
    out = tmp_path / "results"
    result = bnndp("reproduce", "table-2", "--points", 3, "--steps", 400, "--out", out)
    assert result.status == 0, result.stderr
    assert "digits 2x4-2x4-1x8: training" in result.stderr
    (row,) = csv.DictReader((out / "table-2.csv").read_text().splitlines())
    assert (row["data"], row["convolutions"], row["kernels"], row["hidden"]) == ("digits", "2", "2", "1x8")
    assert float(row["moment"]) == pytest.approx(3e-3)
    assert float(row["gain"]) == pytest.approx(5)
    assert float(row["attack"]) > 0
    assert "partition" not in row
    (model,) = (out / "networks").iterdir()
    kinds = [layer.kind for layer in load(model).layers]  # type: ignore[union-attr]
    assert kinds == ["conv2d", "relu", "conv2d", "relu", "dropout", "flatten", "linear", "relu", "linear"]
    assert (out / "table-2.png").stat().st_size > 5000
    text = (out / "table-2.md").read_text()
    assert "trained by dropout" in text
    assert "| 2 | 2 | 1x8 |" in text


def test_the_subset_of_cifar_stands_in_where_only_it_is_there(tmp_path: Path) -> None:
    (tmp_path / "cifar10").mkdir()
    shelf = Shelf(tmp_path, Store(tmp_path, tmp_path / "cache"))
    assert experiments._at_hand(shelf) == {}
    (tmp_path / "cifar10" / "cifar10_subset.npz").write_text("")
    assert experiments._at_hand(shelf) == {"cifar10": "cifar10_subset"}
    (tmp_path / "cifar10" / "cifar-10-binary.tar.gz").write_text("")
    assert experiments._at_hand(shelf) == {}


def test_figure_1(bnndp: Any, tmp_path: Path) -> None:
    result = bnndp("reproduce", "figure-1", "--steps", 5, "--out", tmp_path / "f")
    assert result.status == 0, result.stderr
    assert "| 1x16 | 0.7 ± 0.075 |" in result.stdout
    assert (tmp_path / "f" / "figure-1.png").stat().st_size > 5000
    again = bnndp("reproduce", "figure-1", "--steps", 5, "--out", tmp_path / "f", "--quiet")
    assert (again.status, again.stderr) == (0, "")
    assert "| 1x16 | 0.7 ± 0.075 |" in again.stdout


def test_more_columns_come_from_a_module(bnndp: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "others.py").write_text(
        "import torch\nfrom benchmarks.paper.grid import Column\n"
        "COLUMNS = {'table-1a': (Column('mine', lambda s: torch.full((s.x.shape[0],), 0.25), whole=False),)}\n"
    )
    result = bnndp("reproduce", "table-1a", "--only", "sine1d", *SMALL, "--baselines", "others")
    assert result.status == 0, result.stderr
    assert "| mine † |" in result.stdout
    lines = [json.loads(line) for line in Path("reproduction/journal.jsonl").read_text().splitlines()]
    assert {tuple(line["values"]) for line in lines if line["column"] == "mine"} == {(0.25, 0.25, 0.25)}


def test_an_interrupted_run_says_how_to_go_on(bnndp: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(experiments, "fill", stop)
    result = bnndp("reproduce", "table-1a", *SMALL, "--out", tmp_path)
    assert result.status == 130
    assert result.stderr.endswith("the same command goes on from what is measured.\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("table-2", "--only", "mnist"), "no row of the table is on 'mnist'; its data sets are digits"),
        (("table-1a", "--only", "mnist"), "no row of the table is on 'mnist'; its data sets are sine2d, sine1d"),
        (("table-1a", "--baselines", "no_such_module"), "--baselines no_such_module: No module named"),
        (("table-1a", "--baselines", "json"), "has no attribute 'COLUMNS'"),
        (("table-1a", "--baselines", "./mine"), "--baselines ./mine: "),
        (("figure-1", "--only", "mnist"), "figure-1 is on sine1d alone, got --only mnist"),
        (("table-1a", "--inference", "guess"), "guess"),
        (("table-1a", "--prior", "flat"), "flat"),
        (("table-9",), "table-9"),
    ],
)
def test_refusals_are_one_line(bnndp: Any, tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    result = bnndp("reproduce", *arguments, "--out", tmp_path / "out")
    assert result.status == 2
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ("(Column('mine', zeros),)", "COLUMNS must be a dictionary from table-1a, table-1b, table-2"),
        ("{'table-1A': (Column('mine', zeros),)}", "COLUMNS must be a dictionary"),
        ("{'table-1a': (zeros,)}", "COLUMNS must be a dictionary"),
        ("{'table-1a': (Column('moment', zeros),)}", "two columns are called 'moment'"),
        ("{'table-1a': (Column('mine', lambda s: zeros(s)[:2]),)}", "column 'mine' gave a tensor (2,) for 3 inputs"),
        ("{'table-1a': (Column('mine', lambda s: [0.0] * 3),)}", "column 'mine' gave list for 3 inputs"),
        ("{'table-1a': ", "was never closed"),
    ],
)
def test_wrong_columns_are_one_line(
    bnndp: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"wrong{abs(hash(columns))}"
    (tmp_path / f"{name}.py").write_text(
        "import torch\nfrom benchmarks.paper.grid import Column\n"
        f"def zeros(s):\n    return torch.zeros(s.x.shape[0])\nCOLUMNS = {columns}\n"
    )
    result = bnndp("reproduce", "table-1a", "--only", "sine1d", *SMALL, "--baselines", name)
    assert result.status == 2
    assert words in result.stderr.splitlines()[-1]


def test_columns_are_measured_again_when_their_module_changes(
    bnndp: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for value in (0.25, 0.5):
        (tmp_path / "changing.py").write_text(
            "import torch\nfrom benchmarks.paper.grid import Column\n"
            f"COLUMNS = {{'table-1a': (Column('mine', lambda s: torch.full((s.x.shape[0],), {value})),)}}\n"
        )
        monkeypatch.delitem(sys.modules, "changing", raising=False)
        importlib.invalidate_caches()
        shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
        result = bnndp("reproduce", "table-1a", "--only", "sine1d", *SMALL, "--baselines", "changing")
        assert result.status == 0, result.stderr
        (row,) = csv.DictReader(Path("reproduction/table-1a.csv").read_text().splitlines())
        assert float(row["mine"]) == value
