"""Without python-flint the checker says what to install, in one line; nothing is accepted."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "flint":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
"""


def _run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BLOCKED + program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def _script() -> str:
    """What the installed command runs."""
    settings = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    found = re.search(r'^bnndp-check = "([\w.]+):(\w+)"$', settings, re.MULTILINE)
    assert found is not None
    return f"from {found[1]} import {found[2]} as main; sys.exit(main())"


@pytest.mark.parametrize("arguments", [("certificate.json", "model.safetensors"), ("--help",), ()])
@pytest.mark.parametrize("program", [_script(), "import runpy; runpy.run_module('bnndp_checker', run_name='__main__')"])
def test_the_command_says_what_to_install(program: str, arguments: tuple[str, ...]) -> None:
    found = _run(program, *arguments)
    assert found.returncode == 2
    assert found.stdout == ""
    line = "bnndp-check: needs python-flint, which is not installed; pip install 'bnndp[check]'.\n"
    assert found.stderr == line


def test_the_function_is_not_there() -> None:
    found = _run("from bnndp_checker import check")
    assert found.returncode == 1
    assert found.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'flint'"


def test_certificates_are_refused() -> None:
    found = _run("from bnndp.certificates.issue import _checker; _checker()")
    assert "InputError: certificates are checked before they are written: pip install 'bnndp[check]'" in found.stderr
