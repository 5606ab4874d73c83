"""Run folders written by hand, for tests of what reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bnndp.report.page.page import report_of
from bnndp.runs.folder import FORMAT
from bnndp.runs.identity import data_digest
from bnndp.runs.sealed_lines import seal

__all__ = ["interval_answer", "page_of", "radius_answer", "write_run"]


def radius_answer(
    radius: float | str, attack: float | str = "inf", *, label: int = 0, decision: int | None = None
) -> dict[str, Any]:
    """An answer of ``bnndp radius``; numbers that are not finite are texts."""
    decided = label if decision is None else decision
    return {"label": label, "decision": decided, "radius": radius, "attack": attack, "seconds": 0.5}


def interval_answer(
    lower: Sequence[float | str],
    upper: Sequence[float | str],
    inside: tuple[Sequence[float], Sequence[float]] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """An answer of ``bnndp certify``."""
    low, high = (None, None) if inside is None else inside
    answer = {"lower": lower, "upper": upper, "inside_lower": low, "inside_upper": high, "method": "moment"}
    return answer | {"seconds": 0.5} | more


def write_run(
    folder: Path,
    command: str,
    answers: Mapping[int, Mapping[str, Any]] | Sequence[Mapping[str, Any]],
    *,
    points: int | None = None,
    options: Mapping[str, Any] | None = None,
    made: Mapping[str, Any] | None = None,
    x: np.ndarray | None = None,  # (points, n)
    stages: Sequence[str] = ("low",),
) -> Path:
    """A folder with these answers of the first stage; of radii also with its inputs."""
    folder.mkdir()
    known = dict(answers) if isinstance(answers, Mapping) else dict(enumerate(answers))
    data = "0" * 64 if x is None else data_digest(x=torch.from_numpy(x), label=None)
    record = {
        "format": FORMAT,
        "command": command,
        "model": "1" * 64,
        "data": data,
        "options": {"norm": "inf", "domain": None, **(options or {})},
        "version": {"bnndp": "0.1.0", "source": "2" * 64, "torch": "2"},
        "points": len(known) if points is None else points,
        "stages": list(stages),
    }
    (folder / "run.json").write_text(json.dumps(record | ({"made": made} if made is not None else {})))
    lines = [seal({"id": at, "stage": 0, "whole": True, "answer": answer}) for at, answer in known.items()]
    (folder / "results.jsonl").write_bytes(seal(record) + b"".join(lines))
    if x is not None:
        np.savez(folder / "inputs.npz", x=x, input_shape=np.array(x.shape[1:]))
    return folder


def page_of(folder: Path, model: Path | None = None) -> str:
    """The HTML page of a run folder."""
    return report_of(folder, model).page
