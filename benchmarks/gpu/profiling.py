"""Where the time of a computation goes on a device: in products, in other kernels, in copies to and from the host."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.ceilings import wait
from benchmarks.gpu.counting import kind_of

__all__ = ["Profile", "profiled"]

_SHOWN = 25
_COPIES = {"Memcpy HtoD": "to_device", "Memcpy DtoH": "to_host"}


@dataclass(frozen=True, slots=True)
class Profile:
    """Seconds in kernels, by what they do, and copies between host and device; on a CPU seconds of the operations."""

    wall: float  # with the profiler's own work
    busy: float  # sum over all kernels
    products: tuple[tuple[str, float], ...]  # kind and seconds of each, in their order
    copies: dict[str, int]  # number of copies to_device and to_host
    longest: list[tuple[str, float, int]]  # operation and shapes, seconds, calls


def profiled(function: Callable[[], object], device: str) -> Profile:
    """Profile one call."""
    cuda = device.startswith("cuda")
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    wait(device)
    begin = time.perf_counter()
    with profile(activities=kinds, record_shapes=True) as record:
        function()
        wait(device)
    wall = time.perf_counter() - begin
    products: list[tuple[float, str, float]] = []
    groups: dict[str, list[float]] = defaultdict(lambda: [0.0, 0])
    busy, copies = 0.0, {"to_device": 0, "to_host": 0}
    for event in record.events():
        if cuda and event.device_type.name == "CUDA":
            busy += event.self_device_time_total * 1e-6
            for start, way in _COPIES.items():
                copies[way] += event.name.startswith(start)
            continue
        own = (event.self_device_time_total if cuda else event.self_cpu_time_total) * 1e-6
        busy += 0.0 if cuda else own
        name, shapes = event.name.removeprefix("aten::"), event.input_shapes or []
        kind = _kind(event)
        if kind is not None and not _within_product(event):
            products.append((event.time_range.start, kind, _whole(event, cuda=cuda) * 1e-6))
        group = groups[f"{name} {_shown(shapes)}"]
        group[0], group[1] = group[0] + own, group[1] + 1
    longest = sorted(((name, s, int(n)) for name, (s, n) in groups.items()), key=lambda row: -row[1])[:_SHOWN]
    return Profile(wall, busy, tuple((kind, seconds) for _, kind, seconds in sorted(products)), copies, longest)


def _kind(event: Any) -> str | None:
    return kind_of(event.name[6:], event.input_shapes or []) if event.name.startswith("aten::") else None


def _within_product(event: Any) -> bool:
    """Whether a product called this one, whose time it is part of."""
    above = event.cpu_parent
    while above is not None:
        if _kind(above) is not None:
            return True
        above = above.cpu_parent
    return False


def _whole(event: Any, *, cuda: bool) -> float:
    """Microseconds in an operation and all that it calls."""
    return float(event.device_time_total if cuda else event.cpu_time_total)


def _shown(shapes: list[list[int]]) -> str:
    return " ".join("x".join(map(str, shape)) for shape in shapes if shape)[:80]
