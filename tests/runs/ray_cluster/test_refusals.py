"""Whatever is wrong with a cluster is one line, status 2, and no answer."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bnndp.cli.main import main
from bnndp.data.demo import CLASSIFIER, network_path
from bnndp.runs.ray_cluster import connection


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    np.savez(tmp_path / "inputs.npz", x=[[0.0, 1.0]], y=[0])
    with network_path(CLASSIFIER) as path:
        (tmp_path / "model.safetensors").write_bytes(path.read_bytes())
    return tmp_path / "inputs.npz"


def refused(capfd: pytest.CaptureFixture[str], command: str, inputs: Path, *more: str) -> str:
    eps = ["--eps", "0.1"] if command != "radius" else []
    files = [str(inputs.with_name("model.safetensors")), str(inputs)]
    assert main([command, *files, *eps, "--json", "--quiet", "--engine", "ray", *more]) == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return err


@pytest.mark.parametrize("command", ["certify", "radius", "evaluate"])
def test_without_ray_it_is_said_how_to_get_it(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, inputs: Path, command: str
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    said = refused(capfd, command, inputs)
    assert said == "bnndp: --engine ray needs Ray, which is not installed: pip install 'bnndp[ray]'.\n"


def test_engines_and_other_options_must_go_together(capfd: pytest.CaptureFixture[str], inputs: Path) -> None:
    assert "leave out --device cuda" in refused(capfd, "radius", inputs, "--device", "cuda")
    assert main(["radius", str(inputs.with_name("model.safetensors")), str(inputs), "--address", "auto"]) == 2
    assert "give --engine ray too" in capfd.readouterr().err


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A Ray that can be joined, or raises what it is told to."""
    ray = SimpleNamespace(calls=[], error=None)

    def init(address: str, **given: Any) -> None:
        ray.calls.append((address, given["include_dashboard"]))
        if ray.error is not None:
            raise ray.error

    ray.init, ray.shutdown = init, lambda: ray.calls.append("shutdown")
    monkeypatch.setattr(connection, "_imported", lambda: ray)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return ray


def test_an_address_where_nothing_answers_is_refused_at_once(
    capfd: pytest.CaptureFixture[str], inputs: Path, pretended: SimpleNamespace
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        assert f"--address {address}: nothing answers there" in refused(capfd, "certify", inputs, "--address", address)
    assert "nothing answers there" in refused(capfd, "certify", inputs, "--address", "127.0.0.1:port")
    assert pretended.calls == []


def test_what_ray_raises_is_one_line(
    capfd: pytest.CaptureFixture[str], inputs: Path, pretended: SimpleNamespace
) -> None:
    pretended.error = ConnectionError("no\ninstance.")
    said = refused(capfd, "radius", inputs, "--address", "auto")
    assert "--engine ray: no cluster can be used at auto: no\\ninstance; start one with `ray start --head`" in said
    assert pretended.calls == [("auto", None)]


@pytest.mark.parametrize("named", [True, False])
def test_without_an_address_it_is_that_of_the_environment_or_of_this_machine(
    monkeypatch: pytest.MonkeyPatch, pretended: SimpleNamespace, named: bool
) -> None:
    if named:
        monkeypatch.setenv("RAY_ADDRESS", "auto")
    with connection.connected(None):
        pass
    assert pretended.calls == [("auto", None) if named else ("local", False), "shutdown"]
