"""Which of two rules serves an entry: by the Gaussian for narrow laws, by the logistic density for wide ones."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["split"]

_Rule = Callable[[Tensor, Tensor], Tensor]


def split(m: Tensor, r: Tensor, limit: float, narrow: _Rule, wide: _Rule) -> Tensor:
    """``narrow(m, r)`` where r is at most the limit, ``wide(m, r)`` elsewhere; the rules take flat tensors."""
    flat_m, flat_r = m.flatten(), r.flatten()
    near = flat_r <= limit
    if bool(near.all()):
        return narrow(flat_m, flat_r).reshape(m.shape)
    found = torch.empty_like(flat_m)
    found[near] = narrow(flat_m[near], flat_r[near])
    found[~near] = wide(flat_m[~near], flat_r[~near])
    return found.reshape(m.shape)
