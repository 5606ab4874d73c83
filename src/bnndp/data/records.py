"""Data sets as training reads them: inputs with real targets, or with class labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from bnndp.errors import InputError

SPLITS = ("train", "test")
"""The parts of a data set."""


class _Points:
    """What both kinds of data have in common."""

    __slots__ = ()
    x: Tensor

    @property
    def points(self) -> int:
        """Number of points."""
        return self.x.shape[0]

    @property
    def n_in(self) -> int:
        """Number of inputs."""
        return self.x.shape[1]


@dataclass(frozen=True, slots=True, eq=False)
class RegressionData(_Points):
    """Points ``(x, y)`` and, for generated sets, ``clean``: the targets before noise was added.

    >>> RegressionData(torch.zeros(5, 2), torch.zeros(5, 1))
    RegressionData(points=5, inputs=2, outputs=1)
    """

    x: Tensor  # (points, n_in), float64
    y: Tensor  # (points, n_out), float64
    clean: Tensor | None = None  # (points, n_out), float64

    def __post_init__(self) -> None:
        for field in ("x", "y", "clean"):
            if getattr(self, field) is not None:
                object.__setattr__(self, field, _matrix(field, getattr(self, field)))
        if self.x.shape[0] != self.y.shape[0]:
            raise InputError(
                f"x has {self.x.shape[0]} points, y has {self.y.shape[0]}; give one target for each input."
            )
        if self.clean is not None and self.clean.shape != self.y.shape:
            raise InputError(
                f"clean has shape {tuple(self.clean.shape)}, y has {tuple(self.y.shape)}; give both the same."
            )

    @property
    def n_out(self) -> int:
        """Number of outputs."""
        return self.y.shape[1]

    def __repr__(self) -> str:
        """Size only."""
        return f"RegressionData(points={self.points}, inputs={self.n_in}, outputs={self.n_out})"


@dataclass(frozen=True, slots=True, eq=False)
class ClassificationData(_Points):
    """Points ``x`` and their labels ``y``, from 0 to ``classes - 1``.

    >>> ClassificationData(torch.zeros(5, 2), torch.tensor([0, 1, 2, 1, 0]), classes=3)
    ClassificationData(points=5, inputs=2, classes=3)
    """

    x: Tensor  # (points, n_in), float64
    y: Tensor  # (points,), int64
    classes: int

    def __post_init__(self) -> None:
        if self.classes < 2:
            raise InputError(f"classes must be at least 2, got {self.classes}.")
        object.__setattr__(self, "x", _matrix("x", self.x))
        object.__setattr__(self, "y", _labels(self.y, self.classes))
        if self.x.shape[0] != self.y.shape[0]:
            raise InputError(f"x has {self.x.shape[0]} points, y has {self.y.shape[0]}; give one label for each input.")

    @property
    def n_out(self) -> int:
        """Number of outputs of a network for this set: one logit per class."""
        return self.classes

    def __repr__(self) -> str:
        """Size only."""
        return f"ClassificationData(points={self.points}, inputs={self.n_in}, classes={self.classes})"


Data: TypeAlias = RegressionData | ClassificationData
"""Either kind of data set."""


def _matrix(field: str, value: Tensor) -> Tensor:
    """Convert to float64; raise unless the tensor has two dimensions and is finite."""
    tensor = torch.as_tensor(value).detach().to(torch.float64)
    if tensor.ndim != 2 or 0 in tensor.shape:
        raise InputError(f"{field} must have shape (points, values) with both positive, got {tuple(tensor.shape)}.")
    bad = ~torch.isfinite(tensor)
    if bad.any():
        row, column = bad.nonzero()[0].tolist()
        raise InputError(
            f"{field}[{row}, {column}] is not finite: {tensor[row, column].item()} "
            f"({int(bad.sum())} such of {bad.numel()}); remove or repair those points."
        )
    return tensor


def _labels(value: Tensor, classes: int) -> Tensor:
    """Convert to int64; raise unless the tensor has one dimension and every label is a class."""
    tensor = torch.as_tensor(value).detach()
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise InputError(f"y has dtype {tensor.dtype}; labels must have an integer dtype.")
    if tensor.ndim != 1:
        raise InputError(f"y must have shape (points,), one label per point, got {tuple(tensor.shape)}.")
    tensor = tensor.to(torch.int64)
    bad = (tensor < 0) | (tensor >= classes)
    if bad.any():
        row = int(bad.nonzero()[0])
        raise InputError(
            f"y[{row}] is {int(tensor[row])} ({int(bad.sum())} such of {bad.numel()}); "
            f"labels must be in 0..{classes - 1}."
        )
    return tensor


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
