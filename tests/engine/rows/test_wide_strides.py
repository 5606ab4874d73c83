"""Convolutions and pooling whose strides or paddings exceed their windows, so that windows miss much of the image."""

from __future__ import annotations

import math
from typing import TypeAlias

import pytest
import torch
from support import records
from torch.nn import functional

from bnndp.activations import Relu, Tanh
from bnndp.engine.rows import LocalRows
from bnndp.geometry.box import Box
from bnndp.layers import AveragePool, Conv2d, Flatten, Linear, MaxPool
from bnndp.layers.record import Record
from bnndp.network import BayesianNetwork
from bnndp.questions.certify import certify

Pair: TypeAlias = "int | tuple[int, int]"
Setting: TypeAlias = "tuple[int, Pair, Pair, AveragePool | MaxPool | None]"
# Size, stride and padding of each convolution, what follows it, and the shape of the inputs.
CASES: dict[str, tuple[list[Setting], tuple[int, ...]]] = {
    "stride": ([(1, 3, 0, None), (2, 3, 0, None)], (1, 12, 6)),
    "padding": ([(2, 1, 3, None), (2, 2, 4, None)], (1, 2, 1)),
    "stride and padding": ([(1, (4, 6), 3, None), (2, 9, (3, 0), None)], (2, 2, 4)),
    "nothing of the image": ([(2, 2, 1, None), (1, 9, 2, None)], (1, 4, 4)),
    "average": ([(2, 2, 3, AveragePool((1, 2), (2, 3))), (2, 3, 3, AveragePool(2, 3))], (1, 7, 8)),
    "average side by side": ([(2, 2, 3, AveragePool(2)), (1, 2, (2, 4), None)], (1, 3, 4)),
    "max": ([(2, 2, 3, MaxPool((1, 2), (2, 3))), (2, 3, 3, MaxPool(2, 3))], (1, 7, 8)),
}


def _network(name: str, std: float) -> BayesianNetwork:
    settings, shape = CASES[name]
    layers: list[Record] = []
    now = shape
    for index, (size, stride, padding, pool) in enumerate(settings):
        kernel = records.conv(2, now[0], 10 * index, size=size, std=std, stride=stride, padding=padding)
        parts: list[Record] = [kernel, Tanh() if index else Relu(), *([] if pool is None else [pool])]
        for layer in parts:
            layers.append(layer)
            now = layer.out_shape(now)
    last = records.linear(2, math.prod(now), 7, std)
    return BayesianNetwork((*layers, Flatten(), last), input_shape=shape)


def _box(network: BayesianNetwork) -> Box:
    return Box.ball(records.normal(2, network.n_in, seed=3), 0.1)


@pytest.mark.parametrize("name", CASES)
def test_without_variance_the_bounds_are_the_network(name: str) -> None:
    network = _network(name, 0.0)
    box = _box(network)
    bounds = certify(network, Box(box.centre, box.centre))
    truth = records.outputs(network, box.centre, 1, 0)[0]
    assert torch.allclose(bounds.lower, truth, atol=1e-9)
    assert torch.allclose(bounds.upper, truth, atol=1e-9)


@pytest.mark.parametrize("name", [name for name in CASES if name != "max"])
def test_the_bounds_are_those_of_dense_layers(name: str) -> None:
    network = _network(name, 0.0)
    twin: list[object] = []
    for layer, shape in zip(network.layers, network.shapes[:-1], strict=True):
        if isinstance(layer, Conv2d | AveragePool):  # affine: its columns are the images of the unit vectors
            units = torch.eye(math.prod(shape), dtype=torch.float64).reshape(-1, *shape)
            offset = records.apply_once(layer, torch.zeros_like(units[:1])).flatten()
            twin.append(Linear.fixed((records.apply_once(layer, units).flatten(1) - offset).T.contiguous(), offset))
        elif not isinstance(layer, Flatten):
            twin.append(layer)
    box = _box(network)
    one, other = certify(network, box), certify(BayesianNetwork(tuple(twin)), box)
    assert torch.allclose(one.lower, other.lower, atol=1e-7)
    assert torch.allclose(one.upper, other.upper, atol=1e-7)


@pytest.mark.parametrize("name", CASES)
def test_bounds_hold_for_draws(name: str) -> None:
    network = _network(name, 0.3)
    box = _box(network)
    bounds = certify(network, box)
    for seed, x in enumerate((box.lower, box.centre, box.upper)):
        y = records.outputs(network, x, 400, seed)
        error = 5 * y.std(0) / math.sqrt(len(y)) + 1e-9
        assert bool((bounds.lower <= y.mean(0) + error).all() & (y.mean(0) - error <= bounds.upper).all())


@pytest.mark.parametrize("offset", [(0, 0), (3, 1), (9, 7)])
@pytest.mark.parametrize("stride", [(1, 1), (4, 5), (1, 9)])
@pytest.mark.parametrize("grid", [(1, 1), (2, 3)])
def test_windows_anywhere_see_the_image_and_zeros(
    offset: tuple[int, int], stride: tuple[int, int], grid: tuple[int, int]
) -> None:
    """Also where all of them end before the image does, or none of them meets it."""
    image = records.normal(1, 2, 3, 4, seed=1)
    rows = LocalRows(torch.ones(1, 1, math.prod(grid), 2, 2, 3, dtype=torch.float64), (2, 3, 4), grid, stride, offset)
    plane = functional.pad(image, (20, 40, 20, 40))[0]  # (0, 0) of the image is at (20, 20)
    places = [
        (i * stride[0] - offset[0] + 20, j * stride[1] - offset[1] + 20) for i in range(grid[0]) for j in range(grid[1])
    ]
    seen = torch.stack([plane[:, top : top + 2, left : left + 3].flatten() for top, left in places])
    assert torch.equal(rows.around(image.flatten(1))[0], seen)
