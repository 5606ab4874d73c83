"""Regression: the width of the interval on balls, beside the range from inside, and what each source adds to it."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from benchmarks.tightness.sources import ALL, Breakdown, Source, broken_down, sources_of
from benchmarks.tightness.substitute import Substituted
from benchmarks.tightness.truth import Truth, draw, sample
from bnndp.attack.inside import Inside
from bnndp.attack.noise import LayerNoise
from bnndp.engine.protocol import both_signs
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box
from bnndp.network import BayesianNetwork

__all__ = ["break_down", "interval"]

_NUMBERS = 2**22  # in a tensor of draws: boxes are taken in chunks


def break_down(network: BayesianNetwork, box: Box, inside: Inside, *, draws: int = 4096) -> Breakdown:
    """The mean width over the boxes (first output), and what it is without each source.

    The upper end is diagnosed at the input of the largest value found from inside, the lower end at that of the
    smallest. Both are valued with the same draws, so the noise of the sample cancels in the width.
    """
    x_low, x_high = inside.x_lower[:, 0], inside.x_upper[:, 0]  # (batch, n)
    if network.shift is not None:
        x_low, x_high, box = x_low - network.shift, x_high - network.shift, box.moved(network.shift)
        network = network.unshifted()
    noise = draw(network, draws, seed=7)
    single = sources_of(network.depth, classification=False)
    step = max(1, _NUMBERS // (2 * noise.draws * max(network.sizes[1:])))

    def measure(chunk: slice) -> dict[str, Tensor]:
        return _widths(network, box[chunk], (x_low[chunk], x_high[chunk]), noise, single)

    return broken_down(measure, box.batch, step)


def _widths(
    network: BayesianNetwork, box: Box, ends: tuple[Tensor, Tensor], noise: LayerNoise, single: Collection[Source]
) -> dict[str, Tensor]:
    """Widths (batch,) of the chunk: certified, from inside, without each source, without all."""
    count = box.batch
    twice = Box(torch.cat([box.lower, box.lower]), torch.cat([box.upper, box.upper]))  # lower ends, then upper ends
    x = torch.cat(ends)
    truth = sample(network.linears, x, noise)

    def width(region: Box, sources: Collection[Source]) -> Tensor:
        found = interval(network, region, truth, sources)
        return found.upper[count:, 0] - found.lower[:count, 0]

    result = {"certified": width(twice, ()), "inside": truth.output[count:, 0] - truth.output[:count, 0]}
    for source in single:
        result[source.value] = width(Box(x, x), ()) if source is Source.REGION else width(twice, (source,))
    result[ALL] = width(twice, [source for source in single if source is not Source.REGION])
    return result


def interval(network: BayesianNetwork, box: Box, truth: Truth, sources: Collection[Source]) -> Interval:
    """Bounds (batch, outputs) of the mean output by the pass in which ``sources`` are true values at x*."""
    found = (
        Substituted(network.layers, network.shapes, box, truth=truth, sources=sources)
        .affine(both_signs(network.n_out, box))
        .least
    )
    return Interval(found[:, : network.n_out], -found[:, network.n_out :])
