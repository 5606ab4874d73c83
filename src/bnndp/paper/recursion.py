r"""Backward recursion of the value functions over a partition of every latent space (Algorithms 3 and 4 of the paper).

Signed rows ``S = (V, -V)`` are bounded from above only. Layer k, counted from one, maps :math:`z_{k-1}` to
:math:`\zeta_k` and :math:`z_k=\mathrm{ReLU}(\zeta_k)`; the value function :math:`V_k` is a function of :math:`z_k`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.errors import InputError
from bnndp.geometry.bounds import Affine, AffineBounds
from bnndp.geometry.box import Box
from bnndp.maths.rectified import expected_relu
from bnndp.maths.rounding import TINY
from bnndp.network import BayesianNetwork
from bnndp.paper.layers import Layer, Region
from bnndp.paper.outer import Outer
from bnndp.paper.partition import Rectangle, main_rectangle, nominal_probability, refine
from bnndp.paper.planes import compose, lower_planes, upper_planes
from bnndp.paper.values import Cells, Value, blended, complement, refined

_NEXT_TO_NOTHING = 1e-9  # mass outside the rectangle to which the cells of a refinement are continued


@dataclass(frozen=True, slots=True)
class _Stage:
    """One hidden layer: where its outputs are expected, and the Gaussian at a typical input to place the cells by."""

    rectangle: Rectangle  # leaves ``mass`` outside; one per box
    reach: Rectangle  # leaves next to nothing outside
    region: Region  # the image of ``rectangle``
    mean: Tensor  # (batch, n)
    std: Tensor  # (batch, n)


def bound(network: BayesianNetwork, box: Box, *, mass: float = 1e-3, cells: int = 2) -> AffineBounds:
    """Affine functions below and above ``E f(x)`` on each box, over the whole posterior (Algorithm ``al:regression``).

    ``mass`` is the probability that may be left outside the main rectangle of each hidden layer but the last, given a
    point of the rectangle before; ``cells`` (N_k) counts its regions: ``cells - 1`` parts of the main rectangle and
    the complement. Both trade tightness only: the bounds hold for any value.
    """
    _check(network, box, mass, cells)
    layers = [Layer.of(linear) for linear in network.unshifted_linears[:-1]]
    last = network.unshifted_linears[-1]
    matrix = torch.cat([last.weight_mean, -last.weight_mean])
    offset = torch.cat([last.bias_mean, -last.bias_mean])
    start = Region(box.lower[:, None], box.upper[:, None], box.centre[:, None])
    value = Value(Outer.of(matrix, offset), Affine(matrix[None], offset[None]))  # V_K, exact everywhere
    stages = _forward(layers[:-1], start, mass)
    for layer, stage in zip(reversed(layers[1:]), reversed(stages), strict=True):
        value = _relax(layer, value, stage, cells - 1)
    answer = _single(_back_up(layers[0], value, start)) if layers else value.main
    return _unsigned(answer, network.n_out, box)


def footprint(network: BayesianNetwork, cells: int = 2) -> int:
    """About the bytes of intermediate tensors that :func:`bound` needs for each box, on the safe side."""
    rows, parts = 2 * network.n_out, cells - 1
    sizes = network.sizes
    each = [
        16 * rows * (n_in + n_out) + 100 * (n_in + n_out) + (parts > 1) * parts * n_out * (8 * rows + 60)
        for n_in, n_out in itertools.pairwise(sizes)
    ]
    return 8 * parts * max(each)


def _forward(layers: list[Layer], start: Region, mass: float) -> list[_Stage]:
    """Main rectangles of these layers, each for inputs in the one before (``prop:FindRectForProbBounds``)."""
    stages: list[_Stage] = []
    region = start
    for layer in layers:
        ranges = layer.ranges(region)
        rectangle, reach = main_rectangle(ranges, mass), main_rectangle(ranges, min(mass, _NEXT_TO_NOTHING))
        mean, std = layer.point(region.at)
        region = rectangle.image(expected_relu(mean, std))
        stages.append(_Stage(rectangle, reach, region, mean[:, 0], std[:, 0]))
    return stages


def _relax(layer: Layer, value: Value, stage: _Stage, parts: int) -> Value:
    """Bounds of the value functions of the layer's inputs on all regions of their partition (errata item 7)."""
    outer = value.outer.behind(layer, stage.region.at[:, 0])
    main = _single(_back_up(layer, value, stage.region))
    if parts == 1:
        return Value(outer, main, stage.rectangle)
    weight = _importance(layer, value, stage.region)
    inner, continued = refine(stage.rectangle, stage.reach, weight, stage.mean, stage.std, parts)
    pieces = _back_up(layer, value, inner.image(stage.region.at))
    return Value(outer, main, stage.rectangle, Cells(pieces, continued, stage.reach))


