"""Handwritten digits of 8 x 8 pixels that come with the package: no download.

These are the 1,797 images of scikit-learn's ``load_digits``, the test set of Alpaydin and Kaynak's Optical Recognition
of Handwritten Digits (UCI, 1998); see ``digits.LICENSE.txt``. A pixel counts the black ones of a block of 4 x 4 and is
divided by 16 here. The set has no published division. Images of one writer follow one another, so that the five
divisions here are by position: the test part of fold k is the k-th fifth.
"""

from __future__ import annotations

import gzip
from importlib import resources

import numpy as np
import torch

from bnndp.data.records import ClassificationData, check_fold, check_split

NAME = "digits.csv.gz"
SHA256 = "09f66e6debdee2cd2b5ae59e0d6abbb73fc2b0e0185d2e1957e9ebb51e23aa22"
POINTS, SIDE, CLASSES, FOLDS = 1797, 8, 10, 5
_BLACK = 16


def digits(split: str, fold: int = 0) -> ClassificationData:
    """Four fifths of the images for training, or the other fifth; pixels are in [0, 1].

    >>> digits("train"), digits("test")
    (ClassificationData(points=1438, inputs=64, classes=10), ClassificationData(points=359, inputs=64, classes=10))
    """
    start, end = (POINTS * k // FOLDS for k in (check_fold("digits", fold, FOLDS), fold + 1))
    packed = resources.files(__package__).joinpath(NAME).read_bytes()
    rows = np.loadtxt(gzip.decompress(packed).decode("ascii").splitlines(), delimiter=",", dtype=np.uint8)
    held = torch.zeros(POINTS, dtype=torch.bool)
    held[start:end] = True
    table = torch.from_numpy(rows)[held if check_split(split) == "test" else ~held]
    return ClassificationData(table[:, :-1].to(torch.float64) / _BLACK, table[:, -1], CLASSES)
