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
from bnndp.importers.foreign import Choices, Foreign, Imported, Importer, drop_tensors, expect_used, quoted
from bnndp.importers.onnx import is_onnx
from bnndp.importers.pickles import OpenedFile, open_pickle

if TYPE_CHECKING:
    from torch import Tensor

    from bnndp.files.posterior import ModelFile
    from bnndp.importers.architecture import Architecture

_OWN = "bnndp"  # the metadata entry of our own files


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """How files are to be read. The defaults take everything from the files."""

    importer: str = "auto"  # a name in registry.IMPORTERS
    key: str = ""  # the entry of a pickle that holds the tensors
    beside: Path | None = None  # a second file, as of the network beside its optimiser
    table: Path | None = None  # .toml or .json: names of tensors, and what else an importer asks for
    scale_transform: str | None = None  # as in Choices
    bias: bool = True  # False: layers have none, whatever the file holds
    ignore: tuple[str, ...] = ()  # tensors, or sites, that are not weights of the network
    std: Path | None = None  # of the weights of an ONNX file, under their names


def convert(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    given: Architecture | None = None,
    options: ConvertOptions | None = None,
) -> ModelFile:
    """Read the network in a file of named tensors, or the ensemble in several files.

    Args:
        paths: Pickles of PyTorch, safetensors files, or files of numpy arrays.
        given: What the files do not say. Without layers they are dense, in the order of the file. An activation or a
            task that is neither given nor known is refused.
        options: How the files are to be read.

    Returns:
        The posterior and its origin; of a ``bnndp-posterior-1`` file, its content. Every fault is a
        :class:`ModelFileError` of one line; of a bad pickle it comes before torch is imported here.
    """
    options = options or ConvertOptions()
    several = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not several:
        raise InputError("there is no file to convert.")
    onnx = next((path for path in several if is_onnx(path)), None)
    if onnx is not None:
        return _of_onnx(several, given, options)
    if options.std is not None:
        raise InputError("standard deviations in a file of their own are for ONNX files; leave out --std.")
    opened = [_opened(path, options.key) for path in several]
    for path, each in zip(several, opened, strict=True):
        if _OWN in each.metadata:
            if len(several) > 1:
                raise InputError(
                    f"{path}: is a whole model; convert it alone, or make an Ensemble of models in Python."
                )
            if given is not None or options != ConvertOptions():
                raise InputError(f"{path}: describes its layers by itself; leave out all options but --out.")
            from bnndp.files.posterior import model_of

            return model_of(each.metadata, each.foreign.tensors, path)
    return _model(several, opened, given, options)


def _of_onnx(paths: Sequence[str | os.PathLike[str]], given: Architecture | None, options: ConvertOptions) -> ModelFile:
    """The network of an ONNX file, which says everything but the task."""
    from bnndp.files.posterior import ModelFile
    from bnndp.importers.architecture import Architecture
    from bnndp.importers.onnx.read import read_onnx
    from bnndp.layers import WEIGHTED
    from bnndp.network import flat

    path, task = paths[0], None if given is None else given.task
    if len(paths) > 1 or task is None or given != Architecture(task=task) or options != ConvertOptions(std=options.std):
        raise InputError(f"{path}: an ONNX file is converted alone, with --task, and --std FILE if there is one, only.")
    network = read_onnx(path, options.std, task)
    layers = [str(index) for index, _ in enumerate(each for each in flat(network.layers) if isinstance(each, WEIGHTED))]
    files = [path] if options.std is None else [path, options.std]
    sources = [_source(each, hashlib.sha256(read_regular(each)).hexdigest()) for each in files]
    formula = "weights as they are" if options.std is None else "means of the graph, standard deviations of --std"
    origin = {"sources": sources, "importer": "onnx", "formula": formula, "layers": layers}
    return ModelFile(network, None, f"converted from {sources[0]['file']}", None, origin)


