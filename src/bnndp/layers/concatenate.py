"""Concatenation: the outputs of several chains of layers side by side, as in dense blocks and inception modules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bnndp.errors import InputError
from bnndp.layers.branched import Branch, Branched
from bnndp.layers.record import Record


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Concatenate(Branched):
    """The outputs of branches that start at the same values, one after the other: of images their channels.

    The layers of the block are independent of all others, as in a network. A branch without layers is the identity.

    Args:
        branches: The layers and activations of each branch, first to last.

    Examples:
        >>> from bnndp.activations import Relu
        >>> from bnndp.layers import Linear
        >>> block = Concatenate(((), (Linear.fixed(torch.ones(3, 2)), Relu())))
        >>> block, block.out_shape((2,))
        (Concatenate(identity | linear relu), (5,))
    """

    kind: ClassVar[str] = "concatenate"

    branches: tuple[Branch, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "branches", tuple(tuple(branch) for branch in self.branches))
        if not self.branches:
            raise InputError("a concatenation needs at least one branch.")

    def with_branches(self, branches: Sequence[Sequence[Record]]) -> Concatenate:
        """A concatenation of these branches."""
        return Concatenate(tuple(tuple(branch) for branch in branches))

    def joined(self, outputs: Sequence[Tensor]) -> Tensor:
        """Along the first axis of their shape."""
        draws = max(each.shape[0] for each in outputs)
        return torch.cat([each.expand(draws, *each.shape[1:]) for each in outputs], 2)

    def _joined_shape(self, ends: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        if len({end[1:] for end in ends}) > 1:
            raise InputError(f"branches of the shapes {', '.join(map(str, ends))} cannot be put side by side.")
        return (sum(end[0] for end in ends), *ends[0][1:])
