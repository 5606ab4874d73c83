"""The training loop that all methods share: batches, schedules, early stopping, checkpoints, the card."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from bnndp.data import Data
from bnndp.errors import InputError
from bnndp.network import BayesianNetwork
from bnndp.training import checkpoints
from bnndp.training.bayes_by_backprop import BayesByBackprop
from bnndp.training.cards import Card, evaluate
from bnndp.training.likelihoods import likelihood_of
from bnndp.training.mean_field import divergence, freeze
from bnndp.training.method import Method, StepSettings
from bnndp.training.noisy_adam import NoisyAdam
from bnndp.training.options import DTYPES, TrainingOptions
from bnndp.training.stopping import EarlyStopping
from bnndp.training.vogn import Vogn

METHODS: dict[str, Callable[[Data, TrainingOptions, torch.Generator], Method]] = {
    "bbb": BayesByBackprop,
    "vogn": Vogn.begin,
    "noisy-adam": NoisyAdam.begin,
    "map": BayesByBackprop,
}
_SECONDS = 10.0  # of training between two checkpoints


@dataclass(frozen=True, slots=True)
class Trained:
    """A posterior and its training card."""

    network: BayesianNetwork
    card: Card
    options: TrainingOptions
    steps: int  # after how many the posterior was taken
    epochs: float  # the same in passes over the data

    def record(self, data: str) -> dict[str, Any]:
        """All of it but the network, in JSON-compatible values, for ``bnndp.save(..., card=...)``.

        ``data`` is the name of the training set.
        """
        return {
            "data": data,
            "inference": self.options.inference,
            "seed": self.options.seed,
            "steps": self.steps,
            "epochs": self.epochs,
            **asdict(self.card),
            "options": asdict(self.options),
            "torch": torch.__version__,
        }


class Batches:
    """Rows of one step after another; ``state`` and ``restore`` let a training go on in the middle of an epoch.

    An epoch leaves out what is left after the last whole batch.

    >>> batches = Batches(5, 2, torch.Generator().manual_seed(0))
    >>> [batches.next().numel() for _ in range(3)]
    [2, 2, 2]
    """

    __slots__ = ("_generator", "_order", "_position", "_size")

    def __init__(self, points: int, size: int | None, generator: torch.Generator) -> None:
        self._size = None if size is None or size >= points else size
        self._order, self._position = torch.arange(points), points
        self._generator = generator

    def next(self) -> slice | Tensor:
        """Rows of the next step: a slice of all, or (size,)."""
        if self._size is None:
            return slice(None)
        if self._position + self._size > self._order.numel():
            self._order, self._position = torch.randperm(self._order.numel(), generator=self._generator), 0
        self._position += self._size
        return self._order[self._position - self._size : self._position]

    def state(self) -> dict[str, Tensor]:
        """The order of the epoch and the position in it."""
        return {"order": self._order, "position": torch.tensor(self._position)}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Go on where ``state`` was taken."""
        self._order, self._position = state["order"], int(state["position"])


@dataclass(slots=True)
class _Run:
    """A training under way; all of it is in ``state``."""

    method: Method
    batches: Batches
    generator: torch.Generator
    watch: EarlyStopping | None
    step: int = 0
    seconds: float = 0.0  # of training, evaluation of the card aside
    _since: float = field(default_factory=time.perf_counter)

    def tick(self) -> float:
        """Seconds of training so far."""
        now = time.perf_counter()
        self.seconds, self._since = self.seconds + now - self._since, now
        return self.seconds

    def state(self) -> dict[str, Tensor]:
        tensors = {
            "step": torch.tensor(self.step),
            "seconds": torch.tensor(self.tick(), dtype=torch.float64),
            "generator": self.generator.get_state(),
        }
        for part, found in self._parts():
            tensors |= {f"{part}.{name}": tensor for name, tensor in found.state().items()}
        return tensors

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self.step, self.seconds = int(tensors["step"]), float(tensors["seconds"])
        self.generator.set_state(tensors["generator"])
        for part, found in self._parts():
            prefix = f"{part}."
            found.restore({name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)})

    def _parts(self) -> list[tuple[str, Any]]:
        parts: list[tuple[str, Any]] = [("method", self.method), ("batches", self.batches)]
        return parts if self.watch is None else [*parts, ("watch", self.watch)]


