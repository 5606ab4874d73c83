"""Residual connections: a block of layers to whose output its input is added, or what a shortcut makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar

import torch
from torch import Tensor

from bnndp.errors import InputError
from bnndp.layers.branched import Branch, Branched
from bnndp.layers.record import Record


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Residual(Branched):
    """A residual block ``f(z) + g(z)`` for chains f and g of layers and activations with outputs of the same shape.

    The layers of the block are independent of all others, as in a network.

    Args:
        layers: The layers and activations of f, first to last.
        shortcut: Those of g, such as a projection; none for the identity, with which f has to keep the shape of z.

    Examples:
        >>> from bnndp.activations import Relu
        >>> from bnndp.layers import Linear
        >>> Residual((Linear.fixed(torch.ones(2, 2)), Relu()))
        Residual(linear relu)
        >>> Residual((Linear.fixed(torch.ones(3, 2)), Relu()), (Linear.fixed(torch.ones(3, 2)),))
        Residual(linear relu | linear)
    """

    kind: ClassVar[str] = "residual"

    layers: Branch
    shortcut: Branch = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(self.layers))
        object.__setattr__(self, "shortcut", tuple(self.shortcut))
        if not self.layers:
            raise InputError("a residual block needs at least one layer.")

    def __repr__(self) -> str:
        """Kinds only."""
        chains = [" ".join(layer.kind for layer in branch) for branch in self.branches if branch]
        return f"Residual({' | '.join(chains)})"

    @property
    def branches(self) -> tuple[Branch, ...]:
        """The layers, and the shortcut."""
        return self.layers, self.shortcut

    def with_branches(self, branches: Sequence[Sequence[Record]]) -> Residual:
        """A block of these layers and this shortcut."""
        layers, shortcut = branches
        return Residual(tuple(layers), tuple(shortcut))

    def joined(self, outputs: Sequence[Tensor]) -> Tensor:
        """Their sum."""
        return reduce(torch.add, outputs)

    def _joined_shape(self, ends: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        if ends[0] == ends[1]:
            return ends[0]
        if self.shortcut:
            raise InputError(f"a residual block of the shape {ends[0]} cannot be added to a shortcut of {ends[1]}.")
        raise InputError(
            f"a residual block must keep the shape {ends[1]} of its input, it gives {ends[0]}; or give it a shortcut."
        )
