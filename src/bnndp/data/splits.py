"""The parts of a data set: for training and for testing, and which of several published ways to divide it."""

from __future__ import annotations

from bnndp.errors import InputError

__all__ = ["SPLITS", "check_fold", "check_split"]

SPLITS = ("train", "test")


def check_split(split: str) -> str:
    """The name of a part, or an error that lists the names."""
    if split not in SPLITS:
        raise InputError(f"split must be one of {', '.join(SPLITS)}, got {split!r}.")
    return split


def check_fold(name: str, fold: int, folds: int) -> int:
    """The number of a division of the set ``name``, which has ``folds`` of them.

    >>> check_fold("kin8nm", 3, 20)
    3
    """
    if not 0 <= fold < folds:
        known = "has one division only, fold 0" if folds == 1 else f"has the divisions 0 to {folds - 1}"
        raise InputError(f"fold is {fold}, but {name} {known}.")
    return fold
