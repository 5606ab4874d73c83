"""The search behind every attack: climbs of the log odds in all inputs, rows and restarts at once.

First a short climb for every row from its best starting point, then restarts for the strongest of them. The steps are
those of projected gradient ascent with momentum towards the extreme point along the gradient, of a length that falls
from the half-width of the region to a fiftieth of it; the best point passed is kept, and the best of these are polished
by steps that are kept only if they gain. All of this is done on one set of noise. The best ends are compared with a
second, and what is reported is measured with a third, which had no part in any choice. Where the posterior
is narrow (at the given input the noise changes no ``log E p`` by more than NARROW) the mean weights stand for it in the
climbs, never in the comparison and the measurement.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import torch
from torch import Tensor

from bnndp.attack.budget import AttackBudget
from bnndp.attack.inside import CONFIDENCE, Objective, candidates, climb, extreme
from bnndp.attack.noise import Noise
from bnndp.attack.sampled_softmax import (
    draw_softmax_noise,
    estimate_softmax,
    log_means,
    log_odds,
    mean_path,
    odds_direction,
)
from bnndp.geometry.box import Box
from bnndp.network import Posterior

NARROW = 0.02
"""Largest change of ``log E p`` by the noise up to which the climbs follow the mean weights."""

_SCOUTS = 16  # rows that are scouted: the most promising by the starting points
_FINALISTS = 4  # ends of climbs that are compared with the choosing noise
_MOMENTUM = 0.25
_LAST_STEP = 0.02  # of the half-width of the region; the first is the whole
_RETURN = 0.25  # first step of a climb that continues from the end of another
_SEEDS = 64  # of the noises of one budget
_MANY = 63  # the last of them: of many climbing draws
_MEMORY = 2**28  # bytes for the starting points of the regions attacked at a time

_Record = TypeVar("_Record")


@dataclass(frozen=True, slots=True)
class Task:
    """What to attack: the rows and the classes they stand for; with what budget, and on which noise."""

    network: Posterior
    rows: Tensor  # (batch, rows, classes)
    classes: Tensor  # (batch, rows)
    budget: AttackBudget
    narrow: bool
    climb: Noise
    choose: Noise

    @classmethod
    def make(cls, network: Posterior, rows: Tensor, classes: Tensor, budget: AttackBudget, *, narrow: bool) -> Task:
        """The task with noise drawn for it."""
        draws = budget.draws
        climb = (
            mean_path(network) if narrow else draw_softmax_noise(network, draws, seed=_seed(budget, 0), replicates=1)
        )
        return cls(network, rows, classes, budget, narrow, climb, _fresh(network, budget, narrow, 1))

    def fresh(self, index: int) -> Noise:
        """Noise for the measurement ``index``, independent of all other."""
        return _fresh(self.network, self.budget, self.narrow, 2 + index)

    def __getitem__(self, index: Tensor) -> Task:
        """The task for some of its inputs."""
        return replace(self, rows=self.rows[index], classes=self.classes[index])


def many_draws(task: Task, times: int) -> Noise:
    """Climbing noise of ``times`` as many draws, of the posterior also where it is narrow."""
    return draw_softmax_noise(task.network, times * task.budget.draws, seed=_seed(task.budget, _MANY), replicates=1)


def search(task: Task, box: Box, warm: Tensor, *, seed: int) -> tuple[Tensor, Tensor]:
    """The best inputs found (finalists, batch, n) and their log odds by the climbing noise (finalists, batch).

    ``warm`` (points, batch, n) are starting points inside the regions, beside :func:`bnndp.attack.inside.candidates`.
    """
    budget = task.budget
    starts = torch.cat([warm, candidates(box, seed=seed)])
    odds = log_odds(log_means(task.network, starts, task.climb)[0], task.rows)  # (starts, batch, rows)
    top, first = odds.max(0)  # (batch, rows) each
    rows = top.topk(min(_SCOUTS, top.shape[1]), dim=1).indices.T  # (scouts, batch)
    x = _take(starts, first.T.gather(0, rows))
    x, value = _ascend(task, box, x, rows, first_step=torch.ones_like(x[..., :1]), steps=max(1, budget.steps // 2))
    order = value.topk(min(budget.targets, value.shape[0]), dim=0).indices  # (targets, batch)
    rows, scouted = rows.gather(0, order), _take(x, order)
    others = _others(odds, rows, budget.restarts - 1, seed)
    x = torch.cat([scouted, _take(starts, others)])
    step = torch.ones_like(x[..., :1])
    step[: scouted.shape[0]] = _RETURN
    rows = torch.cat([rows, rows.repeat(budget.restarts - 1, 1)])
    x, value = _ascend(task, box, x, rows, first_step=step, steps=budget.steps)
    best = value.topk(min(_FINALISTS, value.shape[0]), dim=0).indices
    return _polish(task, box, _take(x, best), rows.gather(0, best))


def choose(task: Task, x: Tensor) -> tuple[Tensor, Tensor]:
    """The best of the inputs ``x`` (points, batch, n) by the choosing noise, (batch, n), and its row (batch,)."""
    p = estimate_softmax(task.network, x, task.choose).mean
    margin, row = _margins(p, task.rows).min(-1)  # (points, batch)
    which = margin.argmin(0, keepdim=True)
    return _take(x, which)[0], row.gather(0, which)[0]


def margin_at(task: Task, x: Tensor, row: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
    """Margin of one row at each x (..., batch, n) and CONFIDENCE standard errors of it: (..., batch) each."""
    parts = log_means(task.network, x, noise).exp()  # (replicates, ..., batch, classes)
    chosen = task.rows[torch.arange(row.shape[0], device=row.device), row]  # (batch, classes)
    values = (parts * chosen).sum(-1)
    error = values.std(0) / math.sqrt(len(values)) if len(values) > 1 else torch.zeros_like(values[0])
    return values.mean(0), CONFIDENCE * error


def in_chunks(network: Posterior, x: Tensor, attack: Callable[[Tensor, bool], _Record]) -> _Record:
    """Attack inputs (batch, n) in parts, by indices, that fit into memory and are all narrow or all not."""
    narrow = _narrow(network, x)
    points = 192 + 16 * max(network.n_out, 8)
    size = max(1, _MEMORY // (8 * points * network.widest))
    order, records = [], []
    for kind in (True, False):
        for part in (narrow == kind).nonzero()[:, 0].split(size):
            if part.numel():
                order.append(part)
                records.append(attack(part, kind))
    back = torch.cat(order).argsort()
    names = [field.name for field in fields(records[0])]  # type: ignore[arg-type]
    return type(records[0])(*(torch.cat([getattr(r, name) for r in records])[back] for name in names))


def _ascend(task: Task, box: Box, x: Tensor, rows: Tensor, *, first_step: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """The best points passed from x (climbs, batch, n) for the rows (climbs, batch), and their log odds."""
    objective = _objective(task, rows)
    shape = x.shape
    hub = box.centre if box.within is None else box.within.centre
    value, slope = objective(x)
    best, top, before = x, value, x  # value and top are (climbs, batch, 1)
    for index in range(steps):
        share = max(_LAST_STEP, 0.5 + 0.5 * math.cos(math.pi * index / steps))
        aim = box.project(x + share * first_step * (extreme(box, slope, hub.expand(shape)) - hub))
        x, before = box.project(x + (1 - _MOMENTUM) * (aim - x) + _MOMENTUM * (x - before)), x
        value, slope = objective(x)
        gain = value > top
        best, top = torch.where(gain, x, best), torch.where(gain, value, top)
    return best, top[..., 0]


def _polish(task: Task, box: Box, x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The same points (points, batch, n), moved by steps that are kept only if they gain, and their log odds.

    Every other one goes for the extreme point along the gradient, those between settle in the interior.
    """
    objective = _objective(task, rows)
    far = (torch.arange(x.shape[0], device=x.device) % 2 == 0)[:, None, None].expand(*rows.shape, 1)
    x = climb(box, x, objective, far=far, steps=task.budget.steps)
    return x, objective(x)[0][..., 0]


