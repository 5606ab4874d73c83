"""Fail closed: whatever goes wrong inside, no false claim is certified; ``make campaign-faults`` tries far more."""

from __future__ import annotations

import ast
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.fuzz import fault_claims as faults_claims
from benchmarks.fuzz.fault_claims import Claim
from benchmarks.fuzz.fault_injection import FAULTS, Fault, Point, hits, injected, points
from benchmarks.fuzz.faults import check_unharmed, clock_faults, examine

import bnndp
from bnndp.cli.main import main
from bnndp.engine import methods
from bnndp.files.posterior import save
from bnndp.geometry.bounds import Interval
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork
from bnndp.questions.verdict import Verdict, judge

SRC = Path(bnndp.__file__).parent


# One function gives verdicts


@pytest.mark.parametrize(
    "proved", [False, None, 1, "yes", float("nan"), torch.tensor(True), np.True_, Verdict.CERTIFIED]
)
def test_only_true_itself_is_a_proof(proved: Any) -> None:
    assert judge(proved=proved, broken=False) is Verdict.UNDECIDED


def test_comparisons_with_nan_are_no_proof() -> None:
    nan = float("nan")
    assert judge(proved=nan <= 1, broken=nan > 1) is Verdict.UNDECIDED
    assert judge(proved=bool(torch.tensor(nan) > 0), broken=False) is Verdict.UNDECIDED


def test_a_verdict_has_no_truth_value() -> None:
    with pytest.raises(TypeError, match="no truth value"):
        bool(Verdict.CERTIFIED)


def made_certified(source: str) -> list[int]:
    """Lines that use ``Verdict.CERTIFIED``, or make a verdict by its value, otherwise than to compare with it."""
    found = []
    tree = ast.parse(source)
    compared = {id(part) for node in ast.walk(tree) if isinstance(node, ast.Compare) for part in ast.walk(node)}
    for node in ast.walk(tree):
        named = isinstance(node, ast.Attribute) and node.attr == "CERTIFIED"
        called = isinstance(node, ast.Call | ast.Subscript) and ast.unparse(
            node.func if isinstance(node, ast.Call) else node.value
        ).endswith("Verdict")
        if (named or called) and id(node) not in compared:
            found.append(node.lineno)
    return found


@pytest.mark.parametrize(
    "source", ["x = Verdict.CERTIFIED", "f(v.Verdict.CERTIFIED)", "Verdict('certified')", "Verdict['CERTIFIED']"]
)
def test_other_ways_to_a_verdict_are_found(source: str) -> None:
    assert made_certified(source) == [1]


def test_no_other_function_gives_the_verdict() -> None:
    for path in SRC.rglob("*.py"):
        if path != SRC / "verdict.py":
            assert made_certified(path.read_text(encoding="utf-8")) == [], path


def test_no_assert_in_the_package() -> None:
    for path in SRC.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert not [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Assert)], path


# Faults at many points


def some_claims() -> list[Claim]:
    """Quick ones, of every kind of network."""
    wanted = (
        "one hidden, mean, best",
        "two hidden, mean, one pass",
        "tanh and dropout, mean, one pass",
        "ensemble, mean, one pass",
        "one hidden, softmax, best",
        "one hidden, radius, one pass",
        "tanh and dropout, radius, one pass",
    )
    return [claim for claim in faults_claims.claims() if claim.name in wanted]


@pytest.fixture(scope="module")
def claims() -> list[Claim]:
    found = some_claims()
    assert len(found) == 7
    return found


def test_without_faults_every_claim_has_its_answer(claims: list[Claim]) -> None:
    assert [finding for finding in check_unharmed(claims) if finding.wrong] == []


def test_faults_at_many_points(claims: list[Claim]) -> None:
    everywhere, draw = points(), random.Random(1)
    seen, outcomes = set(), set()
    for claim in claims:
        passed = hits(claim.judge, everywhere)
        for point in draw.sample(passed, min(8, len(passed))):
            for fault in draw.sample(FAULTS, 2):
                found = examine(claim, point, fault)
                assert not found.wrong, found
                seen.add(point)
                outcomes.add(found.outcome)
    assert len(seen) >= 25
    assert {"RuntimeError", "MemoryError"} & outcomes


def test_the_clock(claims: list[Claim]) -> None:
    timed = next(claim for claim in faults_claims.claims("one hidden") if claim.name == "one hidden, mean, timed")
    found = list(clock_faults(timed, ticks=4))
    assert len(found) >= 3  # the start, and once before each better answer
    assert [finding for finding in found if finding.wrong] == []
    assert len(list(clock_faults(claims[0]))) == 1  # without a limit nobody looks again


