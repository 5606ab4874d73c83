"""What rows of every kind share: functions of each coefficient."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

__all__ = ["MappedRows"]

_Own = TypeVar("_Own", bound="MappedRows")


class MappedRows(ABC):
    """Rows of coefficients."""

    __slots__ = ()

    @abstractmethod
    def map(self: _Own, function: Callable[[Tensor], Tensor]) -> _Own:
        """A function of each coefficient that keeps zero."""

    def abs(self: _Own) -> _Own:
        """Absolute values."""
        return self.map(torch.abs)

    def square(self: _Own) -> _Own:
        """Squares."""
        return self.map(torch.square)

    def positive(self: _Own) -> _Own:
        """Positive parts."""
        return self.map(lambda values: values.clamp_min(0))

    def negative(self: _Own) -> _Own:
        """Negative parts: at most zero."""
        return self.map(lambda values: values.clamp_max(0))
