"""The end of a block of branches: their sum as one layer with weights, and the node that it is applied to.

Where all branches are dense with independent weights, or vectors without weights, the sum is one dense layer with the
weights side by side, and one matrix where two branches start at the same values. The variance of its bias is a sum; its
root, and sums of two means, are rounded once: as in ``network/normal_form.py`` that is covered by the rounding that is
granted to sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

import torch

from bnndp.engine.laws.dense import Dense
from bnndp.engine.laws.summed import Summed, Unchanged
from bnndp.engine.laws.weights import Weights
from bnndp.engine.nodes.concatenation import Concatenation
from bnndp.engine.nodes.node import Node
from bnndp.layers import Linear

__all__ = ["Branch", "summed"]


@dataclass(frozen=True, slots=True)
class Branch:
    """The end of a branch: its last weights, and the node that they are applied to."""

    weights: Weights
    below: Node
    apart: bool  # see ``Concatenation``


def summed(branches: Sequence[Branch], shape: tuple[int, ...]) -> tuple[Weights, Node]:
    """The sum of branches, of this shape, as a layer with weights, and the node that it is applied to."""
    merged = _dense(branches)
    branches = branches if merged is None else merged
    if len(branches) == 1:
        return branches[0].weights, branches[0].below
    below = Concatenation(tuple(each.below for each in branches), tuple(each.apart for each in branches))
    parts = tuple(each.weights for each in branches)
    return (Summed(parts, shape) if merged is None else _side_by_side(parts)), below


def _dense(branches: Sequence[Branch]) -> Sequence[Branch] | None:
    """The branches as dense layers, those of the same node together; None if one of them is no such layer."""
    found: dict[Node, Branch] = {}
    for branch in branches:
        weights = branch.weights
        if isinstance(weights, Unchanged) and len(weights.shape) == 1:
            weights = Dense(Linear.fixed(torch.eye(weights.n_in, dtype=torch.float64, device=weights.device)), False)
        if not isinstance(weights, Dense):
            return None
        if branch.below in found:
            weights = _added(found[branch.below].weights.layer, weights.layer)  # type: ignore[attr-defined]
        found[branch.below] = replace(branch, weights=weights)
    return tuple(found.values())


def _added(a: Linear, b: Linear) -> Dense:
    stds = torch.hypot(a.weight_std, b.weight_std), torch.hypot(a.bias_std, b.bias_std)
    layer = Linear(a.weight_mean + b.weight_mean, stds[0], a.bias_mean + b.bias_mean, stds[1])
    return Dense(layer, layer.random)


def _side_by_side(parts: Sequence[Weights]) -> Dense:
    layers = [part.layer for part in parts]  # type: ignore[attr-defined]
    means, stds = (torch.cat([getattr(each, name) for each in layers], 1) for name in ("weight_mean", "weight_std"))
    layer = Linear(
        means,
        stds,
        reduce(torch.add, [each.bias_mean for each in layers]),
        reduce(torch.hypot, [e.bias_std for e in layers]),
    )
    return Dense(layer, layer.random)
