"""Chunks: how much is computed at a time. Sizes that suit a CPU and its caches grow with the memory of another device.

A GPU needs large chunks, because every operation has to be begun by the host. The sizes follow from the device alone,
not from what is free on it at the moment: the same command gives the same chunks, and so the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from bnndp.deadline import Deadline

_Record = TypeVar("_Record")

_PER_UNIT = 4 * 2**30  # bytes of a device for which it takes the chunks of a CPU once more
_CACHES = 4  # times: the memory of a device beside the caches of a CPU
_BOXES = 256  # in a chunk on a CPU: with more, what is known of a layer of 64 neurons leaves the caches
_SHARE, _LEAST_TIME, _GROWTH = 0.1, 0.3, 4  # of a chunk: of the time left to a deadline, seconds, times the last
_PIECES, _TOGETHER = 8, 8  # of boxes that are taken by how much is asked of them: at least, and boxes in each


def device_size(usual: int, device: torch.device) -> int:
    """The number of bytes or entries for ``device`` where a CPU takes ``usual``."""
    return usual * _units(device)


def cache_size(usual: int, device: torch.device) -> int:
    """The same for sizes that were chosen to stay in the caches of a CPU."""
    return usual if device.type == "cpu" else usual * _CACHES * _units(device)


def chunks(batch: int, most: int, device: torch.device) -> list[slice]:
    """Slices of a batch, of at most ``most`` boxes: on a CPU of no more than suit its caches and threads.

    >>> chunks(5, 2, torch.device("cuda"))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    size = chunk_size(most, device)
    return [slice(start, min(start + size, batch)) for start in range(0, batch, size)]


def chunk_size(most: int, device: torch.device) -> int:
    """How many boxes to take at a time, of at most so many."""
    if device.type != "cpu":
        return most
    threads = torch.get_num_threads()
    return min(most, _BOXES if threads == 1 else 2 * threads * _BOXES)


@dataclass(slots=True)
class Pace:
    """How many boxes to take at a time until a deadline: a chunk is to take a small share of the time that is left.

    The first is a single box, the next as many as that share allows by the time of the one before. Without a deadline
    all are as large as suits the device.
    """

    size: int
    most: int
    deadline: Deadline

    @classmethod
    def of(cls, most: int, device: torch.device, deadline: Deadline) -> Pace:
        """For chunks of at most so many boxes."""
        most = chunk_size(most, device)
        return cls(most if deadline.at is None else 1, most, deadline)

    @contextmanager
    def timed(self, boxes: int) -> Iterator[None]:
        """Around the work on a chunk of so many boxes."""
        begun = time.monotonic()
        yield
        if self.deadline.at is not None:
            now = time.monotonic()
            aim, per_box = max(_LEAST_TIME, _SHARE * (self.deadline.at - now)), max(now - begun, 1e-6) / boxes
            self.size = max(1, min(int(aim / per_box), _GROWTH * self.size, self.most))


def timed_chunks(batch: int, most: int, device: torch.device, deadline: Deadline) -> Iterator[slice]:
    """Slices as those of :func:`chunks`, at the pace of a deadline if there is one; none comes after it.

    >>> list(timed_chunks(3, 2, torch.device("cpu"), Deadline()))
    [slice(0, 2, None), slice(2, 3, None)]
    """
    pace, start = Pace.of(most, device, deadline), 0
    while start < batch and not deadline.passed:
        stop = min(start + pace.size, batch)
        with pace.timed(stop - start):
            yield slice(start, stop)
        start = stop


def indices_of(mask: Tensor) -> Tensor:  # (batch, n) of booleans -> (batch, k) of integers
    """The indices at which the mask is true, of each box as many as of that with most of them: some may be others.

    >>> indices_of(torch.tensor([[False, True, False], [True, False, True]])).shape
    torch.Size([2, 2])
    """
    most = int(mask.sum(-1).amax()) if mask.shape[0] else 0
    return mask.byte().argsort(dim=-1, descending=True, stable=True)[:, :most]


def picked(mask: Tensor, most: int, pieces: int = _PIECES) -> Iterator[tuple[Tensor, Tensor]]:  # (batch, n) of booleans
    """Pieces of the boxes, and the indices at which the mask is true in them: (some,), (some, k) of integers.

    Boxes with about as many go together, ``most`` indices in all, so that few of those of a box are others; there are
    about as many ``pieces``, or more. Boxes without any are left out.

    >>> [(at.tolist(), index.tolist()) for at, index in picked(torch.tensor([[False, False], [True, False]]), 8)]
    [([1], [[0]])]
    """
    count, order = mask.sum(-1).sort(descending=True, stable=True)
    counts = [number for number in count.tolist() if number]
    start, share = 0, max(_TOGETHER, -(-len(counts) // pieces))
    while start < len(counts):
        stop = min(start + min(max(1, most // counts[start]), share), len(counts))
        at = order[start:stop]
        yield at, mask[at].byte().argsort(dim=-1, descending=True, stable=True)[:, : counts[start]]
        start = stop


def _units(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    return max(1, torch.cuda.get_device_properties(device).total_memory // _PER_UNIT)


def selected(record: _Record, at: Tensor) -> _Record:  # (some,) of integers
    """The same record for the boxes ``at``; each tensor in it must have a leading axis of boxes."""
    return type(record)(*(_part(getattr(record, field.name), at) for field in fields(record)))  # type: ignore[arg-type]


def _part(value: Any, at: Tensor) -> Any:
    if isinstance(value, Tensor):
        return value[at]
    if isinstance(value, tuple):
        return tuple(_part(each, at) for each in value)
    return selected(value, at) if is_dataclass(value) else value
