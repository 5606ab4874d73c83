"""The command on a real Ray cluster of two workers, which the test starts: killed, interrupted, refused."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bnndp.cli.main import main
from bnndp.data.demo import CLASSIFIER, network_path
from bnndp.data.moons import two_moons
from bnndp.runs.sealed_lines import unseal

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")

HEEDED = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # ignored in the background
PROGRAM = (sys.executable, "-c", f"{HEEDED}; from bnndp.cli.main import run; run()")
POINTS, PART = 320, 16
_CLUSTER = """
import logging, os, sys
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
import ray
here = ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
print(here.address_info["gcs_address"], flush=True)
sys.stdin.read()
"""
# Ray asks who comes for a secret, which is one of this test alone.
SECRET = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
ENVIRONMENT = {**os.environ, **SECRET, "OMP_NUM_THREADS": "1"}
_SECONDS = 120.0  # for what takes ten on an idle machine


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[str, int]]:
    """The address of a cluster with two CPUs, and the process that all of its processes descend from."""
    with subprocess.Popen(
        [sys.executable, "-c", _CLUSTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert re.fullmatch(r"[0-9.]+:[0-9]+", address), address
            yield address, process.pid
        finally:
            process.communicate("", timeout=_SECONDS)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier, inputs with labels, and in ``local`` what the local engine says of them."""
    folder = tmp_path_factory.mktemp("ray")
    data = two_moons(POINTS, noise_std=0.2, seed=2)
    np.savez(folder / "moons.npz", x=data.x.numpy(), y=data.y.numpy())
    with network_path(CLASSIFIER) as path:
        (folder / "model.safetensors").write_bytes(path.read_bytes())
    assert main(asked(folder, "local", "--quiet")) == 0
    return folder


def asked(folder: Path, run: str, *more: str) -> list[str]:
    words = [
        "certify",
        folder / "model.safetensors",
        folder / "moons.npz",
        "--eps",
        "0.05",
        "--run",
        folder / run,
        *more,
    ]
    return [str(word) for word in words]


def answers(run: Path) -> dict[int, Any]:
    """The answer of every point, without its time; every line is whole, and no point has two."""
    records = [unseal(line) for line in (run / "results.jsonl").read_bytes().splitlines(keepends=True)[1:]]
    found = {record["id"]: record["answer"] for record in records if record is not None}
    assert len(found) == len(records)
    return {point: {name: answer[name] for name in answer if name != "seconds"} for point, answer in found.items()}


def wait_for(there: Callable[[], Any], process: subprocess.Popen[str]) -> Any:
    """What comes while the process works."""
    end = time.monotonic() + _SECONDS
    while time.monotonic() < end and process.poll() is None:
        found = there()
        if found:
            return found
        time.sleep(0.01)
    process.kill()
    return pytest.fail(f"it did not come: {process.communicate()}")


def lines(run: Path) -> int:
    path = run / "results.jsonl"
    return path.read_bytes().count(b"\n") - 1 if path.exists() else 0


def busy_workers(ancestor: int) -> list[int]:
    """The processes that compute a shard, of this cluster only."""
    return [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if _read(path).startswith("ray::Worker.compute") and _descends(int(path.parent.name), ancestor)
    ]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _descends(pid: int, ancestor: int) -> bool:
    while pid > 1 and pid != ancestor:
        found = re.search(r"^PPid:\s+([0-9]+)", _read(Path(f"/proc/{pid}/status")), re.MULTILINE)
        pid = int(found.group(1)) if found else 0
    return pid == ancestor


@contextlib.contextmanager
def begun(folder: Path, run: str, *more: str) -> Iterator[subprocess.Popen[str]]:
    command = [*PROGRAM, *asked(folder, run, "--engine", "ray", *more)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def kill_one(ancestor: int, process: subprocess.Popen[str]) -> None:
    os.kill(wait_for(lambda: busy_workers(ancestor), process)[0], signal.SIGKILL)


def test_killed_interrupted_and_killed_again_a_run_ends_as_if_nothing_had_been(
    files: Path, cluster: tuple[str, int]
) -> None:
    """The answers are those of the local engine bit for bit, each is there once, and stdout has rows only."""
    address, ancestor = cluster
    run = files / "ray"
    with begun(files, "ray", "--address", address) as process:
        wait_for(lambda: lines(run), process)
        kill_one(ancestor, process)
        before = lines(run)
        wait_for(lambda: lines(run) > before + 2 * PART, process)  # more than the other worker had under way
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=_SECONDS)
    done = lines(run)
    assert process.returncode == 130, err
    assert before < done < POINTS
    said = err.splitlines()[-1]
    assert said.startswith(f"bnndp: stopped before the end; no output file was written; {done} of {POINTS} answers are")
    assert f"--engine ray --address {address}` continues from there" in said
    with begun(files, "ray", "--address", address, "--out", "-") as process:
        wait_for(lambda: not busy_workers(ancestor), process)  # nothing is computed for nobody
        wait_for(lambda: lines(run) > done, process)
        kill_one(ancestor, process)
        assert lines(run) < POINTS - PART  # it was in the middle
        out, err = process.communicate(timeout=_SECONDS)
    assert process.returncode == 0, err
    assert f"resumed with {done} of {POINTS} answers" in err
    assert "a Ray cluster with 2 workers, 1 thread each." in err
    assert "raylet" not in err
    assert [json.loads(line)["index"] for line in out.splitlines()] == list(range(POINTS))
    assert answers(run) == answers(files / "local")
    assert len(answers(run)) == POINTS
