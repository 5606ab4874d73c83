"""The checker stands alone: the standard library and python-flint, no line of bnndp, and it runs without it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from support.handmade import certificate, header, linear, sealed, tensors, write_model

pytest.importorskip("flint", reason="the checker needs python-flint")
import bnndp_checker

SOURCES = sorted(Path(bnndp_checker.__file__).parent.glob("*.py"))
BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("bnndp", "torch", "numpy", "scipy", "safetensors"):
            raise ImportError(name + " is blocked")

sys.meta_path.insert(0, Blocked())
import bnndp_checker
print(bnndp_checker.check(*sys.argv[1:]))
print(sorted({name.partition(".")[0] for name in sys.modules} & {"bnndp", "torch", "numpy", "scipy", "safetensors"}))
"""


def _imports(source: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add("." if node.level else (node.module or "").partition(".")[0])
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_only_the_standard_library_and_flint(path: Path) -> None:
    source = path.read_text()
    assert _imports(source) <= {"flint", "bnndp_checker"} | set(sys.stdlib_module_names)
    calls = {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}
    assert not calls & {"__import__", "eval", "exec", "compile", "importlib", "pickle"}


def test_the_scan_sees_other_packages() -> None:
    assert _imports("import numpy.linalg\nfrom bnndp import files\ndef f():\n    from torch import nn") == {
        "numpy",
        "bnndp",
        "torch",
    }


def test_it_runs_where_nothing_else_can_be_imported(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", header([linear("a")], [1]), tensors("a", [[2.0]], [[1.0]], [1.0], [1.0]))
    proof = {"kind": "chain", "members": [{"exponent": 40.0, "steps": []}]}
    for at_least, accepted in ((1.0, True), (1.0 + 2.0**-52, False)):
        body = certificate(model, ([0.0], [1.0]), "mean", [[1.0]], [at_least], proof)
        (tmp_path / "certificate.json").write_text(sealed(body))
        command = [sys.executable, "-c", BLOCKED, str(tmp_path / "certificate.json"), str(model)]
        found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
        assert f"accepted={accepted}" in found[0]
        assert found[1] == "[]"
