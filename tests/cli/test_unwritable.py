"""Where a command cannot write it says so in one line, with status 2."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from bnndp.cli import main as program

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


@pytest.fixture
def read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which whatever makes, changes or removes something is refused, as on a read-only file system."""
    folder = tmp_path / "read-only"
    folder.mkdir()

    def guard(owner: Any, name: str, writes: Callable[..., bool]) -> None:
        real = getattr(owner, name)

        def guarded(path: Any, *arguments: Any, **named: Any) -> Any:
            if isinstance(path, str | Path) and folder in Path(path).parents and writes(*arguments, **named):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
            return real(path, *arguments, **named)

        monkeypatch.setattr(owner, name, guarded)

    for name in ("mkdir", "unlink", "touch", "replace"):
        guard(Path, name, lambda *_, **__: True)
    guard(Path, "open", lambda mode="r", *_, **__: mode[0] in "xwa")
    guard(os, "open", lambda flags, *_, **__: bool(flags & _WRITING))
    return folder


def _commands(folder: Path, model: Path, inputs: Path) -> dict[str, list[object]]:
    certify = ["certify", model, inputs, "--eps", 0.01, "--quiet"]
    return {
        "convert": ["convert", model, "-o", folder / "a.safetensors"],
        "demo": ["demo", "--boxes", 2, "--out", folder / "a.png"],
        "rows": [*certify, "--out", folder / "a.jsonl"],
        "run": [*certify, "--run", folder / "a"],
        "certificates": [*certify, "--certificates", folder / "a"],
        "train": ["train", "moons", "--out", folder / "a.safetensors", "--steps", 1, "--quiet"],
    }


def _expect_one_line(result: Any, *said: str) -> None:
    assert result.status == 2, result
    assert result.stderr.startswith("bnndp: ")
    assert result.stderr.count("\n") == 1, result.stderr
    assert all(words in result.stderr for words in said), result.stderr
    assert "/." not in result.stderr  # the name that was given, not that of a scratch file


@pytest.mark.parametrize("name", _commands(Path(), Path(), Path()))
def test_a_read_only_file_system(
    name: str, bnndp: Callable[..., Any], read_only: Path, model: Path, inputs: Path
) -> None:
    _expect_one_line(bnndp(*_commands(read_only, model, inputs)[name]), str(read_only), "Read-only file system")
    assert not list(read_only.iterdir())


@pytest.mark.parametrize("name", _commands(Path(), Path(), Path()))
def test_a_folder_below_a_file(name: str, bnndp: Callable[..., Any], tmp_path: Path, model: Path, inputs: Path) -> None:
    (tmp_path / "file").write_text("kept")
    _expect_one_line(bnndp(*_commands(tmp_path / "file" / "below", model, inputs)[name]), str(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "kept"


def test_the_verdicts_of_a_classifier(
    bnndp: Callable[..., Any], read_only: Path, classifier: Path, labelled: Path
) -> None:
    asked = ["certify", classifier, labelled, "--eps", 0.01, "--quiet", "--vnncomp-csv", read_only / "a.csv"]
    _expect_one_line(bnndp(*asked), str(read_only), "Read-only file system")


@pytest.mark.parametrize("out", [True, False])
def test_a_report(out: bool, bnndp: Callable[..., Any], read_only: Path, model: Path, inputs: Path) -> None:
    run = read_only.parent / "run"
    assert bnndp("certify", model, inputs, "--eps", 0.01, "--quiet", "--run", run).status == 0
    if out:
        found = bnndp("report", run, "--out", read_only / "a.html")
    else:  # where the run itself lies
        run = run.rename(read_only / "run")
        found = bnndp("report", run)
    _expect_one_line(found, str(read_only), "Read-only file system")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "bnndp: No space left on device.\n"),
        (PermissionError(errno.EACCES, "Permission denied", "a\nb"), r"bnndp: a\nb: cannot be read or written: "),
        (OSError("no strerror"), "bnndp: no strerror.\n"),
        (OSError(), "bnndp: OSError.\n"),
    ],
)
def test_whatever_the_system_refuses(
    error: OSError, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "app", Mock(side_effect=error))
    assert program.main(["demo"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(line)
    assert said.count("\n") == 1
