"""What the user says of a network whose file holds tensors alone: its layers, its task, the shape of its inputs."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from bnndp.activations import ACTIVATIONS
from bnndp.container import parse_json
from bnndp.entries import read_chain
from bnndp.errors import CertError, InputError, ModelFileError, one_line
from bnndp.network import KINDS, TASKS, BayesianNetwork
from bnndp.regular_files import read_regular

__all__ = ["Architecture", "read_architecture"]

_LONGEST = 2**22  # bytes of a description
_KEYS = {"task", "input_shape", "layers"}


@dataclass(frozen=True, slots=True)
class Architecture:
    """Layers as in docs/format.md, by the names of the file; without them: dense layers in the order of the file.

    Between each two of those is the ``activation``, a kind without settings.
    """

    task: str = "regression"
    activation: str = "relu"
    layers: tuple[dict[str, Any], ...] | None = None
    input_shape: tuple[int, ...] | None = None  # None: that of the first layer, which is dense

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise InputError(f"task must be one of {', '.join(TASKS)}, got {self.task!r:.80}.")
        simple = sorted(kind for kind in ACTIVATIONS if not (KINDS[kind].settings or KINDS[kind].tensors))
        if self.activation not in simple:
            raise InputError(f"activation must be one of {', '.join(simple)}, got {self.activation!r:.80}.")

    def network(self, tensors: dict[str, Tensor]) -> BayesianNetwork:
        """The network of these tensors, named in our manner; all of them must be used."""
        left = dict(tensors)
        entries = [*self._chain(tensors)] if self.layers is None else [_with_posterior(entry) for entry in self.layers]
        shape = _inputs(entries, tensors) if self.input_shape is None else list(self.input_shape)
        network = read_chain(entries, left, self.task, shape)
        if left:
            raise ModelFileError(f"it holds tensors that no layer names: {', '.join(map(repr, sorted(left)[:4]))}")
        return network

    def _chain(self, tensors: dict[str, Tensor]) -> list[dict[str, Any]]:
        names = dict.fromkeys(name.rpartition(".")[0] for name in tensors if name.endswith(".weight_mean"))
        entries: list[dict[str, Any]] = []
        for name in names:
            shape = tuple(tensors[f"{name}.weight_mean"].shape)
            if len(shape) != 2:
                raise ModelFileError(
                    f"the weight of {name!r:.80} has shape {shape}, so this is no chain of dense layers; give --arch"
                )
            entries += [{"type": self.activation}] if entries else []
            entries.append({"type": "linear", "name": name, "posterior": "mean_field"})
        return entries


def _with_posterior(entry: Any) -> Any:
    """Every tensor is there, so a linear layer has a posterior of its own; it need not be said."""
    linear = isinstance(entry, dict) and entry.get("type") == "linear"
    return {"posterior": "mean_field", **entry} if linear else entry


def _inputs(entries: list[Any], tensors: dict[str, Tensor]) -> list[int]:
    """The number of inputs of a first layer that is dense."""
    named = next((entry for entry in entries if isinstance(entry, dict) and "name" in entry), {})
    weight = tensors.get(f"{named.get('name')}.weight_mean")
    if weight is None or weight.ndim != 2:
        raise ModelFileError("input_shape must be given where the first layer with weights is not a dense one")
    return [weight.shape[1]]


def read_architecture(path: str | os.PathLike[str]) -> Architecture:
    """The description in a .json or .toml file; faults are a :class:`ModelFileError` of one line."""
    content = read_regular(path, _LONGEST)
    try:
        found = _parsed(content, Path(path).suffix.lower())
        if not isinstance(found, dict) or not isinstance(found.get("layers"), list):
            raise ModelFileError("it needs a list of layers, as in docs/format.md")
        surplus = sorted(set(found) - _KEYS)
        if surplus:
            raise ModelFileError(f"it has unknown settings: {', '.join(map(repr, surplus[:4]))}")
        shape = found.get("input_shape")
        if shape is not None and not (isinstance(shape, list) and all(type(n) is int for n in shape)):
            raise ModelFileError(f"input_shape is {shape!r:.80}; expected a list of whole numbers")
        task = found.get("task", "regression")
        return Architecture(task, layers=tuple(found["layers"]), input_shape=None if shape is None else tuple(shape))
    except CertError as error:
        raise ModelFileError(one_line(f"{path}: is no description of a network: {error}")) from error


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
