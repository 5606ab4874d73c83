"""Records of what is known on a batch of boxes, for some of the boxes."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from torch import Tensor

__all__ = ["of_boxes"]

_Record = TypeVar("_Record")


def of_boxes(record: _Record, at: Tensor) -> _Record:  # (some,) of integers
    """The same record for the boxes ``at``; each tensor in it must have a leading axis of boxes."""
    return type(record)(*(_part(getattr(record, field.name), at) for field in fields(record)))  # type: ignore[arg-type]


def _part(value: Any, at: Tensor) -> Any:
    if isinstance(value, Tensor):
        return value[at]
    if isinstance(value, tuple):
        return tuple(_part(each, at) for each in value)
    return of_boxes(value, at) if is_dataclass(value) else value
