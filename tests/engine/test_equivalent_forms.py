"""The same function written in other layers gets the same bounds from the moment pass itself, without the normal form.

The answers of all questions to equivalent forms are compared in ``tests/questions/test_equivalent_forms.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
import torch
from tests.marks import slow_but
from torch import Tensor

from bnndp.activations import Identity, LeakyRelu, Relu
from bnndp.engine.moment_pass import MomentPass
from bnndp.geometry.box import Box
from bnndp.layers import AveragePool, Conv2d, CorrelatedLinear, Dropout, Flatten, Linear, MaxPool
from bnndp.network import BayesianNetwork, Layer

WORST = 1.02  # width : width of another form

Form = Callable[[Sequence[Layer]], Sequence[Layer]]


def network(hidden: Sequence[int], seed: int, std: float) -> list[Layer]:
    """Linear and Relu, 3 inputs and 2 outputs, with standard deviations of different sizes."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    layers: list[Layer] = []
    sizes = (3, *hidden, 2)
    for i, (n_in, n_out) in enumerate(pairwise(sizes)):
        spread = std / n_in**0.5
        mean, std_of = draw(n_out, n_in) / n_in**0.5, spread * draw(n_out, n_in).abs()
        layers.append(Linear(mean, std_of, 0.3 * draw(n_out), spread * draw(n_out).abs()))
        if i < len(hidden):
            layers.append(Relu())
    return layers


def each(change: Callable[[Layer], Sequence[Layer]]) -> Form:
    return lambda layers: [new for layer in layers for new in change(layer)]


def _rows(layer: Layer) -> Sequence[Layer]:
    if not isinstance(layer, Linear):
        return [layer]
    stds = torch.cat([layer.weight_std, layer.bias_std[:, None]], -1)
    return [CorrelatedLinear.rows(layer.weight_mean, layer.bias_mean, torch.diag_embed(stds.square()))]


def _nearly_diagonal(layer: Layer) -> Sequence[Layer]:
    """Correlations of 1e-12 within each row."""
    if not isinstance(layer, Linear):
        return [layer]
    stds = torch.cat([layer.weight_std, layer.bias_std[:, None]], -1)
    covariance = torch.diag_embed(stds.square()) * (1 - 1e-12) + 1e-12 * stds[:, :, None] * stds[:, None]
    return [CorrelatedLinear.rows(layer.weight_mean, layer.bias_mean, covariance)]


def _pixels(layers: Sequence[Layer]) -> Sequence[Layer]:
    """Convolutions of images of one pixel; the last layer stays, behind a Flatten."""
    *most, last = layers
    found: list[Layer] = []
    for layer in most:
        if isinstance(layer, Linear):
            mean, std = (part[..., None, None] for part in (layer.weight_mean, layer.weight_std))
            found.append(Conv2d(mean, std, layer.bias_mean, layer.bias_std))
        else:
            found.append(layer)
    return [*found, Flatten(), last]


FORMS: dict[str, Form] = {
    "leaky with slope 0": each(lambda layer: [LeakyRelu(0.0)] if isinstance(layer, Relu) else [layer]),
    "leaky with slope 1e-12": each(lambda layer: [LeakyRelu(1e-12)] if isinstance(layer, Relu) else [layer]),
    "rows with diagonal covariances": each(_rows),
    "rows with correlations of 1e-12": each(_nearly_diagonal),
    "dropout of nothing": each(lambda layer: [layer, Dropout(0.0)] if isinstance(layer, Relu) else [layer]),
    "identities": each(lambda layer: [layer, Identity()] if isinstance(layer, Relu) else [layer]),
}
PICTURES: dict[str, Form] = {
    "convolutions of one pixel": _pixels,
    "with pooling of one": lambda layers: each(
        lambda layer: [layer, AveragePool((1, 1)), MaxPool((1, 1))] if isinstance(layer, Relu) else [layer]
    )(_pixels(layers)),
}


def widths(layers: Sequence[Layer], shape: tuple[int, ...], box: Box) -> Tensor:  # (batch, outputs)
    made = BayesianNetwork(tuple(layers), input_shape=shape)
    rows = torch.eye(2, dtype=torch.float64)
    found = MomentPass.of(made, box).least(torch.cat([rows, -rows]))
    return -(found[:, :2] + found[:, 2:])


def _box(radius: float, seed: int) -> Box:
    generator = torch.Generator().manual_seed(seed)
    return Box.ball(torch.randn(4, 3, generator=generator, dtype=torch.float64), radius)


@pytest.mark.parametrize("radius", slow_but([0.0, 1e-3, 0.1], 1e-3))
@pytest.mark.parametrize("std", slow_but([0.05, 0.5], 0.5))
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("form", FORMS)
def test_the_same_function_gets_the_same_bounds(form: str, depth: int, std: float, radius: float) -> None:
    for seed in range(3):
        layers, box = network(((16,), (12, 16), (8, 12, 8))[depth - 1], seed, std), _box(radius, seed)
        plain, other = widths(layers, (3,), box), widths(FORMS[form](layers), (3,), box)
        assert bool((other <= WORST * plain + 1e-9).all())


@pytest.mark.parametrize("form", PICTURES)
@pytest.mark.parametrize("radius", [0.0, 0.1])
def test_images_of_one_pixel(form: str, radius: float) -> None:
    for seed in range(3):
        layers, box = network((12,), seed, 0.3), _box(radius, seed)
        plain, other = widths(layers, (3,), box), widths(PICTURES[form](layers), (3, 1, 1), box)
        assert bool((other <= WORST * plain + 1e-9).all())


@pytest.mark.parametrize("hidden", [(16,), (12, 16)])
def test_neurons_in_another_order(hidden: tuple[int, ...]) -> None:
    for seed in range(3):
        layers, box = network(hidden, seed, 0.3), _box(0.05, seed)
        first, second = (layer for layer in layers[:3] if isinstance(layer, Linear))
        order = torch.randperm(first.n_out, generator=torch.Generator().manual_seed(seed))
        moved = [
            Linear(first.weight_mean[order], first.weight_std[order], first.bias_mean[order], first.bias_std[order]),
            layers[1],
            Linear(second.weight_mean[:, order], second.weight_std[:, order], second.bias_mean, second.bias_std),
            *layers[3:],
        ]
        assert torch.allclose(widths(layers, (3,), box), widths(moved, (3,), box), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("hidden", [(16,), (12, 16)])
def test_a_layer_scaled_up_and_the_next_scaled_down(hidden: tuple[int, ...]) -> None:
    for seed in range(3):
        layers, box = network(hidden, seed, 0.3), _box(0.05, seed)
        first, second = (layer for layer in layers[:3] if isinstance(layer, Linear))
        up, down = 1024.0, 2.0**-10
        scaled = [
            Linear(up * first.weight_mean, up * first.weight_std, up * first.bias_mean, up * first.bias_std),
            layers[1],
            Linear(down * second.weight_mean, down * second.weight_std, second.bias_mean, second.bias_std),
            *layers[3:],
        ]
        assert torch.allclose(widths(layers, (3,), box), widths(scaled, (3,), box), rtol=1e-6, atol=1e-9)
