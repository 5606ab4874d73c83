"""The two files: a posterior (safetensors with a JSON description) and a certificate (JSON), read strictly.

Numbers of a certificate are hexadecimal floats. Whatever is unknown, missing, doubled or not finite is refused.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flint import arb

__all__ = ["Layer", "Model", "Tensor", "Unreadable", "numbers", "number", "read_certificate", "read_model"]

_FORMATS = {"F64": ("d", 8), "F32": ("f", 4), "F16": ("e", 2), "BF16": ("", 2)}
_DENSE = ("weight_mean", "weight_std", "bias_mean", "bias_std")
TENSORS = {
    "linear": _DENSE, "conv2d": _DENSE, "correlated_linear": (*_DENSE, "factor"),
    "matrix_normal_linear": ("weight_mean", "bias_mean", "row_factor", "column_factor"),
    "piecewise_affine": ("knots", "values"),
}  # fmt: skip
SETTINGS = {
    "conv2d": ("stride", "padding"), "correlated_linear": ("shared",), "dropout": ("rate", "law", "channels"),
    "average_pool": ("size", "stride"), "max_pool": ("size", "stride"), "leaky_relu": ("negative_slope",),
    "elu": ("alpha",), "piecewise_affine": ("lipschitz", "inner_error", "curvature"),
}  # fmt: skip
PLAIN = ("flatten", "relu", "identity", "hard_tanh", "tanh", "sigmoid", "softplus", "gelu", "silu")
ACTIVATIONS = (*PLAIN[1:], "leaky_relu", "elu", "piecewise_affine")
WEIGHTED = ("linear", "conv2d", "correlated_linear", "matrix_normal_linear")


class Unreadable(Exception):
    """A file that is not what it should be, in one line."""


@dataclass(frozen=True)
class Tensor:
    """The float64 values of a tensor in the order of its last axis first, exactly as in the file."""

    shape: tuple[int, ...]
    values: tuple[float, ...]

    def numbers(self) -> list[arb]:
        """As exact balls."""
        return [arb(value) for value in self.values]


@dataclass(frozen=True)
class Layer:
    """One layer of the chain; a residual block holds a chain of its own."""

    kind: str
    settings: dict[str, Any]
    tensors: dict[str, Tensor]
    inner: tuple[Layer, ...] = ()


@dataclass(frozen=True)
class Model:
    """A network, or an ensemble of several with weights."""

    sha256: str  # of the file
    task: str
    input_shape: tuple[int, ...]
    members: tuple[tuple[tuple[Layer, ...], tuple[float, ...] | None], ...]  # layers and shift of each
    weights: tuple[float, ...] | None  # None: one network


def number(text: object) -> arb:
    """A hexadecimal float as an exact ball."""
    if not isinstance(text, str) or "0x" not in text:
        raise Unreadable(f"expected a hexadecimal float, found {text!r:.60}")
    try:
        value = float.fromhex(text)
    except (ValueError, OverflowError) as error:
        raise Unreadable(f"expected a hexadecimal float, found {text!r:.60}") from error
    if not math.isfinite(value):
        raise Unreadable(f"expected a finite number, found {text!r:.60}")
    return arb(value)


def numbers(texts: object, count: int, what: str) -> list[arb]:
    """So many hexadecimal floats."""
    if not isinstance(texts, list) or len(texts) != count:
        raise Unreadable(f"{what} must be a list of {count} numbers")
    return [number(text) for text in texts]


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Unreadable("a key occurs twice")
    return found


def _refuse(name: str) -> None:
    raise Unreadable(f"{name} is not a number of a certificate")


def parse(text: bytes) -> Any:
    """JSON without doubled keys, NaN or infinity."""
    try:
        return json.loads(text.decode(), object_pairs_hook=_pairs, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"not JSON: {str(error):.100}") from error


def read_certificate(path: Path) -> dict[str, Any]:
    """The certificate, with its own digest checked."""
    found = parse(path.read_bytes())
    if not isinstance(found, dict) or found.get("format") != "bnndp-certificate-1":
        raise Unreadable("not a certificate of the format bnndp-certificate-1")
    keys = {"format", "network", "region", "claim", "proof", "digest"}
    if not keys <= set(found) <= keys | {"made"}:
        raise Unreadable(f"a certificate has the keys {', '.join(sorted(keys))}, found {', '.join(sorted(found))}")
    body = {key: value for key, value in found.items() if key != "digest"}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    if hashlib.sha256(text.encode()).hexdigest() != found["digest"]:
        raise Unreadable("the digest of the certificate is not that of its content")
    return found


def read_model(path: Path) -> Model:
    """The posterior file."""
    data = path.read_bytes()
    header, tensors = _container(data)
    entry = parse(str(header.get("__metadata__", {}).get("bnndp", "")).encode())
    if not isinstance(entry, dict) or entry.get("format") != "bnndp-posterior-1":
        raise Unreadable("the model is not a file of the format bnndp-posterior-1")
    shape = tuple(entry["input_shape"])
    ensemble = "members" in entry
    chains = [part["layers"] for part in entry["members"]] if ensemble else [entry["layers"]]
    members = []
    for index, chain in enumerate(chains):
        shift = tensors.pop(f"members.{index}.input_shift" if ensemble else "input_shift", None)
        members.append((tuple(_layer(each, tensors) for each in chain), None if shift is None else shift.values))
    weights = tensors.pop("weights").values if ensemble else None
    if tensors:
        raise Unreadable(f"tensors that no layer names: {', '.join(sorted(tensors)[:4])}")
    if weights is not None and (len(weights) != len(members) or min(weights) < 0):
        raise Unreadable("the weights of the ensemble do not fit its members")
    return Model(hashlib.sha256(data).hexdigest(), entry["task"], shape, tuple(members), weights)


def _layer(entry: Any, tensors: dict[str, Tensor]) -> Layer:
    kind = entry["type"]
    if kind == "residual":
        return Layer(kind, {}, {}, tuple(_layer(each, tensors) for each in entry["layers"]))
    if kind not in TENSORS and kind not in SETTINGS and kind not in PLAIN:
        raise Unreadable(f"unknown layer {kind!r:.60}")
    found = {}
    for field in TENSORS.get(kind, ()):
        fixed = kind == "linear" and entry.get("posterior") == "deterministic" and field.endswith("_std")
        if fixed:
            mean = found[field.replace("std", "mean")] if field == "weight_std" else tensors[f"{entry['name']}.bias_mean"]
            found[field] = Tensor(mean.shape, (0.0,) * len(mean.values))
        else:
            found[field] = tensors[f"{entry['name']}.{field}"]
    for field in found:
        tensors.pop(f"{entry['name']}.{field}", None)
    if any(field.endswith("_std") and min(tensor.values, default=0.0) < 0 for field, tensor in found.items()):
        raise Unreadable(f"{entry['name']} has a negative standard deviation")
    return Layer(kind, {name: entry[name] for name in SETTINGS.get(kind, ())}, found)


def _container(data: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header and tensors of a safetensors file."""
    if len(data) < 8:
        raise Unreadable("the model file is too short")
    (size,) = struct.unpack("<Q", data[:8])
    if size > len(data) - 8:
        raise Unreadable("the model file is cut off")
    header = parse(data[8 : 8 + size])
    body = memoryview(data)[8 + size :]
    tensors, spans = {}, []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        start, end = entry["data_offsets"]
        shape = tuple(entry["shape"])
        code, width = _FORMATS.get(entry["dtype"], ("", 0))
        if end - start != math.prod(shape) * width or not 0 <= start <= end <= len(body) or width == 0:
            raise Unreadable(f"tensor {name!r:.60} does not fit the file")
        part = body[start:end]
        if entry["dtype"] == "BF16":
            part = b"".join(b"\0\0" + bytes(part[i : i + 2]) for i in range(0, len(part), 2))
            code = "f"
        values = struct.unpack(f"<{math.prod(shape)}{code}", part)
        if not all(map(math.isfinite, values)):
            raise Unreadable(f"tensor {name!r:.60} holds a value that is not finite")
        tensors[name] = Tensor(shape, values)
        spans.append((start, end))
    spans.sort()
    if any(a[1] != b[0] for a, b in zip(spans, spans[1:], strict=False)) or (spans and spans[-1][1] != len(body)):
        raise Unreadable("the tensors overlap or leave gaps")
    return header, tensors


