"""The search behind every attack: climbs of the log odds in all inputs and from all starting points at once.

Each of the nearest rivals has a climb of its own, from where its odds would be even if they were linear; others start
at random and follow the strongest rival wherever they are. The best of them go on with smaller steps and, where the
posterior is wide, with more draws, so that they climb the posterior rather than the noise. The ends are compared with
noise of their own, and what is reported is measured with fresh noise, which had no part in any choice.

Where the posterior is narrow (at the given input the noise changes no ``log E p`` by more than NARROW) the mean weights
stand for it in the climbs, never in the comparison and the measurement; in single precision, where that changes the
odds at the input by next to nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import torch
from torch import Tensor

from bnndp.attack.budget import AttackBudget
from bnndp.attack.climbs import Climbs, Hill, climb, take
from bnndp.attack.inside import CONFIDENCE, candidates
from bnndp.attack.inside import climb as ascend
from bnndp.attack.noise import Noise
from bnndp.attack.sampled_softmax import (
    Contest,
    draw_softmax_noise,
    estimate_softmax,
    log_means,
    mean_path,
    quick_path,
)
from bnndp.attack.surroundings import Surroundings
from bnndp.engine.chunks import cache_size
from bnndp.geometry.box import Box
from bnndp.network import Posterior

NARROW = 0.02
"""Largest change of ``log E p`` by the noise up to which the climbs follow the mean weights."""

_PILOT = 64  # draws that tell whether the posterior is narrow, and choose where it is
_SINGLE = 1e-4  # of the odds: the largest change by single precision up to which the climbs take it
_ROWS = 16  # that are attacked: the most promising at the centre
_FINALISTS = 2  # climbs that go on
_LATER = 0.4  # their first step, as a share of the longest
_FIXED = 2  # times as many climbs in a region that does not shrink: large odds are harder to find than near changes
_FEW = 32  # inputs up to which starting points are tried out all over the region
_SCALES = (0.5, 1.0, 2.0, 4.0)  # of the linearised radius: the balls in which they are
_FAR = 2.0  # of the linearised radius: from where other climbs come
_SEEDS = 64  # of the noises of one budget
_MANY = 63  # the last of them: of many climbing draws
_MORE = 4  # times as many draws in the last climbs
_MEMORY = 2**28  # bytes for what is known of the climbs at a time
_CACHE = 2**23  # bytes for the points of the climbs: in a cache a step takes half the time

_Record = TypeVar("_Record")


@dataclass(frozen=True, slots=True)
class Task:
    """What to attack: the rows and the classes they stand for; with what budget, and on which noise."""

    network: Posterior
    rows: Tensor  # (batch, rows, classes)
    contest: Contest  # the same
    classes: Tensor  # (batch, rows)
    budget: AttackBudget
    narrow: bool
    climb: Noise
    finish: Noise  # of the last climbs: more draws, so that these climb the posterior rather than the noise
    choose: Noise
    quick: Noise | None  # the noise of all climbs in single precision

    @classmethod
    def make(cls, network: Posterior, rows: Tensor, classes: Tensor, budget: AttackBudget, *, narrow: bool) -> Task:
        """The task with noise drawn for it."""
        choose = _fresh(network, budget, narrow, 1)
        path = mean_path(network) if narrow else None
        on_cpu = rows.device.type == "cpu"  # a GPU may take less than single precision for products
        quick = quick_path(network) if narrow and on_cpu else None
        climb = path or draw_softmax_noise(network, budget.draws, seed=_seed(budget, 0), replicates=1)
        finish = path or _many_draws(network, budget, _MORE)
        return cls(network, rows, Contest.of(rows), classes, budget, narrow, climb, finish, choose, quick)

    def again(self, times: int) -> Task:
        """The task with that many times as many draws for the climbs, of the posterior also where it is narrow."""
        noise = _many_draws(self.network, self.budget, times)
        return replace(self, climb=noise, finish=noise, quick=None)

    def fresh(self, index: int) -> Noise:
        """Noise for the measurement ``index``, independent of all other."""
        return _fresh(self.network, self.budget, self.narrow, 2 + index)

    def __getitem__(self, index: Tensor) -> Task:
        """The task for some of its inputs."""
        return replace(self, rows=self.rows[index], contest=self.contest[index], classes=self.classes[index])


def search(task: Task, home: Surroundings, radius: Tensor, *, seed: int, shrink: bool) -> Climbs:
    """The best climbs of each input, the best first: for the nearest change if ``shrink``, else the largest odds.

    ``radius`` (batch,) is that of the region, or the largest allowed.
    """
    with torch.autocast(radius.device.type, enabled=False):  # single precision is not to become less
        return _split(task, home, radius, seed, shrink)


def _split(task: Task, home: Surroundings, radius: Tensor, seed: int, shrink: bool) -> Climbs:
    """The same in parts that are of one precision and fit into a cache."""
    n = home.centre.shape[1]
    climbs = (1 if shrink else _FIXED) * (task.budget.restarts + min(task.budget.targets, _ROWS))
    single = _resolved(task, home.centre)
    order, found = [], []
    for kind in (True, False):
        how, own = task, home
        if kind and task.quick is not None:
            how, own = replace(task, climb=task.quick, finish=task.quick), home.to(torch.float32)
        size = max(1, cache_size(_CACHE, radius.device) // (own.centre.element_size() * climbs * n))
        for part in (single == kind).nonzero()[:, 0].split(size):
            if part.numel():
                order.append(part)
                limit = radius[part].to(own.centre.dtype)
                found.append(_search(how[part], own[part], limit, seed, shrink))
    back = torch.cat(order).argsort()
    tensors = zip(*(each.tensors for each in found), strict=True)
    x, score, without = (torch.cat(several, 1)[:, back] for several in tensors)
    return Climbs(x.to(home.centre.dtype), score.to(home.centre.dtype), without)


def _resolved(task: Task, x: Tensor) -> Tensor:
    """Where single precision follows the climbs at x (batch, n): it changes the odds by a small part of them."""
    if task.quick is None:
        return torch.zeros_like(x[:, 0], dtype=torch.bool)
    double, single = (task.contest.odds(log_means(task.network, x, noise)[0]) for noise in (task.climb, task.quick))
    error = (single - double).nan_to_num(nan=math.inf, posinf=0.0, neginf=0.0).abs()
    return (error <= _SINGLE * double.amax(-1, keepdim=True).abs()).all(-1)


def _search(task: Task, home: Surroundings, radius: Tensor, seed: int, shrink: bool) -> Climbs:
    """The same for inputs that are attacked at a time."""
    budget, rows = task.budget, task.rows
    hill = Hill(task.network, task.contest, task.climb, home, radius, shrink, budget.deadline)
    if rows.shape[1] > _ROWS:
        best = hill.odds(home.centre[None])[0].topk(_ROWS, dim=1).indices
        hill = replace(hill, contest=Contest.of(rows.gather(1, best[..., None].expand(-1, -1, rows.shape[2]))))
    times = 1 if shrink else _FIXED
    towards, least = _towards(hill, times * budget.targets)
    others = _others(hill, least, times * budget.restarts, seed)
    climbs = climb(hill, towards.and_also(others), steps=budget.steps).best(_FINALISTS)
    climbs = climbs if task.finish is task.climb else Climbs.at(climbs.x, climbs.without)
    return climb(replace(hill, noise=task.finish), climbs, steps=2 * budget.steps, first=_LATER).best(_FINALISTS)


def _towards(hill: Hill, targets: int) -> tuple[Climbs, Tensor]:
    """A start towards each of the nearest rows where all odds are linear, and the least radius (batch,) of a change."""
    home, (batch, rows) = hill.home, hill.contest.lost.shape
    x = home.centre.expand(rows, *home.centre.shape)
    without = ~torch.eye(rows, dtype=torch.bool, device=x.device)[:, None].repeat(1, batch, 1)
    value, slope = hill.direction(x, without)
    radius = home.reach(slope, -value, hill.radius)
    far = home.farthest(slope, torch.minimum(radius, hill.radius) if hill.shrink else hill.radius.expand(rows, -1))
    rank = radius if hill.shrink else -value - torch.linalg.vecdot(slope, far - x)
    order = rank.topk(min(targets, rows), dim=0, largest=False).indices
    return Climbs.at(take(far, order), take(without, order)), radius.amin(0)


def _others(hill: Hill, least: Tensor, count: int, seed: int) -> Climbs:
    """Starts for ``count`` climbs that follow the strongest row."""
    home, (batch, n) = hill.home, hill.home.centre.shape
    without = torch.zeros(count, batch, hill.contest.lost.shape[1], dtype=torch.bool, device=least.device)
    generator = torch.Generator().manual_seed(seed)
    direction = (2 * torch.rand(count, 1, n, generator=generator, dtype=torch.float64) - 1).to(least)
    radius = torch.minimum(_FAR * least, hill.radius) if hill.shrink else hill.radius
    corners = home.farthest(direction.expand(-1, batch, -1), radius.expand(count, -1))
    if n > _FEW:
        return Climbs.at(corners, without)
    radii = [torch.minimum(scale * least, hill.radius) for scale in _SCALES] if hill.shrink else []
    points = torch.cat([candidates(home.region(each), seed=seed) for each in (*radii, hill.radius)]).to(least)
    score = hill.score(hill.odds(points).amax(-1), home.length(points - home.centre))
    best = score.topk(min(count - count // 2, len(points)), dim=0).indices
    return Climbs.at(torch.cat([take(points, best), corners])[:count], without)


def polished(task: Task, box: Box, x: Tensor) -> Tensor:
    """Inputs x (points, batch, n) of the regions, moved by steps that are kept only if the odds gain.

    Every other one goes for the extreme point along the gradient, those between settle in the interior.
    """
    home, radius = Surroundings.of_region(box)
    hill = Hill(task.network, task.contest, task.finish, home, radius, False, task.budget.deadline)

    def objective(points: Tensor) -> tuple[Tensor, Tensor]:
        value, slope = hill.direction(points, None)
        return value[..., None], slope

    far = (torch.arange(x.shape[0], device=x.device) % 2 == 0)[:, None, None].expand(*x.shape[:2], 1)
    return ascend(box, box.project(x), objective, far=far, steps=2 * task.budget.steps)


def choose(task: Task, x: Tensor) -> tuple[Tensor, Tensor]:
    """The best of the inputs ``x`` (points, batch, n) by the choosing noise, (batch, n), and its row (batch,)."""
    p = estimate_softmax(task.network, x, task.choose).mean
    margin, row = _margins(p, task.rows).min(-1)  # (points, batch)
    which = margin.argmin(0, keepdim=True)
    return take(x, which)[0], row.gather(0, which)[0]


def rival(task: Task, x: Tensor) -> Tensor:
    """The row (batch,) that is lost first at each x (batch, n): by the mean weights where they stand for the rest."""
    if not task.narrow:
        return choose(task, x[None])[1]
    return task.contest.odds(log_means(task.network, x, task.finish)[0]).argmax(-1)


def margin_at(task: Task, x: Tensor, row: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
    """Margin of one row at each x (..., batch, n) and CONFIDENCE standard errors of it: (..., batch) each."""
    parts = log_means(task.network, x, noise).exp()  # (replicates, ..., batch, classes)
    chosen = task.rows[torch.arange(row.shape[0], device=row.device), row]  # (batch, classes)
    return _margin_of((parts * chosen).sum(-1))


def least_at(task: Task, x: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
    """The least margin with its error at each x (batch, n) and the row that has it: (batch,) each."""
    margin, error = _margin_of(_margins(log_means(task.network, x, noise).exp(), task.rows))
    least = (margin + error).min(-1)
    return least.values, least.indices


def _margin_of(values: Tensor) -> tuple[Tensor, Tensor]:  # (replicates, ...)
    error = values.std(0) / math.sqrt(len(values)) if len(values) > 1 else torch.zeros_like(values[0])
    return values.mean(0), CONFIDENCE * error


def in_chunks(
    network: Posterior, x: Tensor, budget: AttackBudget, attack: Callable[[Tensor, bool], _Record]
) -> _Record:
    """Attack inputs (batch, n) in parts, by indices, that fit into memory and are all narrow or all not."""
    narrow = _narrow(network, x)
    climbs = _FIXED * (budget.restarts + min(budget.targets, _ROWS))
    size = max(1, _MEMORY // (8 * climbs * max(network.widest, x.shape[1])))
    order, records = [], []
    for kind in (True, False):
        for part in (narrow == kind).nonzero()[:, 0].split(size):
            if part.numel():
                order.append(part)
                records.append(attack(part, kind))
    back = torch.cat(order).argsort()
    names = [field.name for field in fields(records[0])]  # type: ignore[arg-type]
    return type(records[0])(*(torch.cat([getattr(r, name) for r in records])[back] for name in names))


def _margins(p: Tensor, rows: Tensor) -> Tensor:
    """``A_k . E p`` for p (..., batch, classes): (..., batch, rows); a row of zeros cannot be lost."""
    return (rows @ p[..., None])[..., 0].masked_fill((rows == 0).all(-1), torch.inf)


def _narrow(network: Posterior, x: Tensor) -> Tensor:
    """Where the mean weights stand for the posterior at x (batch, n), by 64 draws: (batch,)."""
    pilot = draw_softmax_noise(network, _PILOT, seed=0, replicates=1)
    change = log_means(network, x, pilot)[0] - log_means(network, x, mean_path(network))[0]
    return change.abs().amax(-1) <= NARROW


def _fresh(network: Posterior, budget: AttackBudget, narrow: bool, index: int) -> Noise:
    samples = max(128, budget.samples // 16) if narrow else budget.samples
    return draw_softmax_noise(network, samples, seed=_seed(budget, index))


def _many_draws(network: Posterior, budget: AttackBudget, times: int) -> Noise:
    return draw_softmax_noise(network, times * budget.draws, seed=_seed(budget, _MANY), replicates=1)


def _seed(budget: AttackBudget, index: int) -> int:
    return _SEEDS * budget.seed + index
