"""Which points a step sees: all of them, or chunks of a fresh permutation in each epoch."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["Batches"]


class Batches:
    """Rows of one step after another; ``state`` and ``restore`` let a training go on in the middle of an epoch.

    An epoch leaves out what is left after the last whole batch.

    >>> batches = Batches(5, 2, torch.Generator().manual_seed(0))
    >>> [batches.next().numel() for _ in range(3)]
    [2, 2, 2]
    """

    __slots__ = ("_generator", "_order", "_position", "_size")

    def __init__(self, points: int, size: int | None, generator: torch.Generator) -> None:
        self._size = None if size is None or size >= points else size
        self._order, self._position = torch.arange(points), points
        self._generator = generator

    def next(self) -> slice | Tensor:
        """Rows of the next step: a slice of all, or (size,)."""
        if self._size is None:
            return slice(None)
        if self._position + self._size > self._order.numel():
            self._order, self._position = torch.randperm(self._order.numel(), generator=self._generator), 0
        self._position += self._size
        return self._order[self._position - self._size : self._position]

    def state(self) -> dict[str, Tensor]:
        """The order of the epoch and the position in it."""
        return {"order": self._order, "position": torch.tensor(self._position)}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Go on where ``state`` was taken."""
        self._order, self._position = state["order"], int(state["position"])
