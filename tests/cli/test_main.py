"""The program as a process: help without torch, version, pipes and terminals, interruption."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import bnndp
from bnndp.cli import boxes, radii
from bnndp.cli.main import app, main

PROGRAM = [sys.executable, "-m", "bnndp"]
# A chunk that never ends, entered after the output file was opened; prints when it is there.
STUCK = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background jobs of a shell
from bnndp.cli import boxes, main
def better_bounds(*arguments):
    print("working", flush=True)
    time.sleep(60)
boxes.better_bounds = better_bounds
main.run()
"""


@pytest.mark.parametrize(
    "arguments", [["--help"], ["certify", "--help"], ["radius", "-h"], ["evaluate", "-h"], ["demo", "-h"]]
)
def test_help(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0
    assert "Usage: bnndp" in result.stdout


def test_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"bnndp {metadata.version('bnndp')}\n")


def test_help_loads_neither_torch_nor_numpy() -> None:
    """Which is what makes it quick; that of the program, and that of every command."""
    names = [command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands]
    assert {"certify", "radius", "evaluate", "inspect", "train"} <= set(names)
    program = (
        f"import sys\nfrom bnndp.cli.main import main\nfor words in {[[], *([name] for name in names)]}:\n"
        "    print(main([*words, '--help']))\n"
        "print('heavy', *{'torch', 'numpy', 'matplotlib', 'pyarrow', 'safetensors'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines().count("0") == len(names) + 1
    assert result.stdout.splitlines()[-1].split() == ["heavy"]


def _arguments(model: Path, inputs: Path, out: Path) -> list[str]:
    return ["certify", str(model), str(inputs), "--eps", "0.1", "--out", str(out)]


def test_nothing_on_stderr_in_a_pipe(model: Path, inputs: Path, tmp_path: Path) -> None:
    arguments = PROGRAM + _arguments(model, inputs, tmp_path / "out.jsonl")
    result = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert "\x1b" not in result.stdout


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interruption_leaves_no_file(model: Path, inputs: Path, tmp_path: Path, sent: int, status: int) -> None:
    (tmp_path / "out.jsonl").write_text("older\n")
    process = subprocess.Popen(
        [sys.executable, "-c", STUCK, *_arguments(model, inputs, tmp_path / "out.jsonl")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "working\n"
    assert len(list(tmp_path.glob(".out.jsonl.*"))) == 1
    time.sleep(0.1)
    process.send_signal(sent)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == status
    assert errors == "bnndp: stopped before the end; no output file was written.\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["inputs.npz", "model.safetensors", "out.jsonl"]
    assert (tmp_path / "out.jsonl").read_text() == "older\n"


def test_a_reader_that_goes_away_is_no_traceback(model: Path, tmp_path: Path, inputs: Path) -> None:
    process = subprocess.Popen(
        PROGRAM + _arguments(model, inputs, tmp_path / "out.jsonl"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    process.wait()
    assert b"Traceback" not in errors
    assert (tmp_path / "out.jsonl").exists()


def test_demo_prints_a_table_and_writes_a_picture(bnndp: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = bnndp("demo", "--boxes", 4)
    assert (result.status, result.stderr) == (0, "")
    assert "certified" in result.stdout
    assert result.stdout.count("[") == 12
    assert (tmp_path / "bnndp-demo.png").read_bytes().startswith(b"\x89PNG")


def test_demo_without_matplotlib_is_the_table_alone(
    bnndp: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = bnndp("demo", "--boxes", 1)
    assert (result.status, result.stderr) == (
        0,
        "bnndp: no picture, which needs matplotlib: pip install 'bnndp[plot]'.\n",
    )
    assert "certified" in result.stdout
    assert not list(tmp_path.iterdir())


def test_demo_refuses_a_picture_it_cannot_write(bnndp: Callable[..., Any], tmp_path: Path) -> None:
    for name in ("missing/p.png", "p.unknown"):
        result = bnndp("demo", "--boxes", 1, "--out", tmp_path / name)
        assert (result.status, result.stderr.count("\n")) == (2, 1)
        assert "change --out" in result.stderr
        assert result.stdout == ""  # before any work


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["certify"], "bnndp: Missing argument 'MODEL'; see bnndp certify --help."),
        (["certfy"], "bnndp: No such command 'certfy'. Did you mean 'certify', 'verify', 'convert'? See bnndp --help."),
        (["radius", "m", "x.npz", "--limit", "0"], "; see bnndp radius --help."),
        (
            ["convert", "a", "-o", "b", "--task", "c"],
            "value for '--task': 'c' is not one of 'regression', 'classification'; see bnndp convert --help.",
        ),
        (["report", "nowhere"], "bnndp: nowhere: there is no such folder; give the one of --run."),
    ],
)
def test_wrong_arguments_name_the_help_of_the_command(bnndp: Any, arguments: list[str], line: str) -> None:
    result = bnndp(*arguments)
    assert (result.status, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.rstrip("\n").endswith(line)
    assert "Invalid value:" not in result.stderr


def test_help_is_broken_by_the_terminal_alone() -> None:
    texts = {str(command.help) for command in app.registered_commands}
    assert len(texts) == 10
    assert not any("\n" in paragraph for text in texts for paragraph in text.split("\n\n"))


def frames(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> list[str]:
    """The functions of the package on the stack when a command first asks the library, from the program on."""
    found: list[list[str]] = []
    root = Path(bnndp.__file__).parent

    def seen(*_: Any, **__: Any) -> Any:
        calls = [frame for frame, _ in traceback.walk_stack(None) if root in Path(frame.f_code.co_filename).parents]
        found.append([frame.f_code.co_name for frame in reversed(calls)])
        raise KeyboardInterrupt

    for module, name in ((boxes, "better_bounds"), (radii, "better_evaluations")):
        # The iterators begin when they are gone through.
        monkeypatch.setattr(module, name, lambda *_, **__: (seen() for _ in range(1)))
    assert main(arguments) == 130
    return found[0][found[0].index("run") :]


@pytest.mark.parametrize("command", [["certify", "--eps", "0.1"], ["radius"], ["evaluate", "--eps", "0.1"]])
def test_from_the_program_to_the_library_there_are_three_calls(
    classifier: Path, labelled: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    assert frames(monkeypatch, [*command, str(classifier), str(labelled)]) == ["run", command[0], "work"]
