"""``python -m benchmarks.paper``: small tables end to end, interruption, refusals."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from benchmarks import baselines
from benchmarks.cache import NetworkCache
from benchmarks.paper import columns, experiments, published
from benchmarks.paper.__main__ import main
from benchmarks.paper.columns import Column
from tests.cli.conftest import Result, captured

from bnndp.data import Store
from bnndp.files.posterior import load

SMALL = ("--points", 3, "--steps", 25)


Reproduce = Callable[..., Result]


@pytest.fixture
def reproduce(capfd: pytest.CaptureFixture[str]) -> Reproduce:
    """Run the program in this process."""
    return captured(main, capfd)


@pytest.fixture(autouse=True)
def _small_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables and figures of the same kind as the paper's, of a few neurons."""
    regression = [("sine2d", (8,)), ("sine2d", (8, 8)), ("sine1d", (8,))]
    widths = tuple(published.Row(data, hidden, 0.04, 1.8, 0.8, 1.0, eps=1e-2) for data, hidden in regression)
    monkeypatch.setattr(published, "TABLE_1A", widths)
    monkeypatch.setattr(published, "TABLE_1B", (published.Row("digits", (16,), 0.01, 0.005, 0.006, 1.0),))
    conv = published.Row("digits", (8,), 6e-4, 1e-3, 1.1e-3, 1.0, convolutions=2, kernels=2)
    monkeypatch.setattr(published, "TABLE_2", (conv,))
    panels = [published.Interval1D(hidden, 0.7, 0.075, (-1.0, 1.0), (-9.0, 9.0)) for hidden in ((16,), (8, 8))]
    monkeypatch.setattr(published, "FIGURE_1", tuple(panels))


def test_a_table_of_regression(reproduce: Reproduce, tmp_path: Path) -> None:
    out = tmp_path / "results"
    result = reproduce("table-1a", "--only", "sine2d", *SMALL, "--out", out)
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
    again = reproduce("table-1a", "--only", "sine2d", *SMALL, "--out", out)
    assert again.status == 0
    assert "training" not in again.stderr  # nothing is done twice
    assert ": moment" not in again.stderr
    figure = reproduce("figure-3", "--only", "sine2d", *SMALL, "--out", out)
    assert figure.status == 0
    assert "training" not in figure.stderr
    assert (out / "figure-3.png").stat().st_size > 5000
    assert (out / "figure-3-spread.png").stat().st_size > 5000


def test_rows_measured_side_by_side(reproduce: Reproduce, tmp_path: Path) -> None:
    """The same numbers as by one process, up to the times."""
    asked = ("table-1a", "--only", "sine2d", *SMALL, "--cache", tmp_path / "networks")
    found = []
    for jobs in (1, 2):
        result = reproduce(*asked, "--out", tmp_path / str(jobs), "--jobs", jobs)
        assert result.status == 0, result.stderr
        rows = csv.DictReader((tmp_path / str(jobs) / "table-1a.csv").read_text().splitlines())
        found.append([(row["hidden"], row["moment"], row["inside"]) for row in rows])
    assert found[0] == found[1]


def test_a_table_of_classification(reproduce: Reproduce, tmp_path: Path) -> None:
    out = tmp_path / "results"
    result = reproduce("table-1b", "--points", 4, "--steps", 300, "--out", out)
    assert result.status == 0, result.stderr
    (row,) = csv.DictReader((out / "table-1b.csv").read_text().splitlines())
    assert row["hidden"] == "1x16"
    assert 0 < float(row["moment"]) <= float(row["attack"])
    assert float(row["logit_std"]) < 0.2  # the temperature is low
    warm = reproduce("table-1b", "--points", 4, "--steps", 300, "--out", out, "--temperature", 1)
    assert "digits 1x16: training" in warm.stderr
    (other,) = csv.DictReader((out / "table-1b.csv").read_text().splitlines())
    assert float(other["logit_std"]) > 5 * float(row["logit_std"])
    assert (out / "table-1b.png").stat().st_size > 5000


