r"""Branching on the signs of mean pre-activations: on each cell a neuron is known to be on one side of zero.

Where a mean M_i(x) may have either sign on the box, the chord above :math:`g(M_i,\rho)` is loose by up to its height at
zero. On the cell of the x with :math:`M_i(x)\ge0`, and on that with :math:`M_i(x)\le0`, the range of M_i is halved and
the relaxation is nearly exact, while the sign enters the bound through a multiplier (``backward.Choice``). The cells
cover the box, so the least bound over them holds on the whole box. For nearly deterministic networks this is
branch and bound as in beta-CROWN (Wang et al. 2021), here for the mean of a Bayesian network.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bnndp.engine.dense.backward import Choice, lower_bound
from bnndp.engine.dense.forward import HiddenLayers, Parameters, hidden_layers
from bnndp.engine.dense.margins import MarginRows, Margins, margin_rows, margins_above
from bnndp.engine.dense.optimise import best_choice
from bnndp.engine.margins_to_softmax import row_bound
from bnndp.geometry.box import Box
from bnndp.network import BayesianNetwork

__all__ = ["Claim", "branch"]

_ROWS = 3  # margins of a cell that are bounded anew: the least ones of the cell it was cut from


@dataclass(frozen=True, slots=True)
class Claim:
    """What is to be bounded: ``rows . E softmax`` on each box, by the margins of the class ``label``."""

    network: BayesianNetwork
    box: Box
    rows: Tensor  # (batch, rows, classes)
    label: Tensor  # (batch,)

    def __getitem__(self, index: Tensor) -> Claim:
        return replace(self, box=self.box[index], rows=self.rows[index], label=self.label[index])


@dataclass(frozen=True, slots=True)
class _Cells:
    """Cells of all boxes with the bounds found on them, and the neuron to cut next."""

    owner: Tensor  # (cells,)
    signs: tuple[Tensor, ...]  # (cells, n) of -1, 0, 1 for each hidden layer
    margins: Margins  # (cells, classes)
    value: Tensor  # (cells,): least row bound; infinite on empty cells
    layer: Tensor  # (cells,): hidden layer of the neuron to cut, -1 where there is none left
    neuron: Tensor  # (cells,)

    def __getitem__(self, index: Tensor) -> _Cells:
        signs = tuple(s[index] for s in self.signs)
        parts = (part[index] for part in (self.margins, self.value, self.layer, self.neuron))
        return _Cells(self.owner[index], signs, *parts)  # type: ignore[arg-type]

    def joined(self, other: _Cells) -> _Cells:
        signs = tuple(torch.cat(pair) for pair in zip(self.signs, other.signs, strict=True))
        margins = Margins(
            torch.cat([self.margins.mean, other.margins.mean]),
            torch.cat([self.margins.variance, other.margins.variance]),
        )
        value, layer, neuron = (
            torch.cat([getattr(self, name), getattr(other, name)]) for name in ("value", "layer", "neuron")
        )
        return _Cells(torch.cat([self.owner, other.owner]), signs, margins, value, layer, neuron)


def branch(claim: Claim, *, cells: int, steps: int, piece: int) -> Tensor:
    """Lower bound (batch,) of the least row on each box, from at most ``cells`` cells a box.

    The planes of each cell are optimised by ``steps`` steps; ``piece`` cells are bounded at a time. Cells that are
    decided are not cut, and a box is left alone once all its cells are.
    """
    batch, device = claim.box.batch, claim.box.lower.device
    widths = [layer.n_out for layer in claim.network.seen[:-1]]
    owner = torch.arange(batch, device=device)
    signs = tuple(torch.zeros(batch, n, dtype=torch.int8, device=device) for n in widths)
    leaves = _bounded(claim, owner, signs, None, steps, piece)
    while True:
        count = torch.bincount(leaves.owner, minlength=batch)
        hopeless = _any_of(leaves.owner[~(leaves.value > 0) & (leaves.layer < 0)], batch)
        ready = ~(leaves.value > 0) & ~hopeless[leaves.owner]
        wanted = torch.bincount(leaves.owner[ready], minlength=batch)
        ready &= (count + wanted <= cells)[leaves.owner]
        if not bool(ready.any()):
            return leaves.value.new_full((batch,), torch.inf).scatter_reduce(0, leaves.owner, leaves.value, "amin")
        cut = leaves[ready]
        halves = [_cut(cut, side) for side in (1, -1)]
        owner = cut.owner.repeat(2)
        signs = tuple(torch.cat(pair) for pair in zip(*halves, strict=True))
        before = Margins(cut.margins.mean.repeat(2, 1), cut.margins.variance.repeat(2, 1))
        leaves = leaves[~ready].joined(_bounded(claim, owner, signs, before, steps, piece))


def _any_of(owner: Tensor, batch: int) -> Tensor:
    return torch.bincount(owner, minlength=batch) > 0


def _cut(cells: _Cells, side: int) -> tuple[Tensor, ...]:
    """The signs of the cells with their chosen neuron set to ``side``."""
    found = []
    for k, signs in enumerate(cells.signs):
        own = (cells.layer == k)[:, None] & (torch.arange(signs.shape[1], device=signs.device) == cells.neuron[:, None])
        found.append(torch.where(own, side, signs).to(torch.int8))
    return tuple(found)


def _bounded(
    claim: Claim, owner: Tensor, signs: tuple[Tensor, ...], before: Margins | None, steps: int, piece: int
) -> _Cells:
    parts = [
        _piece(claim[o], o, tuple(s[i] for s in signs), None if before is None else before[i], steps)
        for i in torch.arange(owner.shape[0], device=owner.device).split(piece)
        for o in (owner[i],)
    ]
    found = parts[0]
    for part in parts[1:]:
        found = found.joined(part)
    return found


def _piece(claim: Claim, owner: Tensor, signs: tuple[Tensor, ...], before: Margins | None, steps: int) -> _Cells:
    *hidden, output = claim.network.seen
    with torch.no_grad():
        layers = hidden_layers(hidden, claim.box, Parameters(signs=signs), take_last_apart=True)
        rows = margin_rows(output, claim.label[:, None])
        chosen = None if before is None else _least(before, claim.label)
        part = rows if chosen is None else _gather(rows, chosen)
    choice = best_choice(part.weight, part.bias, layers, steps)
    with torch.no_grad():
        found = margins_above(part, layers, choice)
        margins = found if before is None or chosen is None else _merged(before, found, chosen)
        bound = row_bound(claim.rows, margins.reshape(claim.box.batch, 1, -1), claim.label).amin(-1)
        value = torch.where(layers.empty, torch.inf, bound.nan_to_num(-torch.inf))
    layer, neuron = _next(part, layers, choice, found.mean)
    return _Cells(owner, signs, margins, value, layer, neuron)


def _least(before: Margins, label: Tensor) -> Tensor:
    """The classes (cells, few) with the least margins."""
    rank = before.mean.scatter(1, label[:, None], torch.inf)
    return rank.topk(min(_ROWS, rank.shape[1]), largest=False).indices


def _gather(rows: MarginRows, chosen: Tensor) -> MarginRows:
    wide = chosen[..., None].expand(-1, -1, rows.weight.shape[-1])
    return MarginRows(
        rows.weight.gather(1, wide),
        rows.variance.gather(1, wide),
        rows.bias.gather(1, chosen),
        rows.bias_variance.gather(1, chosen),
    )


def _merged(before: Margins, found: Margins, chosen: Tensor) -> Margins:
    """What held on the larger cell, and what was found on this one."""
    mean = before.mean.scatter(1, chosen, torch.maximum(found.mean, before.mean.gather(1, chosen)))
    variance = before.variance.scatter(1, chosen, torch.minimum(found.variance, before.variance.gather(1, chosen)))
    return Margins(mean, variance)


def _next(rows: MarginRows, layers: HiddenLayers, choice: Choice, mean: Tensor) -> tuple[Tensor, Tensor]:
    """The neuron whose chord costs the least margin most: its layer and index (cells,); -1 where all signs are known.

    The cost is the coefficient of the chord in the bound times its height above zero at M = 0.
    """
    own = rows.weight.abs().amax(-1) == 0  # the margin of a class with itself
    worst = mean.masked_fill(own, torch.inf).argmin(-1)
    tops = [layers.first.upper.offset, *(h.relaxation.upper_offset for h in layers.chain)]
    with torch.enable_grad():
        leaf = [top.detach().requires_grad_() for top in tops]
        first = replace(layers.first, upper=replace(layers.first.upper, offset=leaf[0]))
        relaxed = [
            (layer, replace(relaxation, upper_offset=top), scale)
            for (layer, relaxation, scale), top in zip(layers.relaxed, leaf[1:], strict=True)
        ]
        bound = lower_bound(rows.weight, rows.bias, relaxed, first, layers.box, choice)
        value = layers.box.minimum(bound.matrix, bound.offset).gather(1, worst[:, None])
        slopes = torch.autograd.grad(value.sum(), leaf)
    scores = []
    for slope, top, m, signs in zip(slopes, tops, layers.ranges, layers.signs, strict=True):
        unknown = (m.lower < 0) & (m.upper > 0) & (signs == 0)
        scores.append(torch.where(unknown, -slope * top.clamp_min(0), -torch.inf).nan_to_num(-torch.inf))
    best = torch.cat(scores, -1).max(-1)
    offsets = torch.tensor([0, *(s.shape[1] for s in scores)], device=mean.device).cumsum(0)
    layer = torch.bucketize(best.indices, offsets[1:], right=True)
    neuron = best.indices - offsets[layer]
    return torch.where(best.values > 0, layer, -1), neuron
