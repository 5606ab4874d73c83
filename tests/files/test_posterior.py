"""Posterior files: bit for bit there and back, and one error class for everything that is not such a file."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import pickle
import stat
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from support.networks import make_network

from bnndp.activations import Relu
from bnndp.errors import InputError, ModelFileError
from bnndp.files import posterior as files
from bnndp.files.posterior import load, read_model, save
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork

META = "__metadata__"


class Raw:
    """A posterior file taken apart: the header of the container, our own header inside it, the bytes of the tensors.

    It is put together again without a digest, as others write such files; else every change would be refused by that.
    """

    def __init__(self, path: Path) -> None:
        content = path.read_bytes()
        (length,) = struct.unpack("<Q", content[:8])
        self.container: dict[str, Any] = json.loads(content[8 : 8 + length])
        self.header: Any = json.loads(self.container[META]["bnndp"])
        self.header.pop("sha256", None)
        self.data = content[8 + length :]

    def write(self, path: Path) -> Path:
        container = copy.deepcopy(self.container)
        if isinstance(container.get(META), dict) and "bnndp" in container[META] and self.header is not None:
            container[META]["bnndp"] = json.dumps(self.header)
        head = json.dumps(container).encode()
        path.write_bytes(struct.pack("<Q", len(head)) + head + self.data)
        return path

    def set_value(self, name: str, index: int, value: float) -> None:
        start = self.container[name]["data_offsets"][0] + 8 * index
        self.data = self.data[:start] + struct.pack("<d", value) + self.data[start + 8 :]

    def replace_tensor(self, name: str, array: np.ndarray[Any, Any], dtype: str) -> None:
        """Put another array at the end of the data and let ``name`` mean it (old bytes are cut out)."""
        start, stop = self.container.get(name, {}).get("data_offsets", [0, 0])
        self.data = self.data[:start] + self.data[stop:] + array.tobytes()
        for key, entry in self.container.items():
            if key != META and entry["data_offsets"][0] >= stop:
                entry["data_offsets"] = [at - (stop - start) for at in entry["data_offsets"]]
        end = len(self.data)
        entry = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [end - array.nbytes, end]}
        self.container[name] = entry


@pytest.fixture
def network() -> BayesianNetwork:
    return make_network((3, 4, 2), 11)


@pytest.fixture
def path(network: BayesianNetwork, tmp_path: Path) -> Path:
    target = tmp_path / "good.safetensors"
    save(network, target, source="a test")
    return target


def refuse(path: Path, *words: str) -> str:
    """Loading fails within two seconds, with one line that names the file and the cause."""
    start = time.perf_counter()
    with pytest.raises(ModelFileError) as caught:
        load(path)
    message = str(caught.value)
    assert time.perf_counter() - start < 2
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    for word in words:
        assert word in message
    return message


# There and back


def test_round_trip_of_values_that_are_hard_to_write(tmp_path: Path) -> None:
    hard = torch.tensor(
        [5e-324, -5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, -0.0, 0.1], dtype=torch.float64
    )
    network = BayesianNetwork((Linear(hard[None], hard[None].abs(), torch.tensor([0.1]), torch.tensor([0.0])),))
    save(network, tmp_path / "n")
    got = load(tmp_path / "n").linears[0].weight_mean
    assert got.numpy().tobytes() == hard.numpy().tobytes()


def test_the_same_layer_twice_and_strided_tensors_can_be_saved(tmp_path: Path) -> None:
    square = torch.arange(4, dtype=torch.float64).reshape(2, 2)
    layer = Linear(square.T, square, torch.zeros(2), torch.zeros(2))
    network = BayesianNetwork((layer, Relu(), layer))
    save(network, tmp_path / "n")
    assert load(tmp_path / "n").digest() == network.digest()


def test_a_training_card_is_kept_and_changes_nothing_else(network: BayesianNetwork, path: Path, tmp_path: Path) -> None:
    card = {"data": "sine", "seed": 3, "rmse": 0.1, "held_out": None, "options": {"hidden": (4,)}}
    save(network, tmp_path / "n", card=card)
    assert load(tmp_path / "n").digest() == network.digest()
    assert files.training_card(tmp_path / "n") == {**card, "options": {"hidden": [4]}}
    assert files.training_card(path) is None


@pytest.mark.parametrize("wrong", [{"x": torch.ones(1)}, {"x": float("nan")}, {"x": {1, 2}}], ids=str)
def test_a_training_card_that_json_cannot_hold_is_refused(
    network: BayesianNetwork, tmp_path: Path, wrong: dict[str, Any]
) -> None:
    with pytest.raises(InputError, match="card cannot be written as JSON"):
        save(network, tmp_path / "n", card=wrong)
    assert list(tmp_path.iterdir()) == []


def test_what_is_written_is_the_documented_format(path: Path, network: BayesianNetwork) -> None:
    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()["bnndp"])
        names = sorted(file.keys())
        mean = file.get_tensor("layers.1.weight_mean")
    assert header == {
        "format": "bnndp-posterior-1",
        "sha256": documented_digest(path),
        "task": "regression",
        "input_shape": [3],
        "layers": [
            {"type": "linear", "name": "layers.0", "posterior": "mean_field"},
            {"type": "relu"},
            {"type": "linear", "name": "layers.1", "posterior": "mean_field"},
        ],
        "source": "a test",
    }
    assert names == sorted(
        f"layers.{k}.{part}_{kind}" for k in (0, 1) for part in ("weight", "bias") for kind in ("mean", "std")
    )
    assert torch.equal(mean, network.linears[1].weight_mean)


def documented_digest(path: Path) -> str:
    """The digest as docs/format.md describes it, from the bytes of the file alone."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    container, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    metadata = container.pop(META)
    sealed = json.loads(metadata["bnndp"])["sha256"]
    metadata["bnndp"] = metadata["bnndp"].replace(sealed, 64 * "0", 1)
    table = [[name, entry["dtype"], entry["shape"]] for name, entry in sorted(container.items())]
    text = json.dumps([metadata, table], sort_keys=True, separators=(",", ":"))
    spans = [entry["data_offsets"] for _, entry in sorted(container.items())]
    return hashlib.sha256(text.encode() + b"".join(data[start:stop] for start, stop in spans)).hexdigest()


