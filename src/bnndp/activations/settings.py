"""Checks of the numbers that an activation is made with."""

from __future__ import annotations

import math

import torch

from bnndp.errors import InputError


def finite(record: object, field: str, least: float = -1e6, most: float = 1e6) -> None:
    """Replace a field of a frozen record by a float, or refuse it with its value."""
    value = getattr(record, field)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise InputError(
            f"{field} of {type(record).__name__} must be a number from {least:g} to {most:g}, got {value!r}."
        )
    if not math.isfinite(value):  # most may be infinite
        raise InputError(f"{field} of {type(record).__name__} must be finite, got {value!r}.")
    object.__setattr__(record, field, float(value))


def vector(record: object, field: str) -> None:
    """Replace a field of a frozen record by its own float64 copy, a vector of finite numbers, or refuse it."""
    tensor = torch.as_tensor(getattr(record, field))
    if tensor.is_complex() or tensor.ndim != 1:
        raise InputError(
            f"{field} must be a vector of real numbers, got {tensor.dtype} of shape {tuple(tensor.shape)}."
        )
    tensor = torch.as_tensor(getattr(record, field), dtype=torch.float64).detach().clone()
    bad = ~torch.isfinite(tensor)
    if bool(bad.any()):
        i = int(bad.nonzero()[0, 0])
        raise InputError(f"{field}[{i}] is not finite: {tensor[i].item()} ({int(bad.sum())} such of {len(tensor)}).")
    object.__setattr__(record, field, tensor)
