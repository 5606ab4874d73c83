"""The file format ``bnndp-posterior-1``: safetensors with the structure as JSON in its metadata.

A reader refuses what it does not know: another format, an unknown layer or posterior kind, missing, surplus or
mis-shaped tensors, values that are not finite, negative standard deviations. Layers are in :mod:`bnndp.entries`.
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

from bnndp.ensemble import Ensemble, Posterior
from bnndp.entries import read_chain, write_chain
from bnndp.errors import CertError, InputError, ModelFileError
from bnndp.network import TASKS, BayesianNetwork

__all__ = ["FORMAT", "load", "read_tensors", "save", "training_card", "write_whole"]

FORMAT = "bnndp-posterior-1"
_WEIGHTS = "weights"  # the tensor of an ensemble
_HEADER_KEYS = {"format", "task", "input_shape", "layers", "members", "source", "training"}


def load(path: str | os.PathLike[str]) -> Posterior:
    """Read a posterior file; every fault is a :class:`ModelFileError` of one line that names the file and the cause."""
    metadata, tensors = read_tensors(path)
    try:
        return _build(_header(metadata), tensors)
    except CertError as error:
        raise ModelFileError(f"{path}: {error}") from error


def save(
    network: Posterior,
    path: str | os.PathLike[str],
    *,
    source: str | None = None,
    card: Mapping[str, Any] | None = None,
) -> None:
    """Write ``network`` so that :func:`load` gives it back bit for bit; an interrupted write leaves no file.

    ``card`` says how it was trained, in values that JSON knows; :func:`training_card` gives it back.
    """
    header: dict[str, Any] = {"format": FORMAT, "task": network.task, "input_shape": list(_shape(network))}
    if isinstance(network, Ensemble):
        chains = [write_chain(member, f"members.{index}.") for index, member in enumerate(network.members)]
        header["members"] = [{"layers": layers} for layers, _ in chains]
        tensors = {name: tensor for _, own in chains for name, tensor in own.items()}
        tensors[_WEIGHTS] = network.probabilities.cpu().contiguous().clone()
    else:
        header["layers"], tensors = write_chain(network)
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
    if "members" in header and "layers" in header:
        raise ModelFileError("has both 'layers' and 'members'; a file holds one network or one ensemble.")
    key = "members" if "members" in header else "layers"
    if not isinstance(header.get(key), list):
        raise ModelFileError(f"{key!r} must be a list, got {type(header.get(key)).__name__}.")
    return header


def _build(header: dict[str, Any], tensors: dict[str, Tensor]) -> Posterior:
    left = dict(tensors)
    build = _ensemble if "members" in header else _network
    posterior = build(header, left)
    if left:
        raise ModelFileError(f"holds tensors that no layer names: {', '.join(map(repr, sorted(left)[:4]))}.")
    return posterior


def _network(header: dict[str, Any], left: dict[str, Tensor]) -> BayesianNetwork:
    return read_chain(header["layers"], left, header["task"], header.get("input_shape"))


def _ensemble(header: dict[str, Any], left: dict[str, Tensor]) -> Ensemble:
    weights = left.pop(_WEIGHTS, None)
    if weights is None or not weights.dtype.is_floating_point:
        found = "there is none" if weights is None else f"it has dtype {weights.dtype}"
        raise ModelFileError(f"an ensemble needs a floating point tensor {_WEIGHTS!r}, one number a member; {found}.")
    members = []
    for index, member in enumerate(header["members"]):
        if not isinstance(member, dict) or set(member) != {"layers"} or not isinstance(member["layers"], list):
            raise ModelFileError(f"member {index} must be an object with the list 'layers' and nothing else.")
        try:
            read = read_chain(member["layers"], left, header["task"], header.get("input_shape"), f"members.{index}.")
        except CertError as error:
            raise ModelFileError(f"member {index}: {error}") from error
        members.append(read)
    return Ensemble(tuple(members), weights)


def _shape(network: Posterior) -> tuple[int, ...]:
    return (network.members[0] if isinstance(network, Ensemble) else network).shapes[0]
