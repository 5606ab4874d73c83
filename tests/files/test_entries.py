"""Files of any layers and of ensembles: bit for bit there and back, and what is malformed refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from support.records import FIXED, RANDOM, activation, classifier, linear, networks, normal
from torch import Tensor

from bnndp.activations import ACTIVATIONS, Relu
from bnndp.attack.draws import draw_networks, evaluate
from bnndp.errors import ModelFileError
from bnndp.files.posterior import load, save, training_card
from bnndp.layers import Conv2d, Dropout, Flatten, Linear
from bnndp.layers.record import Record
from bnndp.network import BayesianNetwork, Ensemble

NETWORKS = networks()
LAYERS = {f"random {name}": case for name, case in RANDOM.items()} | {f"fixed {name}": c for name, c in FIXED.items()}
LAYERS |= {kind: (activation(kind), (4,)) for kind in ACTIVATIONS}


def around(layer: Any, shape: tuple[int, ...]) -> BayesianNetwork:
    """A network with this layer first and a dense one last."""
    size = int(torch.tensor(layer.out_shape(shape)).prod())
    return BayesianNetwork(
        (layer, Flatten(), linear(2, size, 5)), input_shape=shape, shift=normal(*_flat(shape), seed=1)
    )


def _flat(shape: tuple[int, ...]) -> tuple[int]:
    return (int(torch.tensor(shape).prod()),)


def same(a: BayesianNetwork, b: BayesianNetwork) -> None:
    """Every bit and every setting."""
    assert a.digest() == b.digest()
    assert (a.task, a.input_shape, len(a.layers)) == (b.task, b.input_shape, len(b.layers))
    for ours, theirs in zip(a.layers, b.layers, strict=True):
        assert type(ours) is type(theirs)
        for name in ours.tensors:
            assert getattr(ours, name).numpy().tobytes() == getattr(theirs, name).numpy().tobytes()
        for name in ours.settings:
            assert getattr(ours, name) == getattr(theirs, name)
            assert type(getattr(ours, name)) is type(getattr(theirs, name))


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_comes_back_bit_for_bit(name: str, tmp_path: Path) -> None:
    network = around(*LAYERS[name])
    save(network, tmp_path / "n")
    got = load(tmp_path / "n")
    assert isinstance(got, BayesianNetwork)
    same(got, network)
    assert got.shift is not None
    assert torch.equal(got.shift, network.shift)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_comes_back_and_does_the_same(name: str, tmp_path: Path) -> None:
    network = classifier(NETWORKS[name])
    save(network, tmp_path / "n", source="a test", card={"seed": 1})
    got = load(tmp_path / "n")
    assert got.digest() == network.digest()
    assert type(got) is type(network)
    if isinstance(network, Ensemble) and isinstance(got, Ensemble):
        assert torch.equal(got.probabilities, network.probabilities)
        for ours, theirs in zip(got.members, network.members, strict=True):
            same(ours, theirs)
    x = normal(2, network.n_in, seed=1)
    assert torch.equal(*(evaluate(draw_networks(one, 3, seed=1), x) for one in (got, network)))
    assert training_card(tmp_path / "n") == {"seed": 1}
    save(got, tmp_path / "again", source="a test", card={"seed": 1})
    assert (tmp_path / "again").read_bytes() == (tmp_path / "n").read_bytes()


def test_an_ensemble_that_holds_one_network_many_times(tmp_path: Path) -> None:
    member = BayesianNetwork((linear(2, 3, 1),))
    ensemble = Ensemble((member,) * 3, torch.tensor([0.1, 0.2, 0.7], dtype=torch.float64))
    save(ensemble, tmp_path / "n")
    assert load(tmp_path / "n").digest() == ensemble.digest()


def opened(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()["bnndp"])
        header.pop("sha256")  # what is changed below would not have it
        return header, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def written(path: Path, header: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, {"bnndp": json.dumps(header)})
    return path


def image() -> BayesianNetwork:
    layers: tuple[Record, ...] = (
        LAYERS["random conv"][0],
        Relu(),
        LAYERS["fixed average"][0],
        Dropout(0.25, channels=True),
        Flatten(),
        RANDOM["low rank"][0].to("cpu"),
        activation("leaky_relu"),
        linear(2, 3, 1),
    )
    layers = (*layers[:5], linear(4, 6, 7), *layers[5:])
    return BayesianNetwork(layers, "classification", input_shape=(2, 5, 6))


def test_what_is_written_is_the_documented_format(tmp_path: Path) -> None:
    save(image(), tmp_path / "n")
    header, tensors = opened(tmp_path / "n")
    slope = image().layers[7].negative_slope  # type: ignore[attr-defined]
    assert header == {
        "format": "bnndp-posterior-1",
        "task": "classification",
        "input_shape": [2, 5, 6],
        "layers": [
            {"type": "conv2d", "name": "layers.0", "stride": [1, 1], "padding": [0, 0]},
            {"type": "relu"},
            {"type": "average_pool", "size": [2, 2], "stride": [2, 2]},
            {"type": "dropout", "rate": 0.25, "law": "bernoulli", "channels": True},
            {"type": "flatten"},
            {"type": "linear", "name": "layers.1", "posterior": "mean_field"},
            {"type": "correlated_linear", "name": "layers.2", "shared": True},
            {"type": "leaky_relu", "negative_slope": slope},
            {"type": "linear", "name": "layers.3", "posterior": "mean_field"},
        ],
    }
    assert tensors["layers.2.factor"].shape == (3, 5, 2)
    assert len(tensors) == 4 + 4 + 5 + 4


def test_ensembles_are_written_member_by_member(tmp_path: Path) -> None:
    members = tuple(BayesianNetwork((linear(2, 3, k),), shift=normal(3, seed=k)) for k in range(2))
    save(Ensemble(members), tmp_path / "n")
    header, tensors = opened(tmp_path / "n")
    entry = {"type": "linear", "posterior": "mean_field"}
    assert header["members"] == [{"layers": [entry | {"name": f"members.{k}.layers.0"}]} for k in range(2)]
    assert "layers" not in header
    assert tensors["weights"].tolist() == [0.5, 0.5]
    assert torch.equal(tensors["members.1.input_shift"], members[1].shift)
    assert torch.equal(tensors["members.1.layers.0.weight_mean"], members[1].linears[0].weight_mean)


def test_deterministic_layers_may_leave_their_deviations_out(tmp_path: Path) -> None:
    header = {
        "format": "bnndp-posterior-1",
        "task": "regression",
        "input_shape": [3],
        "layers": [{"type": "linear", "name": "a", "posterior": "deterministic"}],
    }
    tensors = {"a.weight_mean": normal(2, 3, seed=1), "a.bias_mean": normal(2, seed=2).float()}
    network = load(written(tmp_path / "n", header, tensors))
    fixed = Linear.fixed(tensors["a.weight_mean"], tensors["a.bias_mean"])
    assert network.digest() == BayesianNetwork((fixed,)).digest()
    with pytest.raises(ModelFileError, match=r"no layer names: 'a\.bias_std'"):
        load(written(tmp_path / "n", header, tensors | {"a.bias_std": torch.zeros(2)}))


def test_two_linear_layers_in_a_row_are_a_network_that_is_not_plain(tmp_path: Path) -> None:
    network = BayesianNetwork((linear(4, 3, 1), linear(2, 4, 2)))
    save(network, tmp_path / "n")
    got = load(tmp_path / "n")
    assert got.digest() == network.digest()
    assert not got.plain


Change = Callable[[dict[str, Any], dict[str, Tensor]], object]


def _entry(index: int, **entries: object) -> Change:
    return lambda header, _: header["layers"][index].update(entries)


def _lacking(index: int, key: str) -> Change:
    return lambda header, _: header["layers"][index].pop(key)


def _tensor(name: str, value: Tensor) -> Change:
    return lambda _, tensors: tensors.update({name: value})


def _nan(name: str) -> Change:
    return lambda _, tensors: tensors[name].view(-1).__setitem__(0, torch.nan)


MALFORMED: dict[str, tuple[Change, str]] = {
    "unknown kind": (
        _entry(1, type="conv3d"),
        "known types: average_pool, concatenate, conv2d, correlated_linear, dropout, elu",
    ),
    "stride missing": (_lacking(0, "stride"), "layer 0 (conv2d) lacks the settings 'stride'"),
    "stride zero": (_entry(0, stride=[0, 1]), "stride must be"),
    "stride a text": (_entry(0, stride="1"), "stride must be"),
    "stride true": (_entry(0, stride=[True, True]), "stride must be"),
    "stride nested": (_entry(0, stride=[[1, 1], 1]), "stride must be"),
    "stride huge": (_entry(0, stride=[1e300, 1]), "stride must be"),
    "padding negative": (_entry(0, padding=[-1, 0]), "padding must be"),
    "padding that changes the sizes": (_entry(0, padding=[3, 3]), "takes 6 inputs"),
    "unknown setting": (_entry(0, groups=2), "layer 0 (conv2d) has unknown settings: 'groups'"),
    "posterior of a kernel": (_entry(0, posterior="mean_field"), "unknown settings: 'posterior'"),
    "posterior unknown": (_entry(5, posterior="laplace"), "'laplace'; known: mean_field, deterministic"),
    "posterior a list": (_entry(5, posterior=["mean_field"]), "known: mean_field, deterministic"),
    "name of a pooling": (_entry(2, name="layers.0"), "layer 2 (average_pool) has unknown settings: 'name'"),
    "pool of nothing": (_entry(2, size=None), "layer 2 (average_pool): size must be"),
    "pool too large": (_entry(2, size=[9, 9]), "layer 2 (average_pool)"),
    "rate one": (_entry(3, rate=1), "layer 3 (dropout): rate"),
    "rate not a number": (_entry(3, rate=float("nan")), "layer 3 (dropout): rate"),
    "rate a list": (_entry(3, rate=[0.1]), "layer 3 (dropout): rate"),
    "law unknown": (_entry(3, law="poisson"), "bernoulli, gaussian"),
    "law an object": (_entry(3, law={"a": 1}), "bernoulli, gaussian"),
    "channels a number": (_entry(3, channels=1), "channels must be true or false"),
    "shared a text": (_entry(6, shared="yes"), "shared must be true or false"),
    "slope a text": (_entry(7, negative_slope="steep"), "layer 7 (leaky_relu): negative_slope"),
    "slope null": (_entry(7, negative_slope=None), "layer 7 (leaky_relu): negative_slope"),
    "slope not a number": (_entry(7, negative_slope=float("nan")), "layer 7 (leaky_relu): negative_slope"),
    "slope infinite": (_entry(7, negative_slope=float("inf")), "layer 7 (leaky_relu): negative_slope"),
    "slope a list": (_entry(7, negative_slope=[0.1]), "layer 7 (leaky_relu): negative_slope"),
    "no flatten": (lambda header, _: header["layers"].pop(4), "Flatten"),
    "image for a vector": (lambda header, _: header.update(input_shape=[60]), "layer 0 (conv2d)"),
    "image of other sizes": (lambda header, _: header.update(input_shape=[2, 6, 6]), "takes 6 inputs"),
    "image of other channels": (lambda header, _: header.update(input_shape=[3, 5, 6]), "2 channels"),
    "image of nothing": (lambda header, _: header.update(input_shape=[]), "input_shape must be"),
    "image of halves": (lambda header, _: header.update(input_shape=[2, 5.5, 6]), "input_shape is"),
    "image true": (lambda header, _: header.update(input_shape=[True, 5, 6]), "input_shape is"),
    "kernel flat": (_tensor("layers.0.weight_mean", normal(3, 18, seed=1)), "layers.0: weight_mean must have shape"),
    "kernel not finite": (_nan("layers.0.weight_mean"), "layers.0: weight_mean[0, 0, 0, 0] is not finite"),
    "factor not finite": (_nan("layers.2.factor"), "layers.2: factor[0, 0, 0] is not finite"),
    "factor of another size": (_tensor("layers.2.factor", normal(3, 4, 2, seed=1)), "factor must have shape (3, 5, 2)"),
    "factor of integers": (_tensor("layers.2.factor", torch.ones(3, 5, 2, dtype=torch.int64)), "dtype torch.int64"),
    "factor missing": (lambda _, tensors: tensors.pop("layers.2.factor"), "lacks the tensors 'layers.2.factor'"),
    "surplus tensor": (_tensor("layers.9.factor", torch.ones(1)), "'layers.9.factor'"),
    "shift of another size": (_tensor("input_shift", torch.ones(4)), "shift must have shape (60,)"),
}


def refuse(path: Path, word: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        load(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    assert word in message


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_files_are_refused(name: str, tmp_path: Path) -> None:
    change, word = MALFORMED[name]
    save(image(), tmp_path / "n")
    header, tensors = opened(tmp_path / "n")
    assert load(written(tmp_path / "n", header, tensors)).digest() == image().digest()
    change(header, tensors)
    refuse(written(tmp_path / "n", header, tensors), word)


def _no_members(header: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    header["members"] = []
    tensors.clear()
    tensors["weights"] = torch.ones(0)


ENSEMBLES: dict[str, tuple[Change, str]] = {
    "weights missing": (lambda _, tensors: tensors.pop("weights"), "'weights', one number per member; there is none"),
    "weights of integers": (_tensor("weights", torch.tensor([1, 0])), "dtype torch.int64"),
    "weights too few": (_tensor("weights", torch.ones(1)), "weights must have shape (2,)"),
    "weights off": (_tensor("weights", torch.tensor([0.5, 0.6])), "weights must sum to 1"),
    "weights negative": (_tensor("weights", torch.tensor([1.5, -0.5])), "weights[1] is -0.5"),
    "weights not finite": (_tensor("weights", torch.tensor([torch.nan, 1.0])), "weights[0] is not finite"),
    "no members": (_no_members, "at least one member"),
    "members an object": (lambda header, _: header.update(members={}), "'members' must be a list"),
    "members null": (lambda header, _: header.update(members=None), "'members' must be a list"),
    "member a list": (lambda header, _: header["members"].__setitem__(0, []), "member 0 must be an object"),
    "member with settings": (lambda header, _: header["members"][1].update(task="regression"), "member 1 must be"),
    "member without layers": (lambda header, _: header["members"][1].clear(), "member 1 must be"),
    "unknown layer": (lambda header, _: header["members"][1]["layers"][1].update(type="x"), "member 1: layer 1 has"),
    "layers beside members": (lambda header, _: header.update(layers=[]), "both 'layers' and 'members'"),
    "surplus member": (_tensor("members.2.layers.0.bias_mean", torch.ones(1)), "'members.2.layers.0.bias_mean'"),
    "member of other outputs": (
        lambda _, tensors: tensors.update(
            {f"members.1.layers.1.{kind}": torch.ones(1, *tensors[f"members.1.layers.1.{kind}"].shape[1:])
             for kind in ("weight_mean", "weight_std", "bias_mean", "bias_std")}
        ),
        "member 1 has n_out 1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ENSEMBLES)
def test_malformed_ensembles_are_refused(name: str, tmp_path: Path) -> None:
    change, word = ENSEMBLES[name]
    members = tuple(BayesianNetwork((linear(4, 3, k), activation("tanh"), linear(2, 4, k))) for k in range(2))
    save(Ensemble(members), tmp_path / "n")
    header, tensors = opened(tmp_path / "n")
    change(header, tensors)
    refuse(written(tmp_path / "n", header, tensors), word)


def test_a_convolution_of_the_size_of_cifar_is_small(tmp_path: Path) -> None:
    network = BayesianNetwork(
        (
            Conv2d.fixed(normal(8, 3, 3, 3, seed=1), padding=1),
            Relu(),
            Flatten(),
            Linear.fixed(normal(2, 8 * 1024, seed=1)),
        ),
        input_shape=(3, 32, 32),
    )
    save(network, tmp_path / "n")
    assert (tmp_path / "n").stat().st_size < 300_000
    assert load(tmp_path / "n").digest() == network.digest()
