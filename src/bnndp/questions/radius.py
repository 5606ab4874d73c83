"""The largest radius for which the decision provably does not change, and the smallest at which an attack changes it.

The certified radius is searched for all inputs at once: each trial is one pass over the whole batch. The search begins
where the mean weights would change their decision if they were linear (``linearised.py``), and narrows a bracket
(``bracket.py``). One pass finds a radius first, from which each stage of a higher effort goes on with costlier bounds,
and no further than an attack allows. Whatever the search does, ``radius`` is one at which the bound was positive, so
that it may stop at any time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from bnndp.attack import AttackBudget, Reach, attack_radius, decision_rows
from bnndp.attack.linearised import linear_radius
from bnndp.errors import InputError
from bnndp.geometry.box import Box
from bnndp.network import Posterior
from bnndp.options import Deadline, Options
from bnndp.questions.bracket import Bracket, narrowed
from bnndp.questions.decision import expect_classifier, labels_of
from bnndp.questions.notebook import html_table
from bnndp.questions.softmax import bound_rows, quick_rows
from bnndp.tighten.choice import plan
from bnndp.tighten.effort import last

__all__ = ["Radius", "Search", "better_radii", "certified_radius"]

_BEGIN = 0.8  # of the linearised radius: where the search begins


@dataclass(frozen=True, slots=True, eq=False)
class Search:
    """Which balls are asked about and how finely: ``tolerance`` is relative to the radius, ``upper`` the largest tried.

    ``attack`` also looks for the smallest radius at which the decision changes. ``losses`` are those of a
    misclassification, decision by true class (see :mod:`bnndp.questions.decision`); None: all alike. ``seed`` is that
    of the attack.
    """

    norm: float = math.inf
    upper: float = 1.0
    tolerance: float = 0.01
    attack: bool = True
    losses: Tensor | None = None  # (classes, classes)
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.upper < math.inf:
            raise InputError(f"upper must be a positive radius, got {self.upper!r}.")
        if not 0 < self.tolerance < 1:
            raise InputError(f"tolerance is relative and must lie between 0 and 1, got {self.tolerance!r}.")


@dataclass(frozen=True, slots=True)
class Radius:
    """For each input: the decision is ``label`` on the ball of ``radius``, proved; ``attack`` found a change.

    ``radius`` is 0 where the decision is proved at the input only, and NaN where not even that: then nothing is
    certified. ``attack`` is infinite where no attack succeeded up to the largest radius, or could, as it is certified;
    0 where the network decides otherwise at the input itself, NaN where none was asked for. ``witness`` lies in the
    ball of that radius.
    """

    label: Tensor  # (batch,)
    radius: Tensor  # (batch,)
    attack: Tensor  # (batch,)
    witness: Tensor  # (batch, n)
    rival: Tensor | None = (
        None  # (batch,): the class ahead at the witness, the label if nothing was searched; None: no attack
    )

    @property
    def ratio(self) -> Tensor:
        """Certified over attacked radius, at most 1 where both are right: (batch,)."""
        certified = self.radius.nan_to_num(0.0)
        return torch.where(self.attack > 0, certified / self.attack, torch.nan)

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        columns = {"label": self.label, "certified": self.radius, "attack": self.attack, "ratio": self.ratio}
        return html_table(
            f"Radii of {self.label.numel()} inputs", {name: column.tolist() for name, column in columns.items()}
        )


def certified_radius(
    network: Posterior,
    x: Tensor,  # (n,) or (batch, n)
    label: Tensor | int | None = None,  # (batch,), or one for all; None: the network's own decisions
    domain: tuple[float, float] | None = None,
    *,
    search: Search | None = None,
    options: Options | None = None,
) -> Radius:
    """The largest radius certified for each x, within the tolerance of the search, and the attack's.

    When ``options.time_limit`` is over what was reached by then is the answer: an input whose search had not begun has
    no radius (NaN), one whose attack had not ended none of the attack. On Ctrl-C it is what was reached after the
    search by one pass.
    """
    options = (options or Options()).started()
    return last(better_radii(network, x, label, domain, search=search, options=options), options.deadline)


def better_radii(  # noqa: PLR0913 (those of certified_radius, and where to go on from)
    network: Posterior,
    x: Tensor,  # (n,) or (batch, n)
    label: Tensor | int | None = None,  # (batch,), or one for all; None: the network's own decisions
    domain: tuple[float, float] | None = None,
    *,
    search: Search | None = None,
    options: Options | None = None,
    known: Radius | None = None,
) -> Iterator[Radius]:
    """The answers of :func:`certified_radius` as they get better: one pass and the attack first, then every trial.

    With ``known``, an earlier answer to the same question, the first pass and the attack are left out.
    """
    search, options = search or Search(), (options or Options()).started()
    expect_classifier(network)
    points = Box.ball(x, 0.0, domain=domain, norm=search.norm).lower
    if points.shape[1] != network.n_in:
        raise InputError(
            f"x has {points.shape[1]} inputs, the network takes {network.n_in}; check the order of the axes."
        )
    asked = labels_of(network, points, label if known is None else known.label, search.losses)
    balls = _Balls(network, points, decision_rows(asked, network.n_out, search.losses)[0], asked, domain, search)
    first, *others = (stage.options for stage in plan(network, options))
    if known is None:
        start = _BEGIN * linear_radius(network, points, balls.rows, search.norm)
        *_, found = balls.searched_first(start.clamp_max(search.upper), first)
        unattacked = Radius(asked, found.radius, points[:, 0] * torch.nan, points)
        known = _attacked(network, points, unattacked, domain, search, options.deadline)
    yield known
    for how in others:
        for found in balls.searched(Bracket.again(known.radius, known.attack), how):
            known = replace(known, radius=found.radius)
            yield known


@dataclass(frozen=True, slots=True, eq=False)
class _Balls:
    """The balls around the inputs of which a search asks whether the decision is the same on them."""

    network: Posterior
    points: Tensor  # (batch, n)
    rows: Tensor  # (batch, rows, classes)
    label: Tensor  # (batch,)
    domain: tuple[float, float] | None
    search: Search

    def searched(self, state: Bracket, how: Options) -> Iterator[Bracket]:
        """The brackets as they narrow."""
        return narrowed(partial(self._value_at, how=how), state, *self._fine, how.deadline)

    def searched_first(self, start: Tensor, how: Options) -> Iterator[Bracket]:  # start (batch,)
        """The same from the start: by two moments, then from there by all bounds where these may hold further out.

        All that are left are asked for together, which makes the costlier bounds cheap.
        """
        state = Bracket.empty(start)
        hopeful = torch.zeros_like(self.label, dtype=torch.bool)  # more may be certified at the upper end
        value_at = partial(self._quick_at, how=how, hopeful=hopeful)
        for state in narrowed(value_at, state, *self._fine, how.deadline):  # noqa: B020 (the latest is what the next search begins with)
            yield state
        at = hopeful.nonzero()[:, 0]
        if at.numel():
            value = torch.full_like(state.low, -torch.inf)
            value[at] = self._value_at(state.high[at], at, how)
            yield from self.searched(state.again_at(value, hopeful), how)

    @property
    def _fine(self) -> tuple[float, float]:
        return self.search.upper, self.search.tolerance

    def _ball(self, radius: Tensor, at: Tensor) -> Box:
        return Box.ball(self.points[at], radius, domain=self.domain, norm=self.search.norm)

    def _value_at(self, radius: Tensor, at: Tensor, how: Options) -> Tensor:
        with torch.no_grad():
            return bound_rows(self.network, self._ball(radius, at), self.rows[at], self.label[at], how).amin(-1)

    def _quick_at(self, radius: Tensor, at: Tensor, how: Options, hopeful: Tensor) -> Tensor:
        """By two moments; ``hopeful`` (batch,) is told where these fail and more may not."""
        with torch.no_grad():
            bound, hope = quick_rows(self.network, self._ball(radius, at), self.rows[at], self.label[at], how)
        value = bound.amin(-1)
        hopeful[at] = torch.where(value > 0, hopeful[at], hope)
        return value


def _attacked(
    network: Posterior,
    x: Tensor,
    found: Radius,
    domain: tuple[float, float] | None,
    search: Search,
    deadline: Deadline,
) -> Radius:
    """With the radii of an attack, where one is asked for; what is proved up to the largest radius is not attacked.

    An attack that the deadline has ended before it found anything says nothing: its radius is NaN.
    """
    if not search.attack:
        return found
    at = (~(found.radius >= search.upper)).nonzero()[:, 0]
    attack, witness, rival = torch.full_like(found.attack, torch.inf), x.clone(), found.label.clone()
    reach = Reach(domain=domain, norm=search.norm, upper=search.upper, tolerance=search.tolerance)
    budget = AttackBudget(seed=search.seed, deadline=deadline)
    if at.numel():
        broken = attack_radius(network, x[at], found.label[at], losses=search.losses, reach=reach, budget=budget)
        radius = torch.where(broken.radius.isinf(), torch.nan, broken.radius) if deadline.passed else broken.radius
        attack[at], witness[at], rival[at] = radius, broken.x, broken.rival
    return replace(found, attack=attack, witness=witness, rival=rival)
