"""What the training loop asks of a method of inference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from bnndp.training.mean_field import FreeLayer


@dataclass(frozen=True, slots=True)
class StepSettings:
    """What the schedules say about a step."""

    step: int  # from 0
    learning_rate: float
    kl_weight: float  # the temperature, or less during the warm-up


class Method(Protocol):
    """A posterior in training. It draws from the generator of the loop, and ``state`` holds all else that it remembers.

    A step after ``restore(state())`` is, bit for bit, the step that would have followed.
    """

    def step(self, x: Tensor, y: Tensor, schedule: StepSettings) -> Tensor:
        """One step on a batch (points, n_in) and its targets; the mean log-likelihood of the batch, estimated: ()."""

    def layers(self) -> list[FreeLayer]:
        """The posterior as it stands; the tensors may be live."""

    def state(self) -> dict[str, Tensor]:
        """All that decides the steps to come, by name."""

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Put a state back that ``state`` has given."""
