"""The mean output of a network on boxes: affine bounds of one pass, and refinement by splitting.

The mean of a Bayesian network at x is the value function V_0(x) of a dynamic program over its layers (Adams et al.
2023, Theorem ``Theorem:ValueIteration``). A pass gives affine functions below and above V_0 on a box; their smallest
and largest values bound the mean for every x of the box, over the whole posterior.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from bnndp.engine.protocol import both_signs, finite, known
from bnndp.geometry.bounds import Affine, AffineBounds, Interval
from bnndp.geometry.box import Box
from bnndp.network import Posterior
from bnndp.options import Options
from bnndp.questions.bounds import Bounds
from bnndp.tighten.cells import union
from bnndp.tighten.pass_choice import chunked
from bnndp.tighten.refinement import refine


@torch.no_grad()
def mean(network: Posterior, box: Box, options: Options) -> Iterator[Bounds]:
    """Bounds of the mean output: of one pass, then after every round of splitting."""
    affine, interval, methods = one_pass(network, box, options)
    found = Bounds(interval.lower, interval.upper, affine, methods)
    yield found
    if options.refine == 1:
        return

    def again(cells: Box) -> tuple[AffineBounds, Interval]:  # cells outside a ball are empty: their ends may cross
        return one_pass(network, cells, options)[:2]

    for cells in refine(again, affine, interval, options):
        ends = union(cells.interval, cells.owner, box.batch)
        yield replace(found, lower=ends.lower, upper=ends.upper, cells=cells)


def one_pass(network: Posterior, box: Box, options: Options) -> tuple[AffineBounds, Interval, tuple[str, ...]]:
    """Affine bounds, their interval (rounded outward) and the name of the method that gave it, for each box."""
    bounds = _nothing(box, network.n_out)
    lower, upper = (torch.full_like(bounds.lower.offset, end) for end in (-torch.inf, torch.inf))
    methods: list[str] = []
    n = network.n_out
    for part, passes in chunked(network, box, options, rows=2 * n):
        found = passes.affine(both_signs(n, passes.box))
        least, affine = known(found.least), sides(found.affine, passes.box)
        lower[part], upper[part] = least[:, :n], -least[:, n:]
        methods += found.method
        for whole, own in ((bounds.lower, affine.lower), (bounds.upper, affine.upper)):
            whole.matrix[part], whole.offset[part] = own.matrix, own.offset
    methods += ["none"] * (box.batch - len(methods))
    return bounds, Interval(lower, upper), tuple(methods)


def sides(found: Affine, box: Box) -> AffineBounds:
    """Lower and upper functions from lower ones of ``both_signs``; infinite where a number is none."""
    plane, n = finite(found), found.offset.shape[1] // 2
    low = Affine(plane.matrix[:, :n], plane.offset[:, :n])
    return AffineBounds(low, Affine(-plane.matrix[:, n:], -plane.offset[:, n:]), box)


def _nothing(box: Box, outputs: int) -> AffineBounds:
    """Functions that bound nothing; chunks are written into them, as the bounds of many boxes fill the memory."""
    zero, flat = box.lower.new_zeros, (box.batch, outputs)
    low, high = (Affine(zero(*flat, box.n), box.lower.new_full(flat, end)) for end in (-torch.inf, torch.inf))
    return AffineBounds(low, high, box)
