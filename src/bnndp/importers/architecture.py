"""The architecture of a network whose file holds tensors alone: its layers, its task, the shape of its inputs.

Nothing is assumed: a missing activation or task is an error that names the option.
"""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from bnndp.activations import ACTIVATIONS
from bnndp.errors import CertError, InputError, ModelFileError, one_line
from bnndp.files.container import expect_known, parse_json
from bnndp.files.entries import read_chain
from bnndp.files.regular import read_regular
from bnndp.importers.prefixes import strip_prefixes
from bnndp.network import KINDS, TASKS, BayesianNetwork

_WHAT = "description of a network"
_LONGEST = 2**22  # bytes of a file of settings
_KEYS = {"task", "input_shape", "layers"}
_UNSAID: dict[str, dict[str, Any]] = {"linear": {"posterior": "mean_field"}, "correlated_linear": {"shared": True}}


@dataclass(frozen=True, slots=True)
class Architecture:
    """The layers of a network, its task and the shape of its inputs.

    Args:
        task: ``"regression"`` or ``"classification"``.
        activation: The activation between each two dense layers, a kind without settings; if ``layers`` is not given.
        layers: Entries as in docs/format.md, by the names of the file. If not given, the layers are dense, in the order
            of the file.
        input_shape: The shape ``(channels, height, width)`` of images.

    Examples:
        >>> Architecture("regression", "tanh").activation
        'tanh'
    """

    task: str | None = None  # None: given elsewhere, such as the state of a Laplace approximation
    activation: str | None = None  # None: there is none, or it is given elsewhere, as by a live module
    layers: tuple[dict[str, Any], ...] | None = None
    input_shape: tuple[int, ...] | None = None  # None: that of the first layer, which is dense

    def __post_init__(self) -> None:
        if self.task is not None and self.task not in TASKS:
            raise InputError(f"task must be one of {', '.join(TASKS)}, got {self.task!r:.80}.")
        simple = sorted(kind for kind in ACTIVATIONS if not (KINDS[kind].settings or KINDS[kind].tensors))
        if self.activation is not None and self.activation not in simple:
            raise InputError(f"activation must be one of {', '.join(simple)}, got {self.activation!r:.80}.")

    def network(self, tensors: Mapping[str, Tensor], kinds: Mapping[str, str] | None = None) -> BayesianNetwork:
        """The network of these tensors, by the names of docs/format.md; all of them must be used.

        ``kinds`` are those of layers that are not ``linear`` though they are dense: of the others' covariances.
        """
        left = dict(tensors)
        entries = self._entries(tensors, kinds or {})
        self.expect_complete(tensors)
        shape = _inputs(entries, tensors) if self.input_shape is None else list(self.input_shape)
        network = read_chain(entries, left, str(self.task), shape)
        if left:
            raise ModelFileError(f"it holds tensors that no layer names: {', '.join(map(repr, sorted(left)[:4]))}")
        return network

    def names(self, tensors: Mapping[str, Tensor]) -> list[str]:
        """The names of the layers with tensors, in their order, as these tensors have them."""
        return list(_names(self._entries(tensors, {})))

    def expect_complete(self, tensors: Mapping[str, Tensor]) -> None:
        """Refuse a network without a task, or without an activation between two layers."""
        needed = []
        several = sum(name.endswith(".weight_mean") for name in tensors) > 1
        if several and self.layers is None and self.activation is None:
            needed.append(
                "the activation between its layers (--activation KIND or --arch; in Python activation=KIND or an "
                "Architecture)"
            )
        if self.task is None:
            needed.append(f"the task (--task {' or '.join(TASKS)}; in Python task=)")
        if needed:
            raise InputError(
                f"tensors do not say all of a network, and nothing is guessed: give {' and '.join(needed)}."
            )

    def _entries(self, tensors: Mapping[str, Tensor], kinds: Mapping[str, str]) -> list[Any]:
        chain = self._chain(tensors) if self.layers is None else self.layers
        return [_completed(entry, tensors, kinds) for entry in chain]

    def _chain(self, tensors: Mapping[str, Tensor]) -> list[dict[str, Any]]:
        names = dict.fromkeys(name.rpartition(".")[0] for name in tensors if name.endswith(".weight_mean"))
        entries: list[dict[str, Any]] = []
        for name in names:
            shape = tuple(tensors[f"{name}.weight_mean"].shape)
            if len(shape) != 2:
                raise ModelFileError(
                    f"the weight of {name!r:.80} has shape {shape}, so this is not a chain of dense layers; give --arch"
                )
            entries += [{"type": self.activation}] if entries else []
            entries.append({"type": "linear", "name": name})
        return entries


