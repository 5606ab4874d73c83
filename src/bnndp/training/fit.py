r"""From the name of a data set to a network in the user's units, with figures of its test part.

Inputs and targets of a set without natural limits (the UCI sets) are standardised for training, and the network is then
given the units of the set by :meth:`BayesianNetwork.in_units`. Images and generated sets are used as they are.

``noise_std`` of regression is that of the plan; or 0.1, with which the sines are generated; or estimated in two passes:
a quarter of the steps with 0.25 in standardised units on nine tenths of the training part, and then the root mean
square of the residuals on the other tenth, at least 0.01 and at most 1 in standardised units. It contains the error of
the first pass, so that it is rather too large than too small. The test part is not looked at before the end.

An ensemble has members that differ by their seeds alone, ``seed`` and those that follow it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from bnndp.attack.sampling import draw_noise, estimate
from bnndp.data import ClassificationData, Data, DataStandardisation, Description, RegressionData, Store, describe, load
from bnndp.errors import InputError
from bnndp.layers import Dropout
from bnndp.network import BayesianNetwork, Ensemble
from bnndp.training.cards import Scores, TargetScores, scores, target_scores
from bnndp.training.defaults import default_options
from bnndp.training.laplace import check_size, last_layer
from bnndp.training.loop import Trained, train
from bnndp.training.options import Robust, Stopping, TrainingOptions
from bnndp.training.stopping import hold_out

_SINE_NOISE = 0.1  # of noisy_sine
_FIRST_NOISE, _LEAST_NOISE, _MOST_NOISE = 0.25, 0.01, 1.0  # in standardised units
LAPLACE = ("last-layer",)
_MOST_HELD_OUT = 5000
_DRAWS = 256

Watcher = Callable[[Literal["noise", "train"], int], None]
"""Told after every step which pass it belongs to, and how many steps of that pass are done."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to train, and on what; None stands for the default of the method and the task.

    >>> Plan("digits", "vogn").options().batch, Plan("kin8nm", "bbb", steps=400).first_steps
    (200, 100)
    """

    data: str  # a name of the registry
    inference: str
    hidden: tuple[int, ...] = (64, 64)
    steps: int | None = None
    batch: int | None = None
    learning_rate: float | None = None
    prior_std: float | None = None
    temperature: float | None = None
    noise_std: float | None = None  # in the units of the target
    stop_early: bool = False  # on a tenth of the training part, which is then not trained on
    fold: int = 0
    seed: int = 0  # of the training; generated data are always those of seed 0
    prior: str | None = None  # unit or fan_in
    activation: str = "relu"
    conv: str = ""  # in the language of bnndp.training.architecture
    dropout: Dropout | None = None
    dropout_last: bool = False
    robust: Robust | None = None
    ensemble: int | None = None  # number of members
    laplace: str | None = None  # last-layer
    init_std: float | None = None  # where standard deviations start

    def __post_init__(self) -> None:
        described = self.described
        if self.ensemble is not None and self.ensemble < 1:
            raise InputError(f"ensemble must be at least 1 member, got {self.ensemble!r}.")
        if self.laplace is not None and self.laplace not in LAPLACE:
            raise InputError(f"laplace must be {', '.join(LAPLACE)}, got {self.laplace!r}.")
        if self.laplace is not None and (self.inference != "map" or self.dropout is not None):
            raise InputError("laplace begins with weights without variances; choose inference map, without dropout.")
        if self.conv and len(described.shape) != 3:
            raise InputError(f"conv={self.conv!r} needs images, but inputs of {self.data} are vectors; leave it out.")
        if self.robust is not None and described.task != "classification":
            raise InputError(f"robust is for classification, but {self.data} is for {described.task}; leave it out.")
        if self.noise_std is not None:
            if described.task != "regression":
                raise InputError(f"noise_std is for regression, but {self.data} is for {described.task}; leave it out.")
            if not (math.isfinite(self.noise_std) and self.noise_std > 0):
                raise InputError(f"noise_std must be finite and positive, got {self.noise_std!r}.")
        options = self.options()
        if self.laplace is not None:
            n_out, n_in = options.layer_specs(described.inputs, described.outputs)[-1].shape
            check_size(n_out, n_in)

    @property
    def described(self) -> Description:
        """The data set."""
        return describe(self.data)

    @property
    def standardised(self) -> bool:
        """Whether training sees standardised numbers."""
        return self.described.domain is None and not self.described.generated

    @property
    def first_steps(self) -> int:
        """Steps of the first pass, which estimates the noise; 0: there is none."""
        known = self.noise_std is not None or self.described.task != "regression" or self.described.generated
        return 0 if known else max(1, self.options().steps // 4)

    @property
    def members(self) -> int:
        """Number of trainings."""
        return self.ensemble or 1

    @property
    def all_steps(self) -> int:
        """Steps of all passes and members."""
        return self.first_steps + self.members * self.options().steps

    def options(self) -> TrainingOptions:
        """The options of the training; ``noise_std`` is set later, in the units of the training."""
        fields = ("steps", "batch", "learning_rate", "prior", "prior_std", "temperature", "init_std")
        given = {field: getattr(self, field) for field in fields if getattr(self, field) is not None}
        given |= {field: getattr(self, field) for field in ("activation", "conv", "dropout", "dropout_last", "robust")}
        task, points = self.described.task, self.described.train_points
        usual = default_options(self.inference, task, self.hidden, points, convolutions=bool(self.conv))
        shape = self.described.shape
        image = (shape[0], shape[1], shape[2]) if self.conv else None
        found = replace(usual, seed=self.seed, image=image, **given)
        found.layer_specs(self.described.inputs, self.described.outputs)  # refuses what does not fit
        rule = Stopping(every=max(1, min(200, found.steps // 20))) if self.stop_early else None
        return replace(found, stopping=rule)


@dataclass(frozen=True, slots=True)
class Parts:
    """The training and the test part of a data set, in the units of the user."""

    train: Data
    test: Data

    @classmethod
    def load(cls, plan: Plan, folder: str | os.PathLike[str] | Store | None = None) -> Parts:
        """The data of the plan; ``folder`` as in :func:`bnndp.data.load`."""
        return cls(*(load(plan.data, part, folder=folder, fold=plan.fold) for part in ("train", "test")))


@dataclass(frozen=True, slots=True)
class Fitted:
    """A network in the user's units, and how it came about."""

    network: BayesianNetwork | Ensemble
    plan: Plan
    trained: Trained  # its network and card are in the units of the training; of an ensemble the first
    units: DataStandardisation | None  # None: the training saw the user's units
    noise_std: float | None  # of regression, in the user's units
    test: TargetScores | Scores  # on the test part, in the user's units
    prior_precision: float | None = None  # of the last layer, by Laplace

    def record(self) -> dict[str, Any]:
        """All of it but the network, for ``bnndp.save(..., card=...)``.

        Errors and likelihoods of the training part are in the units of the training, those under ``test`` in the
        user's. Seconds are left out: the same plan gives the same record.
        """
        plan, units, record = self.plan, self.units, self.trained.record(self.plan.data)
        del record["seconds"]
        record |= {"fold": plan.fold, "noise_std": self.noise_std, "standardisation": None, "test": asdict(self.test)}
        if units is not None:
            targets = None if units.targets is None else units.targets.to_lists()
            record["standardisation"] = {"inputs": units.inputs.to_lists(), "targets": targets}
        if plan.ensemble is not None:
            record["ensemble"] = plan.ensemble
        if plan.laplace:
            record |= {"laplace": plan.laplace, "prior_precision": self.prior_precision}
        return record


