"""Where an attack may go: the points of a box within some distance of a centre, in the l1, l2 or l-infinity norm.

Every input has one centre and one box, every climb a radius of its own, which may change at each step. Nothing here is
rounded outward: what is reported is projected onto the region itself (``geometry/box.py``) and measured there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.geometry.box import Ball, Box

_DUAL = {1.0: math.inf, 2.0: 2.0, math.inf: 1.0}
_ROUNDS = 6  # of a fixed point: the coordinates at the end of the box only become more
_SMALL = 1e-15  # in place of zero, beside one
_QUOTIENTS, _NEAR = 8, 0.03  # quotients at most, and how near they come


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Boxes around centres that lie in them, and the norm in which distances from the centres are measured."""

    centre: Tensor  # (batch, n)
    lower: Tensor  # (batch, n)
    upper: Tensor  # (batch, n)
    norm: float

    @classmethod
    def of_domain(cls, centre: Tensor, domain: tuple[float, float] | None, norm: float) -> Surroundings:
        """The domain around each centre (batch, n)."""
        low, high = domain or (-math.inf, math.inf)
        return cls(centre, torch.full_like(centre, low), torch.full_like(centre, high), float(norm))

    @classmethod
    def of_region(cls, box: Box) -> tuple[Surroundings, Tensor]:
        """Those of a region, and its radius (batch,): infinite for a plain box."""
        if box.within is None:
            return cls(box.centre, box.lower, box.upper, math.inf), torch.full_like(box.lower[:, 0], math.inf)
        return cls(box.within.centre, box.lower, box.upper, box.within.norm), box.within.radius

    def __getitem__(self, index: Tensor) -> Surroundings:
        """Those of some of the inputs."""
        return Surroundings(self.centre[index], self.lower[index], self.upper[index], self.norm)

    def to(self, dtype: torch.dtype) -> Surroundings:
        """The same, rounded to this precision."""
        return Surroundings(self.centre.to(dtype), self.lower.to(dtype), self.upper.to(dtype), self.norm)

    def length(self, step: Tensor) -> Tensor:
        """Of steps from the centre (..., n): (...,)."""
        return _norm(step, self.norm)

    def moved(self, x: Tensor, slope: Tensor, share: float, drift: Tensor, radius: Tensor) -> Tensor:
        """X (..., batch, n) after ``share`` of the longest step along ``slope`` and ``drift``, within ``radius``.

        The longest step leads to the point that is farthest: from the middle of the ball in its box, but for l1 from x
        (Frank and Wolfe), so that few inputs change. Where the sum leaves an l1 or l2 ball, it is pulled straight to
        the centre.
        """
        if self.norm == math.inf:
            low, high = self._ends(radius)
            return (high - low).mul_(slope.sign()).mul_(0.5 * share).add_(drift).add_(x).clamp_(low, high)
        step = (self.farthest(slope, radius) - (x if self.norm == 1 else self.centre)).mul_(share).add_(drift).add_(x)
        step = step.clamp_(self.lower, self.upper).sub_(self.centre)
        return self.centre + step * (radius / self.length(step).clamp_min(tiny(step))).clamp_max(1)[..., None]

    def farthest(self, slope: Tensor, radius: Tensor) -> Tensor:
        """The point farthest along ``slope`` (..., batch, n) within ``radius`` (..., batch): (..., batch, n)."""
        if self.norm == math.inf:
            low, high = self._ends(radius)
            return torch.where(slope > 0, high, torch.where(slope < 0, low, self.centre))
        size, room = slope.abs(), torch.where(slope > 0, self.upper - self.centre, self.centre - self.lower)
        room = torch.minimum(room.clamp_min(0), radius[..., None])
        length = _round(size, room, radius) if self.norm == 2 else _greedy(size, room, radius)
        return self.centre + slope.sign() * length

    def speed(self, slope: Tensor) -> Tensor:
        """By how much a linear function of this slope can grow with the radius inside the box: (..., batch)."""
        return _norm(slope, _DUAL[self.norm])

    def reach(self, slope: Tensor, need: Tensor, most: Tensor) -> Tensor:
        """The least radius in which ``slope . (x - centre)`` attains ``need`` (..., batch), up to ``most`` (batch,).

        The largest value is concave in the radius and zero at zero, so that the quotients come from below; they end
        within _NEAR of the need.
        """
        radius = torch.minimum((need / self.speed(slope).clamp_min(tiny(slope))).clamp_min(0), most)
        for _ in range(_QUOTIENTS):
            value = torch.linalg.vecdot(self.farthest(slope, radius) - self.centre, slope)
            short = (value < (1 - _NEAR) * need) & (radius < most)
            if not short.any():
                break
            more = torch.minimum(radius * need / value.clamp_min(tiny(slope)), most)
            radius = torch.where(short, more, radius)
        return radius.nan_to_num(nan=0.0, posinf=math.inf)

    def region(self, radius: Tensor) -> Box:
        """That of the points within ``radius`` (batch,)."""
        within = None if self.norm == math.inf else Ball(self.centre, radius, self.norm)
        return Box(*self._ends(radius), within)

    def _ends(self, radius: Tensor) -> tuple[Tensor, Tensor]:
        """Of the box within ``radius`` (..., batch) in the l-infinity norm."""
        radius = radius[..., None]
        return torch.maximum(self.centre - radius, self.lower), torch.minimum(self.centre + radius, self.upper)


def tiny(x: Tensor) -> float:
    """The smallest normal number of its precision, to divide by in place of zero."""
    return torch.finfo(x.dtype).tiny


def _norm(x: Tensor, order: float) -> Tensor:
    """Of x (..., n): (...,). By an order of magnitude faster than torch's own where that is not the l2 norm."""
    if order == 2:
        return torch.linalg.vector_norm(x, dim=-1)
    return x.abs().amax(-1) if order == math.inf else x.abs().sum(-1)


def _round(size: Tensor, room: Tensor, radius: Tensor) -> Tensor:
    """Along ``size``, cut at ``room`` (..., n), of l2 norm ``radius`` (...,) unless there is less room: (..., n)."""
    size = size / size.amax(-1, keepdim=True).clamp_min(tiny(size))
    share = radius / _norm(size, 2).clamp_min(_SMALL)
    for _ in range(_ROUNDS):
        cut = share[..., None] * size >= room
        used, free = _norm(room * cut, 2) / radius.clamp_min(tiny(size)), _norm(size * ~cut, 2)
        share = radius * (1 - used.square()).clamp_min(0).sqrt() / free.clamp_min(_SMALL)
    return torch.minimum(share[..., None] * size, room)


def _greedy(size: Tensor, room: Tensor, radius: Tensor) -> Tensor:
    """The room (..., n) of the coordinates of largest ``size``, until ``radius`` (...,) is used up: (..., n)."""
    order = size.argsort(dim=-1, descending=True)
    sorted_room = room.gather(-1, order)
    left = radius[..., None] - (sorted_room.cumsum(-1) - sorted_room)
    return torch.zeros_like(room).scatter_(-1, order, torch.minimum(left.clamp_min(0), sorted_room))
