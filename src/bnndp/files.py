"""The file format ``bnndp-posterior-1``: safetensors with the structure as JSON in its metadata.

A reader refuses what it does not know: another format, an unknown layer or posterior kind, missing, surplus or
mis-shaped tensors, values that are not finite, negative standard deviations.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialise
from torch import Tensor

from bnndp.errors import CertError, InputError, ModelFileError
from bnndp.network import TASKS, BayesianNetwork, Layer, Linear, Relu

__all__ = ["FORMAT", "load", "read_tensors", "save", "training_card", "write_whole"]

FORMAT = "bnndp-posterior-1"
_SHIFT = "input_shift"
_FIELDS = ("weight_mean", "weight_std", "bias_mean", "bias_std")
_HEADER_KEYS = {"format", "task", "input_shape", "layers", "source", "training"}
_KNOWN_KEYS = {"linear": {"type", "name", "posterior"}, "relu": {"type"}}


def load(path: str | os.PathLike[str]) -> BayesianNetwork:
    """Read a posterior file; every fault is a :class:`ModelFileError` of one line that names the file and the cause."""
    metadata, tensors = read_tensors(path)
    try:
        return _build(_header(metadata), tensors)
    except CertError as error:
        raise ModelFileError(f"{path}: {error}") from error


def save(
    network: BayesianNetwork,
    path: str | os.PathLike[str],
    *,
    source: str | None = None,
    card: Mapping[str, Any] | None = None,
) -> None:
    """Write ``network`` so that :func:`load` gives it back bit for bit; an interrupted write leaves no file.

    ``card`` says how it was trained, in values that JSON knows; :func:`training_card` gives it back.
    """
    layers: list[dict[str, str]] = []
    tensors: dict[str, Tensor] = {}
    for layer in network.layers:
        if isinstance(layer, Relu):
            layers.append({"type": "relu"})
            continue
        name = f"layers.{sum(entry['type'] == 'linear' for entry in layers)}"
        layers.append({"type": "linear", "name": name, "posterior": "mean_field"})
        # Copies: the writer refuses tensors that share memory, as those of a layer used twice do.
        tensors |= {f"{name}.{field}": getattr(layer, field).cpu().contiguous().clone() for field in _FIELDS}
    if network.shift is not None:
        tensors[_SHIFT] = network.shift.cpu().contiguous().clone()
    header: dict[str, Any] = {"format": FORMAT, "task": network.task, "input_shape": [network.n_in], "layers": layers}
    if source is not None:
        header["source"] = source
    if card is not None:
        header["training"] = _plain(card)
    payload = serialise(tensors, metadata={"bnndp": json.dumps(header)})
    write_whole(path, payload)


def training_card(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """The training card that :func:`save` was given, None if it had none; faults are those of :func:`load`."""
    metadata, _ = read_tensors(path)
    try:
        card = _header(metadata).get("training")
    except CertError as error:
        raise ModelFileError(f"{path}: {error}") from error
    return card


def write_whole(path: str | os.PathLike[str], payload: bytes) -> None:
    """Write a file so that there is, at any time, either the old one or the whole of the new one."""
    target = Path(path)
    scratch = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        with scratch.open("xb") as file:
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(target)
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be written: {error.strerror}") from error
    finally:
        scratch.unlink(missing_ok=True)


def _plain(card: Mapping[str, Any]) -> dict[str, Any]:
    """The card as JSON will give it back."""
    try:
        return json.loads(json.dumps(dict(card), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"card cannot be written as JSON: {error}; give numbers, texts, lists and mappings."
        ) from error


def read_tensors(path: str | os.PathLike[str]) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Metadata and tensors of any safetensors file; a :class:`ModelFileError` of one line says why it has none."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            return file.metadata() or {}, tensors
    except (SafetensorError, OSError, ValueError, RuntimeError, MemoryError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelFileError(f"{path}: cannot be read as a safetensors file: {reason}") from error


def _header(metadata: Mapping[str, str]) -> dict[str, Any]:
    text = metadata.get("bnndp")
    if text is None:
        raise ModelFileError(f"has no metadata entry 'bnndp'; it is not a {FORMAT} file.")
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"its metadata entry 'bnndp' is not JSON: {error}") from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        found = header.get("format") if isinstance(header, dict) else header
        raise ModelFileError(f"format is {found!r}; this version reads {FORMAT!r} only.")
    surplus = sorted(set(header) - _HEADER_KEYS)
    if surplus:
        raise ModelFileError(f"has unknown settings: {', '.join(map(repr, surplus[:4]))}.")
    if header.get("task") not in TASKS:
        raise ModelFileError(f"task is {header.get('task')!r}; known: {', '.join(TASKS)}.")
    if "training" in header and not isinstance(header["training"], dict):
        raise ModelFileError(f"'training' must be an object, got {type(header['training']).__name__}.")
    if not isinstance(header.get("layers"), list):
        raise ModelFileError(f"'layers' must be a list, got {type(header.get('layers')).__name__}.")
    return header


def _build(header: dict[str, Any], tensors: dict[str, Tensor]) -> BayesianNetwork:
    left = dict(tensors)
    shift = left.pop(_SHIFT, None)
    if shift is not None and not shift.dtype.is_floating_point:
        raise ModelFileError(f"{_SHIFT} has dtype {shift.dtype}; expected floating point.")
    layers = tuple(_layer(index, entry, left) for index, entry in enumerate(header["layers"]))
    if left:
        raise ModelFileError(f"holds tensors that no layer names: {', '.join(map(repr, sorted(left)[:4]))}.")
    network = BayesianNetwork(layers, header["task"], shift)
    shape = header.get("input_shape")
    if shape != [network.n_in]:
        raise ModelFileError(f"input_shape is {shape!r}, but the first layer takes {network.n_in} inputs.")
    return network


def _layer(index: int, entry: object, left: dict[str, Tensor]) -> Layer:
    kind = entry.get("type") if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or not isinstance(kind, str) or kind not in _KNOWN_KEYS:
        known = ", ".join(sorted(_KNOWN_KEYS))
        raise ModelFileError(f"layer {index} has type {kind!r}; known types: {known}.")
    surplus = set(entry) - _KNOWN_KEYS[kind]
    if surplus:
        raise ModelFileError(
            f"layer {index} ({kind}) has unknown settings: {', '.join(map(repr, sorted(surplus)[:4]))}."
        )
    if kind == "relu":
        return Relu()
    if entry.get("posterior") != "mean_field":
        raise ModelFileError(f"layer {index} has posterior {entry.get('posterior')!r}; known: mean_field.")
    name = entry.get("name")
    missing = [f"{name}.{field}" for field in _FIELDS if f"{name}.{field}" not in left]
    if missing:
        raise ModelFileError(f"layer {index} lacks the tensors {', '.join(map(repr, missing))}.")
    parts = {field: left.pop(f"{name}.{field}") for field in _FIELDS}
    for field, tensor in parts.items():
        if not tensor.dtype.is_floating_point:
            raise ModelFileError(f"{name}.{field} has dtype {tensor.dtype}; expected floating point.")
    try:
        return Linear(**parts)
    except CertError as error:
        raise ModelFileError(f"{name}: {error}") from error
