"""The posterior file, safetensors with a JSON description, read strictly; and the shapes of its layers.

Whatever is unknown, missing, surplus, doubled, of another type or shape, or not finite is refused: nothing that the
file says is passed over.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from flint import arb

from bnndp_checker.strict_json import expect, fields, parse

Shape = tuple[int, ...]
_FORMATS = {"F64": ("d", 8), "F32": ("f", 4), "F16": ("e", 2), "BF16": ("f", 2)}
_HEADER = {"format", "sha256", "task", "input_shape", "layers", "members", "source", "training", "origin"}
_DENSE = ("weight_mean", "weight_std", "bias_mean", "bias_std")
_TENSORS = {
    "linear": _DENSE, "conv2d": _DENSE, "correlated_linear": (*_DENSE, "factor"),
    "matrix_normal_linear": ("weight_mean", "bias_mean", "row_factor", "column_factor"),
    "piecewise_affine": ("knots", "values"),
}  # fmt: skip
BRANCHED = ("residual", "concatenate")
WEIGHTED = ("linear", "conv2d", "correlated_linear", "matrix_normal_linear")


def _pair(least: int) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, list) and len(value) == 2 and all(type(n) is int and n >= least for n in value)
    )


def _real(least: float = -math.inf) -> Callable[[Any], bool]:
    return lambda value: type(value) in (int, float) and math.isfinite(value) and value >= least


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


_SETTINGS: dict[str, dict[str, Callable[[Any], bool]]] = {
    "conv2d": {"stride": _pair(1), "padding": _pair(0)},
    "average_pool": {"size": _pair(1), "stride": _pair(1)},
    "max_pool": {"size": _pair(1), "stride": _pair(1)},
    "correlated_linear": {"shared": _flag},
    "dropout": {
        "rate": lambda value: _real(0)(value) and value < 1,
        "law": lambda value: value in ("bernoulli", "gaussian"),
        "channels": _flag,
    },
    "leaky_relu": {"negative_slope": _real()},
    "elu": {"alpha": _real(0)},
    "piecewise_affine": {
        "lipschitz": _real(0),
        "inner_error": _real(0),
        "curvature": lambda value: value is None or _real(0)(value),
    },
}
ACTIVATIONS = (
    "relu", "identity", "hard_tanh", "tanh", "sigmoid", "softplus", "gelu", "silu", "leaky_relu", "elu",
    "piecewise_affine",
)  # fmt: skip
_KINDS = {*WEIGHTED, *ACTIVATIONS, *_SETTINGS, "flatten"}


@dataclass(frozen=True)
class Tensor:
    """The values of a tensor, the last axis fastest, exactly as in the file."""

    shape: Shape
    values: tuple[float, ...]

    def numbers(self) -> list[arb]:
        """As exact balls."""
        return [arb(value) for value in self.values]


@dataclass(frozen=True)
class Layer:
    """One layer of the chain; a block holds chains of its own."""

    kind: str
    settings: dict[str, Any]
    tensors: dict[str, Tensor]
    branches: tuple[tuple[Layer, ...], ...] = ()


@dataclass(frozen=True)
class Model:
    """A network, or an ensemble of several with weights."""

    sha256: str  # of the file
    task: str
    input_shape: Shape
    members: tuple[tuple[tuple[Layer, ...], Tensor | None], ...]  # layers and shift of each
    weights: tuple[float, ...]  # not negative; (1,) of one network


def read_model(path: Path) -> Model:
    """The posterior file."""
    data = path.read_bytes()
    text, tensors = _container(data)
    entry = fields(parse(text.encode()), "the model", {"format", "task", "input_shape"}, _HEADER)
    expect(entry["format"] == "bnndp-posterior-1", "the model is not a file of the format bnndp-posterior-1")
    expect(entry["task"] in ("regression", "classification"), f"unknown task {entry['task']!r:.60}")
    expect(("layers" in entry) != ("members" in entry), "a model holds either one network or an ensemble")
    shape = _shape(entry["input_shape"], "input_shape")
    expect(len(shape) in (1, 3), f"input_shape is {shape}")
    ensemble = "members" in entry
    chains = (
        [fields(each, "a member", {"layers"})["layers"] for each in entry["members"]] if ensemble else [entry["layers"]]
    )
    members = []
    for index, chain in enumerate(chains):
        shift = tensors.pop(f"members.{index}.input_shift" if ensemble else "input_shift", None)
        layers = tuple(_layer(each, tensors) for each in chain)
        expect(shift is None or shift.shape == (math.prod(shape),), "an input_shift does not fit the inputs")
        _expect_network(layers, shape)
        members.append((layers, shift))
    weights = tensors.pop("weights") if ensemble else Tensor((1,), (1.0,))
    expect(weights.shape == (len(members),) and min(weights.values) >= 0, "the weights of the ensemble do not fit")
    expect(not tensors, f"tensors that no layer names: {sorted(tensors)[:4]}")
    return Model(hashlib.sha256(data).hexdigest(), entry["task"], shape, tuple(members), weights.values)


def _shape(value: Any, what: str) -> Shape:
    positive = isinstance(value, list) and all(type(n) is int and n > 0 for n in value)
    expect(positive, f"the shape of {what} is {value!r:.60}")
    return tuple(value)


def _container(data: bytes) -> tuple[str, dict[str, Tensor]]:
    """Description and tensors of a safetensors file."""
    expect(len(data) >= 8 and int.from_bytes(data[:8], "little") <= len(data) - 8, "the model file is cut off")
    start = 8 + int.from_bytes(data[:8], "little")
    header, body = parse(data[8:start]), data[start:]
    text = header.pop("__metadata__")["bnndp"]
    expect(isinstance(text, str), "the model has no description")
    tensors, spans = {}, [(0, 0)]
    for name, entry in header.items():
        begin, end = fields(entry, f"tensor {name!r:.60}", {"dtype", "shape", "data_offsets"})["data_offsets"]
        shape, (code, width) = _shape(entry["shape"], name), _FORMATS[entry["dtype"]]
        fits = type(begin) is type(end) is int and 0 <= begin <= end <= len(body)
        expect(fits and end - begin == math.prod(shape) * width, f"tensor {name!r:.60} does not fit the file")
        part = body[begin:end]
        if entry["dtype"] == "BF16":  # the upper half of a float32
            part = b"".join(b"\0\0" + part[i : i + 2] for i in range(0, len(part), 2))
        tensors[name] = Tensor(shape, struct.unpack(f"<{math.prod(shape)}{code}", part))
        expect(all(map(math.isfinite, tensors[name].values)), f"tensor {name!r:.60} holds a value that is not finite")
        spans.append((begin, end))
    spans.sort()
    joined = all(a[1] == b[0] for a, b in pairwise(spans)) and spans[-1][1] == len(body)
    expect(joined, "the tensors overlap or leave gaps")
    return text, tensors


def _layer(entry: Any, tensors: dict[str, Tensor]) -> Layer:
    """One layer; its tensors are taken out of those of the file."""
    kind = entry["type"]
    if kind in BRANCHED:
        return Layer(kind, {}, {}, tuple(tuple(_layer(each, tensors) for each in chain) for chain in _chains(entry)))
    expect(kind in _KINDS, f"unknown layer {kind!r:.60}")
    settings, names = _SETTINGS.get(kind, {}), _TENSORS.get(kind, ())
    own = ({"name"} if names else set()) | ({"posterior"} if kind == "linear" else set())
    fields(entry, kind, {"type", *own, *settings})
    for name, fits in settings.items():
        expect(fits(entry[name]), f"{name} of {kind} is {entry[name]!r:.60}")
    fixed = entry.get("posterior") == "deterministic"
    expect(
        kind != "linear" or fixed or entry["posterior"] == "mean_field",
        f"unknown posterior {entry.get('posterior')!r:.60}",
    )
    found = {
        field: tensors.pop(f"{entry['name']}.{field}") for field in names if not (fixed and field.endswith("_std"))
    }
    if fixed:  # the file has no standard deviations
        for field in ("weight", "bias"):
            mean = found[f"{field}_mean"]
            found[f"{field}_std"] = Tensor(mean.shape, (0.0,) * len(mean.values))
    _expect_shapes(kind, found)
    negative = any(field.endswith("_std") and min(tensor.values) < 0 for field, tensor in found.items())
    expect(not negative, f"{entry.get('name')!r:.60} has a negative standard deviation")
    return Layer(kind, {name: entry[name] for name in settings}, found)


def _chains(entry: Any) -> list[Any]:
    """The entries of the branches of a block."""
    if entry["type"] == "concatenate":
        chains = fields(entry, "concatenate", {"type", "branches"})["branches"]
        expect(isinstance(chains, list) and len(chains) > 0, "a concatenation has no branches")
    else:
        fields(entry, "residual", {"type", "layers"}, {"type", "layers", "shortcut"})
        chains = [entry["layers"], entry.get("shortcut", [])]
        expect(isinstance(chains[0], list) and len(chains[0]) > 0, "a residual block has no layers")
    expect(all(isinstance(chain, list) for chain in chains), "a branch is no list of layers")
    return chains


def _expect_shapes(kind: str, tensors: dict[str, Tensor]) -> None:
    if kind == "piecewise_affine":
        knots = tensors["knots"]
        fits = len(knots.shape) == 1 and tensors["values"].shape == knots.shape and len(knots.values) > 1
        expect(fits and all(a < b for a, b in pairwise(knots.values)), "knots must increase, with one value each")
    if kind in WEIGHTED:
        shape = tensors["weight_mean"].shape
        expect(len(shape) == (4 if kind == "conv2d" else 2), f"weight_mean of {kind} has the shape {shape}")
        starts = {"bias_mean": shape[:1], "bias_std": shape[:1], "weight_mean": shape, "weight_std": shape}
        ranks = {"factor": (shape[0], shape[1] + 1), "row_factor": shape[:1], "column_factor": (shape[1] + 1,)}
        for field, tensor in tensors.items():
            wanted = starts.get(field) or (*ranks[field], tensor.shape[-1])
            expect(tensor.shape == wanted, f"{field} of {kind} has the shape {tensor.shape}, it must be {wanted}")


def _expect_network(layers: Sequence[Layer], shape: Shape) -> None:
    """Refuse a chain whose shapes do not fit, or that does not end in weights and a vector."""
    shape = _end(layers, shape)
    ends = [layer.kind for layer in layers if layer.kind != "flatten"][-1:]
    expect(
        len(shape) == 1 and bool(ends) and ends[0] in WEIGHTED, "a network ends in a layer with weights, as a vector"
    )


def _end(layers: Sequence[Layer], shape: Shape) -> Shape:
    for layer in layers:
        shape = out_shape(layer, shape)
    return shape


def out_shape(layer: Layer, shape: Shape) -> Shape:
    """Shape of the outputs for inputs of this shape; whatever does not fit is refused."""
    found, fits = shape, True
    if layer.kind == "flatten":
        found = (math.prod(shape),)
    elif layer.kind in ("conv2d", "average_pool", "max_pool"):
        expect(len(shape) == 3, f"{layer.kind} takes (channels, height, width), found {shape}")
        weights = (
            layer.tensors["weight_mean"].shape
            if layer.kind == "conv2d"
            else (shape[0], shape[0], *layer.settings["size"])
        )
        padding, stride = layer.settings.get("padding", (0, 0)), layer.settings["stride"]
        sides = [(n + 2 * p - k) // s + 1 for n, p, k, s in zip(shape[1:], padding, weights[2:], stride, strict=True)]
        found, fits = (weights[0], *sides), weights[1] == shape[0] and min(sides) >= 1
    elif layer.kind in WEIGHTED:
        n_out, n_in = layer.tensors["weight_mean"].shape
        found, fits = (n_out,), shape == (n_in,)
    elif layer.kind in BRANCHED:
        ends = [_end(branch, shape) for branch in layer.branches]
        found, fits = ends[0], len(set(ends)) == 1
        if layer.kind == "concatenate":
            found, fits = (sum(end[0] for end in ends), *ends[0][1:]), len({end[1:] for end in ends}) == 1
    elif layer.kind == "dropout":
        fits = len(shape) == 3 or not layer.settings["channels"]
    expect(fits, f"{layer.kind} does not fit inputs of the shape {shape}")
    return found
