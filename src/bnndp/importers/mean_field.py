"""Independent Gaussian weights by name: tables of libraries or of the user, our own names, state_dicts of torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from torch import Tensor

from bnndp.errors import InputError, ModelFileError
from bnndp.importers.foreign import Choices, Foreign, Imported
from bnndp.importers.prefixes import network_names, network_tensors, optimisers
from bnndp.importers.tables import FIXED, Row, Table, layer_tensors

__all__ = ["ByTable", "OwnNames", "OwnTable", "StateDict", "is_stacked", "read_table"]

_KEYS = ("tensors", "formula")
_STATE_DICT = Table("state_dict", "weight_mean = weight, bias_mean = bias or 0, all std = 0", FIXED, ())
_SETTINGS = tuple(each.name for each in fields(Row) if each.init)


@dataclass(frozen=True, slots=True)
class ByTable:
    """The importer of one table."""

    table: Table

    @property
    def name(self) -> str:
        """That of the table."""
        return self.table.name

    @property
    def looks_for(self) -> str:
        """The signs of the table."""
        return self.table.looks_for

    @property
    def uses(self) -> tuple[str, ...]:
        """Whether biases are to be left out, where the library keeps idle ones."""
        return ("bias",) if self.table.idle_biases else ()

    def knows(self, foreign: Foreign) -> bool:
        """Whether the names are those of the table."""
        return self.table.knows(network_names(foreign))

    def read(self, foreign: Foreign, choices: Choices) -> Imported:
        """Mean and std of each weight and bias."""
        layers, remarks = self.table.layers(network_tensors(foreign))
        always = (self.table.remark,) if self.table.remark and choices.bias else ()
        left = ("the biases in the file were left out, as --no-bias says",) if not choices.bias else ()
        return Imported(
            (layer_tensors(layers, bias=choices.bias),), self.table.formula, remarks=(*remarks, *always, *left)
        )


@dataclass(frozen=True, slots=True)
class OwnTable:
    """The importer of a table that the user wrote."""

    name: str = "table"
    looks_for: str = "the names of the file that --table gives"
    uses: tuple[str, ...] = ("bias", "table")

    def knows(self, foreign: Foreign) -> bool:  # noqa: ARG002 (as of all importers)
        """Never by itself: it must be chosen."""
        return False

    def read(self, foreign: Foreign, choices: Choices) -> Imported:
        """By the table in ``choices``."""
        if choices.table is None:
            raise ModelFileError("a table of its names is needed: give --table")
        return ByTable(read_table(choices.table)).read(foreign, choices)


def read_table(given: Mapping[str, object]) -> Table:
    """A table as the user writes it: ``tensors``, a list of rows with ``name``, ``role``, ``transform``, ``layout``.

    >>> table = read_table(
    ...     {
    ...         "tensors": [
    ...             {"name": "<layer>.m", "role": "weight_mean"},
    ...             {"name": "<layer>.log_v", "role": "weight_std", "transform": "exp_half"},
    ...         ]
    ...     }
    ... )
    >>> table.formula
    'weight_mean = m, weight_std = exp_half(log_v)'
    """
    surplus = sorted(set(given) - set(_KEYS))
    rows, formula = given.get("tensors"), given.get("formula", "")
    if surplus:
        raise ModelFileError(f"the table has unknown settings: {', '.join(map(repr, surplus[:4]))}")
    if not isinstance(rows, list) or not rows or not isinstance(formula, str):
        raise ModelFileError("the table needs a list 'tensors' of rows, and may have a text 'formula'")
    known = tuple(_row(index, row) for index, row in enumerate(rows))
    return Table(
        "table",
        formula or ", ".join(_words(row) for row in known if row.role not in ("copy", "unused")),
        (*known, *FIXED),
        (),
    )


def _row(index: int, given: object) -> Row:
    texts = isinstance(given, dict) and all(isinstance(value, str | bool) for value in given.values())
    if not isinstance(given, dict) or not texts or not {"name", "role"} <= set(given):
        raise ModelFileError(f"row {index} of the table needs the texts 'name' and 'role', got {given!r:.80}")
    surplus = sorted(set(given) - set(_SETTINGS))
    if surplus:
        raise ModelFileError(f"row {index} of the table has unknown settings: {', '.join(map(repr, surplus[:4]))}")
    if given["role"] == "copy" and not given.get("of"):
        raise ModelFileError(f"row {index} of the table is a copy and must say of which name, by 'of'")
    try:
        return Row(**given)
    except (InputError, TypeError) as error:
        raise ModelFileError(f"row {index} of the table: {error}") from error


def _words(row: Row) -> str:
    theirs = row.name.replace("<layer>.", "")
    value = theirs if row.transform == "none" else f"{row.transform}({theirs})"
    return f"{row.role} = {value}{', transposed' if row.layout == 'in_out' else ''}"


def _last(name: str) -> str:
    return name.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class OwnNames:
    """Tensors by the names of docs/format.md."""

    name: str = "bnndp"
    looks_for: str = "<layer>.weight_mean"
    uses: tuple[str, ...] = ()

    def knows(self, foreign: Foreign) -> bool:
        """Whether any tensor is a ``weight_mean``."""
        return any(_last(name) == "weight_mean" for name in network_names(foreign))

    def read(self, foreign: Foreign, choices: Choices) -> Imported:  # noqa: ARG002 (as of all importers)
        """The tensors as they are."""
        return Imported((network_tensors(foreign),), "the tensors as they are")


@dataclass(frozen=True, slots=True)
class StateDict:
    """Layers of torch; of a checkpoint with an optimiser that holds the posterior they are only half of it."""

    name: str = "state_dict"
    looks_for: str = "<layer>.weight and .bias alone"
    uses: tuple[str, ...] = ()

    def knows(self, foreign: Foreign) -> bool:
        """Whether the network has weights and biases alone, one of each in a layer."""
        half = any(name.endswith(".hess") for name in foreign.tensors) and bool(optimisers(foreign))
        half = half or any(name.startswith("constraints.") for name in foreign.values)  # means and scales of Pyro
        names = network_names(foreign)
        plain = bool(names) and all(_last(name) in ("weight", "bias") for name in names)
        return plain and not half and not is_stacked(network_tensors(foreign))

    def read(self, foreign: Foreign, choices: Choices) -> Imported:  # noqa: ARG002 (as of all importers)
        """Means alone, stds of zero; a layer without a bias gets one of zero."""
        tensors = network_tensors(foreign)
        for name in tensors:
            layer, _, part = name.rpartition(".")
            if part == "bias" and f"{layer}.weight".lstrip(".") not in tensors:
                raise ModelFileError(f"tensor {name!r:.80} is a bias without a weight of the same layer")
        layers, _ = _STATE_DICT.layers(tensors)
        return Imported((layer_tensors(layers),), _STATE_DICT.formula)


def is_stacked(tensors: dict[str, Tensor]) -> bool:
    """Whether weights and biases of torch have one axis more than a layer's: many samples, the first axis counts them.

    Without any bias that is not sure: kernels of one-dimensional convolutions have three axes too.
    """
    found = {(_last(name), tensor.ndim) for name, tensor in tensors.items()}
    return ("bias", 2) in found and found <= {("weight", 3), ("weight", 5), ("bias", 2)}
