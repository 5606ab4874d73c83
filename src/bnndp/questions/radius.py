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
from itertools import count

import torch
from torch import Tensor

from bnndp.attack import AttackBudget, Reach, attack_radius, decision_rows
from bnndp.attack.linearised import linear_radius
from bnndp.deadline import Deadline
from bnndp.errors import InputError
from bnndp.geometry.box import Box
from bnndp.network import Posterior
from bnndp.options import Options
from bnndp.questions.bracket import Bracket
from bnndp.questions.decision import expect_classifier, labels_of
from bnndp.questions.notebook import html_table
from bnndp.questions.softmax import bound_rows, one_pass_rows
from bnndp.tighten.effort import last
from bnndp.tighten.pass_choice import plan

_BEGIN = 0.8  # of the linearised radius: where the search begins


@dataclass(frozen=True, slots=True, eq=False)
class Search:
    """Options of a search for certified radii.

    Args:
        norm: Norm of the balls: 1, 2 or ``math.inf``.
        upper: The largest radius tried.
        tolerance: Relative precision of the radius.
        attack: Whether to look for the smallest radius at which the decision changes as well.
        losses: Losses of misclassification, ``(classes, classes)``, decision by true class; if None, all are equal.
        seed: Seed of the attack.

    Examples:
        >>> Search(norm=2, attack=False).upper
        1.0
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
    """Certified and attacked radius of each input.

    Attributes:
        label: The decision in question, ``(batch,)``.
        radius: The decision is proved on the ball of this radius, ``(batch,)``. It is 0 if the decision is proved at
            the input only, and NaN if not even that is proved.
        attack: The smallest radius at which an attack changed the decision, ``(batch,)``. It is infinite if none
            succeeded up to the largest radius, 0 if the network decides otherwise at the input itself, and NaN if there
            was no attack.
        witness: The input that changes the decision, in the ball of that radius, ``(batch, n)``.
        rival: The class that leads at the witness, ``(batch,)``; the label if nothing was searched, None without
            attack.

    Examples:
        >>> Radius(torch.tensor([0]), torch.tensor([0.1]), torch.tensor([0.2]), torch.zeros(1, 2)).ratio
        tensor([0.5000])
    """

    label: Tensor  # (batch,)
    radius: Tensor  # (batch,)
    attack: Tensor  # (batch,)
    witness: Tensor  # (batch, n)
    rival: Tensor | None = None  # (batch,)

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
    """Find the largest radius around each input for which the decision is certified, and the smallest attacked one.

    When ``options.time_limit`` has passed, the answer is what was found by then: an input whose search had not begun
    has the radius NaN, and so has an attack that had not ended. On Ctrl-C after the first pass the answer is the best
    found so far.

    Args:
        network: The classifier.
        x: The inputs, ``(n,)`` or ``(batch, n)``.
        label: The decision to prove, one or ``(batch,)``; the network's own decisions if None.
        domain: Smallest and largest value that an input may take.
        search: Norm, largest radius and precision.
        options: Method, effort and limits.

    Returns:
        The radii, to the tolerance of the search.

    Examples:
        >>> import bnndp
        >>> layer = bnndp.layers.Linear.fixed(torch.tensor([[1.0], [-1.0]]))
        >>> network = bnndp.BayesianNetwork((layer,), "classification")
        >>> found = certified_radius(network, [[0.3]])
        >>> bool(0.29 < found.radius <= 0.3 <= found.attack)
        True
    """
    options = (options or Options()).started()
    return last(better_radii(network, x, label, domain, search=search, options=options), options.deadline)


def better_radii(  # noqa: PLR0913 (those of certified_radius, and where to start from)
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
    return _radii(balls, [stage.options for stage in plan(network, options)], known)


@dataclass(frozen=True, slots=True, eq=False)
class _Balls:
    """The balls around the inputs on which a search tests the decision."""

    network: Posterior
    points: Tensor  # (batch, n)
    rows: Tensor  # (batch, rows, classes)
    label: Tensor  # (batch,)
    domain: tuple[float, float] | None
    search: Search

    def of(self, radius: Tensor, at: Tensor) -> Box:
        """The balls around the inputs ``at`` (some,)."""
        return Box.ball(self.points[at], radius, domain=self.domain, norm=self.search.norm)


@torch.no_grad()
def _radii(balls: _Balls, stages: list[Options], known: Radius | None) -> Iterator[Radius]:
    """Certified and attacked radii after the first stage, then after every trial of the others.

    In the first stage the costly bounds are left out, and then asked for all inputs together that they may help: that
    makes them cheap.
    """
    first, *others = stages
    if known is None:
        start = _BEGIN * linear_radius(balls.network, balls.points, balls.rows, balls.search.norm)
        state = Bracket.empty(start.clamp_max(balls.search.upper))
        hopeful = torch.zeros_like(balls.label, dtype=torch.bool)
        *_, state = _trials(balls, state, first, hopeful)
        at = hopeful.nonzero()[:, 0]
        if at.numel():
            value = torch.full_like(state.low, -torch.inf)
            ball = balls.of(state.high[at], at)
            value[at] = bound_rows(balls.network, ball, balls.rows[at], balls.label[at], first).amin(-1)
            *_, state = _trials(balls, state.again_at(value, hopeful), first)
        unattacked = Radius(balls.label, state.radius, balls.points[:, 0] * torch.nan, balls.points)
        known = _attacked(balls, unattacked, first.deadline)
    yield known
    for how in others:
        for state in _trials(balls, Bracket.again(known.radius, known.attack), how):
            known = replace(known, radius=state.radius)
            yield known


def _trials(balls: _Balls, state: Bracket, how: Options, hopeful: Tensor | None = None) -> Iterator[Bracket]:
    """The brackets of the largest radii as they narrow, trial by trial; none begins after the deadline.

    With ``hopeful`` (batch,) only by what is not costly; it is set where that fails and more may not.
    """
    yield state
    for index in count():
        at, radii = state.next(balls.search.upper, balls.search.tolerance, index, by_sign=how.branch > 1)
        if at.numel() == 0 or how.deadline.passed:
            return
        asked = balls.network, balls.of(radii, at), balls.rows[at], balls.label[at], how
        if hopeful is None:
            value = bound_rows(*asked).amin(-1)
        else:
            bound, more = one_pass_rows(*asked, costly=False)
            value = bound.amin(-1)
            hopeful[at] = torch.where(value > 0, hopeful[at], more)
        state = state.told(at, radii, value)
        yield state


def _attacked(balls: _Balls, found: Radius, deadline: Deadline) -> Radius:
    """With the radii of an attack, where one is asked for; what is proved up to the largest radius is not attacked.

    An attack that the deadline has ended before it found anything says nothing: its radius is NaN.
    """
    x, search = balls.points, balls.search
    if not search.attack:
        return found
    at = (~(found.radius >= search.upper)).nonzero()[:, 0]
    attack, witness, rival = torch.full_like(found.attack, torch.inf), x.clone(), found.label.clone()
    reach = Reach(domain=balls.domain, norm=search.norm, upper=search.upper, tolerance=search.tolerance)
    budget = AttackBudget(seed=search.seed, deadline=deadline)
    if at.numel():
        label = found.label[at]
        broken = attack_radius(balls.network, x[at], label, losses=search.losses, reach=reach, budget=budget)
        radius = torch.where(broken.radius.isinf(), torch.nan, broken.radius) if deadline.passed else broken.radius
        attack[at], witness[at], rival[at] = radius, broken.x, broken.rival
    return replace(found, attack=attack, witness=witness, rival=rival)
