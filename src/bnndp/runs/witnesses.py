"""The witnesses of a run as one .npz file: the inputs among them are not kept in memory.

Until all are there they lie in a temporary file of the same folder, which has no name and is gone with the process.
"""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from array import array
from pathlib import Path

import numpy as np

from bnndp.errors import RunStateError

__all__ = ["Witnesses"]

_NUMBER = np.dtype("<f8")
_BLOCK = 2**20  # bytes that are copied at once


class Witnesses:
    """A context that takes witnesses one after the other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._index, self._rival = array("q"), array("q")
        self._inputs = 0

    def __enter__(self) -> Witnesses:
        self._x = tempfile.TemporaryFile(dir=self._folder)
        return self

    def __exit__(self, *_: object) -> None:
        self._x.close()

    def __len__(self) -> int:
        return len(self._index)

    def add(self, index: int, rival: int, x: np.ndarray) -> None:  # x (inputs,)
        """The witness of an input, and the class that is ahead there."""
        if self._index and x.size != self._inputs:
            raise RunStateError(f"the witness of input {index} has {x.size} numbers, those before {self._inputs}.")
        self._inputs = x.size
        self._x.write(x.astype(_NUMBER, copy=False).tobytes())
        self._index.append(index)
        self._rival.append(rival)

    def write(self, path: Path) -> None:
        """All of them into an .npz file."""
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, values in (("index", self._index), ("rival", self._rival)):
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, np.array(values, dtype=np.int64), allow_pickle=False)
            with archive.open("x.npy", "w", force_zip64=True) as file:
                shape = {"descr": _NUMBER.str, "fortran_order": False, "shape": (len(self), self._inputs)}
                np.lib.format.write_array_header_1_0(file, shape)
                self._x.seek(0)
                shutil.copyfileobj(self._x, file, _BLOCK)
