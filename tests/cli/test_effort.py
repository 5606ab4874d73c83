"""``--effort`` and ``--time-limit`` on the command line: what is written, what wins, what Ctrl-C leaves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.classifiers import classifier as random_classifier
from typer.testing import CliRunner

import bnndp as library
from bnndp.cli import boxes, radii
from bnndp.cli.main import app
from bnndp.files.posterior import load, save
from bnndp.options import LEVELS


@pytest.fixture
def moons(tmp_path: Path) -> Path:
    """A small random classifier of two inputs."""
    path = tmp_path / "moons.safetensors"
    save(random_classifier((2, 8, 3), 6, std=0.1, gain=2.0), path)
    return path


@pytest.fixture
def labelled_points(tmp_path: Path, moons: Path) -> Path:
    """Six points with the decisions of the network there."""
    path = tmp_path / "points.npz"
    x = torch.randn(6, 2, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    np.savez(path, x=x.numpy(), y=library.decide(load(moons), x).numpy())
    return path


def interrupt_on(calls: int, real: Callable[..., Any], costly: Callable[..., bool]) -> Callable[..., Any]:
    """The function, interrupted at its so many-th costly call."""
    seen: list[int] = []

    def run(*arguments: Any, **options: Any) -> Any:
        if costly(*arguments, **options):
            seen.append(1)
            if len(seen) == calls:
                raise KeyboardInterrupt
        return real(*arguments, **options)

    return run


@pytest.mark.parametrize("command", ["certify", "radius", "evaluate"])
def test_help_names_the_levels_and_the_limit(command: str) -> None:
    text = " ".join(CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).stdout.split())
    for word in ("--effort", "low|medium|high", "--time-limit", "--refine", "--branch", "default: low"):
        assert word in text


class TestCertify:
    def test_each_level_is_recorded_and_no_worse(
        self, bnndp: Any, model: Path, inputs: Path, tmp_path: Path, read_rows: Any
    ) -> None:
        found = {}
        for level in LEVELS:
            arguments = ("certify", model, inputs, "--eps", 0.2, "--effort", level, "--out", tmp_path / "o.jsonl")
            result = bnndp(*arguments)
            assert (result.status, result.stderr) == (0, "")
            found[level] = read_rows(tmp_path / "o.jsonl")
            assert {row["effort"] for row in found[level]} == {level}
        for low, medium, high in zip(*found.values(), strict=True):
            assert low["lower"] <= medium["lower"] <= high["lower"]
            assert low["upper"] >= medium["upper"] >= high["upper"]
            assert high["width"] < low["width"]
        x = torch.from_numpy(np.load(inputs)["x"])
        want = library.certify(load(model), library.Box.ball(x, 0.2), library.Options(effort="high"))
        assert [row["lower"] for row in found["high"]] == pytest.approx(want.lower[:, 0].tolist(), rel=1e-9, abs=1e-12)

    def test_what_is_given_wins(
        self, bnndp: Any, model: Path, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[tuple[int, int]] = []
        real = boxes.better_bounds

        def spy(network: Any, box: Any, options: Any) -> Any:
            seen.append((options.refine, options.optimise))
            return real(network, box, options)

        monkeypatch.setattr(boxes, "better_bounds", spy)
        start = ("certify", model, inputs, "--eps", 0.1, "--effort", "high", "--out", tmp_path / "o.jsonl")
        assert bnndp(*start, "--refine", 1).status == 0
        assert seen == [(1, 0)]
        seen.clear()
        assert bnndp(*start, "--refine", 3, "--optimise", 2).status == 0
        assert seen == [(1, 0), (3, 2)]

    def test_hardly_any_time_gives_the_low_answer(
        self, bnndp: Any, model: Path, inputs: Path, tmp_path: Path, read_rows: Any
    ) -> None:
        start = ("certify", model, inputs, "--eps", 0.1, "--out", tmp_path / "o.jsonl")
        assert bnndp(*start).status == 0
        low = read_rows(tmp_path / "o.jsonl")
        assert bnndp(*start, "--effort", "high", "--time-limit", 1e-9).status == 0
        hurried = read_rows(tmp_path / "o.jsonl")
        assert [row["effort"] for row in hurried] == ["low"] * 3
        assert [row["width"] for row in hurried] == [row["width"] for row in low]

    def test_an_interruption_writes_what_was_reached(
        self,
        bnndp: Any,
        model: Path,
        inputs: Path,
        tmp_path: Path,
        read_rows: Any,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        out = tmp_path / "o.jsonl"
        monkeypatch.setattr(boxes, "_BOXES", 1)
        real = boxes.better_bounds
        # Three boxes at medium effort, then one at high.
        spy = interrupt_on(5, real, lambda network, box, options: options.refine > 1)
        monkeypatch.setattr(boxes, "better_bounds", spy)
        result = bnndp("certify", model, inputs, "--eps", 0.1, "--effort", "high", "--out", out)
        assert result.status == 130
        assert (
            result.stderr
            == f"bnndp: interrupted; {out} has the bounds that were reached until then, all of which hold.\n"
        )
        assert [row["effort"] for row in read_rows(out)] == ["high", "medium", "medium"]
        assert "mean width" in " ".join(result.stdout.split())

    def test_before_all_have_an_answer_nothing_is_written(
        self, bnndp: Any, model: Path, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(boxes, "_BOXES", 1)
        monkeypatch.setattr(boxes, "better_bounds", interrupt_on(3, boxes.better_bounds, lambda *_: True))
        result = bnndp("certify", model, inputs, "--eps", 0.1, "--effort", "high", "--out", tmp_path / "o.jsonl")
        assert (result.status, result.stdout) == (130, "")
        assert "no output file was written" in result.stderr
        assert not (tmp_path / "o.jsonl").exists()

    def test_verdicts_of_a_classifier_get_better(
        self, bnndp: Any, moons: Path, labelled_points: Path, tmp_path: Path, read_rows: Any
    ) -> None:
        found = {}
        for level in LEVELS:
            start = ("certify", moons, labelled_points, "--eps", 0.5, "--out", tmp_path / "o.jsonl")
            assert bnndp(*start, "--effort", level).status == 0
            found[level] = read_rows(tmp_path / "o.jsonl")
        verdicts = [[row["verdict"] for row in rows] for rows in found.values()]
        assert verdicts[0].count("certified") < verdicts[2].count("certified")
        for low, high in zip(found["low"], found["high"], strict=True):
            assert high["verdict"] == low["verdict"] or low["verdict"] == "undecided"
            assert high["lead"] >= low["lead"]
            assert (high["lead"] > 0) == (high["verdict"] == "certified")
            assert all(a <= b for a, b in zip(low["lower"], high["lower"], strict=True))


class TestRadius:
    def test_each_level_is_recorded_and_no_worse(
        self, bnndp: Any, moons: Path, labelled_points: Path, tmp_path: Path, read_rows: Any
    ) -> None:
        found = {}
        for level in LEVELS:
            out = tmp_path / "o.jsonl"
            arguments = ("--effort", level, "--limit", 3, "--tolerance", 0.05, "--out", out)
            assert bnndp("radius", moons, labelled_points, *arguments).status == 0
            found[level] = read_rows(out)
            assert {row["effort"] for row in found[level]} == {level}
        for low, medium, high in zip(*found.values(), strict=True):
            assert low["radius"] <= medium["radius"] <= high["radius"] <= (high["attack_radius"] or 1.0)
        x, y = (torch.from_numpy(np.load(labelled_points)[name][:3]) for name in "xy")
        search, options = library.Search(tolerance=0.05), library.Options(effort="high")
        want = library.certified_radius(load(moons), x, y, search=search, options=options)
        assert [row["radius"] for row in found["high"]] == pytest.approx(want.radius.tolist(), rel=1e-9)

    def test_hardly_any_time_gives_the_low_answer(
        self, bnndp: Any, moons: Path, labelled_points: Path, tmp_path: Path, read_rows: Any
    ) -> None:
        start = ("radius", moons, labelled_points, "--no-attack", "--out", tmp_path / "o.jsonl")
        assert bnndp(*start).status == 0
        low = read_rows(tmp_path / "o.jsonl")
        assert bnndp(*start, "--effort", "high", "--time-limit", 1e-9).status == 0
        hurried = read_rows(tmp_path / "o.jsonl")
        assert [row["effort"] for row in hurried] == ["low"] * 6
        assert [row["radius"] for row in hurried] == [row["radius"] for row in low]

    def test_an_interruption_writes_what_was_reached(
        self,
        bnndp: Any,
        moons: Path,
        labelled_points: Path,
        tmp_path: Path,
        read_rows: Any,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        out = tmp_path / "o.jsonl"
        monkeypatch.setattr(radii, "_STAGED", 4)
        costly = interrupt_on(2, radii.better_evaluations, lambda *_, **given: given["known"] is not None)
        monkeypatch.setattr(radii, "better_evaluations", costly)
        result = bnndp("radius", moons, labelled_points, "--no-attack", "--effort", "medium", "--out", out)
        assert result.status == 130
        assert result.stderr == f"bnndp: interrupted; {out} has what was reached until then, all of it proved.\n"
        assert [row["effort"] for row in read_rows(out)] == ["medium"] * 4 + ["low"] * 2


class TestEvaluate:
    def test_each_level_is_recorded_and_no_worse(
        self, bnndp: Any, moons: Path, labelled_points: Path, tmp_path: Path, read_rows: Any
    ) -> None:
        certified = []
        for level in LEVELS:
            out = tmp_path / "o.jsonl"
            arguments = (
                "--eps",
                0.2,
                0.4,
                0.495,
                0.8,
                "--effort",
                level,
                "--limit",
                4,
                "--tolerance",
                0.05,
                "--out",
                out,
            )
            assert bnndp("evaluate", moons, labelled_points, *arguments).status == 0
            rows = read_rows(out)
            assert {row["effort"] for row in rows} == {level}
            certified.append([row["certified"] for row in rows])
            assert all(row["certified"] <= row["attacked"] for row in rows)
        assert all(low <= medium <= high for low, medium, high in zip(*certified, strict=True))
        assert certified[0] != certified[2]

    def test_the_level_is_that_of_all_inputs_when_it_is_interrupted(
        self,
        bnndp: Any,
        moons: Path,
        labelled_points: Path,
        tmp_path: Path,
        read_rows: Any,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(radii, "_STAGED", 4)
        costly = interrupt_on(2, radii.better_evaluations, lambda *_, **given: given["known"] is not None)
        monkeypatch.setattr(radii, "better_evaluations", costly)
        arguments = ("--eps", 0.1, "--no-attack", "--effort", "medium", "--out", tmp_path / "o.jsonl")
        result = bnndp("evaluate", moons, labelled_points, *arguments)
        assert result.status == 130
        assert "certified accuracy" in result.stdout
        assert [row["effort"] for row in read_rows(tmp_path / "o.jsonl")] == ["low"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--effort", "huge"), "Invalid value for '--effort'"),
        (("--time-limit", 0), "0.0 is not a finite number above zero"),
        (("--time-limit", -1), "not a finite number above zero"),
        (("--time-limit", "nan"), "not a finite number above zero"),
        (("--time-limit", "inf"), "not a finite number above zero"),
    ],
)
@pytest.mark.parametrize("command", ["certify", "radius", "evaluate"])
def test_refusals(
    refused: Any, classifier: Path, labelled: Path, tmp_path: Path, command: str, arguments: Any, words: str
) -> None:
    more = () if command == "radius" else ("--eps", 0.1)
    assert words in refused(command, classifier, labelled, *more, *arguments, "--out", tmp_path / "o.jsonl")