def test_a_file_says_whether_it_is_sealed(path: Path, network: BayesianNetwork, tmp_path: Path) -> None:
    save(network, tmp_path / "n", source="words", card={"a": 1}, origin={"file": "x.pt"})
    found = read_model(tmp_path / "n")
    assert (found.source, found.card, found.origin) == ("words", {"a": 1}, {"file": "x.pt"})
    assert found.sha256 == documented_digest(tmp_path / "n")
    bare = read_model(Raw(path).write(path))
    assert (bare.sha256, bare.card, bare.origin, bare.source) == (None, None, None, "a test")
    assert bare.posterior.digest() == network.digest()


def test_a_digest_does_not_depend_on_the_order_of_the_tensors(path: Path, network: BayesianNetwork) -> None:
    with safe_open(path, framework="pt") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(dict(reversed(tensors.items())), path, metadata)
    assert read_model(path).sha256 == json.loads(metadata["bnndp"])["sha256"]


@pytest.mark.parametrize("wrong", [64 * "0", 64 * "A", 63 * "a", None, 5, ["a"], 64 * "\u0661"], ids=str)
def test_a_wrong_digest_is_refused(path: Path, wrong: object) -> None:
    raw = Raw(path)
    raw.header["sha256"] = wrong
    refuse(raw.write(path), "SHA-256" if wrong == 64 * "0" else "'sha256' must be")


@pytest.mark.parametrize("dtype", ["F16", "F32", "F64"])
def test_every_float_type_is_read_exactly(path: Path, dtype: str) -> None:
    raw = Raw(path)
    values = np.linspace(-1, 1, 12).reshape(4, 3).astype({"F16": "<f2", "F32": "<f4", "F64": "<f8"}[dtype])
    raw.replace_tensor("layers.0.weight_mean", values, dtype)
    got = load(raw.write(path)).linears[0].weight_mean
    assert got.dtype == torch.float64
    assert np.array_equal(got.numpy(), values.astype("<f8"))


def test_the_shared_posteriors_can_be_read(posteriors: Path) -> None:
    sine = load(posteriors / "sine1d_1x256.safetensors")
    assert (sine.sizes, sine.task) == ((1, 256, 1), "regression")
    mnist = load(posteriors / "mnist_2x64_vogn.safetensors")
    assert (mnist.sizes, mnist.task) == ((784, 64, 64, 10), "classification")


# Malformed files: each entry changes a good file, and says what the message must name

Change = Callable[[Raw], object]


def _header(**entries: object) -> Change:
    return lambda raw: raw.header.update(entries)


def _without(key: str) -> Change:
    return lambda raw: raw.header.pop(key)


def _layer(index: int, **entries: object) -> Change:
    return lambda raw: raw.header["layers"][index].update(entries)


def _array(name: str, array: object, dtype: str = "F64") -> Change:
    return lambda raw: raw.replace_tensor(name, np.array(array), dtype)


