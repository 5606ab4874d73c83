"""``--certificates`` and ``bnndp-check``: from a command to files that another program accepts."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from bnndp.cli.main import app

pytest.importorskip("flint", reason="the checker needs python-flint")
DEMO = resources.files("bnndp") / "demo"


def _bnndp(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.exit_code, result.output


def _check(certificate: Path, model: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bnndp_checker", str(certificate), str(model)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_radii_that_the_checker_accepts(tmp_path: Path) -> None:
    model, inputs = Path(str(DEMO / "moons_1x32.safetensors")), tmp_path / "inputs.npz"
    np.savez(inputs, x=np.array([[0.0, 1.0], [1.0, -0.5]]))
    folder = tmp_path / "certificates"
    code, told = _bnndp("radius", model, inputs, "--no-attack", "--out", tmp_path / "r.jsonl", "--certificates", folder)
    assert code == 0
    assert "certificates: 2 of 2" in told
    rows = [json.loads(line) for line in (folder / "index.jsonl").read_text().splitlines()]
    known = [json.loads(line)["radius"] for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    for row, radius in zip(rows, known, strict=True):
        assert 0 < row["radius"] <= radius
        found = _check(folder / row["certificate"], model)
        assert (found.returncode, found.stdout) == (0, "accepted\n")
    other = _check(folder / rows[0]["certificate"], Path(str(DEMO / "sine1d_2x32.safetensors")))
    assert other.returncode == 1
    assert other.stdout.startswith("rejected: the certificate is about another model")


def test_intervals_that_the_checker_accepts(tmp_path: Path) -> None:
    model = Path(str(DEMO / "sine1d_2x32.safetensors"))
    np.savez(tmp_path / "x.npz", x=np.array([[0.1], [0.7]]))
    out, folder = tmp_path / "b.jsonl", tmp_path / "c"
    code, told = _bnndp(
        "certify", model, tmp_path / "x.npz", "--eps", 0.02, "--out", out, "--certificates", folder,
        "--effort", "medium",
    )  # fmt: skip
    assert code == 0
    assert "certificates: 2 of 2" in told
    certificate = json.loads((folder / "000001.json").read_text())
    assert certificate["claim"]["of"] == "mean"
    assert certificate["proof"]["kind"] == "split"
    assert _check(folder / "000001.json", model).returncode == 0
    bounds = json.loads(out.read_text().splitlines()[1])
    low, high = (float.fromhex(text) for text in certificate["claim"]["at_least"])
    assert low <= bounds["upper"]
    assert -high >= bounds["lower"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--norm", "2"), "certificates are about boxes"),
        (("--quantity", "variance"), "certificates are about means and decisions"),
    ],
)
def test_what_has_no_certificate_is_refused(words: tuple[str, ...], reason: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.array([[0.1]]))
    code, told = _bnndp(
        "certify", DEMO / "sine1d_2x32.safetensors", tmp_path / "x.npz", "--eps", 0.1, "--out", tmp_path / "b",
        "--certificates", tmp_path / "c", *words,
    )  # fmt: skip
    assert code == 2
    assert reason in told
    assert not (tmp_path / "c").exists()
