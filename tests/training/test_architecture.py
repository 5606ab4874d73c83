"""The language of convolutions, the layers that options ask for, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bnndp.activations import Gelu, Relu, Tanh
from bnndp.errors import InputError
from bnndp.layers import AveragePool, Conv2d, Dropout, Flatten, Linear, MaxPool
from bnndp.network import BayesianNetwork
from bnndp.training.architecture import Convolution, Pooling, layer_specs, parse
from bnndp.training.mean_field import free_layers, freeze, initial_layers
from bnndp.training.options import Robust, TrainingOptions

IMAGE = (2, 9, 9)


def made(**options: Any) -> BayesianNetwork:
    layers = initial_layers(TrainingOptions(**options), 162, 3, torch.Generator().manual_seed(0))
    return freeze(layers, "classification")


def test_the_language() -> None:
    assert parse("6x5") == (Convolution(6, 5),)
    assert parse("6x5s2,16x3p1,max3,pool2") == (
        Convolution(6, 5, 2),
        Convolution(16, 3, 1, 1),
        Pooling(3, largest=True),
        Pooling(2, largest=False),
    )


@pytest.mark.parametrize("text", ["6", "x5", "0x5", "6x0", "6x5s0", "6x5p", "6x5p1s2", "pool", "6x5,", "6x5, 3x3", ","])
def test_what_the_language_refuses(text: str) -> None:
    with pytest.raises(InputError, match="its layers look like 6x5, 6x5s2p2, pool2 or max2"):
        parse(text)
    with pytest.raises(InputError, match="its layers look like"):
        TrainingOptions(conv=text)


def test_a_pooling_cannot_come_first() -> None:
    with pytest.raises(InputError, match="begins with pool2; the first layer must be a convolution"):
        parse("pool2,6x5")


def test_the_layers_of_a_convolutional_network() -> None:
    network = made(hidden=(5,), conv="4x3,pool2,6x2s2p1,max2", image=IMAGE, activation="tanh")
    kinds = [Conv2d, Tanh, AveragePool, Conv2d, Tanh, MaxPool, Flatten, Linear, Tanh, Linear]
    assert [type(layer) for layer in network.layers] == kinds
    # 9 - 2 = 7, half of it 3; (3 + 2 - 2) / 2 + 1 = 2, half of it 1
    expected = (IMAGE, (4, 7, 7), (4, 7, 7), (4, 3, 3), (6, 2, 2), (6, 2, 2), (6, 1, 1), (6,), (5,), (5,), (3,))
    assert network.shapes == expected
    assert all(layer.random for layer in network.layers if isinstance(layer, Conv2d | Linear))


def test_a_plain_network_is_plain() -> None:
    network = made(hidden=(5, 4))
    assert network.plain
    assert network.sizes == (162, 5, 4, 3)
    assert [type(layer) for layer in made(hidden=(5,), activation="gelu").layers] == [Linear, Gelu, Linear]


def test_where_dropout_is_and_which_layers_have_variances() -> None:
    conv: dict[str, Any] = {"hidden": (5,), "conv": "4x3,pool2", "image": IMAGE}
    channels = made(**conv, inference="map", dropout=Dropout(0.2, "gaussian", channels=True))
    kinds = [Conv2d, Relu, AveragePool, Dropout, Flatten, Linear, Relu, Dropout, Linear]
    assert [type(layer) for layer in channels.layers] == kinds
    dropped = [layer for layer in channels.layers if isinstance(layer, Dropout)]
    assert dropped == [Dropout(0.2, "gaussian", channels=True), Dropout(0.2, "gaussian")]
    assert [layer.random for layer in channels.layers if not isinstance(layer, Dropout)] == [False] * 7
    last = made(**conv, inference="map", dropout=Dropout(0.2), dropout_last=True)
    assert [type(layer) for layer in last.layers] == [Conv2d, Relu, AveragePool, Flatten, Linear, Relu, Dropout, Linear]
    both = made(conv="4x3,5x3", image=IMAGE, hidden=(5,), inference="bbb", dropout=Dropout(0.2), dropout_last=True)
    assert [type(layer) for layer in both.layers[:6]] == [Conv2d, Relu, Conv2d, Relu, Dropout, Flatten]
    mixed = made(**conv, inference="bbb", dropout=Dropout(0.2))  # as in Table 2 of the paper
    assert [type(layer) for layer in mixed.layers] == [*kinds[:7], Linear]
    assert [layer.random for layer in mixed.layers if isinstance(layer, Conv2d | Linear)] == [False, True, True]


def test_layers_come_back_from_a_network() -> None:
    network = made(hidden=(5,), conv="4x3s2p1", image=IMAGE, activation="silu", init_std=0.3)
    again = freeze(free_layers(network), "classification")
    assert again.digest() == network.digest()
    fixed = made(hidden=(5,), conv="4x3", image=IMAGE, inference="map", dropout=Dropout(0.1))
    layers = free_layers(fixed)
    assert [layer.fixed for layer in layers] == [True] * 3
    assert freeze(layers, "classification").digest() == fixed.digest()


def test_means_start_within_the_scale_of_their_inputs() -> None:
    network = made(hidden=(), conv="40x3", image=IMAGE, init_gain=2.0)
    kernel = network.layers[0]
    assert isinstance(kernel, Conv2d)
    largest = kernel.weight_mean.abs().max().item()
    assert 0.95 * 2 / 18**0.5 < largest <= 2 / 18**0.5  # 2 channels of 3 x 3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"activation": "step"}, "activation must be one of relu, leaky_relu, "),
        ({"activation": "piecewise_affine"}, "activation must be one of"),
        (
            {"dropout": Dropout(0.1)},
            "dropout is trained by map, and by bbb after convolutions, not by 'bbb' without conv",
        ),
        ({"dropout": Dropout(0.1), "inference": "vogn", "conv": "4x3"}, "not by 'vogn'; choose inference map"),
        ({"robust": Robust(0.1), "inference": "vogn"}, "robust is for bbb and map with an increasing activation"),
        ({"robust": Robust(0.1), "activation": "gelu"}, "got inference 'bbb' and activation 'gelu'"),
    ],
)
def test_options_that_do_not_go_together(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        TrainingOptions(**changes)


@pytest.mark.parametrize(
    ("conv", "image", "words"),
    [
        ("4x3", None, "needs images, but the inputs have 162 values and image is None"),
        ("4x3", (1, 9, 9), "image is"),
        ("4x11", IMAGE, r"does not fit images of shape \(2, 9, 9\): a window of \(11, 11\)"),
        ("4x3,pool8", IMAGE, "does not fit images"),
    ],
)
def test_convolutions_that_do_not_fit(conv: str, image: tuple[int, int, int] | None, words: str) -> None:
    with pytest.raises(InputError, match=words):
        layer_specs(162, (), 3, conv=conv, image=image)


@pytest.mark.parametrize(("eps", "share"), [(0.0, 0.5), (float("nan"), 0.5), (0.1, 0.0), (0.1, 1.5)])
def test_robust_refuses(eps: float, share: float) -> None:
    with pytest.raises(InputError, match="must be"):
        Robust(eps, share)
