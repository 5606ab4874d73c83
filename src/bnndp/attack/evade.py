"""The strongest input of a region against a decision, with a margin that is measured with noise of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bnndp.attack.budget import BUDGET, AttackBudget
from bnndp.attack.decision_rows import decision_rows
from bnndp.attack.search import Task, choose, in_pieces, margin_at, search
from bnndp.errors import InputError
from bnndp.geometry.box import Box
from bnndp.network import Posterior

__all__ = ["Evasion", "check_inputs", "evade", "measured"]


@dataclass(frozen=True, slots=True)
class Evasion:
    """The strongest input found in each region: the margin of the decision over ``rival`` there.

    ``error`` is CONFIDENCE standard errors (``attack/inside.py``: 99.96 % for each value), zero where no weight is
    random. The margin is that of the row chosen before, so no choice flatters it; infinite where no input of the region
    was found.
    """

    x: Tensor  # (batch, n)
    margin: Tensor  # (batch,)
    error: Tensor  # (batch,)
    rival: Tensor  # (batch,)

    @property
    def succeeds(self) -> Tensor:
        """Where ``x`` changes the decision, with that confidence: (batch,)."""
        return self.margin + self.error < 0

    def __getitem__(self, index: Tensor) -> Evasion:
        """The record of some of the regions."""
        return Evasion(self.x[index], self.margin[index], self.error[index], self.rival[index])


def evade(
    network: Posterior,
    box: Box,
    label: Tensor,  # (batch,)
    *,
    losses: Tensor | None = None,  # (classes, classes)
    budget: AttackBudget = BUDGET,
) -> Evasion:
    """Attack the decision ``label`` in every box; the same arguments give the same answer, in any batch."""
    label = torch.as_tensor(label, device=box.lower.device)
    check_inputs(network, box.n, box.batch, label)
    rows, classes = decision_rows(label, network.n_out, losses)

    def attack(part: Tensor, narrow: bool) -> Evasion:
        task = Task.make(network, rows[part], classes[part], budget, narrow=narrow)
        region = box[part]
        x, row = choose(task, search(task, region, region.project(region.centre)[None], seed=budget.seed)[0])
        found = measured(task, x, row, 0)
        inside = region.contains(x)  # always, but for a piece of a ball that does not hold the centre of the ball
        return replace(found, margin=found.margin.masked_fill(~inside, torch.inf))

    return in_pieces(network, box.centre, attack)


def measured(task: Task, x: Tensor, row: Tensor, index: int) -> Evasion:
    """The record of the inputs x (batch, n) for their rows (batch,), with fresh noise number ``index``."""
    margin, error = margin_at(task, x, row, task.fresh(index))
    return Evasion(x, margin, error, task.classes.gather(1, row[:, None])[:, 0])


def check_inputs(network: Posterior, n: int, batch: int, label: Tensor) -> None:
    """Refuse inputs of another size than the network's, and labels of another number than the inputs."""
    if network.n_in != n:
        raise InputError(f"the network takes {network.n_in} inputs, but the points have {n}; give inputs of its size.")
    if label.shape != (batch,):
        raise InputError(f"label must hold one class for each of {batch} inputs, got shape {tuple(label.shape)}.")
    if batch == 0:
        raise InputError("there is nothing to attack: the batch of inputs is empty.")
