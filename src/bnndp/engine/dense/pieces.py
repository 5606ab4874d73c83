"""Matrices of each box, a few boxes at a time: larger than all else in a pass, they should stay in the caches."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bnndp.engine.chunks import beyond_caches

__all__ = ["by_pieces", "chosen"]

_NUMBERS = 2**16  # in the matrices made at a time: in the caches of a CPU


def by_pieces(function: Callable[..., Tensor], numbers: int, *of_boxes: Tensor) -> Tensor:
    """``function(*of_boxes)``, a tensor with a leading axis of boxes as all arguments have, made of a few at a time.

    ``numbers`` are those in the largest matrix of one box.

    >>> by_pieces(lambda a, b: (a[:, :, None] * b[:, None]).amax(-1), 2, torch.ones(5, 2), torch.eye(5)[:, :2]).shape
    torch.Size([5, 2])
    """
    first = of_boxes[0]
    size = max(1, beyond_caches(_NUMBERS, first.device) // max(1, numbers))
    if first.shape[0] <= size:
        return function(*of_boxes)
    return torch.cat([function(*some) for some in zip(*(t.split(size) for t in of_boxes), strict=True)])


def chosen(mask: Tensor) -> Tensor:  # (batch, n) of booleans -> (batch, k) of integers
    """The indices at which the mask is true, of each box as many as of that with most of them: some may be others.

    >>> chosen(torch.tensor([[False, True, False], [True, False, True]])).shape
    torch.Size([2, 2])
    """
    most = int(mask.sum(-1).amax()) if mask.shape[0] else 0
    return mask.byte().argsort(dim=-1, descending=True, stable=True)[:, :most]
