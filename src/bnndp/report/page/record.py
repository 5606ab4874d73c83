"""Reading a run folder: what it is of, the best answer of every input, the inputs and the witnesses (docs/runs.md).

What counts are the sealed lines of the journal. ``run.json`` must say the same, and ``inputs.npz`` must have the digest
of the run's data: a page about other inputs than those that were certified would be worse than none. Everything else in
the folder is taken as words for people. A run may be shown while it is still at work: whole lines are read, and no
more.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bnndp.errors import CertError, RunStateError
from bnndp.files.regular import ARCHIVE_FAULTS
from bnndp.geometry.box import Box
from bnndp.runs.folder import DESCRIPTION, FORMAT, INPUTS, RESULTS
from bnndp.runs.identity import data_digest
from bnndp.runs.journal import Answer, Journal
from bnndp.runs.sealed_lines import unseal

COMMANDS = ("certify", "radius", "evaluate")
_MAX_POINTS = 10**7  # points of a run that can be read
_WITNESSES, _CERTIFICATES = "witnesses.npz", "certificates"


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of a run and, where it is of boxes, the ends of these; otherwise both are the input."""

    x: np.ndarray  # (points, n): of given boxes the middles
    lower: np.ndarray  # (points, n)
    upper: np.ndarray  # (points, n)
    shape: tuple[int, ...]  # of one input


@dataclass(frozen=True, slots=True)
class Witness:
    """An input that an attack found, and the class that is ahead there."""

    x: np.ndarray  # (n,)
    rival: int


@dataclass(frozen=True, slots=True)
class Record:
    """A run folder as it was read."""

    folder: Path
    identity: Mapping[str, Any]  # sealed: command, model, data, options, version, points, stages
    metadata: Mapping[str, Any]  # how the run was started, for people; empty for runs of older versions
    index: Sequence[int]  # the inputs that have an answer, in order
    answers: Sequence[Answer]
    levels: Sequence[str]  # the last level that was completed, of each of them
    inputs: Inputs | None
    witnesses: Mapping[int, Witness] = field(default_factory=dict)
    certificates: int = 0  # files in the folder; what they prove is for bnndp-check to say

    @property
    def command(self) -> str:
        """One of ``COMMANDS``."""
        return self.identity["command"]

    @property
    def points(self) -> int:
        """Number of inputs of the run."""
        return self.identity["points"]

    @property
    def options(self) -> Mapping[str, Any]:
        """The options that the answers depend on."""
        return self.identity["options"]

    @property
    def largest_tried(self) -> float:
        """The largest radius that was searched; infinite where the run does not say."""
        found = self.options.get("upper")
        return float(found) if isinstance(found, int | float) and found > 0 else math.inf

    def lookup(self, *names: str) -> Any:
        """An entry of the metadata; None where there is none."""
        found: Any = self.metadata
        for name in names:
            found = found.get(name) if isinstance(found, Mapping) else None
        return found


def read_record(folder: Path) -> Record:
    """The run of a folder; every fault is a :class:`RunStateError` of one line."""
    if not (folder / RESULTS).is_file():
        raise RunStateError(f"{folder}: has no {RESULTS}, so it is not a run folder; make one with --run FOLDER.")
    try:
        identity, index, answers, levels = _journal(folder / RESULTS)
        return Record(
            folder,
            identity,
            _metadata(folder / DESCRIPTION, identity),
            index,
            answers,
            levels,
            _inputs(folder / INPUTS, identity, answers),
            _witnesses(folder / _WITNESSES, identity["points"]),
            sum(1 for path in (folder / _CERTIFICATES).glob("*.json")),
        )
    except (OSError, UnicodeDecodeError) as error:
        raise RunStateError(f"{folder}: cannot be read: {getattr(error, 'strerror', None) or error}.") from error


def _journal(path: Path) -> tuple[dict[str, Any], list[int], list[Answer], list[str]]:
    with path.open("rb") as lines, path.open("rb", buffering=0) as file:
        head = lines.readline()
        identity = _identity(path, unseal(head))
        points, stages = identity["points"], identity["stages"]
        journal = Journal(file, str(path), points, len(stages), end=len(head))
        journal.index(lines)
        index = [point for point in range(points) if journal.has(0, range(point, point + 1))]
        best = [journal.best(point) for point in index]
    if not index:
        raise RunStateError(f"{path}: has no answer yet; wait for the first one, or give the command of the run again.")
    return identity, index, [answer for _, answer in best], [stages[stage] for stage, _ in best]


def _identity(path: Path, found: dict[str, Any] | None) -> dict[str, Any]:
    """The first line of a journal, if it is one."""
    if found is None or found.get("format") != FORMAT:
        fault = "is damaged" if found is None else f"has the format {found.get('format')!r:.60}, known is {FORMAT!r}"
        raise RunStateError(f"{path}: its first line {fault}; start the run again.")
    stages = found.get("stages")
    fits = found.get("command") in COMMANDS and type(found.get("points")) is int and 0 < found["points"] <= _MAX_POINTS
    fits = fits and isinstance(stages, list) and 0 < len(stages) < 100 and all(isinstance(s, str) for s in stages)
    fits = fits and all(isinstance(found.get(name), Mapping) for name in ("options", "version"))
    if not (fits and all(isinstance(found.get(name), str) for name in ("model", "data"))):
        raise RunStateError(f"{path}: its first line does not describe a run that this version knows; start it again.")
    return found


