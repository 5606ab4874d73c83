"""How hard to attack."""

from __future__ import annotations

from dataclasses import dataclass

from bnndp.deadline import NEVER, Deadline
from bnndp.errors import InputError

__all__ = ["BUDGET", "AttackBudget"]


@dataclass(frozen=True, slots=True)
class AttackBudget:
    """How hard to attack: climbs for each of the strongest rows, their steps, draws while climbing and at the end."""

    restarts: int = 8
    steps: int = 12
    targets: int = 3
    draws: int = 32
    samples: int = 4096
    seed: int = 0
    deadline: Deadline = NEVER  # when it passes, the search ends with what it has

    def __post_init__(self) -> None:
        for name in ("restarts", "steps", "targets", "draws", "samples"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)!r}.")
        if self.seed < 0:
            raise InputError(f"seed must be at least 0, got {self.seed!r}.")


BUDGET = AttackBudget()
"""The default."""
