"""What decides a training, apart from the data."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from bnndp.errors import InputError

__all__ = ["DTYPES", "TrainingOptions"]

PRIORS = ("unit", "fan_in")
SCHEDULES = ("constant", "cosine")
SAMPLINGS = ("local", "weights")
DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """Everything that decides the result, apart from the data.

    ``prior="unit"`` is N(0, prior_std^2) on every weight and bias; ``prior="fan_in"`` divides the standard deviation of
    the weights of a layer by sqrt(n_in), so that the prior over functions keeps its scale as layers grow wider.

    ``temperature`` is the weight of the KL term in the objective. One is Bayes' rule; a smaller one gives a cold
    posterior, which is what one would have had after seeing every point 1/temperature times.
    """

    hidden: tuple[int, ...] = (64, 64)
    noise_std: float = 0.1  # of the likelihood of regression; classification has no such noise
    prior: str = "unit"
    prior_std: float = 1.0
    init_std: float = 0.1  # where the standard deviations of the posterior start
    init_gain: float = 1.0  # means start uniform in +-init_gain / sqrt(n_in)
    steps: int = 2000
    batch: int | None = None  # points of a step; None: all of them
    learning_rate: float = 1e-2
    sampling: str = "local"  # local reparametrisation, or one draw of all weights a step
    schedule: str = "cosine"  # constant, or cosine: down to zero
    warm_up: float = 0.0  # share of the steps in which the weight of the KL term rises to ``temperature``
    seed: int = 0
    dtype: str = "float32"  # of the arithmetic; the result is float64
    temperature: float = 1.0  # weight of the KL term

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", tuple(self.hidden))
        for field in ("noise_std", "prior_std", "init_std", "init_gain", "learning_rate", "temperature"):
            value = getattr(self, field)
            if not (math.isfinite(value) and value > 0):
                raise InputError(f"{field} must be finite and positive, got {value!r}.")
        for field, known in (
            ("prior", PRIORS),
            ("sampling", SAMPLINGS),
            ("schedule", SCHEDULES),
            ("dtype", tuple(DTYPES)),
        ):
            if getattr(self, field) not in known:
                raise InputError(f"{field} must be one of {', '.join(known)}, got {getattr(self, field)!r}.")
        if any(width < 1 for width in self.hidden):
            raise InputError(f"widths of hidden layers must be at least 1, got {self.hidden}.")
        if self.steps < 1 or (self.batch is not None and self.batch < 1):
            raise InputError(f"steps and batch must be at least 1, got steps={self.steps}, batch={self.batch}.")
        if not 0 <= self.warm_up < 1:
            raise InputError(f"warm_up must be in [0, 1), got {self.warm_up!r}.")
