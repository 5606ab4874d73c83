"""Early stopping on the held-out negative log-likelihood, and a set held out from another."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from bnndp.data import ClassificationData, Data
from bnndp.errors import InputError
from bnndp.training.mean_field import FreeLayer, freeze
from bnndp.training.options import Stopping, TrainingOptions
from bnndp.training.predictive import negative_log_likelihood

_POINTS = 2048


def hold_out(data: Data, points: int, *, seed: int = 0) -> tuple[Data, Data]:
    """The data without ``points`` random points, and those: to stop early, or choose options, without a test set."""
    if not 1 <= points < data.points:
        raise InputError(f"points held out must be at least 1 and leave some of {data.points}, got {points}.")
    order = torch.randperm(data.points, generator=torch.Generator().manual_seed(seed))
    return _rows(data, order[points:].sort().values), _rows(data, order[:points].sort().values)


class EarlyStopping:
    """The best posterior so far, by the likelihood of held-out points, and whether to go on."""

    __slots__ = ("_best", "_data", "_failures", "_loss", "_options", "_rule", "_step")

    def __init__(self, data: Data, options: TrainingOptions, rule: Stopping) -> None:
        self._data, self._options, self._rule = _rows(data, slice(_POINTS)), options, rule
        self._loss, self._failures, self._step = math.inf, 0, 0
        self._best: list[Tensor] = []

    @property
    def done(self) -> bool:
        """Whether patience is at its end."""
        return self._failures >= self._rule.patience

    @property
    def step(self) -> int:
        """Number of steps after which the best posterior was found."""
        return self._step

    def update(self, step: int, layers: Sequence[FreeLayer], task: str) -> None:
        """After ``step`` steps: estimate the likelihood, if it is time, always with the same draws."""
        if step % self._rule.every and step < self._options.steps:
            return
        loss = negative_log_likelihood(freeze(layers, task), self._data, self._options, draws=self._rule.draws)
        if loss < self._loss:
            self._loss, self._failures, self._step = loss, 0, step
            self._best = [tensor.detach().clone() for layer in layers for tensor in layer.parameters]
        else:
            self._failures += 1

    def best(self, layers: Sequence[FreeLayer]) -> list[FreeLayer]:
        """The layers with the values of the best posterior (their own, if none had a finite loss)."""
        if not self._best:
            return list(layers)
        values = iter(self._best)
        return [layer.with_parameters([next(values) for _ in layer.parameters]) for layer in layers]

    def state(self) -> dict[str, Tensor]:
        """The current state as tensors, for a checkpoint."""
        numbers = {"loss": torch.tensor(self._loss, dtype=torch.float64)}
        numbers |= {"failures": torch.tensor(self._failures), "step": torch.tensor(self._step)}
        return numbers | {f"best.{i}": tensor for i, tensor in enumerate(self._best)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on where ``state`` was taken."""
        self._loss, self._failures = float(state["loss"]), int(state["failures"])
        self._step = int(state["step"])
        self._best = [state[f"best.{i}"] for i in range(sum(name.startswith("best.") for name in state))]


def _rows(data: Data, rows: slice | Tensor) -> Data:
    if isinstance(data, ClassificationData):
        return replace(data, x=data.x[rows], y=data.y[rows])
    return replace(data, x=data.x[rows], y=data.y[rows], clean=None if data.clean is None else data.clean[rows])
