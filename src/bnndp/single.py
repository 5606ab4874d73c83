"""A likeness of a network in single precision, for guesses: nothing that comes from here is a bound.

A search asks for many bounds and keeps few, so most of its trials may be guesses. Bounds are float64 throughout, and
so are all records; a likeness is made of copies whose tensors are float32, past the checks of the records, and is never
handed out. Two things keep the formulas for bounds at work in it:

* Constants that float32 cannot hold (1e-300 in the place of a divisor that is zero) are moved to the nearest that it
  can, in operations on float32 tensors only: what is computed in float64 meanwhile is as ever.
* Weights below 2^-64 of the largest of their tensor are zero. They do not count among float32 numbers, and products
  with numbers that are not normal are many times slower.

A guess may be wrong or not a number; whoever asks for one must ask for a bound before anything is claimed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from bnndp.classify import bound_rows
from bnndp.ensemble import Posterior
from bnndp.errors import CertError
from bnndp.options import Options
from bnndp.regions import Box

__all__ = ["Likeness"]

_LEAST, _MOST = 1e-37, 3e38  # positive constants of float32, with room for one rounding
_COUNTS = 2.0**-64  # of the largest weight of a tensor

_Record = TypeVar("_Record")


@dataclass(frozen=True, slots=True)
class Likeness:
    """A network whose tensors are float32."""

    network: Posterior

    @classmethod
    def of(cls, network: Posterior) -> Likeness:
        """That of ``network``, which stays as it is."""
        return cls(_single(network))

    def guess_rows(
        self,
        box: Box,
        rows: Tensor,  # (batch, rows, classes)
        label: Tensor,  # (batch,)
        options: Options,
    ) -> Tensor:  # (batch, rows), float64
        """About what :func:`bnndp.classify.bound_rows` finds; NaN where float32 does not go that far.

        An error is no guess: what is wrong with the question shows when the bound is asked for.
        """
        device = box.lower.device.type
        try:
            with torch.no_grad(), torch.autocast(device, enabled=False), _InRange():
                found = bound_rows(self.network, _single_box(box), _single(rows), label, options)
        except (CertError, RuntimeError, ArithmeticError):
            return torch.full_like(rows[..., 0], torch.nan)
        return found.to(torch.float64)


class _SingleBox(Box):
    """A region whose ends are float32, and so are those of its parts."""

    __slots__ = ()

    def __post_init__(self) -> None:
        Box.__post_init__(self)
        for field in fields(self):
            object.__setattr__(self, field.name, _single(getattr(self, field.name)))

    def __getitem__(self, index: slice | Tensor) -> Box:
        return _single_box(Box.__getitem__(self, index))

    def moved(self, step: Tensor) -> Box:
        return _single_box(Box.moved(self, step))

    def split(self, axis: Tensor) -> Box:
        return _single_box(Box.split(self, axis))


def _single_box(box: Box) -> Box:
    return _SingleBox(box.lower, box.upper, box.within)


def _single(value: _Record) -> _Record:
    """The same with float32 in the place of every float64 tensor: of a tensor, a tuple, or a record of them."""
    if isinstance(value, Tensor):
        return cast(_Record, _single_tensor(value) if value.dtype == torch.float64 else value)
    if isinstance(value, tuple):
        return cast(_Record, tuple(_single(part) for part in value))
    if not is_dataclass(value):
        return value
    copy = object.__new__(type(value))  # its own checks would make all tensors float64 again
    for field in fields(value):
        object.__setattr__(copy, field.name, _single(getattr(value, field.name)))
    return cast(_Record, copy)


def _single_tensor(value: Tensor) -> Tensor:
    """In float32, with zero for what does not count."""
    near = value.to(torch.float32)
    if near.numel() == 0:
        return near
    size = near.abs()
    return torch.where(size < _COUNTS * size.amax(), 0.0, near)


class _InRange(TorchFunctionMode):
    """Moves numbers that stand by themselves among the arguments into the range of float32, where that is at work.

    Every operation passes through here, so that little is done for one without such a number.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = kwargs or {}
        for given in (*args, *named.values()) if named else args:
            if type(given) is float and not _LEAST <= abs(given) <= _MOST:
                return self._in_range(func, args, named)
        return func(*args, **named)

    @staticmethod
    def _in_range(func: Callable[..., Any], args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        if any(isinstance(a, Tensor) and a.dtype == torch.float32 for a in (*args, *named.values())):
            args = tuple(_near(a) for a in args)
            named = {name: _near(a) for name, a in named.items()}
        return func(*args, **named)


def _near(value: object) -> object:
    """The nearest number of either sign that float32 can hold; zero, infinities and NaN stay what they are."""
    if not isinstance(value, float) or value == 0 or not math.isfinite(value):
        return value
    return math.copysign(min(max(abs(value), _LEAST), _MOST), value)
