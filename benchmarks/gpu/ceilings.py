"""What a device can do at most, measured: products of large float64 matrices, and copies within its memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

__all__ = ["Ceilings", "measure", "name_of", "wait"]

_REPEATS, _WARM = 9, 3


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Operations per second of a square float64 product, bytes per second of a copy (read and written)."""

    flops: float
    bytes: float


def measure(device: str, *, rows: int = 8192, numbers: int = 2**29) -> Ceilings:
    """By products of ``rows`` x ``rows`` matrices and copies of ``numbers`` float64 numbers, medians of nine."""
    return Ceilings(_product_rate(device, rows), _copy_rate(device, numbers))


def _product_rate(device: str, rows: int) -> float:
    a, b = (torch.randn(rows, rows, dtype=torch.float64, device=device) for _ in range(2))
    product = torch.empty_like(a)
    return 2 * rows**3 / _median(lambda: torch.mm(a, b, out=product), device)


def _copy_rate(device: str, numbers: int) -> float:
    source = torch.randn(numbers, dtype=torch.float64, device=device)
    target = torch.empty_like(source)
    return 16 * numbers / _median(lambda: target.copy_(source), device)


def name_of(device: str) -> str:
    """The device in words."""
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else "CPU"


def wait(device: str) -> None:
    """Until all that was begun on the device is done."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def _median(function: Callable[[], object], device: str) -> float:
    """Median seconds of a call, each waited for."""
    times = []
    for turn in range(_WARM + _REPEATS):
        wait(device)
        begin = time.perf_counter()
        function()
        wait(device)
        if turn >= _WARM:
            times.append(time.perf_counter() - begin)
    return statistics.median(times)
