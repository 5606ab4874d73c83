"""Run the examples of README.md and of all files under docs/, and the scripts of examples/, so that they cannot rot.

The ``python`` blocks of a file run in one namespace, in a temporary folder; a ``text`` block right after one must be
what it prints. In ``console`` blocks every line that starts with ``$`` and one of RUNNABLE runs in the same folder and
has to succeed (its output holds times and is not compared). A block marked ``no-run`` is left alone.

    python tools/run_examples.py            check
    python tools/run_examples.py --update   write the real output into the files (all, or those that are named)
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```(?P<kind>python|text|console)(?P<mark>[^\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
RUNNABLE = ("bnndp", "bnndp-check", "cat")
OPTIONAL = re.compile(r"No module named '(pyro|bayesian_torch)")  # of the group importers, which may be left out


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a Markdown file and where its body stands."""

    kind: str
    body: str
    start: int
    end: int
    line: int


class ExampleError(Exception):
    """An example failed or printed something else than its file says."""


class Lacking(Exception):
    """An example needs a library that is not installed; which ones may be so is said in OPTIONAL."""


def blocks_of(text: str) -> list[Block]:
    """The blocks of a file that are run or compared, in order."""
    return [
        Block(m["kind"], m["body"], m.start("body"), m.end("body"), text.count("\n", 0, m.start()) + 1)
        for m in BLOCK.finditer(text)
        if "no-run" not in m["mark"]
    ]


def run_python(block: Block, path: Path, namespace: dict[str, object]) -> str:
    """Execute a block and return what it prints; line numbers in a traceback are those of the file."""
    printed = io.StringIO()
    try:
        code = compile("\n" * block.line + block.body, str(path), "exec")
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)
    except ModuleNotFoundError as error:
        raise Lacking(str(error)) from error
    except Exception as error:
        raise ExampleError(traceback.format_exc()) from error
    return printed.getvalue()


def run_console(block: Block) -> str:
    """Run the commands of a block; return the block with their real output."""
    commands = [line[2:] for line in block.body.splitlines() if line.startswith("$ ")]
    lines = []
    for command in commands:
        arguments = shlex.split(command)
        if not arguments or arguments[0] not in RUNNABLE:
            raise ExampleError(
                f"line {block.line}: {command!r} is not run here; use {RUNNABLE} or mark the block no-run."
            )
        if arguments[0] == "bnndp":
            arguments = [sys.executable, "-c", "from bnndp.cli.main import run; run()", *arguments[1:]]
        elif arguments[0] == "bnndp-check":
            arguments = [sys.executable, "-m", "bnndp_checker", *arguments[1:]]
        result = subprocess.run(arguments, capture_output=True, text=True, check=False)
        if result.returncode:
            raise ExampleError(f"line {block.line}: {command}\nexit status {result.returncode}: {result.stderr}")
        lines += [f"$ {command}", *(line.rstrip() for line in result.stdout.splitlines())]
    return "\n".join(lines) + "\n"


def outputs_of(text: str, path: Path) -> Iterator[tuple[Block, str]]:
    """Run all blocks of a file; give each block that shows output with its real output."""
    namespace: dict[str, object] = {"__name__": "__example__"}
    printed: tuple[int, str] | None = None  # where the last python block ended, and what it printed
    for block in blocks_of(text):
        if block.kind == "python":
            printed = block.end, run_python(block, path, namespace)
        elif block.kind == "console":
            yield block, run_console(block)
        elif printed is not None and text[printed[0] : block.start].split() == ["```", "```text"]:
            yield block, printed[1]


def check(path: Path, *, update: bool) -> list[str]:
    """Run the examples of one file; return what is wrong."""
    text = path.read_text(encoding="utf-8")
    faults = []
    try:
        results = list(outputs_of(text, path))
    except Lacking as lacking:
        return _left_alone(path, str(lacking))
    except ExampleError as error:
        return [f"{path.name}: {error}"]
    if "<<FILL>>" in text and not update:
        faults.append(f"{path.name}: holds <<FILL>>; run this tool with --update, and read the difference.")
    for block, real in results:
        if block.kind == "text" and block.body.strip() != real.strip():
            faults.append(f"{path.name}, line {block.line}: the example prints\n{real}but the file says\n{block.body}")
    if update:
        for block, real in reversed(results):
            text = text[: block.start] + real + text[block.end :]
        path.write_text(text, encoding="utf-8")
        return []
    return faults


def run_script(path: Path) -> list[str]:
    """Run a program; what is wrong with it. One that needs a library which is not here is left alone, and says so."""
    result = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False)
    return _left_alone(path, f"{result.stderr}{result.stdout}") if result.returncode else []


def _left_alone(path: Path, said: str) -> list[str]:
    """Nothing is wrong with an example that lacks a library for tests of importers alone."""
    lacking = OPTIONAL.search(said)
    if lacking is None:
        return [f"{path.name}: {said}"]
    print(f"{path.name}: not run, {lacking[1]} is not installed")
    return []


def check_apart(path: Path, update: bool) -> list[str]:
    """The same in a folder of its own; a script of examples/ has to succeed."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path.cwd()
        os.chdir(folder)
        try:
            return run_script(path) if path.suffix == ".py" else check(path, update=update)
        finally:
            os.chdir(here)


def main() -> int:
    """Check or update the files, two at a time; the exit status is 1 if an example is wrong."""
    parser = argparse.ArgumentParser(description="Run the examples of README.md and docs.")
    parser.add_argument("files", nargs="*", type=Path, help="those to run; all by default")
    parser.add_argument("--update", action="store_true", help="write the real output into the files")
    arguments = parser.parse_args()
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    files = [path.resolve() for path in arguments.files] or [*sorted((ROOT / "examples").glob("*.py")), *pages]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        found = pool.map(check_apart, files, [arguments.update] * len(files))
        faults = [fault for part in found for fault in part]
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"examples: {len(faults)} wrong" if faults else "examples: all run")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
