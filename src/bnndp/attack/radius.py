"""The smallest radius at which an attack changes the decision.

The log odds found at the ends of a bracket predict the radius at which they are even: a secant that falls back on
bisection, for all inputs at once. Every search continues from the best input of the one before. All this is done on the
climbing noise; at the end each input is moved on the ray from the centre to where the choosing noise, less its error,
gives a change of the decision, and is reported only if fresh noise confirms it there or, with noise of its own each
time, a little further out.

Where margins lie within the error of the few climbing draws, the change that they predict is none, or comes far too
early, and nothing on that ray is confirmed. Such inputs are searched again, outward from the radius that failed, with
many more draws, and the choosing noise decides which radius succeeds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from bnndp.attack.budget import BUDGET, AttackBudget
from bnndp.attack.decision_rows import decision_rows
from bnndp.attack.evade import Evasion, check_inputs, measured
from bnndp.attack.sampled_softmax import odds_direction
from bnndp.attack.search import Task, choose, in_chunks, many_draws, margin_at, search
from bnndp.errors import InputError
from bnndp.geometry.box import Box
from bnndp.maths.rounding import gamma
from bnndp.network import Posterior

_ROUNDS = 24  # radii tried, at most
_RAY = (0.8, 1.6)  # where on the ray the choosing noise looks for the change, as shares of the radius
_CELLS = 5  # into which that part is cut, then the cell with the change, and once more
_STRETCHES = (1.0, 1.003, 1.01, 1.03, 1.1, 1.3)  # of the radius, until fresh noise confirms
_AGAIN = 3  # searches outward, at most, of what was not confirmed
_MORE = 4  # times as many climbing draws as before in each of them
_GROWTH = 4.0  # of the radius from one that fails to the next
_NEAR = 1.2  # a radius that succeeds is near enough to one that fails
_OUTWARD_ROUNDS = 20  # radii tried in one search outward, at most: from 1e-5 to 1, and between the last two
_NO_CHANCE = -3.0  # log odds by the climbing noise at the largest radius, below which more draws will change nothing
_UNKNOWN = 1 / 16  # of the largest radius: where the search begins if no radius had succeeded


@dataclass(frozen=True, slots=True)
class Reach:
    """Options of a search for attacked radii.

    Args:
        domain: Smallest and largest value that an input may take.
        norm: Norm of the balls: 1, 2 or ``math.inf``.
        upper: The largest radius tried.
        tolerance: Relative precision of the radius.

    Examples:
        >>> Reach(domain=(0.0, 1.0), upper=0.5).tolerance
        0.01
    """

    domain: tuple[float, float] | None = None
    norm: float = math.inf
    upper: float = 1.0
    tolerance: float = 0.01

    def __post_init__(self) -> None:
        if not 0 < self.upper < math.inf:
            raise InputError(f"upper must be a positive radius, got {self.upper!r}.")
        if not 0 < self.tolerance < 1:
            raise InputError(f"tolerance is relative and must lie between 0 and 1, got {self.tolerance!r}.")


REACH = Reach()


@dataclass(frozen=True, slots=True)
class AttackRadius:
    """The smallest radius at which an attack changed the decision, and the input that changes it.

    An input that is already decided otherwise has radius zero. Where nothing was found up to the largest radius, the
    radius is infinite, and the other fields are those of the input itself.

    Attributes:
        radius: The radii, ``(batch,)``.
        x: The inputs that change the decision, in the ball of that radius and in the domain, ``(batch, n)``.
        margin: Lead of the decision over ``rival`` at x, ``(batch,)``; ``margin + error < 0`` where the attack
            succeeded.
        error: Half-width of its confidence interval, as in :class:`Evasion`, ``(batch,)``.
        rival: The class that leads at x, ``(batch,)``.

    Examples:
        >>> from bnndp.layers import Linear
        >>> from bnndp.network import BayesianNetwork
        >>> network = BayesianNetwork((Linear.fixed([[1.0], [-1.0]]),), "classification")
        >>> attack_radius(network, [[0.3]], torch.tensor([0])).rival
        tensor([1])
    """

    radius: Tensor  # (batch,)
    x: Tensor  # (batch, n)
    margin: Tensor  # (batch,)
    error: Tensor  # (batch,)
    rival: Tensor  # (batch,)

    def with_rows(self, index: Tensor, other: AttackRadius) -> AttackRadius:
        """The same with the rows at ``index`` (k,) from a record of that many."""
        names = [field.name for field in fields(self)]
        return AttackRadius(*(getattr(self, name).index_copy(0, index, getattr(other, name)) for name in names))


@dataclass(frozen=True, slots=True)
class _Bracket:
    """Radii at which the search failed and succeeded, with the log odds found there, and the radius to try next."""

    low: Tensor  # (batch,)
    high: Tensor  # (batch,), infinite before the first success
    low_odds: Tensor  # (batch,), not positive
    high_odds: Tensor  # (batch,), positive
    trial: Tensor  # (batch,)

    def after(self, odds: Tensor, active: Tensor, tolerance: float, index: int) -> _Bracket:
        """The bracket after a trial that found ``odds`` (batch,), where ``active`` (batch,)."""
        hit, miss = active & (odds > 0), active & ~(odds > 0)
        low, high = torch.where(miss, self.trial, self.low), torch.where(hit, self.trial, self.high)
        low_odds, high_odds = torch.where(miss, odds, self.low_odds), torch.where(hit, odds, self.high_odds)
        share = low_odds / (low_odds - high_odds)
        slack = 0.45 * tolerance * high
        # Half a tolerance past the predicted radius, towards the far end, so that the bracket closes from both sides.
        guess = low + share * (high - low) + torch.where(share < 0.5, slack, -slack)
        guess = torch.minimum(torch.maximum(guess, low + slack), high - slack)
        wide = (high - low > 4 * tolerance * high) if index % 3 == 2 else torch.zeros_like(hit)
        inner = torch.where(wide, 0.5 * low + 0.5 * high, guess)
        return _Bracket(
            low, high, low_odds, high_odds, torch.where(high.isinf(), (1.5 if index < 3 else 4.0) * low, inner)
        )


def attack_radius(
    network: Posterior,
    x: Tensor,  # (batch, n)
    label: Tensor,  # (batch,)
    *,
    losses: Tensor | None = None,  # (classes, classes)
    reach: Reach = REACH,
    budget: AttackBudget = BUDGET,
) -> AttackRadius:
    """Find the smallest radius at which an attack changes the decision ``label``, for all inputs at once.

    Args:
        network: The classifier.
        x: The inputs, ``(batch, n)``.
        label: The decision to attack, ``(batch,)``.
        losses: Losses of misclassification, ``(classes, classes)``, decision by true class; if None, all are equal.
        reach: Which balls are tried.
        budget: How hard to attack.

    Returns:
        The radii, and the inputs that change the decision.

    Examples:
        >>> from bnndp.layers import Linear
        >>> from bnndp.network import BayesianNetwork
        >>> network = BayesianNetwork((Linear.fixed([[1.0], [-1.0]]),), "classification")
        >>> found = attack_radius(network, [[0.3]], torch.tensor([0]))
        >>> bool(0.3 <= found.radius <= 0.31)
        True
    """
    centre = Box.ball(x, 0.0, domain=reach.domain, norm=reach.norm).lower
    label = torch.as_tensor(label, device=centre.device)
    check_inputs(network, centre.shape[1], centre.shape[0], label)
    rows, classes = decision_rows(label, network.n_out, losses)

    def attack(part: Tensor, narrow: bool) -> AttackRadius:
        task = Task.make(network, rows[part], classes[part], budget, narrow=narrow)
        start = centre[part]
        own = measured(task, *choose(task, start[None]), 0)
        found, radius, odds = _bracket(task, start, ~own.succeeds, reach)
        first = _settle(task, own, found, radius, reach, 0)
        return _confirmed(task, own, first, radius, radius.isfinite() | (odds > _NO_CHANCE), reach)

    return in_chunks(network, centre, attack)


def _confirmed(
    task: Task, own: Evasion, first: AttackRadius, radius: Tensor, near: Tensor, reach: Reach
) -> AttackRadius:
    """The record ``first``, and for inputs that it has not, though ``radius`` seemed to do, one of a search outward.

    Inputs that are not ``near`` (batch,) a change at the largest radius are left alone.
    """
    result = first
    if not task.network.random:
        return result
    most = reach.upper / _GROWTH  # from there the next radius is the largest
    low = torch.where(radius.isfinite(), radius.clamp_max(most), _UNKNOWN * reach.upper)
    for again in range(_AGAIN):
        at = (result.radius.isinf() & near).nonzero()[:, 0]
        if at.numel() == 0 or task.budget.deadline.passed:
            break
        part, at_input = replace(task[at], climb=many_draws(task, _MORE ** (1 + again))), own[at]
        found, high = _outward(part, at_input.x, low[at], reach, seed=task.budget.seed + again)
        result = result.with_rows(at, _settle(part, at_input, found, high, reach, 1 + again))
        low = low.index_copy(0, at, (_STRETCHES[-1] * high).clamp_max(most))
    return result


def _outward(task: Task, x: Tensor, low: Tensor, reach: Reach, *, seed: int) -> tuple[Tensor, Tensor]:
    """Inputs (batch, n) and radii (batch,) above ``low`` at which the choosing noise, less its error, sees a change.

    Radii grow until one succeeds, and then close in on it between that and the last that failed; infinite where none.
    """
    high, best, last = torch.full_like(low, torch.inf), x.clone(), x.clone()
    for index in range(_OUTWARD_ROUNDS):
        between = (low * high).sqrt()
        trial = torch.where(high.isfinite(), between, (_GROWTH * low).clamp_max(reach.upper))
        at = torch.where(high.isfinite(), high > _NEAR * low, low < reach.upper).nonzero()[:, 0]
        if at.numel() == 0 or task.budget.deadline.passed:
            break
        part, box = task[at], Box.ball(x[at], trial[at], domain=reach.domain, norm=reach.norm)
        ends, _ = search(part, box, box.project(last[at])[None], seed=seed + index)
        end, row = choose(part, ends)
        margin, error = margin_at(part, end, row, task.choose)
        hit = margin + error < 0
        last[at] = end
        best[at] = torch.where(hit[:, None], end, best[at])
        high = high.index_copy(0, at, torch.where(hit, trial[at], high[at]))
        low = low.index_copy(0, at, torch.where(hit, low[at], trial[at]))
    return best, high


def _bracket(task: Task, x: Tensor, right: Tensor, reach: Reach) -> tuple[Tensor, Tensor, Tensor]:
    """The best inputs (batch, n) and radii (batch,) by the climbing noise, where ``right``; infinite where none.

    And the log odds (batch,) found at the largest radius that failed.
    """
    odds, slope = odds_direction(task.network, x, task.rows, task.climb)
    dual = {1.0: math.inf, 2.0: 2.0, math.inf: 1.0}[float(reach.norm)]
    first = -odds / torch.linalg.vector_norm(slope, ord=dual, dim=-1).clamp_min(1e-300)
    zero, one, floor = torch.zeros_like(odds), torch.ones_like(odds), 1e-3 * reach.tolerance * reach.upper
    state = _Bracket(zero, torch.inf * one, odds.clamp_max(-1e-9), one, first)
    best, last = x.clone(), x.clone()
    for index in range(_ROUNDS):
        state = replace(state, trial=state.trial.clamp(floor, reach.upper))
        active = right & (state.low < (1 - reach.tolerance) * state.high)
        active &= (state.low < reach.upper) & (state.high > floor)
        at = active.nonzero()[:, 0]
        if at.numel() == 0 or task.budget.deadline.passed:
            break
        box = Box.ball(x[at], state.trial[at], domain=reach.domain, norm=reach.norm)
        ends, values = search(task[at], box, box.project(last[at])[None], seed=task.budget.seed + index)
        value, which = values.max(0)
        last[at] = ends[which, torch.arange(at.numel(), device=at.device)]
        found = zero.index_copy(0, at, value)
        best = torch.where((active & (found > 0))[:, None], last, best)
        state = state.after(found, active, reach.tolerance, index)
    return best, state.high, state.low_odds


def _settle(task: Task, own: Evasion, found: Tensor, radius: Tensor, reach: Reach, times: int) -> AttackRadius:
    """The record: the inputs ``found`` at ``radius`` moved to where fresh noise confirms that they succeed.

    ``times`` counts the calls before for the same task: no noise confirms twice.
    """
    x, unmoved = own.x, torch.zeros_like(own.margin).masked_fill(~own.succeeds, torch.inf)
    result = AttackRadius(unmoved, x, own.margin, own.error, own.rival)
    at = radius.isfinite().nonzero()[:, 0]
    if at.numel() == 0:
        return result
    part = task[at]
    ray = _Ray(x[at], found[at] - x[at], radius[at], reach)
    row = choose(part, found[at][None])[1]
    share = _crossing(part, ray, row)
    fields = [getattr(result, name).clone() for name in ("radius", "x", "margin", "error", "rival")]
    for index, stretch in enumerate(_STRETCHES):
        left = share.isfinite().nonzero()[:, 0]
        if left.numel() == 0:
            break
        end = ray[left].at(share[left] * stretch)
        new = measured(part[left], end, row[left], 1 + times * len(_STRETCHES) + index)
        good = left[new.succeeds]
        values = (ray[left].distance(end), end, new.margin, new.error, new.rival)
        for whole, value in zip(fields, values, strict=True):
            whole[at[good]] = value[new.succeeds]
        share = share.index_fill(0, good, torch.inf)
    return AttackRadius(*fields)


@dataclass(frozen=True, slots=True)
class _Ray:
    """From each input towards the one found at ``radius`` and beyond, inside the balls and the domain."""

    x: Tensor  # (batch, n)
    step: Tensor  # (batch, n)
    radius: Tensor  # (batch,)
    reach: Reach

    def __getitem__(self, index: Tensor) -> _Ray:
        return _Ray(self.x[index], self.step[index], self.radius[index], self.reach)

    def at(self, share: Tensor) -> Tensor:
        """The point at ``share`` (batch,) of the way, in the ball of that share of the radius: (batch, n)."""
        radius = (share * self.radius).clamp_max(self.reach.upper)
        box = Box.ball(self.x, radius, domain=self.reach.domain, norm=self.reach.norm)
        return box.project(self.x + share[:, None] * self.step)

    def distance(self, end: Tensor) -> Tensor:
        """The distance of ``end`` (batch, n), rounded up: (batch,)."""
        found = torch.linalg.vector_norm(end - self.x, ord=self.reach.norm, dim=-1)
        return found * (1 + 4 * gamma(self.x.shape[1] + 8))


def _crossing(task: Task, ray: _Ray, row: Tensor) -> Tensor:
    """The first share of the way at which margin and error are negative by the choosing noise, infinite if none."""
    one = torch.ones_like(ray.radius)
    there, wide = margin_at(task, ray.at(one)[None], row, task.choose)
    early = (there + wide < 0)[0]  # the change may be undone further on, so the input found is itself a point to try
    low, high = torch.where(early, _RAY[0], one), torch.where(early, one, _RAY[1])
    found = torch.ones_like(row, dtype=torch.bool)
    cuts = torch.linspace(0, 1, _CELLS + 1, dtype=torch.float64, device=row.device)[:, None]
    for _ in range(3):
        shares = low + cuts * (high - low)  # (cuts, batch)
        margin, error = margin_at(task, torch.stack([ray.at(share) for share in shares]), row, task.choose)
        value = margin + error
        good = value < 0
        found = found & good.any(0)
        first = good.to(torch.int64).argmax(0, keepdim=True)
        ends = (first - 1).clamp_min(0), first
        low, high = (shares.gather(0, index)[0] for index in ends)
        a, b = (value.gather(0, index)[0] for index in ends)
    part = (torch.where(a > b, a / (a - b), 1.0) + 0.1).clamp(0, 1)  # a tenth of a cell past the predicted change
    return torch.where(found, low + part * (high - low), torch.inf)
