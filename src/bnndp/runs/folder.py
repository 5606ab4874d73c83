"""The folder of a run: ``run.json`` says what it is of, ``results.jsonl`` has the answers, ``lock`` keeps others out.

The first line of ``results.jsonl`` is what a run is of, sealed, and is what counts; ``run.json`` has the same and how
the run was begun, for people and other programs, and ``inputs.npz`` the inputs. All are made under another name and
renamed when they are whole and on the disk. A folder is taken for a run folder if it is new or empty, or has the
journal of the same run.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bnndp.errors import CertError, RunStateError
from bnndp.files.posterior import write_whole
from bnndp.runs.exports import EXPORTS, npz
from bnndp.runs.identity import Identity
from bnndp.runs.journal import Journal
from bnndp.runs.lock import LOCK, locked
from bnndp.runs.sealed_lines import seal, unseal

FORMAT = "bnndp-run-1"
DESCRIPTION = "run.json"
RESULTS = "results.jsonl"
INPUTS = "inputs.npz"
_FIRST = (DESCRIPTION, INPUTS, RESULTS, LOCK)  # there before any answer
OWN = (*_FIRST, *EXPORTS)
"""The files that no output may replace."""

_ELSEWHERE = "choose another folder"


@dataclass(frozen=True, slots=True)
class Description:
    """How a run was asked for: the entry ``made`` of ``run.json``, in JSON-compatible values, and its inputs."""

    made: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, np.ndarray] = field(default_factory=dict)  # the arrays of inputs.npz


@contextlib.contextmanager
def open_run(folder: Path, identity: Identity, describe: Callable[[], Description] = Description) -> Iterator[Journal]:
    """The journal of a run, made or read back, for this process alone; every fault is a :class:`RunStateError`.

    ``describe`` is asked where the run is made.
    """
    with _faults_of(folder):
        _expect_folder(folder)
    with locked(folder):
        with _faults_of(folder):
            _remove_scratch(folder)
            if not (folder / RESULTS).exists():
                _begin(folder, identity, describe())
            journal = _resume(folder / RESULTS, identity)
        with journal:
            yield journal


@contextlib.contextmanager
def _faults_of(folder: Path) -> Iterator[None]:
    try:
        yield
    except RunStateError:
        raise
    except CertError as error:
        raise RunStateError(f"{str(error).rstrip('.')}; {_ELSEWHERE}.") from error
    except OSError as error:
        raise RunStateError(f"{folder}: cannot be used: {error.strerror}; {_ELSEWHERE}.") from error


def _expect_folder(folder: Path) -> None:
    """Make the folder, or refuse one that has files of others in it."""
    if not folder.parent.is_dir():
        raise RunStateError(f"{folder}: the folder {folder.parent} does not exist; make it or {_ELSEWHERE}.")
    if folder.exists() and not folder.is_dir():
        raise RunStateError(f"{folder}: is a file, not a folder; {_ELSEWHERE}.")
    folder.mkdir(exist_ok=True)
    if (folder / RESULTS).exists():
        return
    strange = sorted(path.name for path in folder.iterdir() if path.name not in _FIRST and not _is_scratch(path))
    if strange:
        raise RunStateError(f"{folder}: has files, among them {strange[0]!r}, but no run; {_ELSEWHERE}.")


def _is_scratch(path: Path) -> bool:
    """Whether it is a partial file left by a process that was killed."""
    return any(path.name.startswith(f".{name}.") for name in OWN)


def _remove_scratch(folder: Path) -> None:
    for path in folder.iterdir():
        if _is_scratch(path):
            path.unlink()


def _begin(folder: Path, identity: Identity, described: Description) -> None:
    """A new run; the journal comes last, for it is what makes the folder a run."""
    record = {"format": FORMAT} | identity.record()
    entries = record | ({"made": dict(described.made)} if described.made else {})
    write_whole(folder / DESCRIPTION, (json.dumps(entries, indent=2, allow_nan=False) + "\n").encode())
    if described.inputs:
        write_whole(folder / INPUTS, npz(described.inputs))
    write_whole(folder / RESULTS, seal(record))


def _resume(path: Path, identity: Identity) -> Journal:
    """The journal of this run with all its whole lines; a torn end is left behind."""
    with path.open("rb") as lines:
        head = lines.readline()
        _expect_same(path.parent, unseal(head), identity)
        file = path.open("r+b", buffering=0)
        journal = Journal(file, str(path), identity.points, len(identity.stages), durable=True, end=len(head))
        try:
            journal.index(lines)
        except BaseException:
            file.close()
            raise
    return journal


def _expect_same(folder: Path, found: dict[str, Any] | None, identity: Identity) -> None:
    if found is None:
        raise RunStateError(f"{folder / RESULTS}: its first line is damaged; {_ELSEWHERE}.")
    if found.get("format") != FORMAT:
        raise RunStateError(
            f"{folder}: has the format {found.get('format')!r}, this version reads {FORMAT!r}; {_ELSEWHERE}."
        )
    changed = identity.differences(found)
    if changed:
        raise RunStateError(
            f"{folder}: is a run of something else: {'; '.join(changed)}; resume it with what it was begun with, or "
            f"{_ELSEWHERE}."
        )
