"""Nested mappings, lists and tensors as flat names: the content of a pickle, or what a program has in memory.

A pickle can hold cycles and entries that multiply, so depth and number of entries are limited. Every fault is a
:class:`ModelFileError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bnndp.errors import ModelFileError
from bnndp.importers.foreign import Foreign
from bnndp.importers.pyro_constraints import text_of

if TYPE_CHECKING:
    from torch import Tensor

_MAX_DEPTH, _MAX_ENTRIES, _MAX_TEXT = 16, 50_000, 200
_DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")


def flat(nested: object) -> Foreign:
    """All tensors and values of a mapping or a list, by flat names.

    >>> import torch
    >>> flat({"net": {"0.weight": torch.ones(1, 2)}, "epochs": [3, 4]})
    Foreign(tensors={'net.0.weight': tensor([[1., 1.]])}, values={'epochs.0': 3, 'epochs.1': 4}, \
lists={'epochs': 2}, holders=('net',), ordered=True)
    """
    if not isinstance(nested, Mapping | list | tuple) or not nested:
        kind = type(nested).__name__
        raise ModelFileError(f"it holds no named tensors but a {kind}; give the state_dict() of the network")
    flattened = _Flattened()
    flattened.add(nested, ())
    if not flattened.tensors:
        raise ModelFileError(f"it holds no tensors; {contents(nested)}")
    return Foreign(flattened.tensors, flattened.values, flattened.lists, tuple(flattened.holders))


def state_of(holder: object) -> object:
    """The ``state_dict()`` of a module or an optimiser; any other object as it is."""
    give = getattr(holder, "state_dict", None)
    return give() if callable(give) else holder


def to_tensors(nested: object) -> object:
    """Arrays in mappings and lists as tensors; NumPyro's placeholders of parameters with a prior are left out."""
    import torch

    if isinstance(nested, Mapping):
        return {key: to_tensors(value) for key, value in nested.items() if type(value).__name__ != "ParamShape"}
    if isinstance(nested, list | tuple):
        return [to_tensors(value) for value in nested]
    is_array = hasattr(nested, "__array__") and not isinstance(nested, torch.Tensor)
    return torch.as_tensor(nested) if is_array else nested


@dataclass(slots=True)
class _Flattened:
    """The entries so far."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    values: dict[str, object] = field(default_factory=dict)
    lists: dict[str, int] = field(default_factory=dict)
    holders: dict[str, None] = field(default_factory=dict)
    entries: int = 0

    def add(self, value: object, path: tuple[str, ...]) -> None:
        """Everything below ``path``."""
        import torch

        name = ".".join(path)
        self.entries += 1
        if len(path) > _MAX_DEPTH:
            raise ModelFileError(f"its entries lie within one another deeper than {_MAX_DEPTH}, at {name!r:.80}")
        if self.entries > _MAX_ENTRIES:
            raise ModelFileError(
                f"it has more than {_MAX_ENTRIES} entries; choose the one that is the state_dict by --key"
            )
        if name in self.tensors or name in self.values:
            raise ModelFileError(f"two of its entries have the name {name!r:.80}; choose one by --key")
        if isinstance(value, torch.Tensor):
            self.tensors[name] = _expect_dense(name, value)
        elif isinstance(value, Mapping | list | tuple):
            if isinstance(value, list | tuple):
                self.lists[name] = len(value)
                value = dict(enumerate(value))
            elif any(isinstance(inner, torch.Tensor) for inner in value.values()):
                self.holders[name] = None
            for key, inner in value.items():
                self.add(inner, (*path, _text(key)))
        else:
            self.values[name] = _plain(value)


def _text(key: object) -> str:
    if not isinstance(key, str) and type(key) is not int:
        raise ModelFileError(f"the name {key!r:.80} is not text")
    return str(key)


def _plain(value: object) -> object:
    """A number, a text or None as it is; a constraint in words; of anything else the name of its type."""
    if value is None or isinstance(value, bool | int | float):
        return value
    return value[:_MAX_TEXT] if isinstance(value, str) else text_of(value) or f"<{type(value).__name__}>"


def contents(nested: object) -> str:
    """What there is, for messages."""
    if not isinstance(nested, Mapping):
        return f"it is a {type(nested).__name__}"
    return f"its entries are {', '.join(f'{key!r:.40}' for key in list(nested)[:8])}"


def _expect_dense(name: str, tensor: Tensor) -> Tensor:
    import torch

    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout is not torch.strided or tensor.is_quantized or dtype not in _DTYPES:
        raise ModelFileError(f"tensor {name!r:.80} is {tensor.layout} of {dtype}; only plain, dense numbers are read")
    return tensor
