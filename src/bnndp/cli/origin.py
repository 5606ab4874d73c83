"""What a command writes of itself into a new run folder: its words, the model, the inputs and the question."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bnndp.cli.stopped import Remarks
from bnndp.files.posterior import ModelFile
from bnndp.runs.beginning import Beginning, file_entry, surroundings
from bnndp.runs.lines import json_values

__all__ = ["Given", "Origin"]


@dataclass(frozen=True, slots=True)
class Given:
    """Where the inputs come from: a file or a data set; ``arrays`` are those of ``inputs.npz``."""

    arrays: Mapping[str, np.ndarray]
    path: Path | None = None
    dataset: str | None = None
    split: str | None = None
    fold: int | None = None
    limit: int | None = None
    labels: str = "none"  # or given, or network: its own decisions

    def record(self, folder: Path) -> dict[str, Any]:
        """The entry ``inputs``, as seen from a run folder."""
        file = {"path": None, "sha256": None} if self.path is None else file_entry(self.path, folder)
        names = ("dataset", "split", "fold", "limit", "labels")
        return {**file, **{name: getattr(self, name) for name in names}}


_QUESTION: dict[str, Any] = {
    "norm": "inf", "eps": None, "upper": None, "domain": None, "quantity": "mean", "between": None, "attack": False,
    "seed": 0,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Origin:
    """Everything that ``run.json`` says of the beginning of a run (docs/runs.md)."""

    remarks: Remarks | None
    path: Path  # of the model
    model: ModelFile
    given: Given
    device: str = "cpu"
    question: Mapping[str, Any] = field(default_factory=dict)  # where it is not the usual one

    def beginning(self, folder: Path) -> Beginning:
        """What goes into the folder."""
        network = self.model.posterior
        said: dict[str, Any] = {}
        if self.remarks is not None:
            said = {"arguments": list(self.remarks.arguments), "command_line": self.remarks.command}
        model = file_entry(self.path, folder) | {
            "task": network.task,
            "input_shape": list(network.input_shape or ()),
            "outputs": network.n_out,
            "network": repr(network),
            "source": self.model.source,
        }
        question = {name: json_values(value) for name, value in {**_QUESTION, **self.question}.items()}
        made = {**said, **surroundings(self.device)}
        made |= {"model": model, "inputs": self.given.record(folder), "question": question}
        shape = np.array(network.input_shape or (), dtype=np.int64)
        return Beginning(made, {**self.given.arrays, "input_shape": shape})
