r"""Narrowing the brackets of the largest radius at which a bound is positive, for all inputs at once.

Every trial is one pass over a batch, so what counts is how few of them are needed. A bound of ``E p_c - E p_k`` that is
:math:`v` belongs to log odds of about :math:`2\,\mathrm{artanh}\,v`, and these fall nearly along a line where the
decision is about to be lost: the next trial is where the line through the last two trials crosses zero, or half a
tolerance beside it, so that the bracket closes from both sides. All this chooses radii to try; what a bracket says is
only what the trials found: ``low`` was certified, ``high`` was not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

_TRIALS = 60
_FIRST = 1 / 64  # of the largest radius: where to begin if nothing is known
_LEAST = 1e-6  # of the largest radius: below it nothing more is tried
_GROW, _SHRINK = 4.0, 0.25  # the longest steps while one end is not known
_GROW_ON = 1.2  # the step out from a radius of a weaker bound
_SIGNS_ON = 1.35  # the steps out where only the signs of bounds are looked at
_STEEP = 16.0  # log odds lost from zero to the radius if they fell as fast as near the radius: usual for MNIST
_USUAL = 8  # trials after which every other one is bold
_ODDS_OF_ONE, _DEEP = 1 - 1e-12, -3.0  # bounds beyond them say no more of the distance


@dataclass(frozen=True, slots=True)
class Bracket:
    """The largest radius that was certified and the smallest that was not, and the last three trials."""

    low: Tensor  # (batch,); -1 before anything is certified
    high: Tensor  # (batch,); infinite before anything fails
    start: Tensor  # (batch,): where to begin; zero: nobody knows
    radii: Tensor  # (3, batch): of the last trials, the latest first; NaN before there are as many
    odds: Tensor  # (3, batch): the log odds found there

    @classmethod
    def empty(cls, start: Tensor) -> Bracket:
        """Before the first trial, which is to be at ``start`` (batch,); zero or NaN: nobody knows where."""
        unknown = torch.full_like(start, torch.nan).expand(3, -1)
        low, high = torch.full_like(start, -1.0), torch.full_like(start, torch.inf)
        return cls(low, high, start.nan_to_num(0.0).clamp_min(0), unknown, unknown)

    @classmethod
    def again(cls, radius: Tensor, attack: Tensor) -> Bracket:
        """From certified radii (NaN where nothing is), to be searched on with a better bound, below ``attack``."""
        low, high = radius.nan_to_num(-1.0), attack.nan_to_num(torch.inf, posinf=torch.inf)
        return replace(cls.empty(torch.zeros_like(low)), low=low, high=high)

    @property
    def radius(self) -> Tensor:
        """What is certified, NaN where nothing is: (batch,)."""
        return torch.where(self.low >= 0, self.low, torch.nan)

    def after(self, trial: Tensor, value: Tensor, active: Tensor) -> Bracket:
        """What is known after a trial of the ``active`` inputs (batch,) that found the bounds ``value`` (batch,)."""
        good, bad = active & (value > 0), active & ~(value > 0)
        return Bracket(
            torch.where(good, trial, self.low),
            torch.where(bad, trial, self.high),
            self.start,
            torch.where(active, torch.stack([trial, *self.radii[:2]]), self.radii),
            torch.where(active, torch.stack([_log_odds(value), *self.odds[:2]]), self.odds),
        )

    def again_at(self, value: Tensor, active: Tensor) -> Bracket:
        """After a better bound found ``value`` (batch,) at the upper ends of the ``active`` inputs.

        Where it holds there, it is not known where it fails, and the results of the weaker bound are of no use.
        """
        good = active & (value > 0)
        unknown = torch.full_like(value, torch.nan)
        return Bracket(
            torch.where(good, self.high, self.low),
            torch.where(good, torch.inf, self.high),
            self.start,
            torch.where(good, torch.stack([self.high, unknown, unknown]), self.radii),
            torch.where(good, torch.stack([_log_odds(value), unknown, unknown]), self.odds),
        )

    def open(self, upper: float, tolerance: float) -> Tensor:
        """Where the bracket is still wider than asked for: (batch,)."""
        nothing = (self.low < 0) & (self.high > 0)
        wide = ~(self.high - self.low <= tolerance * self.low) & ~(self.high <= _LEAST * upper)
        return nothing | (self.low >= 0) & (self.low < upper) & wide

    def next(self, upper: float, tolerance: float, index: int, *, by_sign: bool = False) -> tuple[Tensor, Tensor]:
        """The inputs (some,) to try next, and their radii, in round ``index`` of the search; none: it is over.

        ``tolerance`` is relative to the radius, ``upper`` is the largest tried. With ``by_sign`` only the signs of the
        bounds mean anything.
        """
        at = (
            self.open(upper, tolerance).nonzero()[:, 0] if index < _TRIALS else self.low.new_empty(0, dtype=torch.int64)
        )
        if by_sign:
            return at, self.by_sign(upper)[at]
        return at, self.trial(upper, tolerance, bold=index >= _USUAL and index % 2 == 0)[at]

    def told(self, at: Tensor, radii: Tensor, value: Tensor) -> Bracket:
        """What is known after trials of the inputs ``at`` (some,) at these radii that found the bounds ``value``."""
        active = torch.zeros_like(self.low, dtype=torch.bool).index_fill(0, at, True)
        trial, found = self.low.index_copy(0, at, radii), torch.full_like(self.low, -torch.inf).index_copy(0, at, value)
        return self.after(trial, found, active)

    def trial(self, upper: float, tolerance: float, *, bold: bool) -> Tensor:
        """The radius to try next: (batch,); a ``bold`` one ignores the log odds, which may mislead."""
        low, high = self.low, self.high
        step = 1 + 0.999 * tolerance
        root = self._root()
        aim = root * (1 - 0.4 * tolerance)
        # Once one end is near the root, the other end that closes the bracket.
        aim = torch.where((root - low).abs() <= 0.85 * tolerance * low, low * step, aim)
        aim = torch.where((high - root).abs() <= 0.85 * tolerance * root, high / step, aim)
        aim = torch.full_like(aim, torch.nan) if bold else aim
        out = self._further(aim, step, _FIRST * upper)
        between = self._between(aim, tolerance)
        between = between if bold else torch.where(self.new, torch.minimum(out, between), between)
        chosen = torch.where(high.isinf(), out, between)
        return torch.where(low < 0, self._nearer(aim, step, _LEAST * upper), chosen).clamp_max(upper)

    def by_sign(self, upper: float) -> Tensor:
        """The radius to try next, if a bound says no more than whether it is positive: (batch,)."""
        first = torch.where(self.start > 0, _SHRINK * self.start, _FIRST * upper)
        out = torch.where(self.low == 0, first, self.low * _SIGNS_ON)
        chosen = torch.where(self.high.isinf(), out, 0.5 * (self.low + self.high))
        return torch.where(self.low < 0, self._nearer(0 * self.low, 1.0, _LEAST * upper), chosen).clamp_max(upper)

    @property
    def new(self) -> Tensor:
        """Where nothing was tried yet: (batch,)."""
        return self.radii[0].isnan()

    def _further(self, aim: Tensor, step: float, first: float) -> Tensor:
        """While nothing has failed."""
        out = torch.maximum(torch.minimum(aim.nan_to_num(torch.inf), self.low * _GROW), self.low * step)
        out = torch.where(self.new, self.low * _GROW_ON, out)
        return torch.where(self.low == 0, torch.where(self.start > 0, _SHRINK * self.start, first), out)

    def _nearer(self, aim: Tensor, step: float, least: float) -> Tensor:
        """While nothing is certified: the start, then further in, and the input itself if that leads nowhere."""
        inward = torch.maximum(torch.minimum(aim.nan_to_num(0.0), self.high / step), _SHRINK * self.high)
        deep = (self.odds[:2] <= 2 * _DEEP).all(0)
        lost = deep | (self.high <= 0.5 * self.start) | (self.high <= least)
        return torch.where(self.high.isinf(), self.start, torch.where(lost, 0.0, inward))

    def _between(self, aim: Tensor, tolerance: float) -> Tensor:
        """Between both ends."""
        width, middle = self.high - self.low, 0.5 * (self.low + self.high)
        inside = torch.maximum(torch.minimum(aim, self.high - 0.05 * width), self.low + 0.05 * width)
        return torch.where((width <= 2 * tolerance * self.low) | ~inside.isfinite(), middle, inside)

    def _root(self) -> Tensor:
        """Where the log odds should be zero: (batch,); NaN where nobody knows.

        Radii as a quadratic function of the log odds, where three trials say so; else by the line through two; else by
        the usual slope.
        """
        (x, y, z), (a, b, c) = self.radii, self.odds
        slope = (a - b) / (x - y)
        usual = x / (1 - a / _STEEP).clamp_min(0.5)
        line = torch.where((slope < 0) & slope.isfinite(), x - a / slope, usual)
        bent = x * b * c / ((a - b) * (a - c)) + y * a * c / ((b - a) * (b - c)) + z * a * b / ((c - a) * (c - b))
        falls = ((a - b) * (x - y) < 0) & ((b - c) * (y - z) < 0) & ((a - c) * (x - z) < 0)
        return torch.where(falls & (bent > self.low) & (bent < self.high), bent, line)


def _log_odds(value: Tensor) -> Tensor:
    """About the log odds of a decision that is ahead by ``value``; bounds below zero fall without end."""
    return torch.where(value > 0, 2 * torch.atanh(value.clamp(0, _ODDS_OF_ONE)), 2 * value.clamp_min(_DEEP))
