"""Planes by gradient ascent: each row of each box gets the tangent points and multipliers that bound it best.

The lower plane of a neuron may touch at any point u, and on a cell of known signs any multiplier of a sign may be used
(``backward.Choice``). The lower bound of a row at the worst x of its box is a function of all of them. It is climbed by
Adam from the planes of one pass, all rows and boxes at once, with the relaxations above and the ranges of the means as
they are (the slopes of alpha-CROWN, Xu et al. 2021, in the smooth setting). Whatever the search finds is a bound: every
choice holds, and the best value seen is kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.engine.dense import forward
from bnndp.engine.dense.backward import Choice, both_sides, both_signs, lower_bound
from bnndp.engine.dense.forward import HiddenLayers, Parameters, hidden_layers, where_bounded
from bnndp.geometry.bounds import AffineBounds, Interval
from bnndp.geometry.box import Box
from bnndp.network import BayesianNetwork

__all__ = ["best_choice", "bound"]

_START = 2.0  # tangents of neurons that may be on either side start within this, where the slope still moves
_RATE, _DECAY = 0.5, 0.93
_MULTIPLIER_RATE = 0.1  # of the multipliers, in units of the largest coefficient of a row


@dataclass(frozen=True, slots=True)
class _Free:
    """What is climbed: tangents u, and multipliers b >= 0 of the cells, which count as b * sign."""

    tangents: list[Tensor]  # (batch, rows, n) of each hidden layer
    multipliers: list[Tensor]  # the same, or none at all

    def choice(self, signs: tuple[Tensor, ...]) -> Choice:
        signed = [b.clamp_min(0) * s[:, None] for b, s in zip(self.multipliers, signs, strict=True)]
        return Choice(self.tangents, signed)

    def copy(self) -> _Free:
        return _Free(*([t.detach().clone() for t in part] for part in (self.tangents, self.multipliers)))

    def where(self, gain: Tensor, old: _Free) -> _Free:
        """These where ``gain`` (batch, rows), the ``old`` ones elsewhere."""
        pairs = ((self.tangents, old.tangents), (self.multipliers, old.multipliers))
        return _Free(
            *([torch.where(gain[..., None], a, b) for a, b in zip(new, before, strict=True)] for new, before in pairs)
        )


def bound(network: BayesianNetwork, box: Box, steps: int) -> AffineBounds:
    """``forward.bound`` with the planes of every output and side optimised by ``steps`` steps."""
    *hidden, output = network.seen
    if not hidden:
        return forward.bound(network, box)
    with torch.no_grad():
        layers = hidden_layers(hidden, box, Parameters())
        weight, bias = both_signs(output)
    choice = best_choice(weight, bias, layers, steps)
    with torch.no_grad():
        found = lower_bound(weight, bias, layers.relaxed, layers.first, box, choice)
        return where_bounded(both_sides(found, box), layers)


def best_choice(weight: Tensor, bias: Tensor, layers: HiddenLayers, steps: int) -> Choice:
    """The best choice that ``steps`` steps find for ``weight @ E z + bias``, weight (rows, n) or (batch, rows, n)."""
    rows = weight.shape[-2]

    def value_at(free: _Free) -> Tensor:
        found = lower_bound(weight, bias, layers.relaxed, layers.first, layers.box, free.choice(layers.signs))
        return layers.box.minimum(found.matrix, found.offset)

    with torch.no_grad():
        best = _plain(layers, rows)
        value = value_at(best)
    with torch.enable_grad():
        free = _start(layers, rows)
        scale = float(weight.abs().amax())
        groups = [{"params": free.tangents, "lr": _RATE}, {"params": free.multipliers, "lr": _MULTIPLIER_RATE * scale}]
        optimiser = torch.optim.Adam([group for group in groups if group["params"]])
        for step in range(steps + 1):
            new = value_at(free)
            gain = new.detach() > value  # never where NaN
            best, value = free.copy().where(gain, best), torch.where(gain, new.detach(), value)
            if step < steps:
                optimiser.zero_grad(set_to_none=True)
                torch.autograd.backward(-new.sum())
                optimiser.step()
                for group in optimiser.param_groups:
                    group["lr"] *= _DECAY
    return best.choice(layers.signs)


def _plain(layers: HiddenLayers, rows: int) -> _Free:
    """The planes of one pass, without multipliers."""
    tangents = [layers.first.tangent, *(h.relaxation.tangent for h in layers.chain)]
    expanded = [u[:, None].expand(-1, rows, -1).contiguous() for u in tangents]
    return _Free(expanded, [torch.zeros_like(u) for u in expanded[: len(layers.signs)]])


def _start(layers: HiddenLayers, rows: int) -> _Free:
    """Where the ascent begins."""
    plain = _plain(layers, rows)
    tangents = [_within(u, m) for u, m in zip(plain.tangents, layers.ranges, strict=True)]
    return _Free(
        [u.clone().requires_grad_() for u in tangents], [b.clone().requires_grad_() for b in plain.multipliers]
    )


def _within(tangent: Tensor, mean: Interval) -> Tensor:
    either = ((mean.lower < 0) & (mean.upper > 0))[:, None]
    return torch.where(either, tangent.clamp(-_START, _START), tangent)
