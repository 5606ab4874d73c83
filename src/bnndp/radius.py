"""The largest radius for which the decision provably does not change, and the smallest at which an attack changes it.

The certified radius is searched for all inputs at once: each trial is one pass over the whole batch. The value that
must stay positive falls smoothly with the radius, so the next trial is where the line through both ends of the bracket
crosses zero, kept away from the ends. Where planes are optimised or signs branched on, one pass finds a radius first,
from which the costly search goes on. Whatever the search does, ``radius`` is one at which the bound was positive.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from bnndp.classify import bound_rows
from bnndp.decision import expect_classifier, labels_of
from bnndp.errors import InputError
from bnndp.evasion import Effort, Reach, attack_radius, decision_rows
from bnndp.network import BayesianNetwork
from bnndp.options import Options
from bnndp.regions import Box

__all__ = ["Radius", "Search", "certified_radius"]

_TRIALS = 60
_FIRST = 1 / 64  # of the largest radius: where the search begins
_LEAST = 1e-6  # of the largest radius: below it nothing more is tried
_GROW, _GROW_ON = 4.0, 1.2  # the step out, in the first search and in one that goes on from there


@dataclass(frozen=True, slots=True, eq=False)
class Search:
    """Which balls are asked about and how finely: ``tolerance`` is relative to the radius, ``upper`` the largest tried.

    ``attack`` also looks for the smallest radius at which the decision changes. ``weights`` are the losses of a
    misclassification, decision by true class (see :mod:`bnndp.decision`); None: all alike.
    """

    norm: float = math.inf
    upper: float = 1.0
    tolerance: float = 0.01
    attack: bool = True
    weights: Tensor | None = None  # (classes, classes)

    def __post_init__(self) -> None:
        if not 0 < self.upper < math.inf:
            raise InputError(f"upper must be a positive radius, got {self.upper!r}.")
        if not 0 < self.tolerance < 1:
            raise InputError(f"tolerance is relative and must lie between 0 and 1, got {self.tolerance!r}.")


@dataclass(frozen=True, slots=True)
class Radius:
    """For each input: the decision is ``label`` on the ball of ``radius``, proved; ``attack`` found a change.

    ``radius`` is 0 where the decision is proved at the input only, and NaN where not even that: then nothing is
    certified. ``attack`` is infinite where no attack succeeded up to the largest radius, 0 where the network decides
    otherwise at the input itself, NaN where none was asked for; ``witness`` lies in the ball of that radius.
    """

    label: Tensor  # (batch,)
    radius: Tensor  # (batch,)
    attack: Tensor  # (batch,)
    witness: Tensor  # (batch, n)

    @property
    def ratio(self) -> Tensor:
        """Certified over attacked radius, at most 1 where both are right: (batch,)."""
        certified = self.radius.nan_to_num(0.0)
        return torch.where(self.attack > 0, certified / self.attack, torch.nan)


_Value = Callable[[Tensor, Tensor], Tensor]
"""Bounds (inputs,) at the radii (inputs,) of the inputs at these indices; the decision holds where positive."""


@dataclass(frozen=True, slots=True)
class _Bracket:
    """The largest radius that was certified and the smallest that was not, with the bounds found there."""

    low: Tensor  # (batch,); -1 before anything is certified
    high: Tensor  # (batch,); infinite before anything fails
    low_value: Tensor  # (batch,), positive
    high_value: Tensor  # (batch,), not positive
    grow: float  # factor of a step out

    def after(self, trial: Tensor, value: Tensor, active: Tensor) -> _Bracket:
        good, bad = active & (value > 0), active & ~(value > 0)
        return _Bracket(
            torch.where(good, trial, self.low),
            torch.where(bad, trial, self.high),
            torch.where(good, value, self.low_value),
            torch.where(bad, value, self.high_value),
            self.grow,
        )

    def reopened(self) -> _Bracket:
        """The same lower ends, to be searched on with a better bound."""
        far = torch.full_like(self.high, torch.inf)
        return _Bracket(self.low, far, self.low_value, -far, _GROW_ON)

    def open(self, search: Search) -> Tensor:
        """Where the bracket is still wider than asked for: (batch,)."""
        certified = self.low >= 0
        wide = ~(self.high - self.low <= search.tolerance * self.low) & ~(self.high <= _LEAST * search.upper)
        return certified & (self.low < search.upper) & wide

    def trial(self, search: Search) -> Tensor:
        """The radius to try next (batch,): further out, or between the ends."""
        out = (self.low * self.grow).clamp_max(search.upper)
        out = torch.where(self.low == 0, _FIRST * search.upper, out)
        fall = self.low_value / (self.low_value - self.high_value)
        share = torch.where(self.high_value.isfinite(), fall, 0.5).nan_to_num(0.5).clamp(0.15, 0.85)
        between = self.low + share * (self.high - self.low)
        return torch.where(self.high.isinf(), out, between)


def certified_radius(
    network: BayesianNetwork,
    x: Tensor,  # (n,) or (batch, n)
    label: Tensor | int | None = None,  # (batch,), or one for all; None: the network's own decisions
    domain: tuple[float, float] | None = None,
    *,
    search: Search | None = None,
    options: Options | None = None,
) -> Radius:
    """The largest radius certified for each x, within the tolerance of the search, and the attack's."""
    search, options = search or Search(), options or Options()
    expect_classifier(network)
    points = Box.ball(x, 0.0, domain=domain).lower
    if points.shape[1] != network.n_in:
        raise InputError(
            f"x has {points.shape[1]} inputs, the network takes {network.n_in}; check the order of the axes."
        )
    asked = labels_of(network, points, label, search.weights)
    rows = decision_rows(asked, network.n_out, search.weights)[0]

    def value_at(radius: Tensor, at: Tensor, how: Options) -> Tensor:
        ball = Box.ball(points[at], radius, domain=domain, norm=search.norm)
        with torch.no_grad():
            return bound_rows(network, ball, rows[at], asked[at], how).amin(-1)

    once = replace(options, optimise=0, branch=1)
    found = _search(partial(value_at, how=once), _begin(partial(value_at, how=once), points), search)
    if once != options:
        found = _begin(partial(value_at, how=options), points, found.reopened())
        found = _search(partial(value_at, how=options), found, search)
    radius = torch.where(found.low >= 0, found.low, torch.nan)
    attack, witness = torch.full_like(radius, torch.nan), points.clone()
    if search.attack:
        reach = Reach(domain=domain, norm=search.norm, upper=search.upper, tolerance=search.tolerance)
        broken = attack_radius(network, points, asked, weights=search.weights, reach=reach, effort=Effort())
        attack, witness = broken.radius, broken.x
    return Radius(asked, radius, attack, witness)


def _begin(value_at: _Value, points: Tensor, known: _Bracket | None = None) -> _Bracket:
    """The bracket after a trial at radius zero of all inputs of which nothing is certified yet."""
    zero = points.new_zeros(points.shape[0])
    if known is None:
        known = _Bracket(zero - 1, zero + torch.inf, zero + 1, zero - torch.inf, _GROW)
    left = known.low < 0
    at = left.nonzero()[:, 0]
    if at.numel() == 0:
        return known
    value = torch.full_like(zero, -torch.inf)
    value[at] = value_at(zero[at], at)
    return known.after(zero, value, left)


def _search(value_at: _Value, state: _Bracket, search: Search) -> _Bracket:
    """Narrow the brackets of the largest radius at which ``value_at(radius, indices)`` is positive."""
    for _ in range(_TRIALS):
        active = state.open(search)
        at = active.nonzero()[:, 0]
        if at.numel() == 0:
            break
        trial = state.trial(search)
        value = torch.full_like(trial, -torch.inf)
        value[at] = value_at(trial[at], at)
        state = state.after(trial, value, active)
    return state
