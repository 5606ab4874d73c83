"""What a network asks of every record in its chain: a kind, what a file must hold of it, and the shapes it maps."""

from __future__ import annotations

from typing import ClassVar, Protocol

import torch

__all__ = ["Record"]


class Record(Protocol):
    """The protocol of all layers and activations of a network.

    ``tensors`` and ``settings`` together name all fields that define a record.

    Examples:
        >>> from bnndp.layers import LAYERS
        >>> LAYERS["linear"].tensors
        ('weight_mean', 'weight_std', 'bias_mean', 'bias_std')
    """

    kind: ClassVar[str]  # its name in files and messages
    tensors: ClassVar[tuple[str, ...]]  # fields that are tensors
    settings: ClassVar[tuple[str, ...]]  # the other fields, JSON-compatible values

    @property
    def random(self) -> bool:
        """Whether it adds any variance."""
        ...

    def out_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the outputs for inputs of this shape; an InputError if it does not fit."""
        ...

    def to(self, device: torch.device | str) -> Record:
        """The same record with its tensors on ``device``."""
        ...
