"""Layers as entries of a posterior file: the kind and the settings as JSON, the tensors by name.

An entry is ``{"type": kind, "name": ..., setting: value, ...}``, with a name if the layer has tensors; they are
``<name>.<field>``. Linear layers have one key more, ``posterior``: ``mean_field``, or ``deterministic`` for a layer
whose standard deviations are zero and are not in the file. A reader refuses what it does not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bnndp.errors import CertError, ModelFileError
from bnndp.files.container import expect_known
from bnndp.layers import DENSE, WEIGHTED, Branched, Concatenate, Flatten, Linear, Residual
from bnndp.network import KINDS, BayesianNetwork, Layer

SHIFT = "input_shift"
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_MOST = 50_000  # layers in a file, those within blocks too
_NESTED = 16  # blocks within one another, at most
_POSTERIORS = {"mean_field": (), "deterministic": ("weight_std", "bias_std")}  # and the tensors that it does not have


def write_chain(network: BayesianNetwork, prefix: str = "") -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """The entries of a network's layers, and its tensors; names start with ``prefix``."""
    entries, tensors = _write(network.layers, prefix)
    if network.shift is not None:
        tensors[prefix + SHIFT] = _copy(network.shift)
    return entries, tensors


def _write(layers: Sequence[Layer], prefix: str) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    entries: list[dict[str, Any]] = []
    tensors: dict[str, Tensor] = {}
    named = 0
    for index, layer in enumerate(layers):
        entry: dict[str, Any] = {"type": layer.kind}
        if isinstance(layer, Branched):
            chains, inner = _write_branches(layer, f"{prefix}blocks.{index}.")
            entry, tensors = entry | chains, tensors | inner
        if layer.tensors:
            entry["name"], named = f"{prefix}layers.{named}", named + 1
            # Copies: the writer refuses tensors that share memory, as those of a layer used twice do.
            tensors |= {f"{entry['name']}.{field}": _copy(getattr(layer, field)) for field in layer.tensors}
        if isinstance(layer, Linear):
            entry["posterior"] = "mean_field"
        entries.append(entry | {name: getattr(layer, name) for name in layer.settings})
    return entries, tensors


