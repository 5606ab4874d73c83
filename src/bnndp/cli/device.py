"""``--device``: where the arithmetic is done. Bounds are those of float64 on any of them."""

from __future__ import annotations

import re
from typing import Annotated

import typer

__all__ = ["Device", "device_of"]

_KNOWN = re.compile(r"cpu|cuda(:[0-9]{1,3})?")


def _named(value: str) -> str:
    if _KNOWN.fullmatch(value) is None:
        raise typer.BadParameter(f"{value!r} is no device; known are cpu, cuda and cuda:N.")
    return value


Device = Annotated[str, typer.Option(callback=_named, metavar="NAME", help="Where to compute: cpu, cuda or cuda:N.")]


def device_of(name: str) -> str:
    """The device in full, cuda:0 for cuda; refused where this machine has none of that name."""
    if name == "cpu":
        return name
    import torch

    from bnndp.errors import InputError

    number = int(name.partition(":")[2] or 0)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if number >= count:
        found = "no CUDA device that torch can use" if count == 0 else f"CUDA devices 0 to {count - 1} only"
        raise InputError(f"--device {name}: this machine has {found}; choose another, or cpu.")
    return f"cuda:{number}"
