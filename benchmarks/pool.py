"""Work in this process or in several, one thread each; apart from programs, which new processes do not import."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

import torch

__all__ = ["call", "mapped"]

Item = TypeVar("Item")
Found = TypeVar("Found")


def call(job: Callable[[], Found]) -> Found:
    """Do a job."""
    return job()


def mapped(work: Callable[[Item], Found], items: Iterable[Item], jobs: int = 1) -> Iterator[Found]:
    """What ``work`` gives for each item, in their order, from ``jobs`` processes."""
    if jobs <= 1:
        torch.set_num_threads(1)
        yield from map(work, items)
        return
    spawn = get_context("spawn")
    with ProcessPoolExecutor(jobs, spawn, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        try:
            yield from pool.map(work, items)
        finally:
            pool.shutdown(cancel_futures=True)
