"""A few boxes at a time: what comes out is what the whole gives; indices hold all that was asked for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bnndp.engine.dense import pieces
from bnndp.engine.dense.pieces import by_pieces, chosen


@pytest.mark.parametrize("numbers", [1, 3, 1000])
def test_pieces_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch, numbers: int) -> None:
    monkeypatch.setattr(pieces, "_NUMBERS", 12)
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(13, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    seen: list[int] = []

    def outer(left: Tensor, right: Tensor) -> Tensor:
        seen.append(left.shape[0])
        return left[:, :, None] * right[:, None]

    assert torch.equal(by_pieces(outer, numbers, a, b), a[:, :, None] * b[:, None])
    assert sum(seen) == 13
    assert max(seen) == max(1, min(13, 12 // numbers))


def test_no_boxes() -> None:
    assert by_pieces(lambda part: part * 2, 5, torch.zeros(0, 3)).shape == (0, 3)
    assert chosen(torch.zeros(0, 3, dtype=torch.bool)).shape == (0, 0)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.7, 1.0])
def test_every_index_of_the_mask_is_chosen(share: float) -> None:
    mask = torch.rand(30, 9, generator=torch.Generator().manual_seed(1)) < share
    at = chosen(mask)
    assert at.shape == (30, int(mask.sum(-1).max()))
    held = torch.zeros_like(mask).scatter(1, at, True)
    assert bool((held | ~mask).all())
    assert int(held.sum()) == at.numel()  # none twice
