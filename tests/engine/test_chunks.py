"""Sizes of pieces on devices: those of a CPU stay as they are, others grow with the memory, chosen ones are kept."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from bnndp.engine.chunks import beyond_caches, fitted, pieces, room
from bnndp.options import Options

CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")


@pytest.mark.parametrize(("gib", "units"), [(8, 1), (24, 1), (80, 5), (139, 8)])
def test_pieces_grow_with_the_memory_of_the_device(monkeypatch: pytest.MonkeyPatch, gib: int, units: int) -> None:
    found = SimpleNamespace(total_memory=gib * 2**30)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: found)
    assert (room(100, CPU), beyond_caches(100, CPU), fitted(Options(), CPU)) == (100, 100, Options())
    assert (room(100, CUDA), beyond_caches(100, CUDA)) == (100 * units, 1600 * units)
    assert fitted(Options(), CUDA).memory == units * 2**30
    assert fitted(fitted(Options(), CUDA), CUDA) == fitted(Options(), CUDA)
    for chosen in (Options(memory=2**25), Options.of("low", memory=2**30)):
        assert fitted(chosen, CUDA) is chosen


@pytest.mark.parametrize(
    ("batch", "most", "sizes"), [(5, 2, [2, 2, 1]), (300, 10**6, [256, 44]), (0, 7, []), (3, 9, [3])]
)
def test_pieces_of_a_batch(monkeypatch: pytest.MonkeyPatch, batch: int, most: int, sizes: list[int]) -> None:
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)
    found = pieces(batch, most, CPU)
    assert [part.stop - part.start for part in found] == sizes
    assert [index for part in found for index in range(batch)[part]] == list(range(batch))


def test_threads_and_other_devices_take_larger_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.get_num_threads", lambda: 2)
    assert pieces(5000, 10**6, CPU)[0] == slice(0, 1024)
    assert pieces(5000, 10**6, CUDA) == [slice(0, 5000)]
