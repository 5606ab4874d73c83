"""Climbs of the log odds against a decision, in all inputs and from all starting points at once.

The steps are those of projected gradient ascent with momentum (Dong et al., 2018) along the longest step that the
region allows, of a share that falls from one to a fiftieth. In a fixed region a climb keeps the best point passed. In
search of the nearest change the region is a ball whose radius follows the climb: where the decision has changed it is a
little less than the odds, linear on the segment to the centre, say is needed; where it has not, it is the distance to
the plane on which the linearised odds vanish (as in FAB, Croce and Hein, 2020, and FMN, Pintor et al., 2021), and less
than that of the nearest change so far.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.attack.noise import Noise
from bnndp.attack.sampled_softmax import Contest, log_means, odds_direction
from bnndp.attack.surroundings import Surroundings, tiny
from bnndp.deadline import Deadline
from bnndp.network import Posterior

_MOMENTUM = 0.25
_LAST_STEP = 0.02  # of the longest step; the first is the whole
_SHRINK = (0.1, 0.001)  # share by which a radius is to be less than what is known to do: at first, at last


@dataclass(frozen=True, slots=True)
class Hill:
    """What is climbed: the log odds of some rows by one noise, in the surroundings of some inputs.

    With ``shrink`` the nearest change within the radius is sought, else the largest odds.
    """

    network: Posterior
    contest: Contest  # (batch, rows)
    noise: Noise
    home: Surroundings
    radius: Tensor  # (batch,): the largest
    shrink: bool
    deadline: Deadline

    def odds(self, x: Tensor) -> Tensor:
        """Log odds of every row at x (points, batch, n): (points, batch, rows)."""
        return self.contest.odds(log_means(self.network, x, self.noise)[0]).to(x.dtype)

    def direction(self, x: Tensor, without: Tensor | None) -> tuple[Tensor, Tensor]:
        """Largest log odds (climbs, batch) at x (climbs, batch, n), but of rows in ``without``, and their slope."""
        climbs, batch, n = x.shape
        hidden = None if without is None else without.reshape(climbs * batch, -1)
        contest = self.contest.repeat(climbs)
        value, slope = odds_direction(self.network, x.reshape(-1, n), contest, self.noise, without=hidden)
        return value.reshape(climbs, batch).to(x.dtype), slope.reshape(x.shape)

    def score(self, odds: Tensor, distance: Tensor) -> Tensor:
        """How good a point is: the larger the better, and positive if and only if it changes the decision."""
        return torch.where(odds > 0, 1 / distance.clamp_min(tiny(distance)), odds) if self.shrink else odds


@dataclass(frozen=True, slots=True)
class Climbs:
    """The best points of climbs, their scores, and the rows that they leave out."""

    x: Tensor  # (climbs, batch, n)
    score: Tensor  # (climbs, batch)
    without: Tensor  # (climbs, batch, rows)

    @classmethod
    def at(cls, x: Tensor, without: Tensor) -> Climbs:
        """Climbs that have not begun, at x (climbs, batch, n)."""
        return cls(x, torch.full_like(x[..., 0], -torch.inf), without)

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """All of it."""
        return self.x, self.score, self.without

    def best(self, count: int) -> Climbs:
        """The ``count`` best of each input, the best first."""
        order = self.score.topk(min(count, self.score.shape[0]), dim=0).indices
        return Climbs(take(self.x, order), self.score.gather(0, order), take(self.without, order))

    def and_also(self, others: Climbs) -> Climbs:
        """These and those of the same inputs."""
        return Climbs(*map(torch.cat, zip(self.tensors, others.tensors, strict=True)))


def climb(hill: Hill, climbs: Climbs, *, steps: int, first: float = 1.0) -> Climbs:
    """The climbs after that many more steps, of which the first is the share ``first`` of the longest."""
    home, top, most = hill.home, climbs.score, hill.radius.expand(climbs.score.shape)
    x = before = climbs.x
    best, radius = x.clone(), most
    for index in range(steps + 1):
        value, slope = hill.direction(x, climbs.without)
        step = x - home.centre if hill.shrink else x
        distance = home.length(step) if hill.shrink else value
        score = hill.score(value, distance)
        gain = score > top
        best[gain], top = x[gain], torch.where(gain, score, top)
        if index == steps or hill.deadline.passed:
            break
        done = index / steps
        if hill.shrink:
            radius = torch.minimum(_next_radius(home, value, slope, step, distance, top, done), most)
        share = (1 - _MOMENTUM) * max(_LAST_STEP, first * (0.5 + 0.5 * math.cos(math.pi * done)))
        x, before = home.moved(x, slope, share, (x - before).mul_(_MOMENTUM), radius), x
    return Climbs(best, top, climbs.without)


def _next_radius(  # noqa: PLR0913 (what is known at the point)
    home: Surroundings, value: Tensor, slope: Tensor, step: Tensor, distance: Tensor, top: Tensor, done: float
) -> Tensor:
    """The radius after that share of the steps, from what is known ``step`` away from the centres: (climbs, batch)."""
    first, last = _SHRINK
    shrink = first * (last / first) ** done
    along = torch.linalg.vecdot(slope, step)
    needed = distance * (1 - value / torch.maximum(along, 2 * value).clamp_min(tiny(value)))
    plane = distance - value / home.speed(slope).clamp_min(tiny(slope))
    nearest = torch.where(top > 0, (1 - last) / top, torch.inf)
    radius = torch.where(value > 0, (1 - shrink) * needed, torch.minimum((1 + shrink) * plane, nearest))
    return radius.nan_to_num(nan=math.inf)


def take(x: Tensor, index: Tensor) -> Tensor:
    """``x[index[i, b], b]`` for x (points, batch, n) and index (k, batch): (k, batch, n)."""
    return x.gather(0, index[..., None].expand(-1, -1, x.shape[-1]))
