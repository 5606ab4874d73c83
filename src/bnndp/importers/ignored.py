"""Tensors that the user says are no weights of the network, such as the noise of the data: taken out before reading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from bnndp.errors import ModelFileError
from bnndp.importers.foreign import Foreign

__all__ = ["few", "without"]

_Value = TypeVar("_Value")
_MOST = 12  # names in a message


def without(foreign: Foreign, names: Sequence[str]) -> tuple[Foreign, tuple[str, ...]]:
    """The content without the tensors of these names, and the names that no tensor has: they may be those of sites.

    A tensor is known by its whole name or by the one that it has in its own entry, so that ``sigma`` is that of every
    sample of a list. A name that several other entries have is refused: ``bias`` may be meant, but not all of them.

    >>> import torch
    >>> given = Foreign({"net.0.weight": torch.ones(1, 2), "net.sigma": torch.ones(())}, holders=("net",))
    >>> found, left = without(given, ["sigma", "tau"])
    >>> list(found.tensors), left
    (['net.0.weight'], ('tau',))
    """
    taken = {name: _tensors_called(foreign, name) for name in names}
    gone = {tensor for tensors in taken.values() for tensor in tensors}
    tensors = _but(foreign.tensors, gone)
    if gone and not tensors:
        raise ModelFileError(f"--ignore {names[0]:.80} leaves no tensor of {few(foreign.tensors)}")
    held = tuple(entry for entry in foreign.holders if any(_inner(foreign, name) == entry for name in tensors))
    values = _but(foreign.values, gone)
    found = replace(foreign, tensors=tensors, values=values, holders=held)
    return found, tuple(name for name, tensors in taken.items() if not tensors)


def few(names: Mapping[str, object] | Sequence[str]) -> str:
    """Names in a message.

    >>> few(["a", "b"])
    "'a', 'b'"
    >>> few([str(n) for n in range(14)])[-21:]
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
        raise ModelFileError(f"--ignore {name:.80} may be any of {few(found)}; give the whole name")
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
