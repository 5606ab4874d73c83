"""``--vnnlib`` and ``--vnncomp-csv``: boxes and verdicts in the formats of the competition of verifiers."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bnndp.cli.inputs import Neighbourhood, Regions, faults_of, given_boxes
from bnndp.errors import InputError
from bnndp.files.posterior import write_whole
from bnndp.files.vnnlib import parse_vnnlib
from bnndp.network import Posterior

__all__ = ["read_vnnlib", "write_verdicts"]

_LARGEST = 2**26  # bytes of a file
_WORDS = {"certified": "unsat", "falsified": "sat", "undecided": "unknown"}  # by the value of a Verdict


def read_vnnlib(paths: Sequence[Path], network: Posterior, around: Neighbourhood) -> Regions:
    """The boxes of VNN-LIB files, one each."""
    ends = []
    for path in paths:
        with faults_of(path):
            box = parse_vnnlib(_content(path))
            for name, found, wanted in (("X", len(box.lower), network.n_in), ("Y", box.outputs, network.n_out)):
                if found != wanted and (name == "X" or found):
                    kind = "inputs" if name == "X" else "outputs"
                    raise InputError(f"declares {found} variables {name}, but the network has {wanted} {kind}.")
            ends.append((box.lower, box.upper))
            given_boxes(np.array([box.lower]), np.array([box.upper]), around)  # its faults name the file
    lower, upper = (np.array([end[side] for end in ends], dtype=np.float64) for side in (0, 1))
    return Regions(given_boxes(lower, upper, around), {"lower": lower, "upper": upper}, len(paths))


def _content(path: Path) -> str:
    if not path.is_file():
        raise InputError("no such file; give a .vnnlib file.")
    if path.stat().st_size > _LARGEST:
        raise InputError(f"has more than {_LARGEST} bytes.")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"is no text in UTF-8: {error}.") from error


def write_verdicts(path: Path, model: Path, names: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """One line a box: category, network, property, time of preparation, result, seconds.

    The result is ``unsat`` if the decision is certified, so that no input breaks it, ``sat`` if one does, ``unknown``.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for name, row in zip(names, rows, strict=True):
        writer.writerow(["bnndp", model, name, 0.0, _WORDS[row["verdict"]], row["seconds"]])
    write_whole(path, text.getvalue().encode())
