"""Small networks and inputs as files, and the program run in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bnndp.cli.main import main
from bnndp.files import save


@dataclass(frozen=True)
class Result:
    """What one run of the program gave."""

    status: int
    stdout: str
    stderr: str


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


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of an output file, read strictly: no NaN, no Infinity."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def read_rows() -> Callable[[Path], list[dict[str, Any]]]:
    return rows_of
