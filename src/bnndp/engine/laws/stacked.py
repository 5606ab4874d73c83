"""Dense layers of several networks at once: weights with an axis of members, for boxes repeated for each of them.

A batch of ``members * boxes`` regions holds all boxes of the first network, then all of the second, and so on. To the
pass it is a batch like any other; only the weights differ between the networks. They have no variance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from bnndp.engine.laws.fixed_weights import FixedWeights
from bnndp.engine.laws.mean_matrix import MOST
from bnndp.engine.laws.weights import Weights, weights_of
from bnndp.engine.rows import DenseRows, Rows
from bnndp.errors import InputError
from bnndp.layers import Linear
from bnndp.network import Layer

__all__ = ["StackedLinear", "stacked_layers"]


@dataclass(frozen=True, slots=True, eq=False)
class StackedLinear(FixedWeights):
    """The layer ``W_k z + b_k`` of the networks k, as a record and as its own rules (``weights.Weights``)."""

    kind: ClassVar[str] = "stacked_linear"
    tensors: ClassVar[tuple[str, ...]] = ("weight", "offsets")
    settings: ClassVar[tuple[str, ...]] = ("boxes",)

    weight: Tensor  # (members, n_out, n_in)
    offsets: Tensor  # (members, n_out): the biases
    boxes: int  # for each member

    def __post_init__(self) -> None:
        if self.weight.ndim != 3 or self.offsets.shape != self.weight.shape[:2] or self.boxes < 1:
            raise InputError(
                f"stacked layers need weights (members, n_out, n_in), biases (members, n_out) and a box, got "
                f"{tuple(self.weight.shape)}, {tuple(self.offsets.shape)} and {self.boxes!r}."
            )

    def out_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        if shape != (self.n_in,):
            raise InputError(f"it takes vectors of {self.n_in} numbers, got the shape {shape}.")
        return (self.n_out,)

    def to(self, device: torch.device | str) -> StackedLinear:
        return replace(self, weight=self.weight.to(device), offsets=self.offsets.to(device))

    @property
    def n_in(self) -> int:
        return self.weight.shape[2]

    @property
    def n_out(self) -> int:
        return self.weight.shape[1]

    @property
    def groups(self) -> int:
        return self.n_out

    @property
    def terms(self) -> int:
        return self.n_in

    @property
    def bias(self) -> Tensor:  # (batch, n_out)
        return self._repeated(self.offsets)

    def apply(self, z: Tensor) -> Tensor:
        return self._product(z[:, None], self.weight.mT)[:, 0]

    def power(self, z: Tensor, exponent: int) -> Tensor:
        return self._product(z[:, None], (self.weight.abs() ** exponent).mT)[:, 0]

    def pull(self, rows: Rows) -> Rows:
        return DenseRows(self._product(rows.dense().values, self.weight))

    def own_rows(self, numbers: int) -> Iterator[tuple[slice, Rows]]:
        step = max(1, numbers // self.n_in)
        for start in range(0, self.n_out, step):
            part = slice(start, min(start + step, self.n_out))
            yield part, DenseRows(self._repeated(self.weight[:, part]))

    @property
    def few(self) -> int:
        return int(MOST * self.n_out)

    def rows_at(self, at: Tensor) -> Rows:
        member = torch.arange(self.weight.shape[0], device=at.device).repeat_interleave(self.boxes)
        return DenseRows(self.weight[member[:, None], at])

    def power_pull(self, rows: Rows, exponent: int) -> Rows:
        return DenseRows(self._product(rows.dense().values, self.weight.abs() ** exponent))

    def _product(self, values: Tensor, weight: Tensor) -> Tensor:
        """``values @ weight`` with the weight of each member: (batch, rows, n), (members, n, m) -> (batch, rows, m)."""
        members = values.reshape(weight.shape[0], -1, values.shape[-1])  # all rows of a member are one matrix
        return (members @ weight).reshape(*values.shape[:-1], weight.shape[-1])

    def _repeated(self, tensor: Tensor) -> Tensor:  # (members, ...) -> (batch, ...)
        return tensor.repeat_interleave(self.boxes, 0) if self.boxes > 1 else tensor


@weights_of.register
def _(layer: StackedLinear, shape: tuple[int, ...]) -> Weights:
    return layer


def stacked_layers(members: Sequence[Sequence[Layer]], boxes: int) -> list[Layer]:
    """The layers of dense networks without variance that differ in their weights only, for ``boxes`` of each."""
    stacked: list[Layer] = []
    for same in zip(*members, strict=True):
        linears = [layer for layer in same if isinstance(layer, Linear)]
        if not linears:
            stacked.append(same[0])
            continue
        weight, bias = (torch.stack([getattr(one, name) for one in linears]) for name in ("weight_mean", "bias_mean"))
        stacked.append(StackedLinear(weight, bias, boxes))
    return stacked