def fit(
    plan: Plan,
    parts: Parts | None = None,
    *,
    watcher: Watcher | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = True,
) -> Fitted:
    """Train as ``plan`` says and look at the test part once.

    ``parts`` are loaded if they are not given. ``checkpoint`` and ``resume`` are those of
    :func:`bnndp.training.train`; the first pass has no checkpoint and is done again.
    """
    parts = parts or Parts.load(plan)
    data, test = parts.train, parts.test
    units = DataStandardisation.fit(data) if plan.standardised else None
    scaled = data if units is None else units.apply(data)
    training, held_out = hold_out(scaled, min(_MOST_HELD_OUT, max(1, scaled.points // 10)), seed=plan.seed)
    options = plan.options()
    if isinstance(data, RegressionData):
        noise = _given_noise(plan, units)
        options = replace(options, noise_std=_residuals(plan, training, held_out, watcher) if noise is None else noise)
    fitted = training if plan.stop_early else scaled
    trained = [
        train(
            fitted,
            replace(options, seed=plan.seed + k),
            held_out=held_out if plan.stop_early else None,
            progress=_progress(watcher, "train", k * options.steps),
            checkpoint=None if checkpoint is None else checkpoint_paths(plan, checkpoint)[k],
            resume=resume,
        )
        for k in range(plan.members)
    ]
    networks, precision = [found.network for found in trained], None
    if plan.laplace is not None:
        laplace = [
            last_layer(network, fitted, noise_std=options.noise_std, temperature=options.temperature)
            for network in networks
        ]
        networks, precision = [found.network for found in laplace], laplace[0].prior_precision
    members = networks if units is None else [_in_units(network, units) for network in networks]
    network = members[0] if plan.ensemble is None else Ensemble(tuple(members))
    if isinstance(test, ClassificationData):
        return Fitted(network, plan, trained[0], units, None, scores(network, test), precision)
    noise_std = plan.noise_std if plan.noise_std is not None else options.noise_std * _target_scale(units)
    return Fitted(network, plan, trained[0], units, noise_std, target_scores(network, test, noise_std), precision)


def checkpoint_paths(plan: Plan, checkpoint: str | os.PathLike[str]) -> list[Path]:
    """The checkpoints of the members, the first of them ``checkpoint`` itself."""
    first = Path(checkpoint)
    return [first, *(first.with_name(f"{first.name}-{k}") for k in range(1, plan.members))]


def _given_noise(plan: Plan, units: DataStandardisation | None) -> float | None:
    """The noise in the units of the training, unless it has to be estimated."""
    if plan.noise_std is not None:
        return plan.noise_std / _target_scale(units)
    return None if plan.first_steps else _SINE_NOISE


def _residuals(plan: Plan, training: Data, held_out: Data, watcher: Watcher | None) -> float:
    """The noise in standardised units, by the first pass of the module's text."""
    options = replace(plan.options(), noise_std=_FIRST_NOISE, steps=plan.first_steps, stopping=None)
    first = train(training, options, progress=_progress(watcher, "noise"))
    mean = estimate(first.network, held_out.x, draw_noise(first.network, _DRAWS, seed=0)).mean
    found = float((mean - held_out.y).square().mean().sqrt())
    return min(_MOST_NOISE, max(_LEAST_NOISE, found))


def _progress(
    watcher: Watcher | None, stage: Literal["noise", "train"], before: int = 0
) -> Callable[[int, float], None] | None:
    return None if watcher is None else lambda step, _objective: watcher(stage, before + step + 1)


def _in_units(network: BayesianNetwork, units: DataStandardisation) -> BayesianNetwork:
    outputs = None if units.targets is None else (units.targets.shift, units.targets.scale)
    return network.in_units((units.inputs.shift, units.inputs.scale), outputs)


def _target_scale(units: DataStandardisation | None) -> float:
    """What a unit of the training is in the user's; every set of the registry for regression has one target."""
    return 1.0 if units is None or units.targets is None else units.targets.scale.item()
