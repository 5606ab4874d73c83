"""CIFAR-10: colour images of 32 x 32 pixels in ten classes, in the published binary form or as a subset.

A record of the binary form is a label and 3 x 32 x 32 pixels, all red ones first; a batch has 10,000 records, five
batches are for training and one for testing (Krizhevsky 2009, www.cs.toronto.edu/~kriz/cifar.html). Inputs keep this
order: channel, row, column. The subset has a name of its own, so that its results are not mistaken for those of the
whole set: the first 1,300 training and 250 test images of every class, in one file ``cifar10_subset.npz``.
"""

from __future__ import annotations

import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from bnndp.data.download import Published, fetch
from bnndp.data.folder import Folder, Store, open_store
from bnndp.data.records import ClassificationData, check_split
from bnndp.errors import InputError

SHAPE, CLASSES = (3, 32, 32), 10
PIXELS = 3 * 32 * 32
BATCH = 10_000
BATCHES = {"train": tuple(f"data_batch_{k}.bin" for k in range(1, 6)), "test": ("test_batch.bin",)}
POINTS = {split: BATCH * len(names) for split, names in BATCHES.items()}
SUBSET_POINTS = {"train": 13_000, "test": 2_500}
ARCHIVE = Published(
    "cifar10/cifar-10-binary.tar.gz",
    ("https://www.cs.toronto.edu/~kriz/",),
    ("cifar-10-binary.tar.gz",),
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    170_052_171,
)
SUBSET = Published(
    "cifar10/cifar10_subset.npz",
    (),
    (),
    "c39578b0e0084e2275e6968eefc13b9b821e1fafee4f07d0d2f0e382e5dac0b3",
    43_820_462,
)
_FOLDER = "cifar10/cifar-10-batches-bin"  # as the archive unpacks


def cifar10(split: str, folder: Folder = None) -> ClassificationData:
    """The whole set: 50,000 images for training or 10,000 for testing, pixels are divided by 255.

    The batches are read from the folder ``cifar10/cifar-10-batches-bin``, or else straight from the archive.
    """
    store = open_store(folder)
    unpacked = [store.find(f"{_FOLDER}/{name}") for name in BATCHES[check_split(split)]]
    paths = [path for path in unpacked if path is not None]
    if len(paths) == len(unpacked):
        return _joined([_from_file(path) for path in paths])
    return _joined(_from_archive(_archive(store), BATCHES[split]))


def cifar10_subset(split: str, folder: Folder = None) -> ClassificationData:
    """The subset: 13,000 images for training or 2,500 for testing, in the form of :func:`cifar10`."""
    count = SUBSET_POINTS[check_split(split)]
    (path,) = fetch([SUBSET], open_store(folder), what="arrays x_train, y_train, x_test, y_test; see docs/data.md")
    x, y = (_array(path, f"{key}_{split}", shape) for key, shape in (("x", (count, 32, 32, 3)), ("y", (count,))))
    pixels = torch.from_numpy(np.ascontiguousarray(x.transpose(0, 3, 1, 2))).reshape(count, PIXELS)
    try:
        return _record(pixels, torch.from_numpy(y))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _archive(store: Store) -> Path:
    try:
        return fetch([ARCHIVE], store, what="162 MB, the binary version of CIFAR-10")[0]
    except InputError as error:
        if store.find(SUBSET.path) is None:
            raise
        raise InputError(f"{error} The subset is available: ask for cifar10_subset.") from error


def _joined(batches: list[Tensor]) -> ClassificationData:
    records = torch.cat(batches)  # (points, 1 + 3072), uint8
    return _record(records[:, 1:], records[:, 0])


def _record(pixels: Tensor, labels: Tensor) -> ClassificationData:  # (points, 3072) and (points,), uint8
    return ClassificationData(pixels.to(torch.float64).div_(255), labels, CLASSES)


def _from_file(path: Path) -> Tensor:
    try:
        with path.open("rb") as stream:
            return _records(stream, path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}.") from error


def _from_archive(path: Path, names: tuple[str, ...]) -> list[Tensor]:
    """The batches of these names: (10000, 3073) each. Nothing is unpacked to disk."""
    try:
        with tarfile.open(path, "r:gz") as archive:
            found = {member.name.rpartition("/")[2]: member for member in archive if member.isfile()}
            absent = [name for name in names if name not in found]
            if absent:
                raise InputError(f"{path}: lacks {', '.join(absent)}; fetch it again.")
            return list(_members(archive, [found[name] for name in names], path))
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read as a tar.gz archive: {error}; fetch it again.") from error


def _members(archive: tarfile.TarFile, members: list[tarfile.TarInfo], path: Path) -> Iterator[Tensor]:
    for member in members:
        stream = archive.extractfile(member)
        if stream is None:
            raise InputError(f"{path}: {member.name} is not a file.")
        with stream:
            yield _records(stream, f"{path}: {member.name}")  # type: ignore[arg-type]  # it reads, which is enough


def _records(stream: BinaryIO, where: object) -> Tensor:
    size = BATCH * (1 + PIXELS)
    payload = bytearray(stream.read(size + 1))
    if len(payload) != size:
        found = "more" if len(payload) > size else len(payload)
        raise InputError(f"{where}: a batch has {size} bytes, this has {found}; fetch it again.")
    records = torch.frombuffer(payload, dtype=torch.uint8).reshape(BATCH, 1 + PIXELS)
    if int(records[:, 0].max()) >= CLASSES:
        raise InputError(f"{where}: has the label {int(records[:, 0].max())}; labels must be in 0..{CLASSES - 1}.")
    return records


def _array(path: Path, key: str, shape: tuple[int, ...]) -> np.ndarray:
    try:
        # Opened here: numpy leaves a file open that turns out not to be an archive.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            if key not in arrays:
                raise InputError(f"{path}: has no array {key}; it holds {', '.join(sorted(arrays)) or 'nothing'}.")
            array = arrays[key]
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: cannot be read as an npz file: {error}; fetch it again.") from error
    if array.shape != shape or array.dtype != np.uint8:
        raise InputError(f"{path}: {key} is {array.dtype} {array.shape}, expected uint8 {shape}.")
    return array