def out_shape(layer: Layer, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of the outputs for inputs of this shape; whatever does not fit is refused."""
    if layer.kind == "flatten":
        return (math.prod(shape),)
    if layer.kind in ("linear", "correlated_linear", "matrix_normal_linear"):
        n_out, n_in = layer.tensors["weight_mean"].shape
        if shape != (n_in,):
            raise Unreadable(f"a layer takes {n_in} inputs, found {shape}")
        return (n_out,)
    if layer.kind in ("conv2d", "average_pool", "max_pool"):
        if len(shape) != 3:
            raise Unreadable(f"{layer.kind} takes (channels, height, width), found {shape}")
        kernel = layer.tensors["weight_mean"].shape[2:] if layer.kind == "conv2d" else layer.settings["size"]
        padding = layer.settings.get("padding", (0, 0))
        sides = [
            (n + 2 * p - k) // s + 1
            for n, p, k, s in zip(shape[1:], padding, kernel, layer.settings["stride"], strict=True)
        ]
        if min(sides) < 1 or (layer.kind == "conv2d" and layer.tensors["weight_mean"].shape[1] != shape[0]):
            raise Unreadable(f"{layer.kind} does not fit {shape}")
        return (layer.tensors["weight_mean"].shape[0] if layer.kind == "conv2d" else shape[0], *sides)
    if layer.kind == "residual":
        at = shape
        for inner in layer.inner:
            at = out_shape(inner, at)
        if at != shape:
            raise Unreadable("a residual block must keep the shape of its input")
    return shape
