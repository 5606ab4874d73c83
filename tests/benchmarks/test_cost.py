"""Times by turns, exponents, and the files that ``make bench`` writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks import __main__ as bench
from benchmarks import cost
from benchmarks.results import keep
from benchmarks.timing import by_turns


def test_turns_alternate() -> None:
    calls: list[int] = []
    by_turns([lambda: calls.append(0), lambda: calls.append(1)], repeats=4)
    assert calls == [0, 1] * 5


@pytest.mark.parametrize("power", [0.0, 1.0, 2.5])
def test_exponent_of_a_power_law(power: float) -> None:
    sizes = (3, 8, 20, 100)
    assert cost.exponent(sizes, [7e-3 * size**power for size in sizes]) == pytest.approx(power)


def test_exponents_are_measured_along_one_axis(monkeypatch: pytest.MonkeyPatch) -> None:
    def seconds(axis: cost.Axis, size: int) -> float:
        return float(size**2)

    monkeypatch.setattr(cost, "_seconds", seconds)
    for found, axis in zip(cost.exponents(), cost.AXES, strict=True):
        assert found.exponent == pytest.approx(2)
        assert found.of_larger_half == pytest.approx(2)
        assert axis.varies not in found.fixed


def test_quick_exponents_run_and_are_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    small = cost.Axis("width", (4, 8, 16), inputs=2, depth=1, batch=2)
    monkeypatch.setattr(cost, "AXES", (small,))
    bench.main(["--quick", "--only", "exponents", "--out", str(tmp_path)])
    (row,) = json.loads((tmp_path / "results-exponents.json").read_text())["exponents"]
    assert row["sizes"] == [4, 8, 16]
    assert all(second > 0 for second in row["seconds"])


def test_parts_in_one_file_stay(tmp_path: Path) -> None:
    for part, key in (("cnn", "a"), ("cnn", "b"), ("members", "c")):
        keep("layers", part, {key: part}, tmp_path)
    found = json.loads((tmp_path / "results-layers.json").read_text())
    assert (found["cnn"], found["members"]) == ({"a": "cnn", "b": "cnn"}, {"c": "members"})
