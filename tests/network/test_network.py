"""Frozen descriptions of networks: what they refuse, what they keep, and a digest of every bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bnndp.activations import LeakyRelu, Relu, Tanh
from bnndp.errors import CertError, InputError, UnsupportedLayerError
from bnndp.layers import AveragePool, Conv2d, CorrelatedLinear, Dropout, Flatten, Linear, MaxPool
from bnndp.network import KINDS, BayesianNetwork

FIELDS = ("weight_mean", "weight_std", "bias_mean", "bias_std")


def parts(n_out: int = 2, n_in: int = 3) -> dict[str, Tensor]:
    return {
        "weight_mean": torch.arange(n_out * n_in, dtype=torch.float64).reshape(n_out, n_in),
        "weight_std": torch.full((n_out, n_in), 0.5, dtype=torch.float64),
        "bias_mean": torch.ones(n_out, dtype=torch.float64),
        "bias_std": torch.zeros(n_out, dtype=torch.float64),
    }


def linear(n_out: int = 2, n_in: int = 3) -> Linear:
    return Linear(**parts(n_out, n_in))


def convolution(**settings: int) -> Conv2d:
    return Conv2d(torch.ones(2, 1, 2, 2), torch.full((2, 1, 2, 2), 0.5), torch.ones(2), torch.zeros(2), **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_smaller_floats_are_widened_exactly(dtype: torch.dtype) -> None:
    given = {name: (tensor * 0.1).to(dtype) for name, tensor in parts().items()}
    got = Linear(**given)
    for field in FIELDS:
        assert getattr(got, field).dtype == torch.float64
        assert torch.equal(getattr(got, field), given[field].double())


def test_python_numbers_keep_all_their_digits() -> None:
    got = Linear([[0.1, 0.2]], [[0.3, 1e-300]], [0.7], np.array([1 / 3]))  # type: ignore[arg-type]
    assert got.weight_mean.tolist() == [[0.1, 0.2]]
    assert got.weight_std.tolist() == [[0.3, 1e-300]]
    assert got.bias_std.tolist() == [1 / 3]


@pytest.mark.parametrize("field", FIELDS)
def test_a_later_change_of_the_argument_does_not_reach_the_network(field: str) -> None:
    given = parts()
    network = BayesianNetwork((Linear(**given),))
    before = network.digest()
    given[field].add_(1)
    assert network.digest() == before


def test_a_network_does_not_hold_on_to_a_graph() -> None:
    mean = torch.ones(2, 3, dtype=torch.float64, requires_grad=True)
    assert not Linear(**(parts() | {"weight_mean": 2 * mean})).weight_mean.requires_grad


def test_records_are_frozen() -> None:
    layer = linear()
    with pytest.raises(dataclasses.FrozenInstanceError):
        layer.bias_std = torch.ones(2)  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        BayesianNetwork((layer,)).task = "classification"  # type: ignore[misc]


BAD_CHAINS: list[tuple[tuple[object, ...], str]] = [
    ((), "has no layers"),
    ((Flatten(),), "has no layers"),
    ((Relu(),), "ends in relu"),
    ((linear(), Relu()), "ends in relu"),
    ((linear(), Dropout(0.1)), "ends in dropout"),
    ((linear(), Flatten(), Relu(), Flatten()), "ends in relu"),
    ((torch.nn.Linear(3, 2),), "layer 0 is Linear, which has no rule"),
    ((linear(), torch.nn.ReLU(), linear(2, 2)), "layer 1 is ReLU"),
    (("linear",), "layer 0 is str"),
    ((linear(), None, linear(2, 2)), "layer 1 is NoneType"),
    ((Relu, linear()), "layer 0 is type"),
]


@pytest.mark.parametrize(("layers", "word"), BAD_CHAINS, ids=lambda value: value if isinstance(value, str) else "")
def test_unknown_layers_and_ends_are_refused(layers: tuple[object, ...], word: str) -> None:
    with pytest.raises(UnsupportedLayerError, match=word) as caught:
        BayesianNetwork(layers, input_shape=(3,))  # type: ignore[arg-type]
    if "no rule" in str(caught.value):
        assert str(caught.value).endswith(f"known kinds: {', '.join(sorted(KINDS))}.")


def test_sizes_must_fit() -> None:
    with pytest.raises(InputError, match=r"layer 2 \(linear\): a dense layer takes 5 inputs, .* gives 2"):
        BayesianNetwork((linear(2, 3), Relu(), linear(1, 5)))
    with pytest.raises(InputError, match=r"layer 1 \(max_pool\): pooling takes"):
        BayesianNetwork((Flatten(), MaxPool(2), linear(1, 4)), input_shape=(1, 4, 4))
    with pytest.raises(InputError, match=r"layer 0 \(linear\): a dense layer takes a vector"):
        BayesianNetwork((linear(2, 3),), input_shape=(3, 1, 1))
    with pytest.raises(InputError, match=r"gives \(2, 3, 3\); put a Flatten\(\) last"):
        BayesianNetwork((convolution(),), input_shape=(1, 4, 4))


@pytest.mark.parametrize("shape", [(), (0,), (-3,), (3.0,), (True,), (1, 3), (1, 0, 4), "3", 3, (1, 2, 3, 4)], ids=str)
def test_wrong_input_shapes_are_refused(shape: object) -> None:
    with pytest.raises(InputError, match=r"input_shape must be|takes"):
        BayesianNetwork((linear(),), input_shape=shape)  # type: ignore[arg-type]


def test_an_input_shape_is_needed_for_images_only() -> None:
    assert BayesianNetwork((linear(),)).input_shape == (3,)
    assert BayesianNetwork((Dropout(0.1), Relu(), linear())).input_shape == (3,)
    assert BayesianNetwork((linear(),), input_shape=[3]).input_shape == (3,)  # type: ignore[arg-type]
    for layers in ((convolution(), Flatten()), (Flatten(), linear()), (MaxPool(2), Flatten(), linear())):
        with pytest.raises(InputError, match="input_shape must be given"):
            BayesianNetwork(layers)


def test_a_chain_of_images() -> None:
    layers = (convolution(), Tanh(), AveragePool(2, stride=1), Dropout(0.1), Flatten(), Relu(), linear(3, 8))
    network = BayesianNetwork(layers, "classification", input_shape=(1, 4, 4))
    assert network.shapes == ((1, 4, 4), (2, 3, 3), (2, 3, 3), (2, 2, 2), (2, 2, 2), (8,), (8,), (3,))
    assert (network.n_in, network.n_out, network.depth, network.widest) == (16, 3, 2, 18)
    assert network.sizes == (16, 18, 3)
    assert not network.plain
    kinds = "conv2d tanh average_pool dropout flatten relu linear"
    assert repr(network) == f"BayesianNetwork(16-18-3, classification, {kinds})"
    assert network.to("cpu").digest() == network.digest()
    assert network.unshifted() is network


def test_what_is_plain() -> None:
    chains = {
        (linear(),): True,
        (linear(), Relu(), linear(1, 2)): True,
        (linear(), Tanh(), linear(1, 2)): False,
        (linear(), linear(1, 2)): False,
        (linear(), Relu(), Relu(), linear(1, 2)): False,
        (Relu(), linear()): False,
        (linear(), Relu(), linear(1, 2), Flatten()): False,
        (linear(), Relu(), Dropout(0.1), linear(1, 2)): False,
    }
    for layers, plain in chains.items():
        network = BayesianNetwork(layers)
        assert network.plain is plain
        if not plain:
            for name in ("linears", "unshifted_linears"):
                with pytest.raises(UnsupportedLayerError, match=r"use network\.layers"):
                    getattr(network, name)
    assert repr(BayesianNetwork((linear(),))) == "BayesianNetwork(3-2, regression)"


def test_a_random_network_has_a_random_layer() -> None:
    assert BayesianNetwork((linear(),)).random
    fixed = Linear.fixed(torch.ones(2, 3))
    assert not BayesianNetwork((fixed,)).random
    assert BayesianNetwork((Dropout(0.5), fixed)).random


@pytest.mark.parametrize("task", ["Regression", "", None, 3])
def test_unknown_tasks_are_refused(task: object) -> None:
    with pytest.raises(InputError, match="regression, classification"):
        BayesianNetwork((linear(),), task)  # type: ignore[arg-type]


def test_every_refusal_is_of_the_one_family() -> None:
    assert issubclass(InputError, CertError)
    assert issubclass(InputError, ValueError)
    assert issubclass(UnsupportedLayerError, CertError)
    assert issubclass(UnsupportedLayerError, TypeError)


@pytest.mark.parametrize("sizes", [(1, 1), (4, 3), (3, 5, 2), (2, 8, 8, 8, 1)])
def test_sizes_and_depth(random_network: Callable[..., BayesianNetwork], sizes: tuple[int, ...]) -> None:
    network = random_network(sizes, 0)
    assert network.sizes == sizes
    assert (network.n_in, network.n_out, network.depth) == (sizes[0], sizes[-1], len(sizes) - 2)
    assert [layer.n_in for layer in network.linears] == list(sizes[:-1])
    assert [layer.n_out for layer in network.linears] == list(sizes[1:])
    assert len(network.layers) == 2 * len(sizes) - 3
    assert all(isinstance(layer, Relu) for layer in network.layers[1::2])


def test_layers_may_come_from_any_iterable() -> None:
    assert BayesianNetwork([linear()]).linears[0].n_in == 3  # type: ignore[arg-type]
    assert BayesianNetwork.from_linears(iter([linear(2, 3), linear(1, 2)])).sizes == (3, 2, 1)


def test_to_keeps_everything(random_network: Callable[..., BayesianNetwork]) -> None:
    network = random_network((3, 5, 2), 1, task="classification")
    moved = network.to("cpu")
    assert moved.digest() == network.digest()
    assert moved.task == "classification"
    assert linear().to(torch.device("cpu")).n_out == 2


# The digest


def _flipped(tensor: Tensor, element: int, bit: int) -> Tensor:
    numbers = tensor.detach().clone().contiguous().numpy()
    view = numbers.view(np.uint64).reshape(-1)
    view[element] ^= np.uint64(1 << bit)
    return torch.from_numpy(numbers)


def test_digest_changes_with_any_bit_of_any_value() -> None:
    base = parts(2, 2)
    base["bias_std"] += 0.25
    seen = {BayesianNetwork((Linear(**base),)).digest()}
    for field in FIELDS:
        for element in range(base[field].numel()):
            for bit in range(64):
                changed = _flipped(base[field], element, bit)
                if not torch.isfinite(changed).all() or (field.endswith("std") and (changed < 0).any()):
                    continue
                digest = BayesianNetwork((Linear(**(base | {field: changed})),)).digest()
                assert digest not in seen, (field, element, bit)
                seen.add(digest)
    assert len(seen) > 700


def test_digest_depends_on_structure_and_task_and_not_on_the_object() -> None:
    flat = torch.arange(4, dtype=torch.float64)
    column = Linear(flat.reshape(4, 1), flat.reshape(4, 1), flat, flat)
    row = Linear(flat.reshape(1, 4), flat.reshape(1, 4), flat[:1], flat[:1])
    networks = [
        BayesianNetwork((column,)),
        BayesianNetwork((row,)),
        BayesianNetwork((column,), "classification"),
        BayesianNetwork((column, Relu(), row)),
        BayesianNetwork((row, Relu(), column)),
    ]
    assert len({network.digest() for network in networks}) == len(networks)
    assert BayesianNetwork((linear(),)).digest() == BayesianNetwork((linear(),)).digest()
    strided = Linear(**(parts() | {"weight_mean": parts()["weight_mean"].T.contiguous().T}))
    assert BayesianNetwork((strided,)).digest() == BayesianNetwork((linear(),)).digest()


def test_digest_is_a_recorded_value() -> None:
    """A change of the digest breaks certificates already written; it must be made knowingly."""
    digest = BayesianNetwork((linear(),)).digest()
    assert digest == "688052b761c4a66605100846b0e193371128152363718a23867c499a9ec79dfd"


def test_the_digest_of_any_layers_sees_kinds_settings_shapes_and_values() -> None:
    def image(*layers: Any, shape: tuple[int, ...] = (1, 4, 4)) -> str:
        return BayesianNetwork(layers, input_shape=shape).digest()

    base = convolution()
    shifted = dataclasses.replace(base, bias_std=base.bias_std + 5e-324)
    factor = torch.ones(2, 4, 1)
    digests = [
        image(base, Flatten()),
        image(convolution(stride=2), Flatten()),
        image(convolution(padding=1), Flatten()),
        image(base, Flatten(), shape=(1, 4, 5)),
        image(base, Flatten(), shape=(1, 5, 4)),
        image(shifted, Flatten()),
        image(Dropout(0.1), base, Flatten()),
        image(Dropout(0.2), base, Flatten()),
        image(Dropout(0.2, channels=True), base, Flatten()),
        image(Dropout(0.2, "gaussian"), base, Flatten()),
        image(MaxPool(2), base, Flatten()),
        image(AveragePool(2), base, Flatten()),
        image(AveragePool(2, stride=1), base, Flatten()),
        *(
            BayesianNetwork((linear(), act, linear(1, 2))).digest()
            for act in (Relu(), Tanh(), LeakyRelu(0.1), LeakyRelu(0.2))
        ),
        *(BayesianNetwork((CorrelatedLinear(**parts(), factor=factor, shared=s),)).digest() for s in (True, False)),
        BayesianNetwork((linear(),)).digest(),
        BayesianNetwork((linear(), Flatten())).digest(),
    ]
    assert len(set(digests)) == len(digests)
    assert image(base, Flatten()) == digests[0]
