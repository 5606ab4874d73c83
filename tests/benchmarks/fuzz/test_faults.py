"""Whatever goes wrong inside, no false claim is certified; ``make campaign-faults`` tries far more."""

from __future__ import annotations

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
from benchmarks.fuzz import fault_claims
from benchmarks.fuzz.fault_claims import Claim
from benchmarks.fuzz.fault_injection import FAULTS, Fault, Point, hits, injected, points
from benchmarks.fuzz.faults import check_unharmed, clock_faults, examine

from bnndp.cli.main import main
from bnndp.files.posterior import save
from bnndp.geometry.bounds import Interval
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork
from bnndp.questions import decision, mean, radius, softmax

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
    return [claim for claim in fault_claims.claims() if claim.name in wanted]


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
    timed = next(claim for claim in fault_claims.claims("one hidden") if claim.name == "one hidden, mean, timed")
    found = list(clock_faults(timed, ticks=4))
    assert len(found) >= 3  # the start, and once before each better answer
    assert [finding for finding in found if finding.wrong] == []
    assert list(clock_faults(claims[0])) == []  # without a limit nobody looks


def test_the_campaign_notices_a_wrong_bound(claims: list[Claim], monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that gives one number for everything, and one that proves everything."""

    def nothing(*arguments: Any) -> Any:
        affine, interval, names = one_pass(*arguments)
        return affine, Interval(0 * interval.lower + 77, 0 * interval.upper + 77), names

    one_pass = mean.one_pass
    monkeypatch.setattr(mean, "one_pass", nothing)
    proved = lambda network, box, rows, *_: torch.ones(rows.shape[:2]).double()  # noqa: E731
    monkeypatch.setattr(radius, "bound_rows", proved)
    quickly = lambda *asked, **_: (proved(*asked), torch.zeros(asked[1].batch).bool())  # noqa: E731
    monkeypatch.setattr(radius, "one_pass_rows", quickly)
    wrong = {finding.claim for finding in check_unharmed(claims) if finding.wrong}
    assert wrong >= {"two hidden, mean, one pass", "one hidden, radius, one pass"}


def test_a_fault_reaches_every_reference() -> None:
    original, homes = softmax.bound_rows, (softmax, decision, radius)
    with injected(Point("bnndp.questions.softmax", None, "bound_rows"), Fault("x", ValueError("seen"))):
        for home in homes:
            with pytest.raises(ValueError, match="seen"):
                vars(home)["bound_rows"]()
    assert all(vars(home)["bound_rows"] is original for home in homes)


def test_there_are_points_everywhere() -> None:
    parts = {point.module.split(".")[1] for point in points()}
    assert parts >= {"maths", "geometry", "activations", "engine", "paper", "tighten", "questions", "attack"}


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
@pytest.mark.parametrize(
    "name", ["questions.softmax.bound_rows", "questions.softmax.expected_softmax", "maths.softmax.consistent"]
)
def test_the_command_line_says_so(case: str, name: str, asked: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    error, status = ERRORS[case]
    module, _, function = name.rpartition(".")
    with injected(Point(f"bnndp.{module}", None, function), Fault(case, error)):
        assert main(asked) == status
    assert capsys.readouterr().err.count("\n") == 1
    assert "certified" not in verdicts(asked)


@pytest.mark.parametrize("name", ["questions.softmax.bound_rows", "maths.softmax.consistent", "engine.margins.margins"])
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


@pytest.mark.slow
def test_the_same_under_optimisation_and_with_warnings_as_errors() -> None:
    command = [sys.executable, "-O", "-W", "error", "-m", "benchmarks.fuzz.faults"]
    command += ["--only", "one hidden, mean, one pass", "--seconds", "2"]
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root / 'src'}"}
    result = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "optimised: 1, wrong: 0" in result.stdout