def _back_up(layer: Layer, value: Value, region: Region) -> Affine:
    r"""Upper bounds of :math:`\mathbb E[S_k(z_k)\mid z]` on each region, affine in z (Algorithm ``al:backpropstep``).

    .. math:: \mathbb E S_k\le A_0\mathbb E z_k+b_0+\sum_j\mathbb E[(S_j-S_0)1_j]+\mathbb E[(S_C-S_0)1_C]

    with any affine base function :math:`S_0=A_0z+b_0`: the bulk goes through ``prop:neuron`` and only differences meet
    the probabilities. The base is the main bound, and then the blend of the cells; row by row the better answer is
    kept. Matrix (batch, regions, rows, n_in), offset (batch, regions, rows).
    """
    ranges = layer.ranges(region)
    low, high = lower_planes(layer, region.at), upper_planes(layer, region, ranges)
    base = Affine(value.main.matrix[:, None], value.main.offset[:, None])
    if value.rectangle is None:
        return compose(layer, base, region, low, high, torch.zeros_like(base.offset))
    whole = compose(layer, base, region, low, high, complement(value, value.rectangle, ranges))
    if value.cells is None:
        return whole
    blend = blended(value.cells, nominal_probability(value.cells.rectangles, *layer.point(region.at)))
    extra = refined(value, value.cells, value.rectangle, ranges, blend)
    return _lower_of(whole, compose(layer, blend, region, low, high, extra), region)


def _importance(layer: Layer, value: Value, region: Region) -> Tensor:
    """What a unit of width of each input costs: the gaps of the neurons it feeds, by its share in their ranges."""
    high, low = upper_planes(layer, region, layer.ranges(region)), lower_planes(layer, region.at)
    gap = (high(layer, region.at) - low(layer, region.at)).clamp_min(0)[:, 0]
    cost = value.main.matrix.abs().sum(1) * gap  # (batch, n_out)
    reach = ((region.upper - region.lower)[:, 0] @ layer.mean.abs().T).clamp_min(TINY)
    return (cost / reach) @ layer.mean.abs()


def _lower_of(first: Affine, second: Affine, region: Region) -> Affine:
    """Row by row the function whose maximum over the region is smaller; both are valid."""
    tops = [
        (f.matrix.clamp_min(0) @ region.upper[..., None] + f.matrix.clamp_max(0) @ region.lower[..., None])[..., 0]
        + f.offset
        for f in (first, second)
    ]
    pick = tops[1] < tops[0]
    matrix = torch.where(pick[..., None], second.matrix, first.matrix)
    return Affine(matrix, torch.where(pick, second.offset, first.offset))


def _single(bounds: Affine) -> Affine:
    return Affine(bounds.matrix[:, 0], bounds.offset[:, 0])


def _unsigned(value: Affine, outputs: int, box: Box) -> AffineBounds:
    """``lower <= E f <= upper`` from upper bounds of ``(E f, -E f)``."""
    matrix, offset = value.matrix.expand(box.batch, -1, -1), value.offset.expand(box.batch, -1)
    lower = Affine(-matrix[:, outputs:], -offset[:, outputs:])
    return AffineBounds(lower, Affine(matrix[:, :outputs], offset[:, :outputs]), box)


def _check(network: BayesianNetwork, box: Box, mass: float, cells: int) -> None:
    if box.n != network.n_in:
        raise InputError(f"the network takes {network.n_in} inputs, the box has {box.n}; give a box of the right size.")
    if not 1e-300 <= mass < 1:
        raise InputError(f"mass must lie between 1e-300 and 1 (excluded), got {mass!r}.")
    if not (isinstance(cells, int) and cells >= 2):
        raise InputError(f"cells must be an integer of at least 2 (one for the complement), got {cells!r}.")
