"""Residual connections: a block of layers whose input is added to its output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from bnndp.errors import InputError
from bnndp.layers.record import Record, chain_shapes


@dataclass(frozen=True, slots=True, eq=False)
class Residual:
    """A residual block ``z + f(z)`` for a chain f of layers and activations that preserves the shape of z.

    The layers of the block are independent of all others, as in a network.

    Args:
        layers: The layers and activations of f, first to last.

    Examples:
        >>> from bnndp.activations import Relu
        >>> from bnndp.layers import Linear
        >>> Residual((Linear.fixed(torch.ones(2, 2)), Relu()))
        Residual(linear relu)
    """

    kind: ClassVar[str] = "residual"
    tensors: ClassVar[tuple[str, ...]] = ()
    settings: ClassVar[tuple[str, ...]] = ()

    layers: tuple[Record, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(self.layers))
        if not self.layers:
            raise InputError("a residual block needs at least one layer.")

    def __repr__(self) -> str:
        """Kinds only."""
        return f"Residual({' '.join(layer.kind for layer in self.layers)})"

    @property
    def random(self) -> bool:
        """Whether any layer of the block has a variance."""
        return any(layer.random for layer in self.layers)

    def shapes(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """The shape before each layer of the block, and after the last."""
        return chain_shapes(self.layers, shape, " of the block")

    def out_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The same shape: what is added must fit."""
        end = self.shapes(shape)[-1]
        if end != shape:
            raise InputError(f"a residual block must keep the shape {shape} of its input, it gives {end}.")
        return shape

    def to(self, device: torch.device | str) -> Residual:
        """The same block with its tensors on ``device``."""
        return Residual(tuple(layer.to(device) for layer in self.layers))
