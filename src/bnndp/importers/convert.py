"""A foreign file as a network, with a record of where it comes from: what ``bnndp convert`` does."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from bnndp.errors import CertError, InputError, ModelFileError, one_line
from bnndp.importers.pickles import Opened, open_pickle
from bnndp.regular_files import read_regular

if TYPE_CHECKING:
    from bnndp.files import ModelFile
    from bnndp.importers.architecture import Architecture

__all__ = ["convert"]

_OWN = "bnndp"  # the metadata entry of our own files


def convert(path: str | os.PathLike[str], given: Architecture | None = None, *, key: str = "") -> ModelFile:
    """The network in a file of named tensors: a pickle of PyTorch, or a safetensors file.

    ``given`` says what the file does not (None: dense layers in its order, ReLU between them, regression); ``key`` is
    the entry that holds the tensors, where a pickle holds more. A ``bnndp-posterior-1`` file is given back as it is.
    Every fault is a :class:`ModelFileError` of one line; of a bad pickle it comes before torch is imported here.
    """
    content = read_regular(path)
    if not _is_container(content):
        return _network(open_pickle(content, path, key=key), path, given)
    from bnndp.container import parse_container
    from bnndp.files import model_of

    if key:
        raise InputError(f"{path}: is a safetensors file, which has no entries to choose from; leave out --key.")
    metadata, tensors = parse_container(content, path)
    if _OWN not in metadata:
        return _network(Opened(tensors, hashlib.sha256(content).hexdigest(), None), path, given)
    if given is not None:
        raise InputError(f"{path}: describes its layers by itself; leave out --arch, --activation and --task.")
    return model_of(metadata, tensors, path)


def _is_container(content: bytes) -> bool:
    """Whether it begins as a safetensors file does: with the length of a header, which is JSON."""
    return content[8:9] == b"{" and int.from_bytes(content[:8], "little") <= len(content) - 8


def _network(opened: Opened, path: str | os.PathLike[str], given: Architecture | None) -> ModelFile:
    from bnndp.files import ModelFile
    from bnndp.importers.architecture import Architecture
    from bnndp.importers.tables import table_for

    try:
        table = table_for(opened.tensors)
        ours = table.renamed(opened.tensors)
        network = (given or Architecture()).network(ours)
    except (CertError, RuntimeError, MemoryError) as error:
        raise ModelFileError(one_line(f"{path}: cannot be converted: {error}")) from error
    name = Path(path).name
    layers = list(dict.fromkeys(tensor.rpartition(".")[0] for tensor in ours))
    origin = {"file": name, "sha256": opened.sha256, "table": table.name, "formula": table.formula, "layers": layers}
    if opened.torch is not None:
        origin["torch"] = opened.torch
    return ModelFile(network, None, f"converted from {name}", None, origin)
