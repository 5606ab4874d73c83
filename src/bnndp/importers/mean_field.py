"""Independent Gaussian weights by name: tables of libraries or of the user, our own names, state_dicts of torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from torch import Tensor

from bnndp.errors import InputError, ModelFileError
from bnndp.files.container import expect_known
from bnndp.importers.foreign import Choices, Foreign, Imported, Importer
from bnndp.importers.prefixes import network_names, network_tensors, optimisers
from bnndp.importers.tables import FIXED, Row, Table, layer_tensors

_KEYS = ("tensors", "formula")
_STATE_DICT = Table("state_dict", "weight_mean = weight, bias_mean = bias or 0, all std = 0", FIXED, ())
_SETTINGS = tuple(each.name for each in fields(Row) if each.init)


def by_table(table: Table) -> Importer:
    """The importer of one table."""

    def read(foreign: Foreign, choices: Choices) -> Imported:
        layers, remarks = table.layers(network_tensors(foreign))
        always = (table.remark,) if table.remark and choices.bias else ()
        left = ("the biases in the file were left out, as --no-bias says",) if not choices.bias else ()
        return Imported((layer_tensors(layers, bias=choices.bias),), table.formula, remarks=(*remarks, *always, *left))

    uses = ("bias",) if table.idle_biases else ()
    return Importer(table.name, table.looks_for, uses, lambda foreign: table.knows(network_names(foreign)), read)


def _read_by_table(foreign: Foreign, choices: Choices) -> Imported:
    if choices.table is None:
        raise ModelFileError("a table of its names is needed: give --table")
    return by_table(read_table(choices.table)).read(foreign, choices)


OWN_TABLE = Importer(
    "table", "the names of the file that --table gives", ("bias", "table"), lambda _: False, _read_by_table
)
"""The importer of a table that the user wrote; it must be chosen."""


def read_table(given: Mapping[str, object]) -> Table:
    """A table as the user writes it: ``tensors``, a list of rows with ``name``, ``role``, ``transform``, ``layout``.

    >>> mean = {"name": "<layer>.m", "role": "weight_mean"}
    >>> std = {"name": "<layer>.log_v", "role": "weight_std", "transform": "exp_half"}
    >>> read_table({"tensors": [mean, std]}).formula
    'weight_mean = m, weight_std = exp_half(log_v)'
    """
    expect_known(given, _KEYS, "the table has")
    rows, formula = given.get("tensors"), given.get("formula", "")
    if not isinstance(rows, list) or not rows or not isinstance(formula, str):
        raise ModelFileError("the table needs a list 'tensors' of rows, and may have a text 'formula'")
    known = tuple(_row(index, row) for index, row in enumerate(rows))
    default = ", ".join(_words(row) for row in known if row.role not in ("copy", "unused"))
    return Table("table", formula or default, (*known, *FIXED), ())


def _row(index: int, given: object) -> Row:
    texts = isinstance(given, dict) and all(isinstance(value, str | bool) for value in given.values())
    if not isinstance(given, dict) or not texts or not {"name", "role"} <= set(given):
        raise ModelFileError(f"row {index} of the table needs the texts 'name' and 'role', got {given!r:.80}")
    expect_known(given, _SETTINGS, f"row {index} of the table has")
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


OWN_NAMES = Importer(
    "bnndp",
    "<layer>.weight_mean",
    (),
    lambda foreign: any(_last(name) == "weight_mean" for name in network_names(foreign)),
    lambda foreign, _: Imported((network_tensors(foreign),), "the tensors as they are"),
)
"""Tensors by the names of docs/format.md."""


def _knows_state_dict(foreign: Foreign) -> bool:
    """Whether the network has weights and biases alone, one of each in a layer."""
    half = any(name.endswith(".hess") for name in foreign.tensors) and bool(optimisers(foreign))
    half = half or any(name.startswith("constraints.") for name in foreign.values)  # means and scales of Pyro
    names = network_names(foreign)
    plain = bool(names) and all(_last(name) in ("weight", "bias") for name in names)
    return plain and not half and not is_stacked(network_tensors(foreign))


def _read_state_dict(foreign: Foreign, choices: Choices) -> Imported:  # noqa: ARG001 (as of all importers)
    """Means alone, stds of zero; a layer without a bias gets one of zero."""
    tensors = network_tensors(foreign)
    for name in tensors:
        layer, _, part = name.rpartition(".")
        if part == "bias" and f"{layer}.weight".lstrip(".") not in tensors:
            raise ModelFileError(f"tensor {name!r:.80} is a bias without a weight of the same layer")
    layers, _ = _STATE_DICT.layers(tensors)
    return Imported((layer_tensors(layers),), _STATE_DICT.formula)


STATE_DICT = Importer("state_dict", "<layer>.weight and .bias alone", (), _knows_state_dict, _read_state_dict)
"""Layers of torch; of a checkpoint with an optimiser that holds the posterior they are only half of it."""


def is_stacked(tensors: dict[str, Tensor]) -> bool:
    """Whether weights and biases of torch have one axis more than a layer's: many samples, the first axis counts them.

    Without any bias that is not sure: kernels of one-dimensional convolutions have three axes too.
    """
    found = {(_last(name), tensor.ndim) for name, tensor in tensors.items()}
    return ("bias", 2) in found and found <= {("weight", 3), ("weight", 5), ("bias", 2)}
