"""MNIST and Fashion-MNIST: 28 x 28 images of ten classes, read from the files as published.

The files lie in the folders ``mnist`` and ``fashion_mnist`` of a data folder: that of the argument, or else the one
that the environment variable ``BNNDP_DATA`` names. Nothing is downloaded.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

from bnndp.data.idx import read_idx
from bnndp.data.records import ClassificationData
from bnndp.errors import InputError

__all__ = ["CLASSES", "SIDE", "VARIABLE", "fashion_mnist", "mnist"]

VARIABLE = "BNNDP_DATA"
SIDE, CLASSES = 28, 10
_SPLITS = {"train": ("train", 60_000), "test": ("t10k", 10_000)}  # prefix of the file names, number of images


def mnist(split: str, folder: str | os.PathLike[str] | None = None) -> ClassificationData:
    """Handwritten digits; ``split`` is train (60,000 images) or test (10,000), pixels are divided by 255."""
    return _load("mnist", split, folder)


def fashion_mnist(split: str, folder: str | os.PathLike[str] | None = None) -> ClassificationData:
    """Pictures of clothes, with the splits and the format of :func:`mnist`."""
    return _load("fashion_mnist", split, folder)


def _load(name: str, split: str, folder: str | os.PathLike[str] | None) -> ClassificationData:
    if split not in _SPLITS:
        raise InputError(f"split must be one of {', '.join(_SPLITS)}, got {split!r}.")
    prefix, count = _SPLITS[split]
    paths = _files(name, _data_folder(name, folder) / name, prefix)
    images, labels = (read_idx(path, dimensions) for path, dimensions in zip(paths, (3, 1), strict=True))
    for path, tensor, shape in ((paths[0], images, (count, SIDE, SIDE)), (paths[1], labels, (count,))):
        if tensor.shape != shape:
            raise InputError(f"{path}: has shape {tuple(tensor.shape)}, the {split} part of {name} has {shape}.")
    pixels = images.reshape(count, SIDE * SIDE).to(torch.float64).div_(255)
    try:
        return ClassificationData(pixels, labels, CLASSES)
    except InputError as error:
        raise InputError(f"{paths[1]}: {error}") from error


def _data_folder(name: str, folder: str | os.PathLike[str] | None) -> Path:
    """The folder of all data sets: the argument, or else the environment's."""
    named = os.environ.get(VARIABLE) if folder is None else folder
    if not named:
        raise InputError(
            f"no data folder: set {VARIABLE} to (or give as folder) the one whose subfolder '{name}' "
            "holds the gzip-compressed IDX files."
        )
    return Path(named)


def _files(name: str, folder: Path, prefix: str) -> tuple[Path, Path]:
    """Paths of the images and of the labels; both exist."""
    paths = folder / f"{prefix}-images-idx3-ubyte.gz", folder / f"{prefix}-labels-idx1-ubyte.gz"
    absent = [path.name for path in paths if not path.is_file()]
    if absent:
        raise InputError(
            f"{folder}: lacks {' and '.join(absent)}; put the gzip-compressed IDX files of {name}, as published, "
            f"into this folder, or name another data folder by {VARIABLE}."
        )
    return paths
