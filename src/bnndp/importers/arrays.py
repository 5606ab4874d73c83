"""Arrays of numpy in ``.npz`` and ``.npy`` files: plain numbers and texts, no objects."""

from __future__ import annotations

import io
import warnings
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from bnndp.errors import ModelFileError
from bnndp.importers.foreign import Foreign

if TYPE_CHECKING:
    import numpy as np

_NPY = b"\x93NUMPY"
_RATIO, _SLACK = 64, 2**26  # limit of the unpacked bytes: ratio * bytes of the file + slack
_MOST = 50_000  # arrays
_KINDS = {"f": (2, 4, 8), "i": (1, 2, 4, 8), "u": (1,), "b": (1,)}  # of numbers that torch knows, and their bytes


def is_arrays(content: bytes) -> bool:
    """Whether it is an array, or an archive of arrays alone."""
    if content.startswith(_NPY):
        return True
    if not content.startswith(b"PK"):
        return False
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = archive.namelist()
    except Exception:  # noqa: BLE001 (as below; whoever reads it next says what is wrong)
        return False
    return bool(names) and all(name.endswith(".npy") for name in names)


def arrays_of(content: bytes, name: object) -> Foreign:
    """The arrays by their names; that of a single one is the name of the file. Faults are a :class:`ModelFileError`."""
    try:
        found = _unpacked(content) if content.startswith(b"PK") else {Path(str(name)).stem: _array(content)}
    except ModelFileError:
        raise
    except Exception as error:  # zlib, zipfile, tokenize and numpy raise many kinds for a broken file
        raise ModelFileError(f"it cannot be read as arrays: {error or type(error).__name__}") from error
    return _foreign(found)


def _unpacked(content: bytes) -> dict[str, np.ndarray]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = archive.infolist()
        size = sum(entry.file_size for entry in entries)
        if size > _RATIO * len(content) + _SLACK or len(entries) > _MOST:
            raise ModelFileError(f"its {len(entries)} arrays would take {size} bytes, the file has {len(content)}")
        if len({entry.filename for entry in entries}) < len(entries):
            raise ModelFileError("two of its arrays have one name")
        return {entry.filename.removesuffix(".npy"): _array(archive.read(entry)) for entry in entries}


def _array(content: bytes) -> np.ndarray:
    import numpy as np

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of headers that numpy would rather not see: what they say is checked below
        return np.load(io.BytesIO(content), allow_pickle=False)


def _foreign(arrays: dict[str, np.ndarray]) -> Foreign:
    import torch

    tensors, values = {}, {}
    for name, array in arrays.items():
        kind, size = array.dtype.kind, array.dtype.itemsize
        if kind == "U" and array.ndim == 0:
            values[name] = str(array)
        elif size in _KINDS.get(kind, ()):
            tensors[name] = torch.from_numpy(array.astype(array.dtype.newbyteorder("="), order="C"))
        else:
            raise ModelFileError(f"array {name!r:.80} has dtype {array.dtype}; only plain numbers and texts are read")
    return Foreign(tensors, dict(values), holders=("",))
