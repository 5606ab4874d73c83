"""What all records of activations share: no weights, one value in and one value out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch

__all__ = ["Elementwise"]

_Self = TypeVar("_Self", bound="Elementwise")


@dataclass(frozen=True, slots=True)
class Elementwise:
    """A function of each value by itself."""

    tensors: ClassVar[tuple[str, ...]] = ()
    settings: ClassVar[tuple[str, ...]] = ()
    random: ClassVar[bool] = False

    def out_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The same shape."""
        return shape

    def to(self: _Self, device: torch.device | str) -> _Self:  # noqa: ARG002
        """Itself: there is nothing to move."""
        return self