def train(
    data: Data,
    options: TrainingOptions,
    *,
    held_out: Data | None = None,
    progress: Callable[[int, float], None] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = True,
) -> Trained:
    """Fit a posterior to ``data`` by the method ``options.inference``.

    ``progress`` is told the number of each step and an estimate of the objective: the log-likelihood of the batch
    before the step, less the KL term after it. ``held_out`` is for the card, and for early stopping if
    ``options.stopping`` asks for it: points used for that are no longer a test set.

    ``checkpoint`` names a file that is written every ten seconds and after the last step. With ``resume`` a training
    whose checkpoint is there continues from it, to the result that it would have had without the interruption, bit for
    bit. The file is left to the caller, who may remove it once the posterior is saved.
    """
    if options.stopping is not None and held_out is None:
        raise InputError(f"stopping={options.stopping} needs held_out points; hold_out(data, points) splits some off.")
    run = _begin(data, options, held_out)
    own = checkpoints.identity(data, options, held_out) if checkpoint is not None else {}
    if checkpoint is not None and resume:
        _continue(run, checkpoint, own)
    likelihood = likelihood_of(data, options)
    x, y = (t.to(DTYPES[options.dtype]) if t.is_floating_point() else t for t in (data.x, data.y))
    written, since = run.step, time.perf_counter()
    while run.step < options.steps and not (run.watch and run.watch.done):
        rows = run.batches.next()
        schedule = StepSettings(run.step, options.learning_rate * _rate(options, run.step), _weight(options, run.step))
        gain = run.method.step(x[rows], y[rows], schedule)
        _check_finite(gain, run.step, options)
        run.step += 1
        if run.watch is not None:
            run.watch.update(run.step, run.method.layers(), likelihood.task)
        if checkpoint is not None and time.perf_counter() - since >= _SECONDS:
            checkpoints.write(checkpoint, own, run.state())
            written, since = run.step, time.perf_counter()
        if progress is not None:
            progress(run.step - 1, _objective(run, gain, schedule, data.points))
    if checkpoint is not None and written < run.step:
        checkpoints.write(checkpoint, own, run.state())
    return _finish(run, data, options, held_out)


def _begin(
    data: Data,
    options: TrainingOptions,
    held_out: Data | None,
) -> _Run:
    generator = torch.Generator().manual_seed(options.seed)
    method = METHODS[options.inference](data, options, generator)
    watch = EarlyStopping(held_out, options, options.stopping) if held_out is not None and options.stopping else None
    return _Run(method, Batches(data.points, options.batch, generator), generator, watch)


def _continue(run: _Run, checkpoint: str | os.PathLike[str], own: Mapping[str, Any]) -> None:
    tensors = checkpoints.read(checkpoint, own)
    if tensors is None:
        return
    try:
        run.restore(tensors)
    except (KeyError, RuntimeError, ValueError) as error:
        raise InputError(f"{checkpoint}: is damaged ({error!r:.80}); remove it, or give resume=False.") from error


def _finish(
    run: _Run,
    data: Data,
    options: TrainingOptions,
    held_out: Data | None,
) -> Trained:
    layers, steps = run.method.layers(), run.step
    if run.watch is not None and run.watch.step:
        layers, steps = run.watch.best(layers), run.watch.step
    network = freeze(layers, likelihood_of(data, options).task)
    card = evaluate(network, data, options, held_out=held_out, seconds=run.tick())
    share = 1.0 if options.batch is None else min(1.0, options.batch / data.points)
    return Trained(network, card, options, steps, steps * share)


def _check_finite(gain: Tensor, step: int, options: TrainingOptions) -> None:
    if not math.isfinite(gain):
        raise InputError(
            f"training diverged: the log-likelihood of step {step} is {float(gain)}; "
            f"give a learning_rate below {options.learning_rate:g}, or a smaller init_std."
        )


def _objective(run: _Run, gain: Tensor, schedule: StepSettings, points: int) -> float:
    with torch.no_grad():
        return float(gain * points - schedule.kl_weight * divergence(run.method.layers()))


def _rate(options: TrainingOptions, step: int) -> float:
    """Factor of the learning rate. A rise over a tenth of the steps gives curvatures time to become right."""
    if options.schedule == "constant":
        return 1.0
    rise = min(1.0, (step + 1) / (0.1 * options.steps)) if options.schedule == "warm_cosine" else 1.0
    return rise * 0.5 * (1 + math.cos(math.pi * step / options.steps))


def _weight(options: TrainingOptions, step: int) -> float:
    """Weight of the KL term: the temperature, or less during the warm-up."""
    warmth = min(1.0, (step + 1) / (options.warm_up * options.steps)) if options.warm_up else 1.0
    return options.temperature * warmth
