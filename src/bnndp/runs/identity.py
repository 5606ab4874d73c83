"""What decides the answers of a run: the model, the data, the options and the program. Only the same may resume it.

The program is known by the digest of its source as well as by its version, so that answers of different code are never
mixed, not even while it is being developed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_DIGITS = 64  # of a SHA-256
_SHOWN = 12  # of them in messages
_FOLLOW = ("points", "stages")  # from the others; told if they alone differ
_SOURCE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Identity:
    """What a run is of; two runs with the same have the same answers, on one machine bit for bit."""

    command: str
    model: str  # SHA-256
    data: str  # SHA-256
    options: Mapping[str, Any]  # in JSON-compatible values
    version: Mapping[str, str]
    points: int
    stages: tuple[str, ...]  # the levels that are completed one after the other

    def record(self) -> dict[str, Any]:
        """All of it in JSON-compatible values."""
        return json.loads(json.dumps(asdict(self), allow_nan=False))

    def differences(self, other: Mapping[str, Any]) -> list[str]:
        """The differences to another record, in words: its value, then this one's."""
        own = self.record()
        changed = [name for name, value in own.items() if other.get(name) != value]
        told = [name for name in changed if name not in _FOLLOW] or changed
        return [f"{name} {_change(other.get(name), own[name])}" for name in told]


def _change(old: object, new: object) -> str:
    """Both values, or their digests, and of mappings the entries that differ."""
    text = f"{_short(old)}, now {_short(new)}"
    if not (isinstance(old, Mapping) and isinstance(new, Mapping)):
        return text
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return f"{text} ({'; '.join(f'{name} {_short(old.get(name))}, now {_short(new.get(name))}' for name in names)})"


def _short(value: object) -> str:
    """A value in messages: of a mapping its digest, of a digest its first digits."""
    if isinstance(value, Mapping):
        return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:_SHOWN]
    return value[:_SHOWN] if isinstance(value, str) and len(value) == _DIGITS else str(value)


def data_digest(**arrays: Tensor | None) -> str:
    """SHA-256 of the names, shapes and exact bits of tensors; None is known from an empty one."""
    hasher = hashlib.sha256()
    for name, array in arrays.items():
        if array is None:
            hasher.update(f"{name}: none;".encode())
        else:
            hasher.update(f"{name}: {array.dtype} {tuple(array.shape)};".encode())
            hasher.update(array.detach().cpu().contiguous().numpy().data)
    return hasher.hexdigest()


@cache
def program() -> dict[str, str]:
    """The version of the program, a digest of its source, and the library that does its arithmetic."""
    hasher = hashlib.sha256()
    for path in sorted(_SOURCE.rglob("*.py")):
        hasher.update(path.relative_to(_SOURCE).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return {"bnndp": metadata.version("bnndp"), "source": hasher.hexdigest(), "torch": torch.__version__}
