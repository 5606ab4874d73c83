"""Values of a graph as chains of steps from its input: what a node does to a value is one more step.

Values that start alike and are added or put side by side become one step of branches. Steps are compared by identity: a
node that two chains share is the same step in both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from bnndp.errors import ModelFileError
from bnndp.layers import Flatten
from bnndp.layers.record import Record

__all__ = ["Branches", "Constant", "Elementwise", "Permuted", "Step", "Value", "joined"]


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant of the graph, and the standard deviations of its entries if it has some."""

    value: np.ndarray[Any, np.dtype[Any]]
    std: np.ndarray[Any, np.dtype[Any]] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Elementwise:
    """``factor * z + offset`` for each value by itself, the offset with standard deviations.

    Its noise is one draw for each entry, or one for each channel of an image.
    """

    factor: Tensor  # of the shape of z: (channels, height, width) or (n,)
    offset: Tensor  # the same
    std: Tensor  # the same
    by_channel: bool = False

    @property
    def random(self) -> bool:
        """Whether it has noise."""
        return bool((self.std != 0).any())


@dataclass(frozen=True, slots=True, eq=False)
class Permuted:
    """The vector whose entry j is the entry ``index[j]`` of z."""

    index: Tensor  # (n,)


@dataclass(frozen=True, slots=True, eq=False)
class Branches:
    """Chains that start at the same value, to be added (two of them) or put side by side."""

    chains: tuple[tuple[Step, ...], ...]
    added: bool


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """What one node does."""

    does: Record | Elementwise | Permuted | Branches


Steps: TypeAlias = tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """A value of the graph: the steps from the input to it, and its shape."""

    steps: Steps
    shape: tuple[int, ...]  # in the graph, with the batch of one
    layout: tuple[int, ...]  # in the network: (channels, height, width) or (n,), the same numbers in the same order
    root: tuple[int, ...]  # the layout in which the input is taken

    @classmethod
    def input(cls, shape: tuple[int, ...]) -> Value:
        """The input of the graph: an image if it has four axes."""
        layout = shape[1:] if len(shape) == 4 and shape[0] == 1 else (math.prod(shape),)
        return cls((), shape, layout, layout)

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)

    def then(self, does: Record | Elementwise | Permuted | Branches, shape: tuple[int, ...], layout: Any) -> Value:
        """The value after one more step."""
        return Value((*self.steps, Step(does)), shape, tuple(layout), self.root)

    def reshaped(self, shape: tuple[int, ...]) -> Value:
        """The same numbers in another shape; the input itself may become an image, or stop being one."""
        return replace(self, shape=shape) if self.steps else Value.input(shape)

    def flat(self) -> Value:
        """As a vector."""
        if len(self.layout) == 1:
            return self
        if not self.steps:
            return Value((), self.shape, (self.size,), (self.size,))
        return self.then(Flatten(), self.shape, (self.size,))

    def scaled(self, factor: Any, offset: Any, std: Any = 0.0) -> Value:
        """``factor * z + offset``, for arrays of the shape of the value or numbers.

        Noise is drawn once for each number in ``std``: one for each entry, or (channels, 1, 1) of an image.
        """
        by_channel = self._by_channel(np.shape(std)) if np.any(std) else False
        arrays = (np.broadcast_to(each, self.shape).reshape(self.layout) for each in (factor, offset, std))
        one, two, three = (torch.from_numpy(np.array(each, dtype=np.float64)) for each in arrays)
        return self.then(Elementwise(one, two, three, by_channel), self.shape, self.layout)

    def _by_channel(self, drawn: tuple[int, ...]) -> bool:
        """Whether numbers of this shape are one for each channel, not one for each entry."""
        if math.prod(drawn) == self.size:
            return False
        image = len(self.layout) == 3 and self.shape == (1, *self.layout)
        if image and (1, *np.broadcast_shapes(drawn, (1, 1, 1)))[-4:] == (1, self.layout[0], 1, 1):
            return True
        raise ModelFileError(
            f"standard deviations of the shape {drawn} are added to a value of {self.shape}, so that several entries "
            "share a draw; only one draw for each entry, or for each channel of an image, is supported"
        )


def joined(values: list[Value], *, added: bool, shape: tuple[int, ...], layout: tuple[int, ...]) -> Value:
    """The values added or put side by side, branching where their chains part."""
    if len({value.root for value in values}) > 1:
        raise ModelFileError("one branch takes the input as an image, another as a vector; put a layer before them")
    shared = 0
    shortest = min(len(value.steps) for value in values)
    while shared < shortest and len({id(value.steps[shared]) for value in values}) == 1:
        shared += 1
    chains = tuple(value.steps[shared:] for value in values)
    start = Value(values[0].steps[:shared], shape, layout, values[0].root)
    return start.then(Branches(chains, added), shape, layout)
