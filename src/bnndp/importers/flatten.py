"""Nested entries as flat names: a mapping of mappings, lists and tensors becomes a :class:`Foreign`.

It is used by the child that opens pickles, which can hold cycles and entries that multiply, and of what a program gives
in memory. Every fault is a :class:`ModelFileError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from bnndp.errors import ModelFileError
from bnndp.importers.constraints import text_of
from bnndp.importers.foreign import Foreign

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["flat"]

_DEEPEST, _MOST, _TEXT = 16, 50_000, 200  # levels of entries, entries, characters of a text
_DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")


def flat(found: object) -> Foreign:
    """All tensors and values in ``found``, which is a mapping or a list, by flat names.

    >>> import torch
    >>> flat({"net": {"0.weight": torch.ones(1, 2)}, "epochs": [3, 4]})
    Foreign(tensors={'net.0.weight': tensor([[1., 1.]])}, values={'epochs.0': 3, 'epochs.1': 4}, \
lists={'epochs': 2}, holders=('net',), ordered=True)
    """
    if not isinstance(found, Mapping | list | tuple) or not found:
        kind = type(found).__name__
        raise ModelFileError(f"it holds no named tensors but a {kind}; give the state_dict() of the network")
    work = _Work()
    work.take(found, ())
    if not work.tensors:
        raise ModelFileError(f"it holds no tensors; {_contents(found)}")
    return Foreign(work.tensors, work.values, work.lists, tuple(work.holders))


class _Work:
    """What was found so far; limits keep cycles, and entries that multiply, from going on for ever."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.values: dict[str, object] = {}
        self.lists: dict[str, int] = {}
        self.holders: dict[str, None] = {}
        self.entries = 0

    def take(self, found: object, path: tuple[str, ...]) -> None:
        """Everything below ``path``."""
        import torch

        name = ".".join(path)
        self.entries += 1
        if len(path) > _DEEPEST:
            raise ModelFileError(f"its entries lie within one another deeper than {_DEEPEST}, at {name!r:.80}")
        if self.entries > _MOST:
            raise ModelFileError(f"it has more than {_MOST} entries; choose the one that is the state_dict by --key")
        if name in self.tensors or name in self.values:
            raise ModelFileError(f"two of its entries have the name {name!r:.80}; choose one by --key")
        if isinstance(found, torch.Tensor):
            self.tensors[name] = _plain(name, found)
        elif isinstance(found, Mapping):
            self._mapping(found, path)
        elif isinstance(found, list | tuple):
            self.lists[name] = len(found)
            for index, value in enumerate(found):
                self.take(value, (*path, str(index)))
        else:
            self.values[name] = _value(found)

    def _mapping(self, found: Mapping[object, object], path: tuple[str, ...]) -> None:
        import torch

        if any(isinstance(value, torch.Tensor) for value in found.values()):
            self.holders[".".join(path)] = None
        for part, value in found.items():
            if not isinstance(part, str) and type(part) is not int:
                raise ModelFileError(f"the name {part!r:.80} is no text")
            self.take(value, (*path, str(part)))


def _contents(found: object) -> str:
    """What there is, in words."""
    if not isinstance(found, Mapping):
        return f"it is a {type(found).__name__}"
    return f"its entries are {', '.join(f'{name!r:.40}' for name in list(found)[:8])}"


def _value(found: object) -> object:
    """A number, a text or nothing as it is; a constraint in words; of all else the name of its type."""
    if found is None or isinstance(found, bool | int | float):
        return found
    return found[:_TEXT] if isinstance(found, str) else text_of(found) or f"<{type(found).__name__}>"


def _plain(name: str, tensor: Tensor) -> Tensor:
    """The tensor, if it is one of plain numbers."""
    import torch

    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout is not torch.strided or tensor.is_quantized or dtype not in _DTYPES:
        raise ModelFileError(f"tensor {name!r:.80} is {tensor.layout} of {dtype}; only plain, dense numbers are read")
    return tensor
