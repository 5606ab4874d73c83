"""Where data sets lie: a folder that the user names, which is only read, and a cache, to which downloads are written.

The named folder is that of the argument, or else the one that the environment variable ``BNNDP_DATA`` names. The cache
is the folder ``bnndp`` below ``XDG_CACHE_HOME``, or else below ``~/.cache``. Each data set has a subfolder of its name.
Nothing is downloaded where ``BNNDP_OFFLINE`` is set to anything but 0.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from bnndp.errors import InputError

VARIABLE = "BNNDP_DATA"
OFFLINE = "BNNDP_OFFLINE"

Progress: TypeAlias = Callable[[str, int, int | None], None]
"""Told of a download: the name of the file, the bytes so far, and how many there will be (None: not known)."""


@dataclass(frozen=True, slots=True)
class Store:
    """The folders of data sets, in the order in which they are searched, and how to download what none of them has."""

    named: Path | None
    cache: Path
    download: bool = True
    timeout: float = 30.0  # seconds without a single byte after which a download is given up
    progress: Progress | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.timeout) and self.timeout > 0):
            raise InputError(f"timeout must be finite and > 0 seconds, got {self.timeout}.")

    @property
    def place(self) -> Path:
        """The folder into which a user would put data: the named one, or else the cache."""
        return self.cache if self.named is None else self.named

    def find(self, relative: str) -> Path | None:
        """The first file of this path below the folders; None where none has it."""
        folders = (self.cache,) if self.named is None else (self.named, self.cache)
        return next((path for path in (folder / relative for folder in folders) if path.is_file()), None)


Folder: TypeAlias = str | os.PathLike[str] | Store | None
"""What a loader takes: the folder of all data sets, or a store, or None for what the environment says."""


def open_store(folder: Folder = None, *, progress: Progress | None = None) -> Store:
    """The store of a folder, or of the environment; a store is returned as it is.

    >>> open_store("data").place.name
    'data'
    """
    if isinstance(folder, Store):
        return folder
    named = os.environ.get(VARIABLE) if folder is None else os.fspath(folder)
    download = os.environ.get(OFFLINE, "0") in ("", "0")
    return Store(Path(named) if named else None, _cache(), download=download, progress=progress)


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The specification of XDG: a path that is not absolute is to be ignored.
    return (Path(base) if os.path.isabs(base) else Path("~/.cache").expanduser()) / "bnndp"
