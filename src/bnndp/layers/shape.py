"""Layers without weights that move or collect values: pooling and flattening."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from bnndp.errors import InputError
from bnndp.layers.checks import positive
from bnndp.layers.convolution import window_shape
from bnndp.layers.record import Weightless


@dataclass(frozen=True, slots=True)
class Flatten(Weightless):
    """Reshapes its input to a vector, in the order of torch.

    Examples:
        >>> Flatten().out_shape((3, 4, 4))
        (48,)
    """

    kind: ClassVar[str] = "flatten"

    def out_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the outputs for inputs of this shape."""
        return (math.prod(shape),)


@dataclass(frozen=True, slots=True)
class _Pool(Weightless):
    settings: ClassVar[tuple[str, ...]] = ("size", "stride")

    size: int | tuple[int, int]
    stride: int | tuple[int, int] | None = None  # None: the size

    def __post_init__(self) -> None:
        positive(self, "size")
        if self.stride is None:
            object.__setattr__(self, "stride", self.size)
        positive(self, "stride")

    def out_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the outputs for inputs of this shape; what no window covers is dropped, as in torch."""
        if len(shape) != 3:
            raise InputError(f"pooling takes (channels, height, width), got {shape}.")
        return (shape[0], *window_shape(shape, self.size, self.stride, (0, 0)))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class AveragePool(_Pool):
    """Average pooling: the mean of each window of each channel.

    Args:
        size: Size of the window, an integer or a pair (rows, columns).
        stride: Stride, an integer or a pair; the size of the window if None.

    Examples:
        >>> AveragePool(2).out_shape((3, 8, 8))
        (3, 4, 4)
    """

    kind: ClassVar[str] = "average_pool"


@dataclass(frozen=True, slots=True)
class MaxPool(_Pool):
    """Max pooling: the largest value of each window of each channel.

    Args:
        size: Size of the window, an integer or a pair (rows, columns).
        stride: Stride, an integer or a pair; the size of the window if None.

    Examples:
        >>> MaxPool(2, stride=1).out_shape((3, 8, 8))
        (3, 7, 7)
    """

    kind: ClassVar[str] = "max_pool"
