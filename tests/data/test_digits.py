"""The embedded digits: the file of scikit-learn, its classes, and divisions that share no image."""

from __future__ import annotations

import hashlib
from importlib import resources

import pytest
import torch

from bnndp.data.digits import FOLDS, NAME, POINTS, SHA256, digits
from bnndp.errors import InputError


def test_the_file_is_that_of_scikit_learn() -> None:
    folder = resources.files("bnndp.data")
    assert hashlib.sha256(folder.joinpath(NAME).read_bytes()).hexdigest() == SHA256
    licence = folder.joinpath("digits.LICENSE.txt").read_text(encoding="utf-8")
    assert "The scikit-learn developers" in licence
    assert "CC BY 4.0" in licence


def test_the_content_is_what_scikit_learn_documents() -> None:
    parts = [digits("test", fold) for fold in range(FOLDS)]
    x, y = torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts])
    assert x.shape == (POINTS, 64)
    # the first image in scikit-learn's documentation is a zero: its first two rows of pixels
    assert (16 * x[0, :16]).tolist() == [0, 0, 5, 13, 9, 1, 0, 0, 0, 0, 13, 15, 10, 15, 5, 0]
    assert torch.equal((16 * x).round(), 16 * x)
    assert (x.min().item(), x.max().item()) == (0, 1)
    assert y[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    # the counts of optdigits.names for the test set
    assert y.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


@pytest.mark.parametrize("fold", range(FOLDS))
def test_each_division_has_every_image_once(fold: int) -> None:
    train, test = digits("train", fold), digits("test", fold)
    assert train.points + test.points == POINTS
    everything = torch.cat([digits("test", k).x for k in range(FOLDS)])
    start = sum(digits("test", k).points for k in range(fold))
    assert torch.equal(test.x, everything[start : start + test.points])
    assert torch.equal(train.x, torch.cat([everything[:start], everything[start + test.points :]]))
    assert test.y.bincount(minlength=10).min() >= 30  # no class is missing


def test_unknown_parts_are_refused() -> None:
    with pytest.raises(InputError, match="split must be one of"):
        digits("valid")
    with pytest.raises(InputError, match="fold is 5, but digits has the divisions 0 to 4"):
        digits("test", 5)
