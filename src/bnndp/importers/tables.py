"""Tables of names: which tensors of a foreign file are which of ours.

A table knows files by the names in them and renames their tensors to those of ``bnndp-posterior-1``:
``<layer>.weight_mean``, ``.weight_std``, ``.bias_mean``, ``.bias_std``. What it does with the values is its formula,
which is written into the new file. A file is read by the one table that knows it; none or several is an error, and a
tensor that a table has no use for is never left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.errors import ModelFileError

__all__ = ["TABLES", "Table", "table_for"]

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Table:
    """One manner of naming the tensors of a network."""

    name: str
    formula: str  # what ours are in terms of theirs
    knows: Callable[[Tensors], bool]  # by the names alone
    renamed: Callable[[Tensors], dict[str, Tensor]]  # ours, in the order of the file


def _last(name: str) -> str:
    return name.rpartition(".")[2]


_OWN = ("weight_mean", "weight_std", "bias_mean", "bias_std")


def _is_own(tensors: Tensors) -> bool:
    return any(_last(name) == "weight_mean" for name in tensors)


def _is_plain(tensors: Tensors) -> bool:
    return all(_last(name) in ("weight", "bias") for name in tensors)


def _without_variance(tensors: Tensors) -> dict[str, Tensor]:
    """Means from ``.weight`` and ``.bias``, deviations of zero; a layer without a bias gets one of zero."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        layer, _, part = name.rpartition(".")
        if part == "bias":
            if f"{layer}.weight".lstrip(".") not in tensors:
                raise ModelFileError(f"tensor {name!r} is a bias without a weight of the same layer")
            continue
        bias = tensors.get(f"{layer}.bias".lstrip("."))
        bias = tensor.new_zeros(tensor.shape[:1]) if bias is None else bias
        ours = (tensor, torch.zeros_like(tensor), bias, torch.zeros_like(bias))
        found |= {f"{layer or 'layer'}.{field}": value for field, value in zip(_OWN, ours, strict=True)}
    return found


TABLES = (
    Table("bnndp", "the tensors as they are", _is_own, dict),
    Table("state_dict", "weight_mean = weight, bias_mean = bias or 0, all std = 0", _is_plain, _without_variance),
)


def table_for(tensors: Tensors) -> Table:
    """The one table that knows these names."""
    if not tensors:
        raise ModelFileError("it holds no tensors")
    found = [table for table in TABLES if table.knows(tensors)]
    if len(found) == 1:
        return found[0]
    names = ", ".join(f"{name!r:.60}" for name in list(tensors)[:4])
    if found:
        raise ModelFileError(
            f"its names ({names}, ...) are known to several tables: {', '.join(t.name for t in found)}"
        )
    odd = next(name for name in tensors if _last(name) not in (*_OWN, "weight", "bias"))
    raise ModelFileError(
        f"tensor {odd!r:.80} is known to no table; they know <layer>.{', '.join(_OWN)} and <layer>.weight, bias"
    )
