"""Checkpoints of a training: safetensors with, in its metadata, what the training is of.

A training continues from a checkpoint only with the options and data that it began with. The file is replaced as a
whole, so that an interruption at any time leaves the previous one.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors.torch import save as serialise
from torch import Tensor

from bnndp.data import Data
from bnndp.errors import InputError
from bnndp.files.container import read_container
from bnndp.files.posterior import write_whole
from bnndp.training.options import TrainingOptions

FORMAT = "bnndp-training-1"
_AGAIN = "give another checkpoint, or resume=False to begin again"


def identity(
    data: Data,
    options: TrainingOptions,
    held_out: Data | None,
) -> dict[str, Any]:
    """What two trainings have to share for one to continue from the other's checkpoint, as JSON gives it back."""
    watched = held_out if options.stopping is not None else None
    found = {
        "format": FORMAT,
        "options": asdict(options),
        "data": _digest(data),
        "held_out": None if watched is None else _digest(watched),
    }
    return json.loads(json.dumps(found))


def write(path: str | os.PathLike[str], own: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write a checkpoint in the place of the one before."""
    write_whole(path, serialise(dict(tensors), metadata={"bnndp": json.dumps(dict(own))}))


def read(path: str | os.PathLike[str], own: Mapping[str, Any]) -> dict[str, Tensor] | None:
    """The tensors of the checkpoint, None if there is no such file; one of another training is refused."""
    if not Path(path).exists():
        return None
    metadata, tensors = read_container(path)
    try:
        found = json.loads(metadata.get("bnndp", "null"))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise InputError(f"{path}: is not a checkpoint of a training ({FORMAT}); {_AGAIN}.")
    if found != own:
        raise InputError(f"{path}: is of another training ({_difference(found, own)}); {_AGAIN}.")
    return tensors


def _difference(found: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    """The first thing in which the two differ."""
    there = found.get("options")
    if isinstance(there, dict):
        for name, value in own["options"].items():
            if there.get(name) != value:
                return f"{name} is {there.get(name)!r} there, {value!r} here"
    return "its data are other data" if found.get("data") != own["data"] else "its held-out data are other data"


def _digest(data: Data) -> str:
    """SHA-256 of inputs and targets and of their shapes."""
    digest = hashlib.sha256(repr(data).encode())
    for tensor in (data.x, data.y):
        for chunk in tensor.split(4096):
            digest.update(chunk.contiguous().numpy().tobytes())
    return digest.hexdigest()
