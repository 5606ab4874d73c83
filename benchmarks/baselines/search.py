"""Boxes that the first layer sees, and bisection for a radius of all inputs at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.paper.columns import Subject, ball_of
from bnndp.geometry.box import Box

__all__ = ["Bracket", "asked_ball", "bracket", "shifted_ball"]

_FIRST = 1 / 1024  # of the largest radius: tried first
_LEAST = 1e-6  # of the largest radius: below it nothing more is tried
_SHRINK = 4.0  # factor of a step in while nothing holds but the input itself
_TRIALS = 200

Holds = Callable[[Tensor, Tensor], Tensor]
"""Whether the claim holds (inputs,) at the radii (inputs,) of the inputs at these indices (inputs,)."""


@dataclass(frozen=True, slots=True)
class Bracket:
    """The claim held at ``low`` and did not at ``high``; ``low`` is -1 where it does not hold at the input itself."""

    low: Tensor  # (points,)
    high: Tensor  # (points,), infinite where it held at the largest radius

    @property
    def largest(self) -> Tensor:
        """Largest radius at which it held (points,); NaN where not even at the input."""
        return torch.where(self.low >= 0, self.low, torch.nan)

    @property
    def smallest(self) -> Tensor:
        """Smallest radius at which it did not (points,); zero where not even at the input, infinite where none."""
        return self.high


def shifted_ball(subject: Subject, radius: float | Tensor, at: Tensor | None = None) -> Box:
    """The l-infinity balls around the inputs, or those at the indices ``at``, cut to the domain and less the shift.

    ``radius`` is one number or (points,).
    """
    box = Box.ball(subject.x if at is None else subject.x[at], radius, domain=subject.domain)
    return box if subject.network.shift is None else box.moved(subject.network.shift)


def asked_ball(subject: Subject) -> Box:
    """The balls whose radius a subject of regression names, as the first layer sees them."""
    box, shift = ball_of(subject), subject.network.shift
    return box if shift is None else box.moved(shift)


def bracket(holds: Holds, points: int, *, upper: float = 1.0, tolerance: float = 0.01, grow: float = 2.0) -> Bracket:
    """Brackets no wider than ``tolerance`` of their lower end: grow from a small radius by ``grow``, then bisect.

    For a claim that holds up to some radius and no further the ends enclose it. Otherwise they are still a radius at
    which it held and one at which it did not, the first one met in growing.
    """
    everything = torch.arange(points)
    zero = torch.zeros(points, dtype=torch.float64)
    at_input = holds(zero, everything)
    low = torch.where(at_input, zero, -1.0)
    high = torch.where(at_input, torch.inf, zero)
    for _ in range(_TRIALS):
        wide = ~(high - low <= tolerance * low) & (high > _LEAST * upper) & (low >= 0) & (low < upper)
        at = wide.nonzero()[:, 0]
        if at.numel() == 0:
            break
        trial = _trial(low[at], high[at], upper, grow)
        good = holds(trial, at)
        low[at] = torch.where(good, trial, low[at])
        high[at] = torch.where(good, high[at], trial)
    return Bracket(low, high)


def _trial(low: Tensor, high: Tensor, upper: float, grow: float) -> Tensor:
    out = torch.where(low > 0, low * grow, _FIRST * upper).clamp_max(upper)
    within = torch.where(low > 0, (low + high) / 2, high / _SHRINK)
    return torch.where(high.isinf(), out, within)
