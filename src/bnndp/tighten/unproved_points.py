"""The x of a cell at which a claim is not proved yet: a half-space that a plane leaves, and whether to ask again."""

from __future__ import annotations

import torch
from torch import Tensor

from bnndp.geometry.bounds import Affine
from bnndp.geometry.box import Box
from bnndp.geometry.half_space import HalfSpace
from bnndp.maths.rounding import TINY, gamma

__all__ = ["POSITIVE", "deeper", "not_above", "worthwhile"]

POSITIVE = 1e-250
"""More than this is known of a claim at the x that a half-space leaves out (``margin_threshold.py`` for decisions)."""

_AGAIN = 0.25  # of what is missing: a cell whose bound rose by this much is bounded again before it is cut in two


def not_above(plane: Affine, constant: Tensor, best: torch.return_types.max, most: float) -> HalfSpace:
    """The x at which the best of the planes, plus its constant, is not above ``most`` >= 0."""
    at = best.indices[:, None]
    normal = plane.matrix.gather(1, at[..., None].expand(-1, 1, plane.matrix.shape[-1]))[:, 0]
    offset, constant = plane.offset.gather(1, at)[:, 0], constant.gather(1, at)[:, 0]
    level = most - offset - constant + gamma(8) * (most + offset.abs() + constant.abs())
    fine = best.values.isfinite() & level.isfinite() & normal.isfinite().all(-1)
    return HalfSpace(torch.where(fine[:, None], normal, 0.0), torch.where(fine, level, 0.0))


def deeper(new: HalfSpace, old: HalfSpace | None, box: Box) -> HalfSpace:
    """Of two half-spaces for each box the one that leaves less of the box between its least and largest values."""
    if old is None:
        return new
    better = _part(new, box) <= _part(old, box)
    return HalfSpace(torch.where(better[:, None], new.normal, old.normal), torch.where(better, new.level, old.level))


def _part(cut: HalfSpace, box: Box) -> Tensor:  # (cells,)
    reach = (cut.normal.abs() * box.half).sum(-1)
    left = cut.level - (cut.normal * box.centre).sum(-1) + reach
    return torch.where(reach > 0, left / (2 * reach).clamp_min(TINY), torch.inf)


def worthwhile(reached: Tensor, before: Tensor | None, enough: float) -> Tensor:
    """Whether another bound of the same cells, on what its plane has left, may decide them: (cells,).

    What is missing counts as ``enough`` at least.
    """
    if before is None:
        return reached.isfinite()
    return reached - before >= _AGAIN * (-reached).clamp_min(enough)
