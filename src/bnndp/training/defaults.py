"""Settings to start from, for each method and task.

They were chosen by the held-out likelihood of networks with two hidden layers of 64, on Kin8nm (inputs and target
standardised) for regression and on MNIST and Fashion-MNIST (pixels in [0, 1]) for classification; docs/training.md has
the figures. ``noise_std`` belongs to the data: choose it by the held-out likelihood too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bnndp.errors import InputError
from bnndp.network import TASKS
from bnndp.training.options import TrainingOptions

__all__ = ["default_options"]

_REGRESSION = TrainingOptions(noise_std=0.25, prior="fan_in", init_std=0.05, steps=4000, batch=128, learning_rate=1e-2)
_CLASSIFICATION = TrainingOptions(prior_std=0.2, init_std=0.05, steps=4000, batch=200, learning_rate=1e-2)
_NATURAL = {"schedule": "warm_cosine"}
_CHANGES: dict[tuple[str, str], dict[str, Any]] = {
    ("bbb", "regression"): {},
    ("vogn", "regression"): {"learning_rate": 2e-2} | _NATURAL,
    ("noisy-adam", "regression"): {"learning_rate": 2e-3, "batch": 32, "temperature": 0.1} | _NATURAL,
    ("bbb", "classification"): {"warm_up": 0.2},
    ("vogn", "classification"): _NATURAL,
    ("noisy-adam", "classification"): {"learning_rate": 1e-3, "temperature": 0.1} | _NATURAL,
}


def default_options(inference: str, task: str) -> TrainingOptions:
    """The settings to start from; change them with ``dataclasses.replace``.

    >>> default_options("vogn", "classification").learning_rate
    0.01
    """
    if task not in TASKS:
        raise InputError(f"task must be one of {', '.join(TASKS)}, got {task!r}.")
    usual = _REGRESSION if task == "regression" else _CLASSIFICATION
    return replace(usual, inference=inference, **_CHANGES.get((inference, task), {}))
