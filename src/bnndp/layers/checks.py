"""Checks that every record of a layer makes of its tensors: float64, finite, standard deviations not negative."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from bnndp.errors import InputError


def take(record: object, fields: tuple[str, ...]) -> None:
    """Replace the named fields of a frozen record by their own float64 copies, checked."""
    for field in fields:
        object.__setattr__(record, field, parameter(field, getattr(record, field)))


def parameter(field: str, value: Tensor) -> Tensor:
    """The tensor in float64, or an error that names its first value that is not finite or, for a std, negative."""
    tensor = torch.as_tensor(value)
    if tensor.is_complex():
        raise InputError(f"{field} is complex ({tensor.dtype}); weights must be real numbers.")
    # A list of Python numbers must not pass through float32; a later change of the argument must not reach the network.
    tensor = torch.as_tensor(value, dtype=torch.float64).detach().clone()
    bad = ~torch.isfinite(tensor)
    fault = "not finite"
    if not bad.any() and field.endswith("std"):
        bad, fault = tensor < 0, "negative"
    if bad.any():
        index = tuple(bad.nonzero()[0].tolist())
        raise InputError(
            f"{field}{list(index)} is {fault}: {tensor[index].item()} ({int(bad.sum())} such of {bad.numel()}); "
            "means must be finite, standard deviations finite and >= 0."
        )
    return tensor


def expect_shapes(record: object, wanted: Mapping[str, tuple[int, ...]], to_fit: str) -> None:
    """Refuse fields whose shape is not the wanted one."""
    for field, want in wanted.items():
        got = tuple(getattr(record, field).shape)
        if got != tuple(want):
            raise InputError(f"{field} must have shape {tuple(want)} to fit {to_fit}, got {got}.")


def positive(record: object, field: str, least: int = 1) -> None:
    """Replace an integer or a pair of them by a pair, each at least ``least``."""
    value = getattr(record, field)
    pair = (value, value) if isinstance(value, int) else tuple(value) if isinstance(value, tuple | list) else ()
    if len(pair) != 2 or not all(isinstance(n, int) and not isinstance(n, bool) and n >= least for n in pair):
        raise InputError(f"{field} must be an integer >= {least} or a pair of them, got {value!r}.")
    object.__setattr__(record, field, pair)
