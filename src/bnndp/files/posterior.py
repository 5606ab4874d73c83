"""The file format ``bnndp-posterior-1``: safetensors with the structure as JSON in its metadata, sealed by a digest.

A reader refuses what it does not know: another format, an unknown layer or posterior kind, missing, surplus or
mis-shaped tensors, values that are not finite, negative standard deviations, and a content that is not the one that
was written. Layers are in :mod:`bnndp.files.entries`, the container in :mod:`bnndp.files.container`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save as serialise
from torch import Tensor

from bnndp.errors import CertError, InputError, ModelFileError, one_line
from bnndp.files.container import HEADER_LIMIT, content_digest, expect_known, parse_json, read_container
from bnndp.files.entries import expect_few, read_chain, write_chain
from bnndp.network import TASKS, Ensemble, Posterior

FORMAT = "bnndp-posterior-1"
_ENTRY = "bnndp"  # of the metadata
_WEIGHTS = "weights"  # the tensor of an ensemble
_HEADER_KEYS = {"format", "sha256", "task", "input_shape", "layers", "members", "source", "training", "origin"}
_TEXTS = 2**22  # characters of the metadata entry, at most: some ten thousand layers
_BLANK = "0" * 64  # stands for the digest while it is taken


@dataclass(frozen=True, slots=True)
class ModelFile:
    """What a posterior file holds: the network or ensemble, and its description."""

    posterior: Posterior
    sha256: str | None  # of the content, checked; None: the file has none, so that damaged values are not noticed
    source: str | None  # where it comes from, in words
    card: dict[str, Any] | None  # how it was trained
    origin: dict[str, Any] | None  # of a converted file: which file it was, and how its values were read


def load(path: str | os.PathLike[str]) -> Posterior:
    """Read the posterior in a ``bnndp-posterior-1`` file.

    Args:
        path: The file.

    Returns:
        The network or ensemble. Every fault is a :class:`ModelFileError` of one line with the file and the cause.

    Examples:
        >>> import bnndp, tempfile, torch
        >>> network = bnndp.from_module(torch.nn.Linear(2, 1), task="regression")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(network, Path(folder) / "n.safetensors")
        ...     load(Path(folder) / "n.safetensors").digest() == network.digest()
        True
    """
    return read_model(path).posterior


def read_model(path: str | os.PathLike[str]) -> ModelFile:
    """Read the posterior in a file, with its digest, source, training card and origin; faults as of :func:`load`."""
    return model_of(*read_container(path), path)


def model_of(metadata: Mapping[str, str], tensors: Mapping[str, Tensor], name: object) -> ModelFile:
    """The content of a container that was read before; ``name`` is for messages."""
    with _faults_of(name):
        header = _header(metadata)
        digest = _checked_digest(header, metadata, tensors)
        posterior = _build(header, tensors)
        return ModelFile(posterior, digest, header.get("source"), header.get("training"), header.get("origin"))


def save(
    network: Posterior,
    path: str | os.PathLike[str],
    *,
    source: str | None = None,
    card: Mapping[str, Any] | None = None,
    origin: Mapping[str, Any] | None = None,
) -> None:
    """Write a posterior to a file from which :func:`load` reads it bit for bit, and which reveals any change.

    Args:
        network: The network or ensemble.
        path: The file. An interrupted write leaves the old one.
        source: Where the posterior comes from, in words.
        card: How it was trained, in values of JSON.
        origin: What it was converted from, in values of JSON.

    Examples:
        >>> import bnndp, tempfile, torch
        >>> network = bnndp.from_module(torch.nn.Linear(2, 1), task="regression")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(network, Path(folder) / "n.safetensors", source="an example")
        ...     [path.name for path in Path(folder).iterdir()]
        ['n.safetensors']
    """
    header: dict[str, Any] = {"format": FORMAT, "sha256": _BLANK}
    header |= {"task": network.task, "input_shape": list(network.members[0].shapes[0])}
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
        header["training"] = _plain("card", card)
    if origin is not None:
        header["origin"] = _plain("origin", origin)
    text = json.dumps(header)
    if len(text) > _TEXTS:
        raise InputError(f"the description of the network has {len(text)} characters, at most {_TEXTS} can be read.")
    digest = content_digest({_ENTRY: text}, tensors)
    payload = serialise(tensors, metadata={_ENTRY: text.replace(_BLANK, digest, 1)})
    length = int.from_bytes(payload[:8], "little")
    if length > HEADER_LIMIT:
        raise InputError(f"the names of the tensors take {length} bytes, at most {HEADER_LIMIT} can be read.")
    write_whole(path, payload)


def training_card(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """The training card that :func:`save` was given, None if it had none; faults are those of :func:`load`."""
    return read_model(path).card


def write_whole(path: str | os.PathLike[str], payload: bytes) -> None:
    """Write a file so that there is, at any time, either the old one or the whole of the new one."""
    try:
        with replacing(Path(path)) as scratch, scratch.open("xb") as file:
            file.write(payload)
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be written: {error.strerror}") from error


@contextlib.contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A name to write a file under, which gets that of ``target`` at a good end and is removed otherwise."""
    scratch = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        yield scratch
        _sync(scratch, os.O_RDONLY)
        scratch.replace(target)
        if hasattr(os, "O_DIRECTORY"):  # makes the new name last through a power cut
            _sync(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    finally:
        with contextlib.suppress(OSError):  # where no file can be made, removing one may be refused too
            scratch.unlink(missing_ok=True)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _plain(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """A mapping as JSON will give it back."""
    try:
        return json.loads(json.dumps(dict(given), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{name} cannot be written as JSON: {error}; give numbers, texts, lists and mappings."
        ) from error


@contextlib.contextmanager
def _faults_of(name: object) -> Iterator[None]:
    """Whatever is wrong with the content as one error of one line that names the file."""
    try:
        yield
    except CertError as error:
        raise ModelFileError(one_line(f"{name}: {error}")) from error
    except (MemoryError, RuntimeError) as error:  # of torch, for want of memory; a RecursionError is of this kind too
        raise ModelFileError(one_line(f"{name}: cannot be built: {error or type(error).__name__}")) from error


def _header(metadata: Mapping[str, str]) -> dict[str, Any]:
    text = metadata.get(_ENTRY)
    if text is None:
        raise ModelFileError(f"has no metadata entry {_ENTRY!r}; it is not a {FORMAT} file.")
    if len(text) > _TEXTS:
        raise ModelFileError(f"its metadata entry {_ENTRY!r} has {len(text)} characters; at most {_TEXTS} are read.")
    try:
        header = parse_json(text)
    except ModelFileError as error:
        raise ModelFileError(f"its metadata entry {_ENTRY!r} is {error}") from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        found = header.get("format") if isinstance(header, dict) else header
        raise ModelFileError(f"format is {found!r:.80}; this version reads {FORMAT!r} only.")
    expect_known(header, _HEADER_KEYS, "has")
    _expect_kinds(header)
    return header


def _expect_kinds(header: Mapping[str, Any]) -> None:
    """Refuse values of the wrong kind."""
    if header.get("task") not in TASKS:
        raise ModelFileError(f"task is {header.get('task')!r:.80}; known: {', '.join(TASKS)}.")
    for key in ("training", "origin"):
        if key in header and not isinstance(header[key], dict):
            raise ModelFileError(f"{key!r} must be an object, got {type(header[key]).__name__}.")
    if "source" in header and not isinstance(header["source"], str):
        raise ModelFileError(f"'source' must be a text, got {type(header['source']).__name__}.")
    if "members" in header and "layers" in header:
        raise ModelFileError("has both 'layers' and 'members'; a file holds one network or one ensemble.")
    key = "members" if "members" in header else "layers"
    if not isinstance(header.get(key), list):
        raise ModelFileError(f"{key!r} must be a list, got {type(header.get(key)).__name__}.")


def _checked_digest(
    header: Mapping[str, Any], metadata: Mapping[str, str], tensors: Mapping[str, Tensor]
) -> str | None:
    """The digest that the content was sealed with and has; None of a file without one."""
    if "sha256" not in header:
        return None
    sealed = header["sha256"]
    if not isinstance(sealed, str) or not re.fullmatch("[0-9a-f]{64}", sealed):
        raise ModelFileError(f"'sha256' must be 64 hexadecimal digits, got {sealed!r:.80}.")
    blank = {**metadata, _ENTRY: metadata[_ENTRY].replace(sealed, _BLANK, 1)}
    found = content_digest(blank, tensors)
    if not secrets.compare_digest(found, sealed):
        raise ModelFileError(
            f"its content has the SHA-256 {found[:12]}..., it was written with {sealed[:12]}...: the file is damaged "
            "or was changed; get it again from where it comes from."
        )
    return sealed


def _build(header: dict[str, Any], tensors: Mapping[str, Tensor]) -> Posterior:
    left = dict(tensors)
    expect_few([header.get("layers"), header.get("members")])
    if "members" in header:
        posterior: Posterior = _ensemble(header, left)
    else:
        posterior = read_chain(header["layers"], left, header["task"], header.get("input_shape"))
    if left:
        raise ModelFileError(f"holds tensors that no layer names: {', '.join(map(repr, sorted(left)[:4]))}.")
    return posterior


def _ensemble(header: dict[str, Any], left: dict[str, Tensor]) -> Ensemble:
    weights = left.pop(_WEIGHTS, None)
    if weights is None or not weights.dtype.is_floating_point or weights.dtype.itemsize < 2:
        found = "there is none" if weights is None else f"it has dtype {weights.dtype}"
        raise ModelFileError(f"an ensemble needs a floating point tensor {_WEIGHTS!r}, one number per member; {found}.")
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
