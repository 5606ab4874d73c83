"""The strongest input of a region against a decision, with a margin that is measured with noise of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bnndp.attack.budget import BUDGET, AttackBudget
from bnndp.attack.decision_rows import decision_rows
from bnndp.attack.search import Task, choose, in_chunks, margin_at, polished, search
from bnndp.attack.surroundings import Surroundings
from bnndp.errors import InputError
from bnndp.geometry.box import Box
from bnndp.network import Posterior


@dataclass(frozen=True, slots=True)
class Evasion:
    """The strongest input found in each region against a decision.

    The margin is estimated with draws of its own, after the input and the rival were chosen, so the choice does not
    bias it. It is infinite where no input of the region was found.

    Attributes:
        x: The inputs, ``(batch, n)``.
        margin: Lead of the decision over ``rival`` at x, ``(batch,)``.
        error: Half-width of its confidence interval (99.96 %), ``(batch,)``; zero where no weight is random.
        rival: The class that is compared with the decision, ``(batch,)``.

    Examples:
        >>> one = torch.ones(1)
        >>> Evasion(torch.zeros(1, 2), -0.2 * one, 0.1 * one, torch.tensor([1])).succeeds
        tensor([True])
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
    """Search each box for the input at which the decision ``label`` is weakest.

    The same arguments give the same answer, in any batch.

    Args:
        network: The classifier.
        box: The regions of inputs.
        label: The decision to attack, ``(batch,)``.
        losses: Losses of misclassification, ``(classes, classes)``, decision by true class; if None, all are equal.
        budget: How hard to attack.

    Returns:
        The strongest input of each box.

    Examples:
        >>> from bnndp.layers import Linear
        >>> from bnndp.network import BayesianNetwork
        >>> network = BayesianNetwork((Linear.fixed([[1.0], [-1.0]]),), "classification")
        >>> evade(network, Box([[-0.1]], [[0.7]]), torch.tensor([0])).succeeds
        tensor([True])
    """
    label = torch.as_tensor(label, device=box.lower.device)
    check_inputs(network, box.n, box.batch, label)
    rows, classes = decision_rows(label, network.n_out, losses)

    def attack(part: Tensor, narrow: bool) -> Evasion:
        task = Task.make(network, rows[part], classes[part], budget, narrow=narrow)
        region = box[part]
        ends = search(task, *Surroundings.of_region(region), seed=budget.seed, shrink=False).x
        x, row = choose(task, polished(task, region, ends))
        found = measured(task, x, row, 0)
        inside = region.contains(x)  # always, but for a part of a ball that does not hold the centre of the ball
        return replace(found, margin=found.margin.masked_fill(~inside, torch.inf))

    return in_chunks(network, box.centre, budget, attack)


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
