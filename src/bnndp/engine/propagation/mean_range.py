"""Ranges of the means of a layer over the boxes: rows carried down to x, and interval arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain as chained

import torch
from torch import Tensor

from bnndp.engine.chunks import cache_size, indices_of, picked
from bnndp.engine.laws.weights import Weights
from bnndp.engine.nodes.activation import Activated
from bnndp.engine.nodes.bound import Bound
from bnndp.engine.nodes.first_layer import NUMBERS, FirstLayer
from bnndp.engine.nodes.node import Node
from bnndp.engine.nodes.weighted import Weighted
from bnndp.engine.propagation.backward import least_value
from bnndp.engine.protocol import known
from bnndp.engine.rows import Rows
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box
from bnndp.geometry.half_space import HalfSpace
from bnndp.maths.rounding import TINY, gamma

__all__ = ["Wanted", "mean_range", "not_far_below", "with_kink_inside"]

_DEAD = 32.0  # standard deviations: the 16th power of their inverse is below 1e-24


Wanted = Callable[[Interval], Tensor]
"""Of which neurons (batch, n) a range is wanted that is better than this one."""


def mean_range(
    nodes: Sequence[Node],
    weighted: Weighted,
    box: Box,
    cut: HalfSpace | None,
    wanted: Wanted | None = None,
    before: Interval | None = None,  # a range that is known already
) -> Interval:
    """Range of E X over the boxes, or what ``cut`` leaves of them: (batch, n).

    Rows are carried down of the neurons that are wanted, or of all. What is found for a box does not depend on the
    other boxes.
    """
    coarse = weighted.interval if before is None else weighted.interval.meet(before)
    if len(nodes) == 1 and box.within is None and cut is None:  # the input itself: interval arithmetic is exact
        return coarse
    if wanted is None:
        return _meet(coarse, *_refined(nodes, weighted, box, cut))
    first = _first_layer(nodes, weighted) if box.within is None and cut is None else None
    if first is not None:
        return _one_end_first(first, weighted, coarse, wanted)
    asked = wanted(coarse)
    at = indices_of(asked)
    if at.shape[1] == 0:
        return coarse
    if at.shape[1] > weighted.weights.few:
        found = _meet(coarse, *_refined(nodes, weighted, box, cut))
    else:
        some = Interval(coarse.lower.gather(1, at), coarse.upper.gather(1, at))
        some = _meet(some, *_refined(nodes, weighted, box, cut, at))
        found = Interval(coarse.lower.scatter(1, at, some.lower), coarse.upper.scatter(1, at, some.upper))
    return Interval(torch.where(asked, found.lower, coarse.lower), torch.where(asked, found.upper, coarse.upper))


def with_kink_inside(kinks: Sequence[float]) -> Wanted:
    """Those whose range holds a kink: elsewhere a function that is affine but for its kinks is a line anyway."""

    def wanted(coarse: Interval) -> Tensor:
        inside = torch.zeros_like(coarse.lower, dtype=torch.bool)
        for kink in kinks:
            inside |= ~((coarse.lower >= kink) | (coarse.upper <= kink))  # true for NaN
        return inside

    return wanted


def not_far_below(kink: float, deviation: Tensor) -> Wanted:  # (batch, n)
    """Those that are not so many deviations of X below a kink, before which phi is constant, that it makes none."""
    return lambda coarse: ~(coarse.upper < kink - _DEAD * deviation)  # true for NaN


def _meet(coarse: Interval, low: Tensor, negated: Tensor) -> Interval:
    """The intersection with lower bounds of the means and of their negatives."""
    return Interval(torch.fmax(known(low), coarse.lower), torch.fmin(-known(negated), coarse.upper))


def _first_layer(nodes: Sequence[Node], weighted: Weighted) -> FirstLayer | None:
    """Where the rows of the layer after the first activation end, if single rows of some of the boxes can be asked.

    The noise of bounds for most weights has no part in that.
    """
    if weighted.deviations is not None:
        return None
    first = nodes[1].first_layer if len(nodes) == 2 and isinstance(nodes[1], Activated) else None
    if first is None or not first.shared:
        return None
    return first if 2 * weighted.weights.few > weighted.weights.n_out else None  # they are held as a matrix


def _one_end_first(first: FirstLayer, weighted: Weighted, coarse: Interval, wanted: Wanted) -> Interval:
    """Upper ends first: where these say that the rest makes no difference, the lower ones are not asked for."""
    upper = torch.fmin(coarse.upper, -known(_picked(first, weighted, wanted(coarse), -1)))
    lower = _picked(first, weighted, wanted(Interval(coarse.lower, upper)), 1)
    return Interval(torch.fmax(coarse.lower, known(lower)), upper)


def _picked(first: FirstLayer, weighted: Weighted, asked: Tensor, sign: int) -> Tensor:  # (batch, n)
    """Lower bounds of ``sign`` times the means where they are ``asked`` for; elsewhere minus infinity: (batch, n)."""
    weights, scale = weighted.weights, weighted.scale
    found = torch.full_like(scale, -torch.inf)
    most = cache_size(NUMBERS, scale.device) // max(first.half.shape[1], scale.shape[1])
    groups = [asked & group[:, None] for group in (first.sloped, ~first.sloped)]
    for at, index in chained.from_iterable(picked(group, most) for group in groups):
        rows = weights.rows_at(index)
        rows = rows if sign > 0 else rows.map(torch.neg)
        constant = sign * weights.bias[index] - gamma(8) * scale[at].gather(1, index) - TINY
        found[at] = found[at].scatter(1, index, first[at].least(rows, constant))
    return torch.where(asked, found, -torch.inf)  # whatever other boxes are in the batch


def _refined(
    nodes: Sequence[Node], weighted: Weighted, box: Box, cut: HalfSpace | None, at: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Lower bounds of the means and of their negatives, of all or of those ``at`` (batch, k): (batch, n or k) each."""
    weights, scale = weighted.weights, weighted.scale
    bias, noise, deviations = weights.bias.expand_as(scale), weighted.own_noise, weighted.deviations or 0.0
    if at is not None:
        bias, scale = bias.gather(1, at), scale.gather(1, at)
        noise = None if noise is None else noise.gather(1, at)
    slack, found = gamma(8) * scale + TINY, list[Tensor]()
    widest = max(node.mean.lower.shape[-1] for node in nodes)  # rows get as wide as that
    numbers = cache_size(NUMBERS, scale.device) // (2 * box.batch)
    for part, rows in _pieces(weights, numbers, widest, at):
        start = torch.cat([bias[:, part] - slack[:, part], -bias[:, part] - slack[:, part]], 1)
        own = None if noise is None else noise[:, part].repeat(1, 2)
        found.append(least_value(nodes, Bound(rows.with_negatives(), start, noise=own), box, cut, deviations))
    halves = [piece.chunk(2, 1) for piece in found]
    return torch.cat([low for low, _ in halves], 1), torch.cat([negated for _, negated in halves], 1)


def _pieces(weights: Weights, numbers: int, widest: int, at: Tensor | None) -> Iterator[tuple[slice, Rows]]:
    """The rows of a layer, or those ``at`` of each box, in pieces of about ``numbers`` coefficients for each box."""
    if at is None:
        yield from weights.own_rows(numbers * weights.n_in // widest)
        return
    step = max(1, numbers // widest)
    for start in range(0, at.shape[1], step):
        part = slice(start, min(start + step, at.shape[1]))
        yield part, weights.rows_at(at[:, part])