def _value(name: str, index: int, value: float) -> Change:
    return lambda raw: raw.set_value(name, index, value)


def _container(name: str, **entries: object) -> Change:
    return lambda raw: raw.container[name].update(entries)


def _whole_header(value: object) -> Change:
    def change(raw: Raw) -> None:
        raw.header = None
        raw.container[META] = {"bnndp": value if isinstance(value, str) else json.dumps(value)}

    return change


def _nothing(raw: Raw) -> None:
    raw.container, raw.data = {META: raw.container[META]}, b""
    raw.header["layers"] = []


def _misfit(raw: Raw) -> None:
    for kind in ("mean", "std"):
        raw.replace_tensor(f"layers.1.weight_{kind}", np.zeros((2, 5)), "F64")


W, S = "layers.0.weight_mean", "layers.0.weight_std"

MALFORMED: dict[str, tuple[Change, str]] = {
    "other format": (_header(format="bnndp-posterior-2"), "bnndp-posterior-2"),
    "format missing": (_without("format"), "format is None"),
    "format a number": (_header(format=1), "format is 1"),
    "format a list": (_header(format=["bnndp-posterior-1"]), "format is ["),
    "unknown task": (_header(task="ranking"), "ranking"),
    "task missing": (_without("task"), "task is None"),
    "task a list": (_header(task=["regression"]), "task is ["),
    "task an object": (_header(task={"a": 1}), "task is {"),
    "unknown setting": (_header(preprocessing="normalise"), "preprocessing"),
    "setting with line breaks": (_header(**{"a\nb": 1}), "a\\nb"),
    "training card a list": (_header(training=[1]), "'training' must be an object"),
    "no layers": (_header(layers=[]), "has no layers"),
    "layers missing": (_without("layers"), "'layers' must be a list"),
    "layers an object": (_header(layers={"0": {"type": "relu"}}), "'layers' must be a list"),
    "layer a string": (lambda raw: raw.header["layers"].__setitem__(1, "relu"), "layer 1"),
    "layer null": (lambda raw: raw.header["layers"].__setitem__(0, None), "layer 0"),
    "unknown layer": (
        _layer(1, type="mish"),
        "'mish'; known types: average_pool, concatenate, conv2d, correlated_linear, ",
    ),
    "layer type missing": (lambda raw: raw.header["layers"][1].pop("type"), "layer 1 has type None"),
    "layer type a list": (_layer(0, type=["linear"]), "layer 0 has type ["),
    "layer type an object": (_layer(0, type={}), "layer 0 has type {"),
    "unknown posterior kind": (_layer(0, posterior="row_covariance"), "row_covariance"),
    "posterior kind missing": (lambda raw: raw.header["layers"][0].pop("posterior"), "posterior None"),
    "unknown setting of a layer": (_layer(0, bias=False), "'bias'"),
    "unknown setting of a ReLU": (_layer(1, slope=0.1), "'slope'"),
    "name missing": (lambda raw: raw.header["layers"][0].pop("name"), "lacks the tensors"),
    "name a list": (_layer(0, name=["layers.0"]), "lacks the tensors"),
    "name unknown": (_layer(0, name="layers.7"), "layers.7.weight_mean"),
    "one name twice": (_layer(2, name="layers.0"), "lacks the tensors"),
    "ends in a ReLU": (lambda raw: raw.header["layers"].append({"type": "relu"}), "ends in relu"),
    "members beside layers": (_header(members=[]), "both 'layers' and 'members'"),
    "surplus layer": (lambda raw: raw.header["layers"].append(raw.header["layers"][2]), "lacks the tensors"),
    "missing layer": (lambda raw: raw.header.update(layers=raw.header["layers"][:1]), "no layer names"),
    "input shape wrong": (_header(input_shape=[4]), "input_shape is [4]"),
    "input shape missing": (_without("input_shape"), "input_shape is None"),
    "input shape an image": (_header(input_shape=[1, 3]), "input_shape"),
    "input shape a number": (_header(input_shape=3), "input_shape"),
    "surplus tensor": (_array("layers.0.weight_rho", np.zeros((4, 3))), "'layers.0.weight_rho'"),
    "nothing at all": (_nothing, "has no layers"),
    "header not JSON": (_whole_header("{'format': 1}"), "not JSON"),
    "header empty": (_whole_header(""), "not JSON"),
    "header a list": (_whole_header([1, 2]), "format is [1, 2]"),
    "header null": (_whole_header(None), "format is None"),
    "header nested without end": (_whole_header("[" * 200_000), "not JSON"),
    "no metadata": (lambda raw: raw.container.pop(META), "no metadata entry 'bnndp'"),
    "other metadata": (lambda raw: raw.container.update({META: {"format": "pt"}}), "no metadata entry 'bnndp'"),
    "negative deviation": (_value(S, 4, -1e-9), "weight_std[1, 1] is negative: -1e-09"),
    "deviation not a number": (
        _value("layers.1.bias_std", 1, float("nan")),
        "layers.1: bias_std[1] is not finite: nan",
    ),
    "mean not a number": (_value(W, 0, float("nan")), "layers.0: weight_mean[0, 0] is not finite: nan"),
    "mean infinite": (_value("layers.1.bias_mean", 0, float("-inf")), "bias_mean[0] is not finite: -inf"),
    "mean transposed": (_array(W, np.zeros((3, 4))), "weight_std"),
    "mean flat": (_array(W, np.zeros(12)), "weight_mean must have shape"),
    "mean empty": (_array(W, np.zeros((0, 3))), "both positive"),
    "deviation of another shape": (_array(S, np.zeros((4, 2))), "weight_std must have shape (4, 3)"),
    "deviation that would broadcast": (_array(S, np.zeros((1, 3))), "weight_std must have shape (4, 3)"),
    "bias that would broadcast": (_array("layers.0.bias_mean", np.zeros(1)), "bias_mean must have shape (4,)"),
    "layers that do not fit": (_misfit, "layer 2 (linear): a dense layer takes 5 inputs, but the layer before gives 4"),
    "integers": (_array(W, np.zeros((4, 3), dtype="<i8"), "I64"), "dtype torch.int64"),
    "bytes": (_array(S, np.zeros((4, 3), dtype="u1"), "U8"), "dtype torch.uint8"),
    "booleans": (_array(S, np.zeros((4, 3), dtype="?"), "BOOL"), "dtype torch.bool"),
    "complex": (_array(W, np.zeros((4, 3), dtype="<c8"), "C64"), "complex64"),
    "unknown dtype": (_container(W, dtype="F80"), "safetensors"),
    "huge claimed shape": (_container(W, shape=[10**6, 10**6]), "safetensors"),
    "overflowing claimed shape": (_container(W, shape=[2**40, 2**40]), "safetensors"),
    "100 GB claimed at the end": (_container(W, shape=[10**10], data_offsets=[0, 8 * 10**10]), "safetensors"),
    "negative shape": (_container(W, shape=[-4, -3]), "safetensors"),
    "offsets reversed": (_container(W, data_offsets=[96, 0]), "safetensors"),
    "offsets that overlap": (_container(W, data_offsets=[0, 96]), "safetensors"),
    "gap between tensors": (lambda raw: raw.container.pop(W), "safetensors"),
    "surplus bytes": (lambda raw: setattr(raw, "data", raw.data + b"\0"), "safetensors"),
    "missing bytes": (lambda raw: setattr(raw, "data", raw.data[:-1]), "safetensors"),
    "no bytes": (lambda raw: setattr(raw, "data", b""), "safetensors"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_files_are_refused(path: Path, name: str) -> None:
    change, word = MALFORMED[name]
    raw = Raw(path)
    change(raw)
    refuse(raw.write(path), word)


def test_a_missing_tensor_is_named(path: Path) -> None:
    raw = Raw(path)
    last = max((key for key in raw.container if key != META), key=lambda key: raw.container[key]["data_offsets"][1])
    raw.data = raw.data[: raw.container.pop(last)["data_offsets"][0]]
    refuse(raw.write(path), "lacks the tensors", repr(last))


def test_the_good_file_survives_the_treatment_of_the_tests_above(path: Path, network: BayesianNetwork) -> None:
    assert load(Raw(path).write(path)).digest() == load(str(path)).digest() == network.digest()


class _Trap:
    """A pickle that leaves a mark when it is opened."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.mark,))


def test_what_is_not_such_a_file_is_refused_and_never_run(tmp_path: Path, network: BayesianNetwork) -> None:
    mark = tmp_path / "mark"
    contents: dict[str, bytes] = {
        "empty": b"",
        "seven bytes": b"\x10" + 6 * b"\0",
        "zeros": bytes(4096),
        "ones": b"\xff" * 4096,
        "text": b"layers:\n  - linear\n",
        "length beyond the file": struct.pack("<Q", 2**20) + b"{}",
        "length of 2^63": struct.pack("<Q", 2**63) + b"{}",
        "length of 2^64 - 1": struct.pack("<Q", 2**64 - 1) + b"{}",
        "header not UTF-8": struct.pack("<Q", 4) + b"\xff\xfe{}",
        "header a list": struct.pack("<Q", 2) + b"[]",
        "header empty object": struct.pack("<Q", 2) + b"{}",
        "pickle": pickle.dumps(_Trap(mark)),
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        refuse(tmp_path / name)
    torch.save({"weight": torch.zeros(2)}, tmp_path / "model.pt")
    refuse(tmp_path / "model.pt")
    refuse(tmp_path / "absent", "No such file")
    refuse(tmp_path)  # a folder
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    refuse(tmp_path / "link")
    assert not mark.exists()
    pickle.loads(contents["pickle"])
    assert mark.exists()  # the trap works: it was never sprung above


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_refused(path: Path) -> None:
    path.chmod(0)
    refuse(path, "ermission")


# Corruption


STEPS = [29, pytest.param(1, marks=pytest.mark.slow)]


def positions(count: int, step: int) -> list[int]:
    """Of bytes: all of the length of the header and its beginning, then every ``step``-th."""
    return sorted({*range(24), *range(0, count, step)})


def flipped(content: bytes, position: int, bit: int) -> bytes:
    return content[:position] + bytes([content[position] ^ 1 << bit]) + content[position + 1 :]


@pytest.mark.parametrize("step", STEPS)
def test_truncated_files_are_refused(path: Path, step: int) -> None:
    content = path.read_bytes()
    for length in positions(len(content), step):
        path.write_bytes(content[:length])
        refuse(path)


@pytest.mark.parametrize("step", STEPS)
def test_every_flipped_bit_of_a_sealed_file_is_refused(path: Path, step: int) -> None:
    content = path.read_bytes()
    for position in positions(len(content), step):
        for bit in {5, position % 8}:  # 5: upper and lower case
            path.write_bytes(flipped(content, position, bit))
            refuse(path)


def test_swapped_tensors_of_a_sealed_file_are_refused(path: Path) -> None:
    """What no check but the digest can notice: two tensors of one shape, exchanged."""
    content = path.read_bytes()
    one, other = b'"layers.0.bias_mean"', b'"layers.0.bias_std"'
    assert content.count(one) == content.count(other) == 1
    path.write_bytes(content.replace(one, b'"?"').replace(other, one).replace(b'"?"', other))
    refuse(path, "SHA-256")


@pytest.mark.parametrize("step", STEPS)
def test_every_flipped_bit_of_the_headers_is_refused_or_harmless(
    path: Path, network: BayesianNetwork, step: int
) -> None:
    """No other exception escapes; where the file still reads (a bit of the source text), it is the same network."""
    content = Raw(path).write(path).read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    refused, places = 0, positions(8 + length, step)
    for position in places:
        for bit in {position % 8, (position + 3) % 8}:
            path.write_bytes(flipped(content, position, bit))
            try:
                got = load(path)
            except ModelFileError:
                refused += 1
            else:
                assert got.digest() == network.digest(), (position, bit, content[position - 20 : position + 20])
    assert refused > 0.9 * 2 * len(places)


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_every_flipped_bit_of_the_data_is_refused_or_changes_the_digest(
    path: Path, network: BayesianNetwork, step: int
) -> None:
    content = Raw(path).write(path).read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    refused, digests = 0, {network.digest()}
    for position in range(8 + length, len(content), step):
        bit = (position - length) % 8  # of the last byte of a number its sign
        path.write_bytes(flipped(content, position, bit))
        try:
            got = load(path)
        except ModelFileError:
            refused += 1
            continue
        assert got.digest() not in digests
        digests.add(got.digest())
    assert refused > 0
    assert len(digests) > 100 // step


# Writing


@pytest.mark.parametrize(
    "failure", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["full", "interrupt"]
)
def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(
    path: Path, network: BayesianNetwork, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    monkeypatch.setattr(os, "fsync", Mock(side_effect=failure))
    expected: type[BaseException] = ModelFileError if isinstance(failure, OSError) else KeyboardInterrupt
    other = make_network((3, 4, 2), 99)
    with pytest.raises(expected):
        save(other, path)
    with pytest.raises(expected):
        save(other, path.with_name("new"))
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    assert load(path).digest() == network.digest()


def test_what_cannot_be_written_is_an_error_of_the_family(network: BayesianNetwork, tmp_path: Path) -> None:
    for target in (tmp_path, tmp_path / "no" / "such" / "folder"):
        with pytest.raises(ModelFileError, match="cannot be written") as caught:
            save(network, target)
        assert str(caught.value).startswith(f"{target}: ")
    assert not list(tmp_path.iterdir())


def test_a_written_file_has_the_permissions_of_any_other_file(path: Path) -> None:
    plain = path.with_name("plain")
    plain.touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)
