"""The content of a foreign file, the choices of the user, and the posterior that an importer reads.

An importer is a pure function from the first two to the third. It opens no file and imports no other library. It
recognises a file by the names in it, never by its values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, TypeVar

from bnndp.errors import ModelFileError

if TYPE_CHECKING:
    from torch import Tensor

_Value = TypeVar("_Value")
_MOST = 12  # names in a message
_OPTIONS = {"bias": "--no-bias"}  # choices that are called otherwise on the command line


@dataclass(frozen=True, slots=True)
class Foreign:
    """The content of a file, flat: names of nested entries are joined by dots, as in ``param_groups.0.hess``.

    Constraints of Pyro are texts: ``"constraints.<param>": "softplus_positive"``, ``"greater_than 0.0"``, ``"real"``.
    """

    tensors: dict[str, Tensor]  # in the order of the file
    values: dict[str, object] = field(default_factory=dict)  # texts, numbers, True, False, None under the same names
    lists: dict[str, int] = field(default_factory=dict)  # lengths of the lists and tuples in it; "" is the whole
    holders: tuple[str, ...] = ()  # names of the mappings in it that hold tensors themselves; none: the whole does
    ordered: bool = True  # False: the order of the tensors means nothing, as in safetensors files, which sort them

    def below(self, name: str) -> Foreign:
        """The entry of that name as a whole; ``""`` is the whole itself."""
        start = f"{name}." if name else ""

        def inner(names: Iterable[str]) -> dict[str, str]:
            found = {each: each[len(start) :] for each in names if each.startswith(start)}
            return found | ({name: ""} if name and name in names else {})

        return Foreign(
            {new: self.tensors[old] for old, new in inner(self.tensors).items()},
            {new: self.values[old] for old, new in inner(self.values).items()},
            {new: self.lists[old] for old, new in inner(self.lists).items()},
            tuple(inner(self.holders).values()),
            self.ordered,
        )


@dataclass(frozen=True, slots=True)
class Choices:
    """What a file does not say."""

    scale_transform: str | None = None  # "exp" or "softplus": from the parameters of a Pyro guide to scales
    bias: bool = True  # False: layers were built without biases, though the file may hold some
    beside: Foreign | None = None  # a second file: the state_dict of the network beside that of an optimiser
    table: Mapping[str, object] | None = None  # the content of --table, as it was parsed
    ignore: tuple[str, ...] = ()  # sites that the network has no use for, beside those of the table

    @property
    def changed(self) -> tuple[str, ...]:
        """The names of the choices that are not the default."""
        return tuple(each.name for each in fields(self) if getattr(self, each.name) != each.default)


@dataclass(frozen=True, slots=True)
class Imported:
    """A posterior in our names.

    ``<layer>.weight_mean``, ``.weight_std``, ``.bias_mean``, ``.bias_std``, and ``.factor``, ``.row_factor``,
    ``.column_factor`` of other kinds of layers, as in docs/format.md.
    """

    members: tuple[dict[str, Tensor], ...]  # one of a network, several of an ensemble; all in the order of the layers
    formula: str  # ours in terms of theirs; written into the new file, and printed
    weights: Tensor | None = None  # (members,); None: equal
    kinds: Mapping[str, str] = field(default_factory=dict)  # of layers that are neither linear nor conv2d: layer to
    # "correlated_linear" (whose factor is shared by all rows) or "matrix_normal_linear"
    remarks: tuple[str, ...] = ()  # what the user should know
    ordered: bool = False  # True: the layers are in their order, whether the file keeps one or not
    task: str | None = None  # None: it does not say


@dataclass(frozen=True, slots=True)
class Importer:
    """One way of reading foreign files."""

    name: str  # as --from takes it
    looks_for: str  # the names that it knows a file by, for messages: "<layer>.mu_weight and .rho_weight"
    uses: tuple[str, ...]  # the fields of Choices that it uses; any other choice is refused
    knows: Callable[[Foreign], bool]  # whether the names are those of its files
    read: Callable[[Foreign, Choices], Imported]  # every fault is a ModelFileError that needs no name of the file


def expect_used(importer: Importer, choices: Choices) -> None:
    """Refuse a choice that the importer would ignore."""
    unused = next((name for name in choices.changed if name not in importer.uses), None)
    if unused is not None:
        option = _OPTIONS.get(unused, f"--{unused.replace('_', '-')}")
        raise ModelFileError(f"it is read by {importer.name}, which has no use for {option}")


def drop_tensors(foreign: Foreign, names: Sequence[str]) -> tuple[Foreign, tuple[str, ...]]:
    """The content without the tensors of these names, and the names that no tensor has: they may be those of sites.

    A tensor is known by its whole name or by the one that it has in its own entry, so that ``sigma`` is that of every
    sample of a list. A name that several other entries have is refused: ``bias`` may be meant, but not all of them.

    >>> import torch
    >>> given = Foreign({"net.0.weight": torch.ones(1, 2), "net.sigma": torch.ones(())}, holders=("net",))
    >>> found, left = drop_tensors(given, ["sigma", "tau"])
    >>> list(found.tensors), left
    (['net.0.weight'], ('tau',))
    """
    taken = {name: _tensors_called(foreign, name) for name in names}
    gone = {tensor for tensors in taken.values() for tensor in tensors}
    tensors = _but(foreign.tensors, gone)
    if gone and not tensors:
        raise ModelFileError(f"--ignore {names[0]:.80} leaves no tensor of {quoted(foreign.tensors)}")
    held = tuple(entry for entry in foreign.holders if any(_inner(foreign, name) == entry for name in tensors))
    values = _but(foreign.values, gone)
    found = replace(foreign, tensors=tensors, values=values, holders=held)
    return found, tuple(name for name, tensors in taken.items() if not tensors)


def quoted(names: Mapping[str, object] | Sequence[str]) -> str:
    """Names in a message.

    >>> quoted(["a", "b"])
    "'a', 'b'"
    >>> quoted([str(n) for n in range(14)])[-21:]
    "'10', '11' and 2 more"
    """
    shown = ", ".join(f"{name!r:.60}" for name in list(names)[:_MOST])
    return shown if len(names) <= _MOST else f"{shown} and {len(names) - _MOST} more"


def _tensors_called(foreign: Foreign, name: str) -> list[str]:
    """The tensors of a name: the one that has it as a whole, or those that have it in their entries."""
    if name in foreign.tensors:
        return [name]
    found = [tensor for tensor in foreign.tensors if tensor == f"{_inner(foreign, tensor)}.{name}"]
    listed = all(_is_sample(foreign, _inner(foreign, tensor)) for tensor in found)
    if len(found) > 1 and not listed:
        raise ModelFileError(f"--ignore {name:.80} may be any of {quoted(found)}; give the whole name")
    return found


def _inner(foreign: Foreign, tensor: str) -> str:
    """The innermost mapping that holds a tensor; ``""`` is the whole."""
    return max((entry for entry in foreign.holders if entry and tensor.startswith(f"{entry}.")), key=len, default="")


def _is_sample(foreign: Foreign, entry: str) -> bool:
    """Whether an entry is an element of a list."""
    parent, _, last = entry.rpartition(".")
    return last.isdigit() and parent in foreign.lists


def _but(given: Mapping[str, _Value], gone: set[str]) -> dict[str, _Value]:
    return {name: value for name, value in given.items() if name not in gone}