def _metadata(path: Path, identity: Mapping[str, Any]) -> Mapping[str, Any]:
    """The entry ``made`` of run.json, which must be of this run."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise RunStateError(f"{path}: is not JSON: {error}; delete it, or start the run again.") from error
    changed = [name for name, value in identity.items() if not isinstance(found, dict) or found.get(name) != value]
    if changed:
        raise RunStateError(f"{path}: is of another run than {RESULTS} ({', '.join(changed)}); delete it.")
    made = found.get("made")
    return made if isinstance(made, dict) else {}


@contextlib.contextmanager
def _arrays(path: Path) -> Iterator[Any]:
    """An open .npz file; whatever is wrong with it is one line."""
    try:
        with path.open("rb") as file:  # closed whatever numpy makes of it
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise RunStateError(f"{path}: is not a .npz archive; delete it.")
            with archive:
                yield archive
    except ARCHIVE_FAULTS as error:
        if isinstance(error, CertError):
            raise
        raise RunStateError(f"{path}: cannot be read as plain arrays: {error}; delete it.") from error


def _inputs(path: Path, identity: Mapping[str, Any], answers: Sequence[Answer]) -> Inputs | None:
    """The inputs, checked against the digest of the run's data; None where the run kept none."""
    if not path.is_file():
        return None
    with _arrays(path) as archive:
        names = ("x", "x") if "x" in archive else ("lower", "upper")
        lower, upper = (np.ascontiguousarray(archive[name], dtype=np.float64) for name in names)
        label = archive["y"].astype(np.int64) if "y" in archive else None
        shape = tuple(int(side) for side in archive["input_shape"]) if "input_shape" in archive else lower.shape[1:]
    fits = lower.ndim == 2 and lower.shape == upper.shape and lower.shape[0] == identity["points"]
    if not (fits and math.prod(shape) == lower.shape[1] and np.isfinite(lower).all() and np.isfinite(upper).all()):
        raise RunStateError(f"{path}: does not hold the {identity['points']} inputs of this run; delete it.")
    labels = [label, None, *_one_label(answers, identity["points"])]
    box = _box(lower, upper, identity, points=names == ("x", "x"))
    if box is None or not any(_digest(box, one, identity) == identity["data"] for one in labels):
        raise RunStateError(
            f"{path}: does not have the digest of the data of this run; it belongs to other inputs: delete it."
        )
    x = lower if names == ("x", "x") else 0.5 * lower + 0.5 * upper
    return Inputs(x, box.lower.numpy(), box.upper.numpy(), shape)


def _one_label(answers: Sequence[Answer], points: int) -> list[np.ndarray]:
    """The labels as the answers have them, where all inputs were asked about one."""
    label = answers[0].get("label")
    return [np.full(points, label)] if type(label) is int and abs(label) < 2**31 else []


def _box(lower: np.ndarray, upper: np.ndarray, identity: Mapping[str, Any], *, points: bool) -> Box | None:
    """The regions that the run is of, for radii the inputs; None where its options do not make any."""
    given = Box(torch.from_numpy(lower), torch.from_numpy(upper))
    if identity["command"] != "certify":
        return given
    try:
        options = identity["options"]
        domain = None if options.get("domain") is None else (float(options["domain"][0]), float(options["domain"][1]))
        if points:
            return Box.ball(given.lower, float(options["eps"]), domain=domain, norm=float(options["norm"]))
        return given if domain is None else Box(given.lower.clamp_min(domain[0]), given.upper.clamp_max(domain[1]))
    except (TypeError, ValueError, LookupError):
        return None


def _digest(box: Box, label: np.ndarray | None, identity: Mapping[str, Any]) -> str:
    """That of the data of a run, as the commands take it."""
    labels = None if label is None else torch.from_numpy(np.ascontiguousarray(label))
    if identity["command"] != "certify":
        return data_digest(x=box.lower, label=labels)
    centre, radius = (None, None) if box.within is None else (box.within.centre, box.within.radius)
    return data_digest(lower=box.lower, upper=box.upper, centre=centre, radius=radius, label=labels)


def _witnesses(path: Path, points: int) -> dict[int, Witness]:
    """The inputs that attacks found, by number."""
    if not path.is_file():
        return {}
    with _arrays(path) as archive:
        index, x, rival = archive["index"], archive["x"], archive["rival"]
    fits = index.ndim == 1 and rival.shape == index.shape and x.ndim == 2 and x.shape[0] == index.shape[0]
    fits = fits and index.dtype.kind in "iu" and rival.dtype.kind in "iu" and x.dtype == np.float64
    if not (fits and ((index >= 0) & (index < points)).all() and np.isfinite(x).all()):
        raise RunStateError(f"{path}: does not hold witnesses of this run; delete it, and give its command again.")
    return {int(at): Witness(row, int(other)) for at, row, other in zip(index, x, rival, strict=True)}
