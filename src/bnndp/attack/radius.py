"""The smallest radius at which an attack changes the decision.

Climbs (``climbs.py``) whose balls shrink as long as they succeed look for the nearest change in all inputs at once, on
the climbing noise. The end of the best is then moved on the ray from the input: by bisection to where that noise sees
the change, from there to where the choosing noise does, less its error. It is reported only if fresh noise confirms it
there or, with noise of its own each time, a little further out.

Where margins lie within the error of the few climbing draws, the change that they predict is none, or comes far too
early, and nothing on that ray is confirmed. Such inputs are searched again, with many more draws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from bnndp.attack.budget import BUDGET, AttackBudget
from bnndp.attack.climbs import Climbs
from bnndp.attack.decision_rows import decision_rows
from bnndp.attack.evade import Evasion, check_inputs, measured
from bnndp.attack.sampled_softmax import log_means
from bnndp.attack.search import Task, in_chunks, least_at, margin_at, rival, search
from bnndp.attack.surroundings import Surroundings
from bnndp.errors import InputError
from bnndp.geometry.box import Box
from bnndp.maths.rounding import gamma
from bnndp.network import Posterior

_LOOKS = 9  # at most, with the choosing noise, for the change on the ray
_STEP = 0.02  # of the share of the way: over which the slope is taken
_LEAST, _MOST = 0.0003, 0.3  # the same: how far the next look is from the last, four times as far at least each time
_CLOSE = 0.001  # the same: how closely the change is known when looking ends
_FINE = 40.0  # parts of the tolerance, to which the change by the climbing noise is found
_STRETCHES = (1.0, 1.003, 1.01, 1.03, 1.1, 1.3)  # of the radius, until fresh noise confirms
_EXACT = (1.0, 1 + 1e-6, 1.0001, 1.01)  # the same where no weight is random, for what single precision has found
_AGAIN = 3  # searches again, at most, of what was not confirmed
_MORE = 4  # times as many climbing draws as before in each of them
_NO_CHANCE = -3.0  # log odds by the climbing noise at the largest radius, below which more draws will change nothing
_TINY = 1e-300


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
        own = measured(task, start, rival(task, start), 0)
        result = AttackRadius(torch.zeros_like(own.margin), own.x, own.margin, own.error, own.rival)
        at = (~own.succeeds).nonzero()[:, 0]
        return result.with_rows(at, _attacked(task[at], own[at], reach)) if at.numel() else result

    return in_chunks(network, centre, budget, attack)


def _attacked(task: Task, own: Evasion, reach: Reach) -> AttackRadius:
    """The record of inputs that are not decided otherwise, ``own`` being what was measured at them.

    Where a change was seen by the climbing noise, or nearly so, but was not confirmed, many more draws look for it.
    """
    nothing = torch.full_like(own.margin, torch.inf)
    result = AttackRadius(nothing, own.x, own.margin, own.error, own.rival)
    home, upper = Surroundings.of_domain(own.x, reach.domain, reach.norm), torch.full_like(nothing, reach.upper)
    at = torch.arange(len(nothing), device=nothing.device)
    for again in range(1 + _AGAIN if task.network.random else 1):
        if at.numel() == 0 or task.budget.deadline.passed:
            break
        part = task[at] if not again else task[at].again(_MORE ** (1 + again))
        found = search(part, home[at], upper[at], seed=task.budget.seed + again, shrink=True)
        result = result.with_rows(at, _settle(part, own[at], found, reach, again))
        at = at[result.radius[at].isinf() & (found.score[0] > _NO_CHANCE)]
    return result


def _settle(task: Task, own: Evasion, climbs: Climbs, reach: Reach, times: int) -> AttackRadius:
    """The record: the best end of each input's climbs, moved to where fresh noise confirms that it succeeds.

    ``times`` counts the calls before for the same task: no noise confirms twice.
    """
    result = AttackRadius(torch.full_like(own.margin, torch.inf), own.x, own.margin, own.error, own.rival)
    at = (climbs.score[0] > 0).nonzero()[:, 0]
    if at.numel() == 0:
        return result
    part, end = task[at], climbs.x[0, at]
    ray = _Ray(own.x[at], end - own.x[at], torch.linalg.vector_norm(end - own.x[at], ord=reach.norm, dim=-1), reach)
    share, row = _crossing(part, ray, _even(part, ray))
    fields = [getattr(result, name).clone() for name in ("radius", "x", "margin", "error", "rival")]
    for index, stretch in enumerate(_STRETCHES if task.network.random else _EXACT):
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


def _even(task: Task, ray: _Ray) -> Tensor:
    """A share (batch,) of the way at which the odds by the climbing noise are positive and just before are not."""
    low, high = torch.zeros_like(ray.radius), torch.ones_like(ray.radius)
    for _ in range(math.ceil(math.log2(_FINE / ray.reach.tolerance))):
        middle = 0.5 * (low + high)
        log_mean = log_means(task.network, ray.x + middle[:, None] * ray.step, task.finish)[0]
        change = task.contest.odds(log_mean).amax(-1) > 0
        low, high = torch.where(change, low, middle), torch.where(change, middle, high)
    return high


def _crossing(task: Task, ray: _Ray, share: Tensor) -> tuple[Tensor, Tensor]:
    """The share (batch,) of the way at which margin and error become negative by the choosing noise, and the row.

    It is infinite if there is none near ``share``. The slope by the climbing noise says where to look first, then the
    bracket does.
    """
    value, row = least_at(task, ray.at(share), task.choose)
    if not task.network.random:
        return share, row
    near, far = (margin_at(task, ray.at(step * share), row, task.finish)[0] for step in (1, 1 + _STEP))
    speed = ((near - far) / (_STEP * share)).clamp_min(_TINY)
    low, high = torch.zeros_like(share), torch.full_like(share, torch.inf)
    low_value, high_value, now = torch.zeros_like(share), torch.zeros_like(share), row
    for index in range(_LOOKS):
        good = value < 0
        low, low_value = torch.where(good, low, share), torch.where(good, low_value, value)
        high, high_value, row = (torch.where(good, *p) for p in ((share, high), (value, high_value), (now, row)))
        at = ((high - low > _CLOSE * high) | high.isinf()).nonzero()[:, 0]
        if at.numel() == 0 or index == _LOOKS - 1:
            break
        between = low + (low_value / (low_value - high_value).clamp_min(_TINY) + 0.1).clamp(0, 0.95) * (high - low)
        step = (1.1 * value.abs() / speed / share).clamp(min(_MOST, _LEAST * 4**index), _MOST)
        alone = share * torch.where(good, 1 - step, 1 + step)
        share = share.index_copy(0, at, torch.where((low > 0) & high.isfinite(), between, alone)[at])
        new_value, new_row = least_at(task[at], ray[at].at(share[at]), task.choose)
        value, now = value.index_copy(0, at, new_value), now.index_copy(0, at, new_row)
    return high, row