def _objective(task: Task, rows: Tensor) -> Objective:
    """Log odds of one row (climbs, batch) at each point, in the form that climbs take."""
    chosen = task.rows[torch.arange(rows.shape[1], device=rows.device), rows].flatten(0, 1)[:, None]

    def objective(points: Tensor) -> tuple[Tensor, Tensor]:
        value, slope = odds_direction(task.network, points.flatten(0, 1), chosen, task.climb)
        return value.reshape(*rows.shape, 1), slope.reshape(points.shape)

    return objective


def _others(odds: Tensor, rows: Tensor, count: int, seed: int) -> Tensor:
    """Starting points for more climbs of the rows (targets, batch), half of them the best: (count * targets, batch)."""
    starts, batch, _ = odds.shape
    order = odds.gather(2, rows.T.expand(starts, -1, -1)).topk(min(starts, 1 + count // 2), dim=0).indices
    best = order[1:].transpose(1, 2)  # (best, targets, batch), without the one that was scouted
    generator = torch.Generator().manual_seed(seed)
    random = torch.randint(starts, (count, rows.shape[0], 1), generator=generator).to(rows.device)
    return torch.cat([best, random.expand(-1, -1, batch)])[:count].flatten(0, 1)  # random: the same in every batch


def _margins(p: Tensor, rows: Tensor) -> Tensor:
    """``A_k . E p`` for p (..., batch, classes): (..., batch, rows); a row of zeros cannot be lost."""
    margins = (rows @ p[..., None])[..., 0]
    return margins.masked_fill((rows == 0).all(-1), torch.inf)


def _take(x: Tensor, index: Tensor) -> Tensor:
    """``x[index[i, b], b]`` for x (points, batch, n) and index (k, batch): (k, batch, n)."""
    return x.gather(0, index[..., None].expand(-1, -1, x.shape[-1]))


def _narrow(network: Posterior, x: Tensor) -> Tensor:
    """Where the mean weights stand for the posterior at x (batch, n), by 64 draws: (batch,)."""
    pilot = draw_softmax_noise(network, 64, seed=0, replicates=1)
    change = log_means(network, x, pilot)[0] - log_means(network, x, mean_path(network))[0]
    return change.abs().amax(-1) <= NARROW


def _fresh(network: Posterior, budget: AttackBudget, narrow: bool, index: int) -> Noise:
    samples = max(128, budget.samples // 16) if narrow else budget.samples
    return draw_softmax_noise(network, samples, seed=_seed(budget, index))


def _seed(budget: AttackBudget, index: int) -> int:
    return _SEEDS * budget.seed + index
