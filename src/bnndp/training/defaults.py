"""Settings to start from, for each method and task, and where it matters for the depth and the number of points.

They were chosen by the held-out likelihood of networks with two hidden layers of 64, on Kin8nm (inputs and target
standardised) for regression and on MNIST and Fashion-MNIST (pixels in [0, 1]) for classification; docs/training.md has
the figures. ``noise_std`` belongs to the data: choose it by the held-out likelihood too.

Two rules depart from them, each found by the held-out likelihood as well. Regression by VOGN with one hidden layer is
given a wider prior, more and larger batches, and a higher rate: a single layer needs larger weights for the same
function, and from the settings of two it stops short of them. Classification of few points is given a wider prior: the
KL term is the same for few points as for many, and N(0, 0.2^2) then outweighs the data. (Noisy Adam at the temperature
0.1 weighs every point ten times and is left as it is.)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bnndp.errors import InputError
from bnndp.network import TASKS
from bnndp.training.options import TrainingOptions

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
    ("map", "regression"): {"learning_rate": 5e-3},
    ("map", "classification"): {"learning_rate": 2e-3},
}
_SHALLOW = {"prior_std": 3.0, "steps": 8000, "batch": 256, "learning_rate": 0.1}  # vogn, regression, one hidden layer
_FEW_POINTS = 10_000
_FEW = {"prior_std": 1.0}  # bbb, vogn and map, classification
_CONVOLUTIONS = {"learning_rate": 2e-3}  # bbb


def default_options(
    inference: str,
    task: str,
    hidden: tuple[int, ...] | None = None,
    points: int | None = None,
    *,
    convolutions: bool = False,
) -> TrainingOptions:
    """The settings to start from; change them with ``dataclasses.replace``.

    ``hidden`` and ``points``, the size of the training set, are two layers of 64 and many points unless they are given.
    ``convolutions`` says whether there are any.

    >>> default_options("vogn", "classification").learning_rate
    0.01
    >>> default_options("vogn", "regression", hidden=(512,)).prior_std
    3.0
    """
    if task not in TASKS:
        raise InputError(f"task must be one of {', '.join(TASKS)}, got {task!r}.")
    usual = _REGRESSION if task == "regression" else _CLASSIFICATION
    changes: dict[str, Any] = {"inference": inference} | _CHANGES.get((inference, task), {})
    if hidden is not None:
        changes["hidden"] = hidden
    if (inference, task) == ("vogn", "regression") and hidden is not None and len(hidden) == 1:
        changes |= _SHALLOW
    if convolutions and inference == "bbb":
        changes |= _CONVOLUTIONS
    if inference in ("bbb", "vogn", "map") and task == "classification" and points is not None and points < _FEW_POINTS:
        changes |= _FEW
    return replace(usual, **changes)
