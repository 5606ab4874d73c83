"""Opens pickles in the process of the tests, which is fast; test_pickles.py starts the real child."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bnndp.errors import ModelFileError
from bnndp.importers import child, pickles
from bnndp.importers.pyro_constraints import CONSTRAINTS


@pytest.fixture
def no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open pickles as the child does, without its limits and without starting a process."""

    def run(content: bytes, scratch: Path, key: str, seconds: float) -> str | None:
        try:
            with torch.serialization.safe_globals([(stub, name) for name, stub in CONSTRAINTS.items()]):
                scratch.write_bytes(child.to_safetensors(content, key))
        except (child._Refused, ModelFileError) as error:
            return str(error)
        return None

    monkeypatch.setattr(pickles, "_run", run)