def _names(entries: Iterable[Any]) -> Iterator[str]:
    for entry in entries:
        if isinstance(entry, dict) and isinstance(entry.get("layers"), list):
            yield from _names(entry["layers"])
        elif isinstance(entry, dict) and isinstance(entry.get("name"), str):
            yield entry["name"]


def _completed(entry: Any, tensors: Mapping[str, Tensor], kinds: Mapping[str, str]) -> Any:
    """An entry with the defaults of a dense layer, and without prefixes that the names of the tensors do not have."""
    if not isinstance(entry, dict):
        return entry
    if isinstance(entry.get("layers"), list):
        return {**entry, "layers": [_completed(inner, tensors, kinds) for inner in entry["layers"]]}
    name = entry.get("name")
    if isinstance(name, str) and f"{name}.weight_mean" not in tensors:
        entry = {**entry, "name": strip_prefixes(name)}
    if entry.get("type") != "linear":
        return entry
    kind = kinds.get(str(entry.get("name")), "linear")
    return {**_UNSAID.get(kind, {}), **entry, "type": kind}


def _inputs(entries: list[Any], tensors: Mapping[str, Tensor]) -> list[int]:
    """The number of inputs of a first layer that is dense."""
    named = next((entry for entry in entries if isinstance(entry, dict) and "name" in entry), {})
    weight = tensors.get(f"{named.get('name')}.weight_mean")
    if weight is None or weight.ndim != 2:
        raise ModelFileError("input_shape must be given where the first layer with weights is not a dense one")
    return [weight.shape[1]]


def merge_architecture(given: Architecture | None, task: str | None, activation: str | None) -> Architecture | None:
    """The architecture with ``task`` and ``activation`` filled in; None if nothing is given.

    >>> merge_architecture(None, "classification", None)
    Architecture(task='classification', activation=None, layers=None, input_shape=None)
    """
    if given is None:
        return None if task is None and activation is None else Architecture(task, activation)
    if not isinstance(given, Architecture):
        raise InputError(
            f"architecture must be a bnndp.importers.Architecture, got {type(given).__name__}; in short there are "
            "task= and activation=."
        )
    twice = task is not None and given.task is not None
    if twice or (activation is not None and (given.activation is not None or given.layers is not None)):
        raise InputError(f"the architecture says it already, {given!s:.200}; leave out task= and activation=.")
    return replace(given, task=given.task or task, activation=given.activation or activation)


def read_architecture(path: str | os.PathLike[str]) -> Architecture:
    """The description in a .json or .toml file; faults are a :class:`ModelFileError` of one line."""
    found, _ = read_settings(path, _WHAT)
    try:
        if not isinstance(found, dict) or not isinstance(found.get("layers"), list):
            raise ModelFileError("it needs a list of layers, as in docs/format.md")
        expect_known(found, _KEYS, "it has")
        shape = found.get("input_shape")
        if shape is not None and not (isinstance(shape, list) and all(type(n) is int for n in shape)):
            raise ModelFileError(f"input_shape is {shape!r:.80}; expected a list of whole numbers")
        return Architecture(
            found.get("task"), layers=tuple(found["layers"]), input_shape=None if shape is None else tuple(shape)
        )
    except CertError as error:
        raise ModelFileError(one_line(f"{path}: is no {_WHAT}: {error}")) from error


def read_settings(path: str | os.PathLike[str], what: str) -> tuple[Any, str]:
    """The content of a .json or .toml file and its SHA-256; faults are a :class:`ModelFileError`: it is no ``what``."""
    content = read_regular(path, _LONGEST)
    try:
        return _parsed(content, Path(path).suffix.lower()), hashlib.sha256(content).hexdigest()
    except CertError as error:
        raise ModelFileError(one_line(f"{path}: is no {what}: {error}")) from error


def _parsed(content: bytes, suffix: str) -> Any:
    if suffix == ".json":
        return parse_json(content)
    if suffix != ".toml":
        raise ModelFileError(f"its name must end in .json or .toml, not in {suffix!r:.20}")
    try:
        toml = importlib.import_module("tomllib")
    except ImportError as error:
        raise ModelFileError("TOML needs Python 3.11; write it as .json") from error
    try:
        return toml.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"not TOML: {error}") from error
