"""What a run folder keeps of its beginning, so that it stands for itself: how it was asked for, and the inputs."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bnndp.certificates.certificate import file_digest

__all__ = ["Beginning", "file_entry", "surroundings"]


@dataclass(frozen=True, slots=True)
class Beginning:
    """The entry ``made`` of ``run.json``, in values that JSON knows, and the arrays of ``inputs.npz``."""

    made: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, np.ndarray] = field(default_factory=dict)


def surroundings(device: str) -> dict[str, Any]:
    """When, by what and on what a run is begun; ``device`` is the one that computes."""
    return {
        "begun": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "platform": platform.platform(),
        "device": device,
        "threads": torch.get_num_threads(),
    }


def file_entry(path: Path, folder: Path) -> dict[str, str]:
    """Where a file lies, as seen from ``folder``, and its SHA-256."""
    return {"path": os.path.relpath(path, folder), "sha256": file_digest(path)}