def test_a_table_of_convolutions(reproduce: Reproduce, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The certified columns are of a stand-in here: what they measure has tests of its own."""
    stand_in = tuple(
        replace(column, measure=lambda subject: torch.full((subject.x.shape[0],), 3e-3, dtype=torch.float64))
        for column in columns.COLUMNS["table-2"]
        if not column.attack
    )
    attack = tuple(column for column in columns.COLUMNS["table-2"] if column.attack)
    monkeypatch.setitem(columns.COLUMNS, "table-2", (*stand_in, *attack))
    out = tmp_path / "results"
    result = reproduce("table-2", "--points", 3, "--steps", 400, "--out", out)
    assert result.status == 0, result.stderr
    assert "digits 2x4-2x4-1x8: training" in result.stderr
    (row,) = csv.DictReader((out / "table-2.csv").read_text().splitlines())
    assert (row["data"], row["convolutions"], row["kernels"], row["hidden"]) == ("digits", "2", "2", "1x8")
    assert float(row["moment"]) == pytest.approx(3e-3)
    assert float(row["gain"]) == pytest.approx(5)
    assert float(row["attack"]) > 0
    assert "partition" not in row
    (model,) = (out / "networks").iterdir()
    kinds = [layer.kind for layer in load(model).layers]
    assert kinds == ["conv2d", "relu", "conv2d", "relu", "dropout", "flatten", "linear", "relu", "linear"]
    assert (out / "table-2.png").stat().st_size > 5000
    text = (out / "table-2.md").read_text()
    assert "trained by dropout" in text
    assert "| 2 | 2 | 1x8 |" in text


def test_the_subset_of_cifar_stands_in_where_only_it_is_there(tmp_path: Path) -> None:
    (tmp_path / "cifar10").mkdir()
    cache = NetworkCache(tmp_path, Store(tmp_path, tmp_path / "cache"))
    assert experiments._at_hand(cache) == {}
    (tmp_path / "cifar10" / "cifar10_subset.npz").write_text("")
    assert experiments._at_hand(cache) == {"cifar10": "cifar10_subset"}
    (tmp_path / "cifar10" / "cifar-10-binary.tar.gz").write_text("")
    assert experiments._at_hand(cache) == {}


def test_figure_1(reproduce: Reproduce, tmp_path: Path) -> None:
    result = reproduce("figure-1", "--steps", 5, "--out", tmp_path / "f")
    assert result.status == 0, result.stderr
    assert "| 1x16 | 0.7 ± 0.075 |" in result.stdout
    assert (tmp_path / "f" / "figure-1.png").stat().st_size > 5000
    again = reproduce("figure-1", "--steps", 5, "--out", tmp_path / "f")
    assert again.status == 0
    assert "training" not in again.stderr
    assert "| 1x16 | 0.7 ± 0.075 |" in again.stdout


def test_more_columns(reproduce: Reproduce, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = Column("mine", lambda s: torch.full((s.x.shape[0],), 0.25), whole=False)
    monkeypatch.setattr(baselines, "COLUMNS", {"table-1a": (mine,)})
    slow = Column("slow", lambda s: torch.full((s.x.shape[0],), 0.5), points=2)
    monkeypatch.setitem(columns.EFFORT, "table-1a", (slow,))
    words = ("table-1a", "--only", "sine1d", *SMALL, "--baselines", "--effort", "--out", tmp_path)
    result = reproduce(*words)
    assert result.status == 0, result.stderr
    assert "| mine † | slow (2 inputs) |" in result.stdout
    (row,) = csv.DictReader((tmp_path / "table-1a.csv").read_text().splitlines())
    assert (float(row["mine"]), float(row["slow"])) == (0.25, 0.5)


def test_a_column_that_gives_something_else_is_refused(
    reproduce: Reproduce, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = Column("mine", lambda s: torch.zeros(2))
    monkeypatch.setattr(baselines, "COLUMNS", {"table-1a": (wrong,)})
    result = reproduce("table-1a", "--only", "sine1d", *SMALL, "--baselines", "--out", tmp_path)
    assert result.status == 2
    assert "column 'mine' gave a tensor (2,); it must give (3,)" in result.stderr.splitlines()[-1]


def test_an_interrupted_run_says_how_to_go_on(
    reproduce: Reproduce, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiments, "fill", Mock(side_effect=KeyboardInterrupt))
    result = reproduce("table-1a", *SMALL, "--out", tmp_path)
    assert result.status == 130
    assert result.stderr.endswith("the same command continues from what is measured.\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("table-2", "--only", "mnist"), "no row of the table is on 'mnist'; its data sets are digits"),
        (("table-1a", "--only", "mnist"), "no row of the table is on 'mnist'; its data sets are sine2d, sine1d"),
        (("figure-1", "--only", "mnist"), "figure-1 is on sine1d alone, got --only mnist"),
        (("table-1a", "--inference", "guess"), "guess"),
        (("table-1a", "--prior", "flat"), "flat"),
    ],
)
def test_refusals_are_one_line(reproduce: Reproduce, tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    result = reproduce(*arguments, "--out", tmp_path / "out")
    assert result.status == 2
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()
