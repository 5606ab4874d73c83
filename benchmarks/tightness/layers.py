r"""Networks of any layers: what the radius of a decision would be if one step of its proof cost nothing.

A decision is proved from the means of its margins on a ball, their variances there, and from both the leads
(docs/theory.md, section 6). One at a time these are replaced by what they are in truth, or nearly: a proof of nothing,
but a measure of what the step costs.

* *growth*: the variances on the ball are those that are certified at the image;
* *variance*: they are the variances of draws at the image;
* *law*: the leads are those of draws at the image, moved to the certified means of the margins;
* *relaxation*: the means of the margins are the least that an attack on the ball finds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.cache import NetworkCache
from benchmarks.networks import PLANS
from benchmarks.paper.experiments import Setting, rows_2
from bnndp.attack import AttackBudget, Reach, attack_radius, decision_rows
from bnndp.attack.draws import draw_networks, evaluate
from bnndp.data import load
from bnndp.engine.margins import by_class, margin_rows, middle_rows
from bnndp.engine.protocol import Margins
from bnndp.errors import InputError
from bnndp.geometry.box import Box
from bnndp.network import BayesianNetwork
from bnndp.options import Options
from bnndp.questions.decision import decide
from bnndp.questions.from_margins import row_bound
from bnndp.tighten.pass_choice import chunked
from bnndp.training.fit import Plan

__all__ = ["NAMES", "Step", "radii"]

PIXELS = (0.0, 1.0)
_HALVINGS = 7
_BUDGET = AttackBudget(restarts=3, steps=10, targets=2, draws=16, samples=1024)


class Step(Enum):
    """A step of the proof."""

    GROWTH = "growth"
    VARIANCE = "variance"
    LAW = "law"
    RELAXATION = "relaxation"


def _plans() -> dict[str, Plan]:
    """The networks of Table 2, and one of dropout after both convolutions."""
    rows = rows_2(Setting(out=Path(), cache=NetworkCache()))
    found = {f"table-2-{row.published.data}-{row.published.convolutions}": row.plan for row in rows}
    return found | {name: PLANS[name] for name in ("fashion-cnn-warm", "fashion-cnn-dropout")}


NAMES = (
    "table-2-fashion_mnist-1",
    "table-2-fashion_mnist-2",
    "table-2-cifar10-2",
    "table-2-cifar10-3",
    "fashion-cnn-warm",
    "fashion-cnn-dropout",
)


def radii(name: str, images: int, draws: int) -> dict[str, float]:
    """Means over the images of radius : attack, as certified and without each step; and the share certified."""
    plans = _plans()
    if name not in plans:
        raise InputError(f"{name}: no such network; there are {', '.join(plans)}.")
    plan = plans[name]
    network = NetworkCache().get(plan).single
    x = load(plan.data, "test").x[:images]
    judge = Judge(network, x, decide(network, x), draws)
    attack = attack_radius(network, x, judge.label, reach=Reach(domain=PIXELS), budget=_BUDGET).radius

    def ratio(step: Step | None) -> Tensor:
        found = largest(lambda radius, at: judge.decided(radius, at, step), attack)
        return torch.where(attack > 0, found.clamp_min(0) / attack, 0.0)

    certified = largest(lambda radius, at: judge.decided(radius, at, None), attack)
    share = float((certified >= 0).double().mean())
    return {"attack": float(attack.mean()), "share": share, "certified": float(ratio(None).mean())} | {
        step.value: float(ratio(step).mean()) for step in Step
    }


def largest(holds: Callable[[Tensor, Tensor], Tensor], most: Tensor) -> Tensor:
    """The largest radius (images,) up to ``most`` for which something holds, to 1 %; -1 if not even for zero."""
    every = torch.arange(len(most))
    low = torch.where(holds(torch.zeros_like(most), every), 0.0, -1.0)
    high = most.clone()
    for _ in range(_HALVINGS):
        middle = 0.5 * (low.clamp_min(0) + high)
        at = (low >= 0).nonzero()[:, 0]
        fine = torch.zeros_like(low, dtype=torch.bool)
        if at.numel():
            fine[at] = holds(middle[at], at)
        low, high = torch.where(fine, middle, low), torch.where(fine, high, middle)
    return low


@dataclass(frozen=True, eq=False)
class Judge:
    """Decides the claims of some images by the steps of the proof, of which one may be replaced."""

    network: BayesianNetwork
    x: Tensor  # (images, n)
    label: Tensor  # (images,)
    draws: int

    def decided(self, radius: Tensor, at: Tensor, step: Step | None) -> Tensor:
        """Whether the decisions of the images ``at`` are the same on balls of these radii: (images,) of booleans."""
        x, label = self.x[at], self.label[at]
        ball = Box.ball(x, radius, domain=PIXELS)
        known, middles = self._moments(ball, label)
        if step is Step.GROWTH:
            here, inside = self._moments(Box(x, x), label)
            known, middles = Margins(known.mean, here.variance), inside
        if step in (Step.VARIANCE, Step.LAW):
            margins = self._drawn[at]  # (images, draws, classes)
            if step is Step.LAW:
                moved = known.mean + margins - margins.mean(1, keepdim=True)
                probability = torch.softmax(-moved, -1).mean(1)
                rows = decision_rows(label, self.network.n_out)[0]
                return (torch.einsum("brc,bc->br", rows, probability) > 0).all(-1)
            known = Margins(known.mean, margins.var(1, correction=0)[:, None])
            halves = margins[..., None, :] - 0.5 * margins[..., None]  # B_i = D_i - D_k / 2: (images, draws, k, i)
            middles = halves.var(1, correction=0)
        if step is Step.RELAXATION:
            known = Margins(torch.maximum(known.mean, self._attacked(ball, label)), known.variance)  # few draws: noisy
        bound = row_bound(decision_rows(label, self.network.n_out)[0], known, label, None, middles)
        return (bound > 0).all(-1)

    def _moments(self, box: Box, label: Tensor) -> tuple[Margins, Tensor]:
        """Margins of one pass, and the variances of their middles: (images, 1, classes), (images, k, i)."""
        classes = self.network.n_out
        means, variances, middles = [], [], []
        for part, passes in chunked(self.network, box, Options(), rows=classes**2):
            bounds, own = passes.alone(), label[part]
            rows = margin_rows(own[:, None], classes)
            found = by_class(bounds.least(rows), bounds.variance(rows), own[:, None])
            means.append(found.mean)
            variances.append(found.variance)
            middles.append(bounds.variance(middle_rows(own, classes)).unflatten(1, (classes, classes)))
        return Margins(torch.cat(means), torch.cat(variances)), torch.cat(middles)

    @cached_property
    def _drawn(self) -> Tensor:
        """Margins of drawn networks at the images: (images, draws, classes)."""
        outputs = evaluate(draw_networks(self.network, self.draws, seed=3), self.x).transpose(0, 1)
        return outputs.gather(2, self.label[:, None, None].expand(-1, outputs.shape[1], 1)) - outputs

    def _attacked(self, box: Box, label: Tensor, steps: int = 8) -> Tensor:
        """The least mean margins (images, 1, classes) that signed gradient steps of drawn networks find on the ball."""
        few = draw_networks(self.network, 16, seed=4)
        found = []
        for rival in range(self.network.n_out):
            point = box.centre.clone()
            best = torch.full_like(point[:, 0], torch.inf)
            for step in range(steps):
                leaf = point.detach().requires_grad_()
                outputs = evaluate(few, leaf).mean(0)
                margin = outputs.gather(1, label[:, None])[:, 0] - outputs[:, rival]
                best = torch.minimum(best, margin.detach())
                (gradient,) = torch.autograd.grad(margin.sum(), leaf)
                size = (box.upper - box.lower) * (0.5 * (1 - step / steps))
                point = torch.minimum(torch.maximum(point - size * gradient.sign(), box.lower), box.upper)
            found.append(best)
        return torch.stack(found, -1)[:, None]
