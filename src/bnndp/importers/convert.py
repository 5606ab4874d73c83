"""Foreign files as a network, with a record of where it comes from: what ``bnndp convert`` does."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bnndp.errors import CertError, InputError, ModelFileError, one_line
from bnndp.files.regular import read_regular
from bnndp.importers.arrays import arrays_of, is_arrays
from bnndp.importers.foreign import Choices, Foreign, Found, Importer, expect_heard, few, without
from bnndp.importers.pickles import Opened, open_pickle

if TYPE_CHECKING:
    from bnndp.files.posterior import ModelFile
    from bnndp.importers.architecture import Architecture

__all__ = ["Asked", "convert"]

_OWN = "bnndp"  # the metadata entry of our own files


@dataclass(frozen=True, slots=True)
class Asked:
    """How files are to be read; all of it may be left to the files."""

    importer: str = "auto"  # a name in registry.IMPORTERS
    key: str = ""  # the entry of a pickle that holds the tensors
    beside: Path | None = None  # a second file, as of the network beside its optimiser
    table: Path | None = None  # .toml or .json: names of tensors, and what else an importer asks for
    scale_transform: str | None = None  # as in Choices
    bias: bool = True  # False: layers have none, whatever the file holds
    ignore: tuple[str, ...] = ()  # tensors, or sites, that are no weights of the network


def convert(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    given: Architecture | None = None,
    asked: Asked | None = None,
) -> ModelFile:
    """The network in a file of named tensors, or the ensemble in several: pickles of PyTorch, safetensors, arrays.

    ``given`` says what files do not (without layers: dense ones in their order); an activation or a task that nobody
    says is refused. A ``bnndp-posterior-1`` file is given back as it is. Every fault is a :class:`ModelFileError` of
    one line; of a bad pickle it comes before torch is imported here.
    """
    asked = asked or Asked()
    several = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not several:
        raise InputError("there is no file to convert.")
    contents = [(path, read_regular(path)) for path in several]
    own = _own_file(contents, given, asked)
    if own is not None:
        return own
    opened = [_opened(content, path, asked.key) for path, content in contents]
    beside = None if asked.beside is None else _opened(read_regular(asked.beside), asked.beside, "")
    return _model(several, opened, beside, given, asked)


def _own_file(
    contents: Sequence[tuple[str | os.PathLike[str], bytes]], given: Architecture | None, asked: Asked
) -> ModelFile | None:
    """The content of a file that describes its network by itself; None if there is none."""
    for path, content in contents:
        if not _is_container(content):
            continue
        from bnndp.files.container import parse_container
        from bnndp.files.posterior import model_of

        if asked.key:
            raise InputError(f"{path}: is a safetensors file, which has no entries to choose from; leave out --key.")
        header, tensors = parse_container(content, path)
        if _OWN not in header:
            continue
        if len(contents) > 1:
            raise InputError(f"{path}: is a whole model; convert it alone, or make an Ensemble of models in Python.")
        if given is not None or asked != Asked():
            raise InputError(f"{path}: describes its layers by itself; leave out all options but --out.")
        return model_of(header, tensors, path)
    return None


def _is_container(content: bytes) -> bool:
    """Whether it begins as a safetensors file does: with the length of a header, which is JSON."""
    return content[8:9] == b"{" and int.from_bytes(content[:8], "little") <= len(content) - 8


def _opened(content: bytes, path: str | os.PathLike[str], key: str) -> Opened:
    """What the file holds, whatever kind it is of."""
    digest = hashlib.sha256(content).hexdigest()
    if _is_container(content):
        from bnndp.files.container import parse_container

        return Opened(Foreign(parse_container(content, path)[1], holders=("",), ordered=False), digest, None)
    if not is_arrays(content):
        return open_pickle(content, path, key=key)
    if key:
        raise InputError(f"{path}: is a file of arrays, which has no entries to choose from; leave out --key.")
    try:
        return Opened(arrays_of(content, path), digest, None)
    except ModelFileError as error:
        raise ModelFileError(one_line(f"{path}: cannot be converted: {error}")) from error


def _model(
    paths: Sequence[str | os.PathLike[str]],
    opened: Sequence[Opened],
    beside: Opened | None,
    given: Architecture | None,
    asked: Asked,
) -> ModelFile:
    from bnndp.files.posterior import ModelFile
    from bnndp.importers.architecture import read_settings
    from bnndp.importers.build import posterior_of, settled
    from bnndp.importers.samples import joined

    table = None if asked.table is None else read_settings(asked.table, "table")
    if table is not None and not isinstance(table, dict):
        raise ModelFileError(one_line(f"{asked.table}: is no table: it must be a mapping of settings"))
    second = None if beside is None else beside.foreign
    choices = Choices(asked.scale_transform, asked.bias, second, table, asked.ignore)
    pairs = list(zip(paths, opened, strict=True))
    parts = [_read(each.foreign, asked.importer, choices, path) for path, each in pairs]
    importer = parts[0][0]
    try:
        if any(other is not importer for other, _ in parts):
            raise ModelFileError(
                f"these files are read by {', '.join(dict.fromkeys(i.name for i, _ in parts))}, not by one"
            )
        found = joined([found for _, found in parts])
        found = settled(found, given, ordered=all(each.foreign.ordered for each in opened))
        posterior = posterior_of(found, given)
    except (CertError, RuntimeError, MemoryError) as error:
        raise ModelFileError(one_line(f"{paths[0]}: cannot be converted: {error}")) from error
    sources = [_source(path, each.sha256) for path, each in pairs]
    origin = _origin(importer, found, sources, asked)
    origin["dtypes"] = sorted(
        {str(t.dtype).removeprefix("torch.") for each in opened for t in each.foreign.tensors.values()}
    )
    origin["versions"] = {"bnndp": metadata.version("bnndp")}
    if any(each.torch for each in opened):
        origin["versions"]["torch"] = metadata.version("torch")
    if beside is not None and asked.beside is not None:
        origin["beside"] = _source(asked.beside, beside.sha256)
    named = sources[0]["file"] if len(sources) == 1 else f"{len(sources)} files, the first {sources[0]['file']}"
    return ModelFile(posterior, None, f"converted from {named}", None, origin)


def _read(foreign: Foreign, name: str, choices: Choices, path: str | os.PathLike[str]) -> tuple[Importer, Found]:
    """What the importer makes of one file, and which that was."""
    from bnndp.importers.registry import importer_for

    try:
        used, sites = without(foreign, choices.ignore)
        beside, unmet = (None, sites) if choices.beside is None else without(choices.beside, choices.ignore)
        sites = tuple(each for each in sites if each in unmet)
        importer = importer_for(used, name, choices.table)
        if sites and "ignore" not in importer.uses:
            raise ModelFileError(f"it has no tensor {sites[0]!r:.80} to ignore; its tensors are {few(foreign.tensors)}")
        told = replace(choices, ignore=sites, beside=beside)
        expect_heard(importer, told)
        found = importer.read(used, told)
        left_out = f"left out, as --ignore says: {', '.join(f'{each!s:.60}' for each in choices.ignore)}"
        return importer, replace(found, remarks=(*found.remarks, left_out)) if choices.ignore else found
    except InputError:
        raise
    except (CertError, RuntimeError, MemoryError) as error:
        raise ModelFileError(one_line(f"{path}: cannot be converted: {error}")) from error


def _source(path: str | os.PathLike[str], digest: str) -> dict[str, str]:
    return {"file": Path(path).name, "sha256": digest}


def _origin(importer: Importer, found: Found, sources: list[dict[str, str]], asked: Asked) -> dict[str, Any]:
    """Where the network comes from and how its values were read, as it is kept in the new file."""
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in found.members[0]))
    origin: dict[str, Any] = {"sources": sources, "importer": importer.name, "formula": found.formula, "layers": layers}
    if found.remarks:
        origin["remarks"] = list(found.remarks)
    if asked.table is not None:
        origin["table"] = _source(asked.table, hashlib.sha256(read_regular(asked.table)).hexdigest())
    changed = [
        name for name in ("scale_transform", "bias", "key", "ignore") if getattr(asked, name) != getattr(Asked(), name)
    ]
    choices = {name: list(asked.ignore) if name == "ignore" else getattr(asked, name) for name in changed}
    return origin | ({"choices": choices} if choices else {})
