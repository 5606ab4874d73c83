"""The parts in which an ensemble goes through a pass: members that are alike together, the others one by one.

Dense members without variance that differ in their weights only (``Ensemble.alike``) are one batch: every box is
repeated for each of them, member by member, and the weights get an axis of members (``engine/general/stacked.py``). All
sums over the members are taken at the end (``mixture.summed``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.engine.general.forward import Passed, hidden_layers
from bnndp.engine.general.stacked import StackedLinear
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork, Ensemble, Layer, dense_structure

__all__ = ["Part", "parts"]


@dataclass(frozen=True, slots=True)
class Part:
    """Members that go together, with their weights: one of any kind, or dense ones without variance (``stacked``)."""

    members: tuple[BayesianNetwork, ...]
    weights: Tensor  # (members,)
    stacked: bool

    def repeated(self, box: Box) -> Box:
        """Every box for each member: (members * batch) of them."""
        return box if len(self.members) == 1 else box[_again(box, len(self.members))]

    def shift(self, boxes: int) -> Tensor | None:
        """What the members take off each of the repeated boxes: (members * boxes, n), or None."""
        shifts = [member.shift for member in self.members if member.shift is not None]
        return torch.stack(shifts).repeat_interleave(boxes, 0) if shifts else None

    def hidden(self, box: Box) -> Passed:
        """The pass of stacked members over repeated boxes, of what the first layers see."""
        first, boxes = self.members[0], box.batch // len(self.members)
        layers: list[Layer] = []
        for index, layer in enumerate(first.layers):
            same = [linear for member in self.members if isinstance(linear := member.layers[index], Linear)]
            layers.append(_stacked(same, boxes) if same else layer)
        return hidden_layers(layers, first.shapes, box)


def parts(ensemble: Ensemble, together: int, *, stacked: bool = True) -> Iterator[Part]:
    """The members that count, at most so many ``together``; all one by one, each as a network, if not ``stacked``."""
    weights = ensemble.probabilities
    count = (weights > 0).tolist()
    for group in ensemble.alike:
        dense = stacked and dense_structure(ensemble.members[group[0]]) is not None
        step = max(1, together) if dense else 1
        left = [index for index in group if count[index]]
        for start in range(0, len(left), step):
            chosen = left[start : start + step]
            yield Part(tuple(ensemble.members[index] for index in chosen), weights[chosen], dense)


def _again(box: Box, times: int) -> Tensor:
    return torch.arange(box.batch, device=box.lower.device).repeat(times)


def _stacked(linears: list[Linear], boxes: int) -> StackedLinear:
    weight, bias = (torch.stack([getattr(layer, name) for layer in linears]) for name in ("weight_mean", "bias_mean"))
    return StackedLinear(weight, bias, boxes)
