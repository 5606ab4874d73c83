"""Jobs in this process or in several, one thread each; apart from ``__main__``, which new processes do not import."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any

import torch

__all__ = ["Job", "mapped"]

Job = Callable[[], dict[str, Any]]


@contextmanager
def mapped(processes: int) -> Iterator[Callable[[Sequence[Job]], Iterable[dict[str, Any]]]]:
    """A map over jobs that keeps their order."""
    if processes == 1:
        torch.set_num_threads(1)
        yield lambda jobs: map(_call, jobs)
        return
    with ProcessPoolExecutor(
        processes, mp_context=get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        yield lambda jobs: pool.map(_call, jobs)
        pool.shutdown(cancel_futures=True)


def _call(job: Job) -> dict[str, Any]:
    return job()
