"""Sizes of chunks on devices: those of a CPU stay as they are, others grow with the memory."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from bnndp.engine.chunks import cache_size, chunks, device_size, indices_of, picked

CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")


@pytest.mark.parametrize(("gib", "units"), [(3, 1), (8, 2), (24, 6), (139, 34)])
def test_sizes_grow_with_the_memory_of_the_device(monkeypatch: pytest.MonkeyPatch, gib: int, units: int) -> None:
    found = SimpleNamespace(total_memory=gib * 2**30)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: found)
    assert (device_size(100, CPU), cache_size(100, CPU)) == (100, 100)
    assert (device_size(100, CUDA), cache_size(100, CUDA)) == (100 * units, 400 * units)


@pytest.mark.parametrize(
    ("batch", "most", "sizes"), [(5, 2, [2, 2, 1]), (300, 10**6, [256, 44]), (0, 7, []), (3, 9, [3])]
)
def test_chunks_of_a_batch(monkeypatch: pytest.MonkeyPatch, batch: int, most: int, sizes: list[int]) -> None:
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)
    found = chunks(batch, most, CPU)
    assert [part.stop - part.start for part in found] == sizes
    assert [index for part in found for index in range(batch)[part]] == list(range(batch))


def test_threads_and_other_devices_take_larger_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.get_num_threads", lambda: 2)
    assert chunks(5000, 10**6, CPU)[0] == slice(0, 1024)
    assert chunks(5000, 10**6, CUDA) == [slice(0, 5000)]


def test_indices_hold_all_that_a_mask_marks() -> None:
    """A box with fewer than the most marks has others too, and no index twice."""
    mask = torch.rand(50, 12, generator=torch.Generator().manual_seed(0)) < torch.linspace(0, 1, 50)[:, None]
    found = indices_of(mask)
    assert found.shape == (50, int(mask.sum(-1).max()))
    for marks, indices in zip(mask, found.tolist(), strict=True):
        assert len(set(indices)) == len(indices)
        assert set(marks.nonzero()[:, 0].tolist()) <= set(indices)
    assert indices_of(mask[:0]).shape == (0, 0)


@pytest.mark.parametrize("most", [1, 40, 10**6])
def test_pieces_hold_all_that_a_mask_marks_once(most: int) -> None:
    mask = torch.rand(50, 12, generator=torch.Generator().manual_seed(0)) < torch.linspace(0, 1, 50)[:, None]
    found = torch.zeros_like(mask, dtype=torch.int64)
    boxes = []
    for at, index in picked(mask, most):
        assert index.shape[0] == at.shape[0]
        assert index.shape[0] == 1 or index.numel() <= most
        found[at[:, None], index] += 1
        boxes += at.tolist()
    assert sorted(boxes) == mask.any(-1).nonzero()[:, 0].tolist()
    assert int(found.max()) == 1
    assert bool(found[mask].all())
    assert list(picked(mask[:0], most)) == []
