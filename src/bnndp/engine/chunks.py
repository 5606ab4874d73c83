"""How much is held at a time on a device: sizes that suit a CPU and its caches grow with the memory of another device.

A GPU needs large pieces, because every operation has to be begun by the host. The sizes follow from the device alone,
not from what is free on it at the moment: the same command gives the same pieces, and so the same bits.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from bnndp.options import Options

__all__ = ["beyond_caches", "fitted", "pieces", "room"]

_PER_UNIT = 16 * 2**30  # bytes of a device for which it takes the pieces of a CPU once more
_CACHES = 16  # times: the memory of a device beside the caches of a CPU
_BOXES = 256  # in a piece on a CPU: with more, what is known of a layer of 64 neurons leaves the caches


def room(usual: int, device: torch.device) -> int:
    """So many numbers or bytes on ``device`` where a CPU takes ``usual``."""
    return usual * _units(device)


def beyond_caches(usual: int, device: torch.device) -> int:
    """The same for sizes that were chosen to stay in the caches of a CPU."""
    return usual if device.type == "cpu" else usual * _CACHES * _units(device)


def pieces(batch: int, most: int, device: torch.device) -> list[slice]:
    """Slices of a batch, of at most ``most`` boxes: on a CPU of no more than suit its caches and threads.

    >>> pieces(5, 2, torch.device("cuda"))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    size = most
    if device.type == "cpu":
        threads = torch.get_num_threads()
        size = min(size, _BOXES if threads == 1 else 2 * threads * _BOXES)
    return [slice(start, min(start + size, batch)) for start in range(0, batch, size)]


def fitted(options: Options, device: torch.device) -> Options:
    """The options with the memory that ``device`` has room for, unless the user has chosen one.

    >>> fitted(Options(), torch.device("cpu")) == Options()
    True
    """
    memory = options.memory if "memory" in options.own else room(options.memory, device)
    return options if memory == options.memory else replace(options, memory=memory)


def _units(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    return max(1, torch.cuda.get_device_properties(device).total_memory // _PER_UNIT)
