"""The contract of all records of layers: shapes, what makes them, and what they refuse."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from support.records import FIXED, IMAGE, RANDOM, activation, apply_once, conv, linear, matrix_normal, normal, uniform

from bnndp.activations import ACTIVATIONS
from bnndp.errors import CertError, InputError
from bnndp.layers import (
    LAYERS,
    AveragePool,
    Conv2d,
    CorrelatedLinear,
    Dropout,
    Flatten,
    Linear,
    MatrixNormalLinear,
    MaxPool,
)
from bnndp.layers.correlated import factor_of
from bnndp.network import KINDS

CASES = {f"random {name}": case for name, case in RANDOM.items()} | {f"fixed {name}": c for name, c in FIXED.items()}
CASES |= {kind: (activation(kind), (4,)) for kind in ACTIVATIONS}
case = pytest.mark.parametrize(("layer", "shape"), CASES.values(), ids=CASES)


def remade(layer: Any, **changes: object) -> Any:
    named = {name: getattr(layer, name) for name in (*layer.tensors, *layer.settings)}
    return type(layer)(**(named | changes))


def test_every_kind_has_a_case() -> None:
    others = {"residual", "concatenate"}  # blocks of records, with tests of their own
    assert {layer.kind for layer, _ in CASES.values()} | others == set(LAYERS) | set(ACTIVATIONS) == set(KINDS)
    assert not set(LAYERS) & set(ACTIVATIONS)


@case
def test_the_shape_is_that_of_the_outputs(layer: Any, shape: tuple[int, ...]) -> None:
    assert tuple(apply_once(layer, normal(3, *shape, seed=0)).shape) == (3, *layer.out_shape(shape))


@case
@pytest.mark.parametrize("make", [remade, lambda layer: layer.to("cpu")], ids=["made again", "moved"])
def test_tensors_and_settings_make_the_record_again(layer: Any, shape: tuple[int, ...], make: Any) -> None:
    again = make(layer)
    assert type(again) is type(layer)
    for name in layer.tensors:
        assert torch.equal(getattr(again, name), getattr(layer, name))
        assert getattr(again, name).dtype == torch.float64
    assert [getattr(again, name) for name in layer.settings] == [getattr(layer, name) for name in layer.settings]
    assert again.random == layer.random
    assert isinstance(layer.random, bool)


@case
def test_records_are_frozen(layer: Any, shape: tuple[int, ...]) -> None:
    with pytest.raises((dataclasses.FrozenInstanceError, TypeError, AttributeError)):
        layer.kind = "other"
    for name in (*layer.tensors, *layer.settings):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(layer, name, None)


def test_what_is_random() -> None:
    assert all(layer.random for layer, _ in RANDOM.values())
    assert not any(layer.random for layer, _ in FIXED.values())


WEIGHTED = {name: layer for name, (layer, _) in RANDOM.items() if layer.tensors}


@pytest.mark.parametrize("name", WEIGHTED)
def test_bad_values_are_refused_by_name_and_index(name: str) -> None:
    layer = WEIGHTED[name]
    for field in layer.tensors:
        for value in (math.nan, math.inf, -math.inf):
            changed = getattr(layer, field).contiguous().clone()
            changed.view(-1)[-1] = value
            with pytest.raises(InputError, match=rf"{field}\[.*\] is not finite"):
                remade(layer, **{field: changed})
        changed = getattr(layer, field).contiguous().clone()
        changed.view(-1)[-1] = -5e-324
        if field.endswith("std"):
            with pytest.raises(InputError, match=rf"{field}\[.*\] is negative: -5e-324"):
                remade(layer, **{field: changed})
        else:
            assert getattr(remade(layer, **{field: changed}), field).view(-1)[-1] == -5e-324
        with pytest.raises(InputError, match=f"{field} is complex"):
            remade(layer, **{field: changed.to(torch.complex128)})


@pytest.mark.parametrize("name", WEIGHTED)
def test_wrong_shapes_are_refused_even_if_they_broadcast(name: str) -> None:
    layer = WEIGHTED[name]
    for field in layer.tensors:
        tensor = getattr(layer, field)
        rank = field in ("row_factor", "column_factor", "factor")
        shapes = [(), (0,), (*tensor.shape, 1), tensor.shape[1:], (tensor.shape[0] + 1, *tensor.shape[1:])]
        shapes += [] if rank else [(1,) * tensor.ndim, (*tensor.shape[:-1], tensor.shape[-1] + 1)]
        for shape in shapes:
            with pytest.raises(InputError, match="must have shape"):
                remade(layer, **{field: torch.zeros(shape)})


BAD_SETTINGS: list[tuple[type[Any], dict[str, object], str]] = [
    (Dropout, {"rate": 1.0}, "rate"),
    (Dropout, {"rate": -0.1}, "rate"),
    (Dropout, {"rate": math.nan}, "rate"),
    (Dropout, {"rate": "0.1"}, "rate"),
    (Dropout, {"rate": True}, "rate"),
    (Dropout, {"rate": 0.1, "law": "uniform"}, "bernoulli, gaussian"),
    (Dropout, {"rate": 0.1, "channels": 1}, "channels"),
    (AveragePool, {"size": 0}, "size"),
    (AveragePool, {"size": 2.0}, "size"),
    (AveragePool, {"size": True}, "size"),
    (MaxPool, {"size": (2, 2, 2)}, "size"),
    (MaxPool, {"size": 2, "stride": 0}, "stride"),
    (MaxPool, {"size": 2, "stride": (1, -1)}, "stride"),
]


@pytest.mark.parametrize(("record", "settings", "word"), BAD_SETTINGS, ids=str)
def test_wrong_settings_are_refused(record: type[Any], settings: dict[str, object], word: str) -> None:
    with pytest.raises(InputError, match=word):
        record(**settings)


@pytest.mark.parametrize(
    "change", [{"stride": 0}, {"stride": (1, 2, 3)}, {"padding": -1}, {"padding": 0.5}, {"padding": "same"}], ids=str
)
def test_wrong_settings_of_a_convolution_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(InputError, match=next(iter(change))):
        remade(conv(2, 2, 0), **change)


@pytest.mark.parametrize("layer", [linear(2, 4, 0), matrix_normal(2, 4, 0), WEIGHTED["rows"]], ids=repr)
def test_dense_layers_say_what_they_take(layer: Any) -> None:
    with pytest.raises(InputError, match="takes 4 inputs, but the layer before gives 5"):
        layer.out_shape((5,))
    with pytest.raises(InputError, match=r"put a Flatten\(\) before it"):
        layer.out_shape((1, 2, 2))


def test_layers_of_images_say_what_they_take() -> None:
    refused: list[tuple[Any, tuple[int, ...], str]] = [
        (conv(3, 2, 0), (3, 5, 5), "2 channels"),
        (conv(3, 2, 0), (50,), "channels, height, width"),
        (conv(3, 2, 0), (2, 2, 9), "does not fit an image"),
        (MaxPool(3), (1, 2, 9), "does not fit an image"),
        (AveragePool(2), (4,), "pooling takes"),
        (Dropout(0.1, channels=True), (4,), "channels, height, width"),
    ]
    for layer, shape, words in refused:
        with pytest.raises(InputError, match=words):
            layer.out_shape(shape)
    assert conv(3, 2, 0, padding=1).out_shape((2, 1, 1)) == (3, 1, 1)
    assert Flatten().out_shape(IMAGE) == (60,)


# Covariances and their factors


def psd(n: int, rank: int, seed: int) -> torch.Tensor:
    factor = normal(n, rank, seed=seed)
    return factor @ factor.T


def test_a_factor_gives_the_covariance_back() -> None:
    for rank in (1, 3, 5, 9):
        covariance = torch.stack([psd(5, rank, seed) for seed in range(4)])
        factor = factor_of(covariance)
        torch.testing.assert_close(factor @ factor.mT, covariance, rtol=1e-12, atol=1e-12)
    assert not factor_of(torch.zeros(3, 3)).any()


@pytest.mark.parametrize(
    ("matrix", "word"),
    [
        (torch.tensor([[1.0, 2.0], [2.0, 1.0]]), "not positive semi-definite"),
        (-torch.eye(2), "not positive semi-definite"),
        (torch.tensor([[1.0, 0.5], [0.4, 1.0]]), "not symmetric"),
        (torch.tensor([[1.0, math.nan], [math.nan, 1.0]]), "not finite"),
        (torch.ones(2, 3), "square"),
        (torch.ones(2), "square"),
    ],
    ids=["indefinite", "negative", "not symmetric", "nan", "not square", "flat"],
)
def test_what_is_no_covariance_is_refused(matrix: torch.Tensor, word: str) -> None:
    with pytest.raises(InputError, match=word):
        factor_of(matrix)


def test_covariances_of_wrong_sizes_are_refused() -> None:
    mean, bias = normal(2, 3, seed=0), normal(2, seed=1)
    for make, covariance in (
        (CorrelatedLinear.whole, psd(6, 6, 0)),
        (CorrelatedLinear.whole, psd(4, 4, 0)),
        (CorrelatedLinear.rows, psd(3, 3, 0).expand(2, 3, 3)),
        (CorrelatedLinear.rows, psd(4, 4, 0)),
        (CorrelatedLinear.rows, psd(4, 4, 0).expand(3, 4, 4)),
    ):
        with pytest.raises(CertError):
            make(mean, bias, covariance)
    with pytest.raises(InputError, match="row_factor"):
        MatrixNormalLinear.of_covariances(mean, bias, psd(3, 3, 0), psd(4, 4, 0))
    with pytest.raises(InputError, match="column_factor"):
        MatrixNormalLinear.of_covariances(mean, bias, psd(2, 2, 0), psd(3, 3, 0))


def test_fixed_layers_have_no_variance_but_that_of_their_biases() -> None:
    weight, bias = normal(2, 3, seed=0), normal(2, seed=1)
    assert not Linear.fixed(weight, bias).random
    assert Linear.fixed(weight, bias, uniform(2, seed=2)).random
    assert not Linear.fixed(weight).bias_mean.any()
    assert not Conv2d.fixed(normal(2, 3, 2, 2, seed=0), bias, padding=1).random
    assert Conv2d.fixed(normal(2, 3, 2, 2, seed=0), bias, padding=1).padding == (1, 1)