def _write_branches(block: Branched, prefix: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The entries of the branches by their keys, and their tensors; a shortcut that is the identity has no key."""
    names = ("", "shortcut.") if isinstance(block, Residual) else [f"branches.{k}." for k in range(len(block.branches))]
    found = [_write(branch, prefix + name) for branch, name in zip(block.branches, names, strict=True)]
    tensors = {name: tensor for _, own in found for name, tensor in own.items()}
    chains = [entries for entries, _ in found]
    if not isinstance(block, Residual):
        return {"branches": chains}, tensors
    return {"layers": chains[0]} | ({"shortcut": chains[1]} if chains[1] else {}), tensors


def expect_few(chains: Sequence[object]) -> None:
    """Refuse a file with more layers than any real network has."""
    left, count = list(chains), 0
    while left:
        chain = left.pop()
        entries = chain if isinstance(chain, list) else []
        count += len(entries)
        for entry in entries:
            if isinstance(entry, dict):
                left += [entry[key] for key in ("layers", "shortcut") if key in entry]
                left += entry["branches"] if isinstance(entry.get("branches"), list) else []
        if count > _MOST:
            raise ModelFileError(f"has more than {_MOST} layers.")


def read_chain(
    entries: Sequence[object], left: dict[str, Tensor], task: str, shape: object, prefix: str = ""
) -> BayesianNetwork:
    """The network of these entries; its tensors are taken out of ``left``."""
    shift = left.pop(prefix + SHIFT, None)
    if shift is not None:
        _expect_floating(prefix + SHIFT, shift)
    layers = tuple(_layer(index, entry, left) for index, entry in enumerate(entries))
    if not isinstance(shape, list) or not all(type(n) is int for n in shape):
        raise ModelFileError(f"input_shape is {shape!r:.80}; expected a list of whole numbers.")
    network = BayesianNetwork(layers, task, shift, _shape_of(layers, shape))
    if network.shapes[0] != tuple(shape):
        raise ModelFileError(f"input_shape is {shape!r:.80}, but the first layer takes {network.n_in} inputs.")
    return network


def _shape_of(layers: Sequence[Layer], shape: list[int]) -> tuple[int, ...] | None:
    """The shape to build with: none where the first layer that matters is dense and says it, to compare both."""
    first = next((layer for layer in layers if isinstance(layer, (*WEIGHTED, Flatten, Branched))), None)
    return None if isinstance(first, DENSE) else tuple(shape)


def _layer(index: int, entry: object, left: dict[str, Tensor], depth: int = 0) -> Layer:
    kind = entry.get("type") if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or not isinstance(kind, str) or kind not in KINDS:
        known = ", ".join(sorted(KINDS))
        raise ModelFileError(f"layer {index} has type {kind!r:.80}; known types: {known}.")
    record = KINDS[kind]
    if issubclass(record, Branched):
        return _block(index, entry, left, depth)
    own = (("name",) if record.tensors else ()) + (("posterior",) if record is Linear else ())
    expect_known(entry, {"type", *own, *record.settings}, f"layer {index} ({kind}) has")
    lacking = [name for name in record.settings if name not in entry]
    if lacking:
        raise ModelFileError(f"layer {index} ({kind}) lacks the settings {', '.join(map(repr, lacking))}.")
    parts = _tensors(index, entry, record, left)
    try:
        return record(**parts, **{name: _value(entry[name]) for name in record.settings})
    except (CertError, TypeError, ValueError, OverflowError) as error:
        where = entry["name"] if record.tensors else f"layer {index} ({kind})"
        raise ModelFileError(f"{where}: {error}") from error


def _block(index: int, entry: dict[str, Any], left: dict[str, Tensor], depth: int) -> Layer:
    """A block: the layers of its branches are entries of their own."""
    kind = entry["type"]
    where, concatenation = f"layer {index} ({kind})", kind == Concatenate.kind
    expect_known(entry, {"type", "branches"} if concatenation else {"type", "layers", "shortcut"}, f"{where} has")
    chains = entry.get("branches") if concatenation else [entry.get("layers"), entry.get("shortcut", [])]
    if not isinstance(chains, list) or not all(isinstance(chain, list) for chain in chains):
        raise ModelFileError(f"{where} lacks its {'branches' if concatenation else 'layers'}.")
    if depth >= _NESTED:
        raise ModelFileError(f"blocks lie within one another deeper than {_NESTED}.")
    try:
        branches = [tuple(_layer(i, each, left, depth + 1) for i, each in enumerate(chain)) for chain in chains]
        return Concatenate(tuple(branches)) if concatenation else Residual(*branches)
    except CertError as error:
        raise ModelFileError(f"{where}: {error}") from error


def _tensors(index: int, entry: dict[str, Any], record: type[Any], left: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a layer, taken out of ``left``; a deterministic layer gets stds of zero."""
    absent: tuple[str, ...] = ()
    if record is Linear:
        posterior = entry.get("posterior")
        if not isinstance(posterior, str) or posterior not in _POSTERIORS:
            raise ModelFileError(f"layer {index} has posterior {posterior!r:.80}; known: {', '.join(_POSTERIORS)}.")
        absent = _POSTERIORS[posterior]
    name = entry.get("name")
    fields = [field for field in record.tensors if field not in absent]
    missing = [f"{name}.{field}" for field in fields if f"{name}.{field}" not in left]
    if missing:
        raise ModelFileError(f"layer {index} lacks the tensors {', '.join(map(repr, missing))}.")
    parts = {field: left.pop(f"{name}.{field}") for field in fields}
    for field, tensor in parts.items():
        _expect_floating(f"{name}.{field}", tensor)
    return parts | {field: torch.zeros_like(parts[field.replace("std", "mean")]) for field in absent}


def _expect_floating(name: str, tensor: Tensor) -> None:
    if tensor.dtype not in _FLOATS:
        raise ModelFileError(f"{name} has dtype {tensor.dtype}; expected floating point of 16, 32 or 64 bits.")


def _value(value: object) -> object:
    """A setting as the record takes it: pairs are tuples."""
    return tuple(value) if isinstance(value, list) else value


def _copy(tensor: Tensor) -> Tensor:
    return tensor.cpu().contiguous().clone()
