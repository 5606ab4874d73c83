"""Small files that a user writes: TOML or JSON."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

from bnndp.errors import CertError, ModelFileError, one_line
from bnndp.files.container import parse_json
from bnndp.files.regular import read_regular

__all__ = ["read_settings"]

_LONGEST = 2**22  # bytes


def read_settings(path: str | os.PathLike[str], what: str) -> Any:
    """The content of a .json or .toml file; faults are a :class:`ModelFileError` of one line: it is no ``what``."""
    content = read_regular(path, _LONGEST)
    try:
        return _parsed(content, Path(path).suffix.lower())
    except CertError as error:
        raise ModelFileError(one_line(f"{path}: is no {what}: {error}")) from error


def _parsed(content: bytes, suffix: str) -> Any:
    if suffix == ".json":
        return parse_json(content)
    if suffix != ".toml":
        raise ModelFileError(f"its name must end in .json or .toml, not in {suffix!r:.20}")
    try:
        toml = importlib.import_module("tomllib")
    except ImportError as error:
        raise ModelFileError("TOML needs Python 3.11; write it as .json") from error
    try:
        return toml.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"not TOML: {error}") from error
