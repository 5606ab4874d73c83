"""What a network asks of every record in its chain: a kind, what a file must hold of it, and the shapes it maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol, TypeVar

import torch

from bnndp.errors import InputError

_Self = TypeVar("_Self", bound="Weightless")


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


class Weightless:
    """What records without weights and without variance share."""

    __slots__ = ()
    tensors: ClassVar[tuple[str, ...]] = ()
    settings: ClassVar[tuple[str, ...]] = ()
    random: ClassVar[bool] = False

    def to(self: _Self, device: torch.device | str) -> _Self:  # noqa: ARG002 (as of all records)
        """Itself: there is nothing to move."""
        return self


def chain_shapes(layers: Sequence[Record], shape: tuple[int, ...], where: str = "") -> tuple[tuple[int, ...], ...]:
    """The shape before each layer of a chain, and after the last; ``where`` the chain is, for messages."""
    found = [shape]
    try:
        for layer in layers:
            found.append(layer.out_shape(found[-1]))
    except InputError as error:
        index = len(found) - 1
        raise InputError(f"layer {index}{where} ({layers[index].kind}): {error}") from error
    return tuple(found)
