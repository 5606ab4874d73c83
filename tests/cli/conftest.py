"""Small networks and inputs as files, and the program run in this process."""

from __future__ import annotations

import json
import math
import os
import pty
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.classifiers import classifier as random_classifier

from bnndp.cli import progress
from bnndp.cli.main import main
from bnndp.files.posterior import save
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork


@dataclass(frozen=True)
class Result:
    """What one run of the program gave."""

    status: int
    stdout: str
    stderr: str


@pytest.fixture(autouse=True)
def same_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """No progress however slow the machine is, and tables as wide as they are: nothing depends on where tests run."""
    monkeypatch.setattr(progress, "_INTERVAL", math.inf)
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def bnndp(capfd: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Run ``bnndp ARGUMENTS`` in this process."""

    def run(*arguments: object) -> Result:
        capfd.readouterr()
        status = main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return Result(status, out, err)

    return run


@pytest.fixture
def answers(bnndp: Callable[..., Result], tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """Run ``bnndp ARGUMENTS --out FILE`` to a good end without a word on stderr, and give the rows of the file."""

    def run(*arguments: object) -> list[dict[str, Any]]:
        result = bnndp(*arguments, "--out", tmp_path / "answers.jsonl")
        assert (result.status, result.stderr) == (0, ""), result
        return rows_of(tmp_path / "answers.jsonl")

    return run


@pytest.fixture
def refused(bnndp: Callable[..., Result], tmp_path: Path) -> Callable[..., str]:
    """Run ``bnndp ARGUMENTS``, check what every refusal has in common, and give the line on stderr."""

    def run(*arguments: object) -> str:
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        result = bnndp(*arguments)
        assert result.status == 2, result
        assert result.stderr.startswith("bnndp: ")
        assert result.stderr.count("\n") == 1
        assert result.stderr.endswith(".\n")
        assert "Traceback" not in result.stderr
        assert result.stdout == ""
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
        return result.stderr

    return run


@pytest.fixture
def model(tmp_path: Path, random_network: Callable[..., Any]) -> Path:
    """A network with two inputs and one output."""
    path = tmp_path / "model.safetensors"
    save(random_network((2, 6, 5, 1), 3), path)
    return path


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    """Three points."""
    path = tmp_path / "inputs.npz"
    np.savez(path, x=np.array([[0.1, 0.2], [0.5, 0.5], [0.9, 0.0]]))
    return path


@pytest.fixture
def classifier(tmp_path: Path) -> Path:
    """A linear classifier with two inputs and three classes, hardly random."""
    path = tmp_path / "classifier.safetensors"
    weight = torch.tensor([[1.0, 0.0], [-0.5, 1.0], [-0.5, -1.0]], dtype=torch.float64)
    layer = Linear(weight, torch.full_like(weight, 1e-4), torch.zeros(3), torch.zeros(3))
    save(BayesianNetwork.from_linears([layer], "classification"), path)
    return path


@pytest.fixture
def moons(tmp_path: Path) -> Path:
    """A small random classifier of two inputs."""
    path = tmp_path / "moons.safetensors"
    save(random_classifier((2, 8, 3), 6, std=0.1, gain=2.0), path)
    return path


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    """Four points with labels: the first three are right, the last is wrong."""
    path = tmp_path / "labelled.npz"
    np.savez(path, x=[[0.9, 0.2], [0.1, 0.6], [0.2, 0.1], [0.9, 0.5]], y=np.array([0, 1, 0, 2], dtype=np.uint8))
    return path


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of an output file, read strictly: no NaN, no Infinity."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text(encoding="utf-8").splitlines()]


def timeless(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without what no two runs have in common."""
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def interrupted_at(
    call: int, real: Callable[..., Any], counts: Callable[..., bool] = lambda *_, **__: True, error: Any = None
) -> Callable[..., Any]:
    """The function, ended by an interruption, or another error, at the n-th call that ``counts``."""
    seen: list[int] = []

    def run(*arguments: Any, **options: Any) -> Any:
        if counts(*arguments, **options):
            seen.append(1)
            if len(seen) == call:
                raise KeyboardInterrupt if error is None else error
        return real(*arguments, **options)

    return run


def terminal(command: list[str], **environment: str) -> tuple[int, bytes, bytes]:
    """Status, stdout and what is on stderr of a command whose stderr is a terminal."""
    ours, theirs = pty.openpty()
    set_ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", **environment}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=set_)
    os.close(theirs)
    seen = b""
    try:
        while part := os.read(ours, 4096):
            seen += part
    except OSError:
        pass  # the other side has been closed
    out, _ = process.communicate()
    os.close(ours)
    return process.returncode, out, seen
