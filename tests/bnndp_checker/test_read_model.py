"""Model files: what bnndp writes is read alike, and whatever is unknown, missing, surplus or odd is refused."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.handmade import Table, container, header, linear, tensors, write_model

from bnndp.activations import Elu, LeakyRelu, PiecewiseAffine, Relu, Tanh
from bnndp.errors import ModelFileError
from bnndp.files.entries import read_chain
from bnndp.files.posterior import load, save
from bnndp.layers import (
    AveragePool,
    Concatenate,
    Conv2d,
    CorrelatedLinear,
    Dropout,
    Flatten,
    Linear,
    MatrixNormalLinear,
    MaxPool,
    Residual,
)
from bnndp.network import BayesianNetwork, Ensemble

pytest.importorskip("flint", reason="the checker needs python-flint")
from bnndp_checker.read_model import Layer, read_model
from bnndp_checker.strict_json import Unreadable

ONE: Table = tensors("a", [[1.0, 2.0]], [[0.5, 0.25]], [3.0], [0.125])
TWO: Table = ONE | tensors("b", [[1.0]], [[0.0]], [0.0], [0.0])
CONV = {"type": "conv2d", "name": "c", "stride": [1, 1], "padding": [0, 0]}
CONVOLVED: Table = {
    "c.weight_mean": ([1, 1, 1, 2], [1.0, 2.0]), "c.weight_std": ([1, 1, 1, 2], [0.0, 0.0]),
    "c.bias_mean": ([1], [0.0]), "c.bias_std": ([1], [0.0]),
}  # fmt: skip
USER = {"type": "piecewise_affine", "name": "u", "lipschitz": 1.0, "inner_error": 0.0, "curvature": None}
KNOTTED: Table = TWO | {"u.knots": ([2], [0.0, 1.0]), "u.values": ([2], [0.0, 1.0])}
POOL = {"type": "max_pool", "size": [1, 2], "stride": [1, 1]}
DROP = {"type": "dropout", "rate": 0.5, "law": "bernoulli", "channels": False}


def _read(path: Path, entry: dict[str, Any], table: Table, dtype: str = "F64") -> Any:
    return read_model(write_model(path / "model", entry, table, dtype))


def _entry(*layers: dict[str, Any], shape: tuple[int, ...] = (2,), **more: Any) -> dict[str, Any]:
    return header(layers, shape) | more


def test_a_plain_file(tmp_path: Path) -> None:
    found = _read(tmp_path, _entry(linear("a"), source="here", training={"steps": 1}, origin={}, sha256="x"), ONE)
    assert found.weights == (1.0,)
    ((layers, shift),) = found.members
    assert shift is None
    assert layers[0].tensors["weight_std"].values == (0.5, 0.25)
    assert layers[0].tensors["weight_std"].shape == (1, 2)


@pytest.mark.parametrize("dtype", ["F64", "F32", "F16", "BF16"])
def test_all_widths_are_read_exactly(dtype: str, tmp_path: Path) -> None:
    table = tensors("a", [[-1.5, 2.0**-14]], [[0.5, 2.0**-20 if dtype != "F16" else 2.0**-24]], [-3.0], [0.125])
    found = _read(tmp_path, _entry(linear("a")), table, dtype).members[0][0][0].tensors
    assert {f"a.{name}": (list(t.shape), list(t.values)) for name, t in found.items()} == table


def test_a_deterministic_layer_has_no_deviations_in_the_file(tmp_path: Path) -> None:
    table = {name: value for name, value in ONE.items() if not name.endswith("_std")}
    layer = _read(tmp_path, _entry(linear("a", posterior="deterministic")), table).members[0][0][0]
    assert layer.tensors["weight_std"].values == (0.0, 0.0)
    assert layer.tensors["bias_std"].values == (0.0,)
    with pytest.raises(Unreadable, match="no layer names"):
        _read(tmp_path, _entry(linear("a", posterior="deterministic")), ONE)


def _draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def _networks() -> dict[str, Any]:
    conv = Conv2d(_draw(2, 1, 2, 2), _draw(2, 1, 2, 2).abs(), _draw(2), _draw(2).abs(), (1, 2), (1, 0))
    last = Linear(_draw(2, 4), _draw(2, 4).abs(), _draw(2), _draw(2).abs())
    factor = CorrelatedLinear(_draw(4, 3), _draw(4, 3).abs(), _draw(4), _draw(4).abs(), _draw(4, 4, 2), True)
    kronecker = MatrixNormalLinear(_draw(4, 4), _draw(4), _draw(4, 2), _draw(5, 3))
    user = PiecewiseAffine.of(torch.sin, 1.0, reach=6.0, pieces=12)
    dense = BayesianNetwork(
        (factor, LeakyRelu(-0.5), Residual((kronecker, Elu(2.0), Dropout(0.25, "gaussian"))), user, last),
        shift=_draw(3),
    )
    pooled = (MaxPool((2, 1), (1, 1)), AveragePool((2, 2), 1), Flatten())
    image = BayesianNetwork(
        (conv, Tanh(), Dropout(0.5, "bernoulli", True), *pooled, last), "classification", input_shape=(1, 3, 4)
    )
    wide = Linear(_draw(2, 16), _draw(2, 16).abs(), _draw(2), _draw(2).abs())
    flat = BayesianNetwork((conv, Relu(), Flatten(), wide), "classification", input_shape=(1, 3, 4))
    return {
        "dense": dense,
        "image": image,
        "blocks": BayesianNetwork(
            (
                Residual((factor, Tanh()), (factor,)),
                Concatenate(((last, Relu()), (), (Tanh(),))),
                Linear.fixed(_draw(1, 10)),
            ),
            input_shape=(3,),
        ),
        "ensemble": Ensemble((image, flat), torch.tensor([0.3, 0.7], dtype=torch.float64)),
    }


def _same(found: Layer, record: Any) -> None:
    assert found.kind == record.kind
    assert {
        name: list(v) if isinstance(v, tuple) else v for name in record.settings for v in [getattr(record, name)]
    } == found.settings
    for name in record.tensors:
        tensor = getattr(record, name)
        assert found.tensors[name].shape == tuple(tensor.shape)
        assert list(found.tensors[name].values) == tensor.flatten().tolist()
    for branch, own in zip(found.branches, getattr(record, "branches", ()), strict=True):
        for inner, each in zip(branch, own, strict=True):
            _same(inner, each)


@pytest.mark.parametrize("name", ["dense", "image", "blocks", "ensemble"])
def test_what_bnndp_writes_is_read_alike(name: str, tmp_path: Path) -> None:
    network = _networks()[name]
    save(network, tmp_path / "model")
    found = read_model(tmp_path / "model")
    members = network.members if isinstance(network, Ensemble) else (network,)
    assert found.task == network.task
    assert found.input_shape == members[0].input_shape
    assert list(found.weights) == (network.probabilities.tolist() if isinstance(network, Ensemble) else [1.0])
    for (layers, shift), member in zip(found.members, members, strict=True):
        assert (None if shift is None else list(shift.values)) == (
            None if member.shift is None else member.shift.tolist()
        )
        for layer, record in zip(layers, member.layers, strict=True):
            _same(layer, record)


LINEAR = linear("a")
REFUSED: dict[str, tuple[dict[str, Any], Table]] = {
    "format": (_entry(LINEAR, format="bnndp-posterior-2"), ONE),
    "task": (_entry(LINEAR, task="ranking"), ONE),
    "surplus key": (_entry(LINEAR, noise=1), ONE),
    "layers and members": (_entry(LINEAR, members=[]), ONE),
    "no layers": (_entry(), {}),
    "shape of a float": (_entry(LINEAR, input_shape=[2.0]), ONE),
    "shape of a flag": (_entry(LINEAR, input_shape=[True]), tensors("a", [[1.0]], [[0.0]], [0.0], [0.0])),
    "shape of nothing": (_entry(LINEAR, input_shape=[]), ONE),
    "shape that does not fit": (_entry(LINEAR, input_shape=[3]), ONE),
    "shape of an image": (_entry(LINEAR, input_shape=[1, 1, 2]), ONE),
    "no format": ({"task": "regression", "input_shape": [2], "layers": [LINEAR]}, ONE),
    "surplus tensor": (_entry(LINEAR), ONE | {"a.factor": ([1], [0.0])}),
    "missing tensor": (_entry(LINEAR), {name: value for name, value in ONE.items() if name != "a.bias_std"}),
    "a layer twice": (_entry(LINEAR, LINEAR), ONE),
    "negative deviation": (_entry(LINEAR), ONE | {"a.weight_std": ([1, 2], [0.5, -0.25])}),
    "infinite": (_entry(LINEAR), ONE | {"a.bias_mean": ([1], [float("inf")])}),
    "not a number": (_entry(LINEAR), ONE | {"a.bias_mean": ([1], [float("nan")])}),
    "bias of two": (_entry(LINEAR), ONE | {"a.bias_mean": ([2], [1.0, 2.0])}),
    "deviations turned": (_entry(LINEAR), ONE | {"a.weight_std": ([2, 1], [0.5, 0.25])}),
    "weights in three axes": (_entry(LINEAR), ONE | {"a.weight_mean": ([1, 2, 1], [1.0, 2.0])}),
    "negative sizes": (_entry(LINEAR), ONE | {"a.weight_mean": ([-1, -2], [1.0, 2.0])}),
    "no outputs": (_entry(LINEAR), ONE | {"a.weight_mean": ([0, 2], [])}),
    "unknown posterior": (_entry(linear("a", posterior="laplace")), ONE),
    "no posterior": (_entry({"type": "linear", "name": "a"}), ONE),
    "surplus setting": (_entry(linear("a", dilation=2)), ONE),
    "surplus setting of an activation": (_entry(LINEAR, {"type": "relu", "slope": 0.1}, linear("b")), TWO),
    "unknown layer": (_entry(LINEAR, {"type": "softmax"}, linear("b")), TWO),
    "no type": (_entry({"name": "a", "posterior": "mean_field"}), ONE),
    "ends in an activation": (_entry(LINEAR, {"type": "relu"}), ONE),
    "ends in two of them": (_entry(LINEAR, {"type": "relu"}, linear("b"), {"type": "relu"}), TWO),
    "ends in an image": (_entry(CONV, shape=(1, 1, 3)), CONVOLVED),
    "ends in pooling": (_entry(CONV, POOL, {"type": "flatten"}, shape=(1, 1, 4)), CONVOLVED),
    "does not fit": (_entry(LINEAR, LINEAR | {"name": "b"}), ONE | {k.replace("a.", "b."): v for k, v in ONE.items()}),
    "stride of zero": (_entry(CONV | {"stride": [0, 1]}, {"type": "flatten"}, shape=(1, 1, 3)), CONVOLVED),
    "stride of flags": (_entry(CONV | {"stride": [True, True]}, {"type": "flatten"}, shape=(1, 1, 3)), CONVOLVED),
    "negative padding": (_entry(CONV | {"padding": [0, -1]}, {"type": "flatten"}, shape=(1, 1, 6)), CONVOLVED),
    "window too wide": (_entry(CONV, {"type": "flatten"}, shape=(1, 1, 1)), CONVOLVED),
    "channels": (_entry(CONV, {"type": "flatten"}, shape=(2, 1, 3)), CONVOLVED),
    "convolution of a vector": (_entry(CONV, {"type": "flatten"}, shape=(3,)), CONVOLVED),
    "rate of one": (_entry(DROP | {"rate": 1}, LINEAR), ONE),
    "rate of none": (_entry(DROP | {"rate": None}, LINEAR), ONE),
    "rate in words": (_entry(DROP | {"rate": "0.5"}, LINEAR), ONE),
    "rate below zero": (_entry(DROP | {"rate": -0.5}, LINEAR), ONE),
    "rate a flag": (_entry(DROP | {"rate": False}, LINEAR), ONE),
    "law": (_entry(DROP | {"law": "poisson"}, LINEAR), ONE),
    "channels of a vector": (_entry(DROP | {"channels": True}, LINEAR), ONE),
    "channels in words": (_entry(DROP | {"channels": "no"}, LINEAR), ONE),
    "negative alpha": (_entry(LINEAR, {"type": "elu", "alpha": -1.0}, linear("b")), TWO),
    "infinite slope": (_entry(LINEAR, {"type": "leaky_relu", "negative_slope": float("inf")}, linear("b")), TWO),
    "knots that fall": (_entry(LINEAR, USER, linear("b")), KNOTTED | {"u.knots": ([2], [1.0, 0.0])}),
    "knots that meet": (_entry(LINEAR, USER, linear("b")), KNOTTED | {"u.knots": ([2], [1.0, 1.0])}),
    "one knot": (_entry(LINEAR, USER, linear("b")), KNOTTED | {"u.knots": ([1], [1.0]), "u.values": ([1], [1.0])}),
    "values for knots": (_entry(LINEAR, USER, linear("b")), KNOTTED | {"u.values": ([3], [1.0, 2.0, 3.0])}),
    "negative error": (_entry(LINEAR, USER | {"inner_error": -1.0}, linear("b")), KNOTTED),
    "residual without layers": (_entry({"type": "residual", "layers": []}, LINEAR), ONE),
    "residual that changes the shape": (_entry({"type": "residual", "layers": [LINEAR]}, linear("b")), TWO),
    "residual with a shortcut of another shape": (
        _entry({"type": "residual", "layers": [{"type": "relu"}], "shortcut": [LINEAR]}, linear("b")), TWO),
    "residual with branches": (_entry({"type": "residual", "layers": [{"type": "relu"}], "branches": []}, LINEAR), ONE),
    "a shortcut that is no list": (
        _entry({"type": "residual", "layers": [{"type": "relu"}], "shortcut": {"type": "relu"}}, LINEAR), ONE),
    "no branches": (_entry({"type": "concatenate", "branches": []}, LINEAR), ONE),
    "branches that are no lists": (_entry({"type": "concatenate", "branches": [{"type": "relu"}]}, LINEAR), ONE),
    "branches side by side that do not fit": (_entry({"type": "concatenate", "branches": [[], []]}, LINEAR), ONE),
    "residual with a name": (_entry({"type": "residual", "layers": [{"type": "relu"}], "name": "r"}, LINEAR), ONE),
    "shift of one": (_entry(LINEAR), ONE | {"input_shift": ([1], [0.0])}),
    "shift of a matrix": (_entry(LINEAR), ONE | {"input_shift": ([1, 2], [0.0, 0.0])}),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, tmp_path: Path) -> None:
    """By the checker, and by bnndp too: a file that one of them reads is the same network for both."""
    entry, table = REFUSED[name]
    path = write_model(tmp_path / "model", entry, table)
    with pytest.raises((Unreadable, KeyError)):
        read_model(path)
    if name not in ("no outputs",) and "sha256" not in entry:
        with pytest.raises(ModelFileError):
            load(path)


def _ensemble(**more: Any) -> dict[str, Any]:
    entry = _entry(members=[{"layers": [LINEAR]}, {"layers": [linear("b")]}]) | more
    del entry["layers"]
    return entry


PAIR: Table = ONE | {name.replace("a.", "b."): value for name, value in ONE.items()}
WEIGHTS: Table = {"weights": ([2], [0.5, 0.5])}


def test_an_ensemble(tmp_path: Path) -> None:
    shifts: Table = {"members.1.input_shift": ([2], [1.0, 2.0])}
    found = _read(tmp_path, _ensemble(), PAIR | WEIGHTS | shifts)
    assert found.weights == (0.5, 0.5)
    assert [shift and shift.values for _, shift in found.members] == [None, (1.0, 2.0)]


@pytest.mark.parametrize(
    ("entry", "table"),
    [
        (_ensemble(), PAIR),
        (_ensemble(), PAIR | {"weights": ([1], [1.0])}),
        (_ensemble(), PAIR | {"weights": ([1, 2], [0.5, 0.5])}),
        (_ensemble(), PAIR | {"weights": ([2], [1.5, -0.5])}),
        (_ensemble(), PAIR | WEIGHTS | {"input_shift": ([2], [0.0, 0.0])}),
        (_ensemble(), PAIR | WEIGHTS | {"members.2.input_shift": ([2], [0.0, 0.0])}),
        (_ensemble(members=[]), {"weights": ([1], [1.0])}),
        (_ensemble(members=[{"layers": [LINEAR], "weight": 1}]), ONE | {"weights": ([1], [1.0])}),
    ],
)
def test_ensembles_that_are_refused(entry: dict[str, Any], table: Table, tmp_path: Path) -> None:
    with pytest.raises((Unreadable, KeyError)):
        _read(tmp_path, entry, table)


def _table(*spans: tuple[int, int], dtype: str = "F64") -> dict[str, Any]:
    names = ("a.weight_mean", "a.weight_std", "a.bias_mean", "a.bias_std")
    shapes = ([1, 2], [1, 2], [1], [1])
    return {
        name: {"dtype": dtype, "shape": shape, "data_offsets": list(span)}
        for name, shape, span in zip(names, shapes, spans, strict=True)
    }


TEXT = json.dumps(_entry(LINEAR))
BODY = struct.pack("<6d", *[0.5] * 6)
WHOLE = _table((0, 16), (16, 32), (32, 40), (40, 48))


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\0" * 7, struct.pack("<Q", 10**9) + b"{}", struct.pack("<Q", 2) + b"{}", struct.pack("<Q", 2) + b"[]",
        container(WHOLE, BODY[:-8], TEXT),
        container(WHOLE, BODY + b"\0", TEXT),
        container(WHOLE, BODY, None),
        container(WHOLE, BODY, json.loads(TEXT)),
        container(WHOLE, BODY, "[]"),
        container(WHOLE, BODY, TEXT.replace('"task"', '"format": "bnndp-posterior-1", "task"')),
        container(_table((0, 16), (0, 16), (32, 40), (40, 48)), BODY, TEXT),
        container(_table((8, 24), (24, 40), (40, 48), (48, 56)), b"\0" * 8 + BODY, TEXT),
        container(_table((0, 16), (16, 32), (32, 40), (32, 40)), BODY[:-8], TEXT),
        container(_table((0, 16), (16, 32), (32, 40), (40, 40)), BODY, TEXT),
        container(_table((0, 16), (16, 32), (40, 32), (40, 48)), BODY, TEXT),
        container(_table((0, 16), (16, 32), (32, 40), (40.0, 48)), BODY, TEXT),
        container(_table((0, 16), (16, 32), (32, 40), (40, 48), dtype="I64"), BODY, TEXT),
        container(WHOLE | {"x": {"dtype": "F64", "shape": [0], "data_offsets": [48, 48]}}, BODY, TEXT),
        container({**WHOLE, "a.bias_std": WHOLE["a.bias_std"] | {"offset": 1}}, BODY, TEXT),
        container(WHOLE, BODY, TEXT).replace(b'"F64"', b'"f64"'),
    ],
)  # fmt: skip
def test_containers_that_are_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(container(WHOLE, BODY, TEXT))
    assert read_model(tmp_path / "model").input_shape == (2,)
    (tmp_path / "model").write_bytes(data)
    with pytest.raises((Unreadable, KeyError, AttributeError, ValueError, TypeError)):
        read_model(tmp_path / "model")


def test_the_cases_hold_no_stray_fault() -> None:
    """Each refused entry differs from one that both read: the plain ones are read by bnndp's own reader as well."""
    table: Callable[[Table], dict[str, torch.Tensor]] = lambda given: {  # noqa: E731
        name: torch.tensor(values, dtype=torch.float64).reshape(shape) for name, (shape, values) in given.items()
    }
    for layers, given, shape in (
        ([LINEAR], ONE, [2]),
        ([LINEAR, {"type": "relu"}, linear("b")], TWO, [2]),
        ([LINEAR, USER, linear("b")], KNOTTED, [2]),
        ([CONV, {"type": "flatten"}], CONVOLVED, [1, 1, 3]),
        ([DROP, LINEAR], ONE, [2]),
    ):
        assert read_chain(layers, table(given), "regression", shape).n_in == 2 + (len(shape) > 1)
