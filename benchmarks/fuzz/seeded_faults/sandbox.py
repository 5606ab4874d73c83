"""A copy of the project in which one file at a time is changed and the tests are run.

Tests run in processes that are forked from one that has imported torch and the like already, but nothing of the
project: what a run costs is the tests and not the start of Python.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

__all__ = ["ROOT", "Outcome", "Sandbox"]

ROOT = Path(__file__).resolve().parents[3]
_PARTS = ("src", "tests", "support", "benchmarks", "tools", "docs", "README.md", "pyproject.toml")
_FAILED = re.compile(r"^FAILED (.+?)(?: - .*)?$", re.MULTILINE)
_PACKAGES = ("bnndp", "bnndp_checker")
_PRELOADED = ["torch", "numpy", "pytest", "flint", "safetensors.torch"]  # no plugins of pytest
_NO_COPY = 86  # exit status of a run that would import something else than the copy
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(_PRELOADED)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the tests said: ``killed`` by the test ``by``, ``survived``, ``timeout``, or ``broken`` (nothing ran)."""

    status: str
    by: str
    seconds: float
    output: str  # the end of what pytest printed


class Sandbox:
    """A scratch copy of sources and tests, removed on exit; tests in it import the copy and nothing else."""

    def __init__(self, root: Path = ROOT) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="bnndp-seeded-")
        self._times = itertools.count(1_000_000_000)  # of changed files: a compiled file is never taken for another's
        self.folder = Path(self._scratch.name) / "main"
        self.folder.mkdir()
        for part in _PARTS:
            source, target = root / part, self.folder / part
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
            elif source.exists():
                shutil.copy2(source, target)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._scratch.cleanup()

    def text(self, file: str) -> str:
        """A file of the copy."""
        return (self.folder / file).read_text("utf-8")

    def run(self, file: str, changed: str, tests: Sequence[str], *, limit: float) -> Outcome:
        """Run the tests with this content of ``file``, which is put back afterwards."""
        before = self.text(file)
        self._write(file, changed)
        try:
            return self.check(tests, limit=limit)
        finally:
            self._write(file, before)

    def check(self, tests: Sequence[str], *, limit: float, first: bool = True) -> Outcome:
        """Run the tests as the copy is, up to the ``first`` failure, for at most ``limit`` seconds."""
        shutil.rmtree(self.folder / ".hypothesis", ignore_errors=True)  # no example found before may help
        arguments = ["-q", "-rfE", "--tb=line", "-p", "no:cacheprovider", "--hypothesis-seed=0", *(["-x"] * first)]
        log = self.folder.parent / "log.txt"
        start = time.monotonic()
        process = _FORKS.Process(target=_pytest, args=(str(self.folder), str(log), [*arguments, *tests]))
        process.start()
        process.join(limit)
        seconds = time.monotonic() - start
        if process.is_alive():
            process.kill()
            process.join()
            return Outcome("timeout", "", seconds, f"longer than {limit} s")
        output = log.read_text("utf-8", errors="replace")
        if process.exitcode == _NO_COPY:
            raise RuntimeError(f"tests in {self.folder} would import another copy of the project.")
        if process.exitcode == 0:
            return Outcome("survived", "", seconds, output[-4000:])
        failed = _FAILED.findall(output)
        return Outcome("killed" if failed else "broken", failed[0] if failed else "", seconds, output[-4000:])

    def _write(self, file: str, content: str) -> None:
        path, stamp = self.folder / file, next(self._times)
        path.write_text(content, encoding="utf-8")
        os.utime(path, (stamp, stamp))


def _pytest(folder: str, log: str, arguments: list[str]) -> None:
    """In a process of its own: the tests of a copy, which comes before whatever is installed."""
    with Path(log).open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(folder)
    paths = [str(Path(folder) / "src"), folder]
    sys.path[:0] = paths
    os.environ |= {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}  # for what tests start
    for package in _PACKAGES:
        found = None if package in sys.modules else find_spec(package)
        if found is None or found.origin is None or not Path(found.origin).is_relative_to(folder):
            os._exit(_NO_COPY)
    import pytest

    code = int(pytest.main(arguments))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
