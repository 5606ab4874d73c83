"""MNIST and Fashion-MNIST: 28 x 28 images of ten classes, read from the files as published.

The checksums are of the decompressed files: copies of MNIST that were compressed again are common. They were measured
on files whose decompressed md5 (MNIST) or own sha256 (Fashion-MNIST) are the published ones.
"""

from __future__ import annotations

import torch

from bnndp.data.download import CONTENT, Published, fetch
from bnndp.data.folder import Folder, open_store
from bnndp.data.idx import read_idx
from bnndp.data.records import ClassificationData, check_split
from bnndp.errors import InputError

SIDE, CLASSES = 28, 10
POINTS = {"train": 60_000, "test": 10_000}
_PREFIX = {"train": "train", "test": "t10k"}
_MIRRORS = {
    "mnist": ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
    "fashion_mnist": ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
}
_SHA256 = {  # of the decompressed images and labels
    ("mnist", "train"): (
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    ("mnist", "test"): (
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    ("fashion_mnist", "train"): (
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    ),
    ("fashion_mnist", "test"): (
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
}


def mnist(split: str, folder: Folder = None) -> ClassificationData:
    """Handwritten digits; ``split`` is train (60,000 images) or test (10,000), pixels are divided by 255."""
    return _load("mnist", split, folder)


def fashion_mnist(split: str, folder: Folder = None) -> ClassificationData:
    """Pictures of clothes, with the splits and the format of :func:`mnist`."""
    return _load("fashion_mnist", split, folder)


def _load(name: str, split: str, folder: Folder) -> ClassificationData:
    count = POINTS[check_split(split)]
    what = f"the gzip-compressed IDX files of {name}, as published"
    paths = fetch(FILES[name, split], open_store(folder), what=what)
    images, labels = (read_idx(path, dimensions) for path, dimensions in zip(paths, (3, 1), strict=True))
    for path, tensor, shape in ((paths[0], images, (count, SIDE, SIDE)), (paths[1], labels, (count,))):
        if tensor.shape != shape:
            raise InputError(f"{path}: has shape {tuple(tensor.shape)}, the {split} part of {name} has {shape}.")
    pixels = images.reshape(count, SIDE * SIDE).to(torch.float64).div_(255)
    try:
        return ClassificationData(pixels, labels, CLASSES)
    except InputError as error:
        raise InputError(f"{paths[1]}: {error}") from error


def _files(name: str, split: str) -> tuple[Published, Published]:
    """The images and the labels of a part."""
    count = POINTS[split]
    (images, labels), prefix = _SHA256[name, split], _PREFIX[split]

    def published(file: str, sha256: str, size: int) -> Published:
        return Published(f"{name}/{file}", _MIRRORS[name], (file,), sha256, size, CONTENT)

    return (
        published(f"{prefix}-images-idx3-ubyte.gz", images, 16 + count * SIDE**2),
        published(f"{prefix}-labels-idx1-ubyte.gz", labels, 8 + count),
    )


FILES = {key: _files(*key) for key in _SHA256}
"""The published files of each set and part: images, then labels."""