def test_the_campaign_notices_a_wrong_bound(claims: list[Claim], monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that gives one number for everything, and one that proves everything."""

    def nothing(*arguments: Any) -> Any:
        affine, interval, names = one_pass(*arguments)
        return affine, Interval(0 * interval.lower + 77, 0 * interval.upper + 77), names

    one_pass = methods.one_pass
    monkeypatch.setattr(sys.modules["bnndp.certify"], "one_pass", nothing)
    proved = lambda network, box, rows, *_: torch.ones(rows.shape[:2]).double()  # noqa: E731
    monkeypatch.setattr(sys.modules["bnndp.questions.radius"], "bound_rows", proved)
    quickly = lambda *asked: (proved(*asked), torch.zeros(asked[1].batch).bool())  # noqa: E731
    monkeypatch.setattr(sys.modules["bnndp.questions.radius"], "quick_rows", quickly)
    wrong = {finding.claim for finding in check_unharmed(claims) if finding.wrong}
    assert wrong >= {"two hidden, mean, one pass", "one hidden, radius, one pass"}


def test_a_fault_reaches_every_reference() -> None:
    point = Point("bnndp.engine.methods", None, "one_pass")
    with injected(point, Fault("x", ValueError("seen"))):
        for home in (methods, sys.modules["bnndp.certify"], sys.modules["bnndp.tighten.refinement"]):
            with pytest.raises(ValueError, match="seen"):
                home.one_pass()
    assert sys.modules["bnndp.certify"].one_pass is methods.one_pass


def test_there_are_points_everywhere() -> None:
    parts = {point.module.split(".")[1] for point in points()}
    assert parts >= {
        "maths",
        "moment",
        "propagation",
        "partition",
        "refine",
        "classify",
        "radius",
        "decision",
        "regions",
    }


# The command line


@pytest.fixture
def asked(tmp_path: Path) -> list[str]:
    """A decision that is wrong at its very input."""
    layer = Linear(torch.tensor([[1.0], [-1.0]]), torch.full((2, 1), 0.01), torch.zeros(2), torch.zeros(2))
    save(BayesianNetwork((layer,), "classification"), tmp_path / "m.safetensors")
    np.savez(tmp_path / "x.npz", x=[[0.5], [0.4]], y=np.array([1, 1]))
    paths = [str(tmp_path / "m.safetensors"), str(tmp_path / "x.npz")]
    return ["certify", *paths, "--eps", "0.1", "--effort", "medium", "--out", str(tmp_path / "out.jsonl")]


def verdicts(arguments: list[str]) -> list[str]:
    out = Path(arguments[-1])
    lines = out.read_text(encoding="utf-8").splitlines() if out.exists() else []
    return [json.loads(line)["verdict"] for line in lines]


def test_the_wrong_decision_is_falsified(asked: list[str]) -> None:
    assert main(asked) == 0
    assert verdicts(asked) == ["falsified", "falsified"]


ERRORS: dict[str, tuple[BaseException, int]] = {
    "memory": (MemoryError(), 2),
    "memory of torch": (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 2),
    "memory of a device": (torch.OutOfMemoryError("CUDA out of memory"), 2),
    "interrupt": (KeyboardInterrupt(), 130),
}


@pytest.mark.parametrize("case", ERRORS)
@pytest.mark.parametrize("name", ["classify.bound_rows", "classify.expected_softmax", "maths.softmax.consistent"])
def test_the_command_line_says_so(case: str, name: str, asked: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    error, status = ERRORS[case]
    module, _, function = name.rpartition(".")
    with injected(Point(f"bnndp.{module}", None, function), Fault(case, error)):
        assert main(asked) == status
    assert capsys.readouterr().err.count("\n") == 1
    assert "certified" not in verdicts(asked)


@pytest.mark.parametrize("name", ["classify.bound_rows", "maths.softmax.consistent", "moment.margins.margins"])
def test_nan_on_the_command_line(name: str, asked: list[str]) -> None:
    module, _, function = name.rpartition(".")
    with injected(Point(f"bnndp.{module}", None, function), Fault("NaN")):
        main(asked)
    assert "certified" not in verdicts(asked)


def test_other_errors_keep_their_traceback(asked: list[str]) -> None:
    fault = injected(Point("bnndp.questions.softmax", None, "bound_rows"), Fault("x", RuntimeError("a bug")))
    with fault, pytest.raises(RuntimeError, match="a bug"):
        main(asked)
    assert verdicts(asked) == []


# The same without asserts, and with warnings as errors


def test_the_same_under_optimisation_and_with_warnings_as_errors() -> None:
    arguments = ["-m", "benchmarks.fuzz.faults", "--only", "one hidden, mean, one pass", "--seconds", "2"]
    root = SRC.parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root / 'src'}"}
    result = subprocess.run(
        [sys.executable, "-O", "-W", "error", *arguments],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "optimised: 1, wrong: 0" in result.stdout
