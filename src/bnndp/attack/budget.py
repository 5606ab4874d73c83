"""How hard to attack."""

from __future__ import annotations

from dataclasses import dataclass

from bnndp.deadline import NEVER, Deadline
from bnndp.errors import InputError


@dataclass(frozen=True, slots=True)
class AttackBudget:
    """How hard to attack.

    Args:
        restarts: Number of climbs from random points, which follow the strongest rival class wherever they are.
        steps: Number of steps of a climb; the best climbs go on for twice as many.
        targets: Number of rival classes that have a climb of their own, the nearest first.
        draws: Draws of the posterior while climbing; the best climbs go on with four times as many.
        samples: Draws with which the result is evaluated.
        seed: Seed of the search and of the draws.
        deadline: When it passes, the search ends with what it has found.

    Examples:
        >>> AttackBudget(steps=40).restarts
        8
    """

    restarts: int = 8
    steps: int = 10
    targets: int = 5
    draws: int = 32
    samples: int = 4096
    seed: int = 0
    deadline: Deadline = NEVER

    def __post_init__(self) -> None:
        for name in ("restarts", "steps", "targets", "draws", "samples"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)!r}.")
        if self.seed < 0:
            raise InputError(f"seed must be at least 0, got {self.seed!r}.")


BUDGET = AttackBudget()
"""The default."""
