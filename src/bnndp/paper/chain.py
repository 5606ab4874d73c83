r"""The chain of main rectangles of all hidden layers, and linear forms of its end at every point of a box.

On the chain (an event C, whose probability is bounded for every x of the box: errata items 4 and 8) a form
:math:`Az_k+b` is at most an affine function of x plus :math:`M=\sum_lA_l(z_l-\mathbb E[z_l\mid z_{l-1}])`, because the
planes of ``prop:neuron`` hold on the rectangles; a Gaussian dominates M (docs/theory-partition.md, section 9).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.geometry.bounds import Affine
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.maths.normal import rectangle_quantile
from bnndp.maths.rectified import expected_relu, ratio
from bnndp.maths.rounding import TINY, UNIT, gamma, up
from bnndp.network import BayesianNetwork
from bnndp.paper.clipped import clipped_loss, clipped_variance
from bnndp.paper.concentration import tail_quantile
from bnndp.paper.layers import Layer, Ranges, Region
from bnndp.paper.partition import main_rectangle
from bnndp.paper.planes import Planes, compose, lower_planes, upper_planes
from bnndp.paper.spreads import chord_square, lipschitz_excess, mean_square


@dataclass(frozen=True, slots=True)
class Link:
    """One hidden layer on the chain: planes around ``E[z_k | z_{k-1}]``, and what is left of z_k."""

    layer: Layer
    region: Region  # of z_{k-1}
    ranges: Ranges  # of m_k and r_k on the chain
    low: Planes
    high: Planes
    std: Tensor  # (batch, n_out), of a Gaussian that dominates the centred z_k with its noise clipped
    loss: Tensor  # (batch, n_out), at least what clipping takes from the mean


@dataclass(frozen=True, slots=True)
class Form:
    r"""Linear forms S with :math:`S\le` ``top`` :math:`+M` on the chain, :math:`M\preceq N(0,` ``std`` :math:`^2)`."""

    top: Tensor  # (batch, rows)
    std: Tensor  # (batch, rows)

    def within(self, chance: float) -> Tensor:
        """Ends that a form exceeds on the chain with at most this probability, each: (batch, rows)."""
        reach = tail_quantile(chance) * self.std
        return self.top + reach + gamma(4) * (self.top.abs() + reach)


@dataclass(frozen=True, slots=True)
class Chain:
    """Main rectangles of the hidden layers for every x of the boxes."""

    links: tuple[Link, ...]
    end: Region  # of z_K, the image of the last rectangle; the box itself where there is no hidden layer
    outside: float  # at least the probability of leaving the chain, at every x
    box: Box

    def form(self, matrix: Tensor, offset: Tensor) -> Form:  # (batch or 1, rows, n), (batch or 1, rows)
        """Bounds of ``matrix @ z_K + offset``."""
        return _form(self.links, self.box, Affine(matrix, offset))

    def ranges(self, layer: Layer, mass: float) -> Ranges:
        """Ranges of m and r of the layer behind the chain, left with at most the probability ``mass`` on it."""
        return _ranges(self.links, self.box, layer, self.end, mass)


def links_of(network: BayesianNetwork, box: Box, mass: float) -> Chain:
    """Rectangles that each leave at most ``mass`` outside, given the ones before (``prop:FindRectForProbBounds``).

    A layer spends one half of it on the ranges of m(z) and r(z), which are found by going back to x and not from the
    rectangle before alone, and the other half on its noise. What is not random is free.
    """
    region = Region(box.lower[:, None], box.upper[:, None], box.centre[:, None])
    links: tuple[Link, ...] = ()
    outside, random = 0.0, False
    for linear in network.unshifted_linears[:-1]:
        layer = Layer.of(linear)
        ranges = _ranges(links, box, layer, region, 0.5 * mass)
        links = (*links, _link(layer, region, ranges, 0.5 * mass))
        outside += 0.5 * mass * (random + is_random(linear))
        random = random or is_random(linear)
        region = main_rectangle(ranges, 0.5 * mass).image(expected_relu(*layer.point(region.at)))
    return Chain(links, region, outside * (1 + 2.0**-40), box)


def is_random(linear: Linear) -> bool:
    """Whether a layer has any variance."""
    return bool((linear.weight_std > 0).any() | (linear.bias_std > 0).any())


def _link(layer: Layer, region: Region, ranges: Ranges, mass: float) -> Link:
    """The layer with standard noise of at most the half width of its main rectangle in every neuron."""
    reach = rectangle_quantile(mass, layer.n_out)
    mean, std = ranges.mean_upper[:, 0], ranges.std_upper[:, 0]
    share = torch.where(mean < 0, clipped_variance(ratio(mean, std), reach), 1.0)  # u falls with r only below zero
    low, high = lower_planes(layer, region.at), upper_planes(layer, region, ranges)
    return Link(layer, region, ranges, low, high, share.sqrt() * std * (1 + 8 * UNIT), clipped_loss(reach) * std)


def _ranges(links: tuple[Link, ...], box: Box, layer: Layer, region: Region, mass: float) -> Ranges:
    """Ranges of m and r behind the links that are left with at most the probability ``mass`` on the chain."""
    ranges = layer.ranges(region)
    chance = mass / (5 * layer.n_out)  # two ends of every mean, three tails behind every standard deviation
    upper, lower = _form(links, box, _means(layer)).within(chance)[:, None].chunk(2, -1)
    std = torch.fmin(ranges.std_upper, _std(links, box, layer, region, chance)[:, None]) if links else ranges.std_upper
    return Ranges(
        torch.fmax(ranges.mean_lower, -lower),
        torch.fmin(ranges.mean_upper, upper),
        torch.minimum(ranges.std_lower, std),
        std,
    )


def _std(links: tuple[Link, ...], box: Box, layer: Layer, region: Region, chance: float) -> Tensor:
    """Standard deviations r(z_k) that are exceeded on the chain with three times this probability: (batch, n_out)."""
    link = links[-1]
    square = _form(links, box, chord_square(layer, region)).within(chance)
    mean = _form(links[:-1], box, mean_square(layer, link.layer, link.ranges, link.region)).within(chance)
    first, second = (value.clamp_min(TINY).sqrt() * (1 + 4 * UNIT) for value in (square, mean))
    return torch.fmin(first, second + lipschitz_excess(layer, link.ranges, chance)) * (1 + 4 * UNIT)


def _means(layer: Layer) -> Affine:
    """``(m(z), -m(z))``: (1, 2 n_out, n_in)."""
    matrix, offset = torch.cat([layer.mean, -layer.mean]), torch.cat([layer.bias, -layer.bias])
    return Affine(matrix[None], offset[None])


def _form(links: tuple[Link, ...], box: Box, start: Affine) -> Form:
    """Back through the links (``al:backpropstep`` without expectation): planes for the means, variances for the rest.

    The recursion is exact in the coefficients, which are taken as the floats they are.
    """
    matrix, offset = start.matrix, start.offset
    variance = torch.zeros_like(offset)
    for link in reversed(links):
        step = (matrix * link.std[:, None]) ** 2  # never a square of a coefficient alone: it may underflow
        variance = variance + up(step.sum(-1), link.std.shape[-1] + 8)
        lost = up((-matrix.clamp_max(0) * link.loss[:, None]).sum(-1), link.std.shape[-1] + 8)
        base = Affine(matrix[:, None], offset[:, None])
        back = compose(link.layer, base, link.region, link.low, link.high, lost[:, None])
        matrix, offset = back.matrix[:, 0], back.offset[:, 0]
    std = variance.sqrt() * (1 + (len(links) + 4) * 4 * UNIT)
    top = box.maximum(matrix, offset)
    return Form(top, std.expand_as(top))
