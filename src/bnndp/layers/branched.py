"""What blocks of branches share: chains of layers that start at the same values, and whose outputs are put together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from bnndp.layers.record import Record, chain_shapes

__all__ = ["Branch", "Branched"]

Branch = tuple[Record, ...]
"""The layers and activations of a branch, first to last; without any it is the identity."""

_Self = TypeVar("_Self", bound="Branched")


class Branched(ABC):
    """A block of branches; their layers are independent of all others, as in a network.

    Examples:
        >>> from bnndp.activations import Relu
        >>> from bnndp.layers import Residual
        >>> Residual((Relu(),)).branches
        ((Relu(),), ())
    """

    __slots__ = ()
    kind: ClassVar[str]
    tensors: ClassVar[tuple[str, ...]] = ()
    settings: ClassVar[tuple[str, ...]] = ()

    @property
    @abstractmethod
    def branches(self) -> tuple[Branch, ...]:
        """The branches, in their order."""

    @abstractmethod
    def with_branches(self: _Self, branches: Sequence[Sequence[Record]]) -> _Self:
        """The same block with as many other branches."""

    @abstractmethod
    def joined(self, outputs: Sequence[Tensor]) -> Tensor:  # (draws, points, *shape) each
        """The outputs of the branches put together."""

    @abstractmethod
    def _joined_shape(self, ends: Sequence[tuple[int, ...]]) -> tuple[int, ...]: ...

    def __repr__(self) -> str:
        """Kinds only."""
        chains = [" ".join(layer.kind for layer in branch) or "identity" for branch in self.branches]
        return f"{type(self).__name__}({' | '.join(chains)})"

    @property
    def random(self) -> bool:
        """Whether any layer of the block has a variance."""
        return any(layer.random for branch in self.branches for layer in branch)

    def shapes(self, shape: tuple[int, ...]) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Of each branch, the shape before each layer and after the last."""
        return tuple(chain_shapes(branch, shape, " of the block") for branch in self.branches)

    def out_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Of the outputs of the branches put together; an InputError if they do not fit."""
        return self._joined_shape([shapes[-1] for shapes in self.shapes(shape)])

    def to(self: _Self, device: torch.device | str) -> _Self:
        """The same block with its tensors on ``device``."""
        return self.with_branches([[layer.to(device) for layer in branch] for branch in self.branches])