def tensors_of(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The named tensors of a file of any kind, as of standard deviations beside a network."""
    return _opened(path, "").foreign.tensors


def _opened(path: str | os.PathLike[str], key: str) -> OpenedFile:
    """The content of a file of any kind."""
    content = read_regular(path)
    container = content[8:9] == b"{" and int.from_bytes(content[:8], "little") <= len(content) - 8
    if not container and not is_arrays(content):
        return open_pickle(content, path, key=key)
    if key:
        kind = "a safetensors file" if container else "a file of arrays"
        raise InputError(f"{path}: is {kind}, which has no entries to choose from; leave out --key.")
    digest = hashlib.sha256(content).hexdigest()
    if container:
        from bnndp.files.container import parse_container

        header, tensors = parse_container(content, path)
        return OpenedFile(Foreign(tensors, holders=("",), ordered=False), digest, None, header)
    try:
        return OpenedFile(arrays_of(content, path), digest, None)
    except ModelFileError as error:
        raise ModelFileError(one_line(f"{path}: cannot be converted: {error}")) from error


def _model(
    paths: Sequence[str | os.PathLike[str]],
    opened: Sequence[OpenedFile],
    given: Architecture | None,
    options: ConvertOptions,
) -> ModelFile:
    from bnndp.files.posterior import ModelFile
    from bnndp.importers.architecture import read_settings
    from bnndp.importers.build import order_layers, posterior_of
    from bnndp.importers.samples import join_members

    beside = None if options.beside is None else _opened(options.beside, "")
    table, table_digest = (None, "") if options.table is None else read_settings(options.table, "table")
    if table is not None and not isinstance(table, dict):
        raise ModelFileError(one_line(f"{options.table}: is not a table: it must be a mapping of settings"))
    second = None if beside is None else beside.foreign
    choices = Choices(options.scale_transform, options.bias, second, table, options.ignore)
    pairs = list(zip(paths, opened, strict=True))
    parts = [_read(each.foreign, options.importer, choices, path) for path, each in pairs]
    importer = parts[0][0]
    try:
        if any(other is not importer for other, _ in parts):
            raise ModelFileError(
                f"these files are read by {', '.join(dict.fromkeys(i.name for i, _ in parts))}, not by one"
            )
        found = join_members([found for _, found in parts])
        found = order_layers(found, given, ordered=all(each.foreign.ordered for each in opened))
        posterior = posterior_of(found, given)
    except (CertError, RuntimeError, MemoryError) as error:
        raise ModelFileError(one_line(f"{paths[0]}: cannot be converted: {error}")) from error
    sources = [_source(path, each.sha256) for path, each in pairs]
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in found.members[0]))
    origin: dict[str, Any] = {"sources": sources, "importer": importer.name, "formula": found.formula, "layers": layers}
    if found.remarks:
        origin["remarks"] = list(found.remarks)
    if options.table is not None:
        origin["table"] = _source(options.table, table_digest)
    choices_made = _choices_made(options)
    if choices_made:
        origin["choices"] = choices_made
    origin["dtypes"] = sorted(
        {str(t.dtype).removeprefix("torch.") for each in opened for t in each.foreign.tensors.values()}
    )
    origin["versions"] = {"bnndp": metadata.version("bnndp")}
    if any(each.torch for each in opened):
        origin["versions"]["torch"] = metadata.version("torch")
    if beside is not None and options.beside is not None:
        origin["beside"] = _source(options.beside, beside.sha256)
    named = sources[0]["file"] if len(sources) == 1 else f"{len(sources)} files, the first {sources[0]['file']}"
    return ModelFile(posterior, None, f"converted from {named}", None, origin)


def _read(foreign: Foreign, name: str, choices: Choices, path: str | os.PathLike[str]) -> tuple[Importer, Imported]:
    """What the importer makes of one file, and which that was."""
    from bnndp.importers.registry import importer_for

    try:
        used, sites = drop_tensors(foreign, choices.ignore)
        beside, unmet = (None, sites) if choices.beside is None else drop_tensors(choices.beside, choices.ignore)
        sites = tuple(each for each in sites if each in unmet)
        importer = importer_for(used, name, choices.table)
        if sites and "ignore" not in importer.uses:
            raise ModelFileError(
                f"it has no tensor {sites[0]!r:.80} to ignore; its tensors are {quoted(foreign.tensors)}"
            )
        kept = replace(choices, ignore=sites, beside=beside)
        expect_used(importer, kept)
        found = importer.read(used, kept)
        left_out = f"left out, as --ignore says: {', '.join(f'{each!s:.60}' for each in choices.ignore)}"
        return importer, replace(found, remarks=(*found.remarks, left_out)) if choices.ignore else found
    except InputError:
        raise
    except (CertError, RuntimeError, MemoryError) as error:
        raise ModelFileError(one_line(f"{path}: cannot be converted: {error}")) from error


def _source(path: str | os.PathLike[str], digest: str) -> dict[str, str]:
    return {"file": Path(path).name, "sha256": digest}


def _choices_made(options: ConvertOptions) -> dict[str, object]:
    """The choices of how values are read that are not the default, as they are kept in the new file."""
    named = ("scale_transform", "bias", "key")
    made = {name: getattr(options, name) for name in named if getattr(options, name) != getattr(ConvertOptions(), name)}
    return made | ({"ignore": list(options.ignore)} if options.ignore else {})
