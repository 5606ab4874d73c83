"""Trained networks are kept in a folder, under names that hold a digest of everything that decides the training."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from bnndp.data import Store
from bnndp.errors import InputError
from bnndp.files.posterior import load, save, training_card
from bnndp.network import BayesianNetwork, Ensemble, Posterior
from bnndp.training.fit import Parts, Plan, checkpoint_paths, fit
from bnndp.training.options import TrainingOptions

__all__ = ["FOLDER", "NetworkCache", "Trained", "architecture_of", "file_name", "options_for_digest", "size_of"]

_LATER_OPTIONS = ("activation", "conv", "image", "dropout", "dropout_last", "robust")

FOLDER = Path(__file__).resolve().parent.parent / ".cache" / "networks"


@dataclass(frozen=True, slots=True)
class Trained:
    """A trained network and its training card, with the seconds that the training took."""

    network: Posterior
    card: Mapping[str, Any]

    @property
    def single(self) -> BayesianNetwork:
        """The network, if it is not an ensemble."""
        if isinstance(self.network, Ensemble):
            raise InputError(f"{self.network} is an ensemble; a single network is needed here.")
        return self.network


@dataclass(frozen=True, slots=True)
class NetworkCache:
    """The folder of trained networks, and the data sets that they are trained on."""

    folder: Path = FOLDER
    store: Store | None = None

    def path(self, plan: Plan) -> Path:
        """Where the network lies once it is trained."""
        return self.folder / file_name(plan)

    def get(self, plan: Plan) -> Trained:
        """The network of ``plan``; where there is none yet it is trained now, from its checkpoint if there is one."""
        path = self.path(plan)
        if not path.is_file():
            self._train(plan, path)
        card = training_card(path)
        if card is None:
            raise InputError(f"{path}: has no training card, so it is not a network of this cache; remove it.")
        return Trained(load(path), card)

    def _train(self, plan: Plan, path: Path) -> None:
        print(f"{plan.data} {architecture_of(plan)}: training", file=sys.stderr, flush=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        checkpoint = path.with_name(f"{path.name}.checkpoint")
        fitted = fit(plan, Parts.load(plan, self.store), checkpoint=checkpoint)
        card = fitted.record() | {"seconds": fitted.trained.card.seconds}
        save(fitted.network, path, source=f"benchmarks, {plan.data} {architecture_of(plan)}", card=card)
        for written in checkpoint_paths(plan, checkpoint):
            written.unlink(missing_ok=True)


def size_of(hidden: tuple[int, ...]) -> str:
    """The hidden layers as the paper writes them.

    >>> size_of((64, 64)), size_of((64, 32))
    ('2x64', '64-32')
    """
    return f"{len(hidden)}x{hidden[0]}" if hidden and len(set(hidden)) == 1 else "-".join(map(str, hidden))


def file_name(plan: Plan) -> str:
    """The data set, the size, the method, and a digest of all that decides the training; a change gives another name.

    >>> file_name(Plan("sine2d", "vogn", (64,))).startswith("sine2d-1x64-vogn-")
    True
    """
    decided = [plan.data, plan.fold, plan.noise_std, options_for_digest(plan.options())]
    if plan.ensemble is not None or plan.laplace is not None:
        decided.append([plan.ensemble, plan.laplace])
    digest = hashlib.sha256(json.dumps(decided, sort_keys=True).encode()).hexdigest()[:12]
    return f"{plan.data}-{architecture_of(plan)}-{plan.inference}-{digest}.safetensors"


def architecture_of(plan: Plan) -> str:
    """The layers: convolutions, hidden layers, and the activation unless it is ReLU.

    >>> architecture_of(Plan("digits", "bbb", (64,), conv="6x3,pool2", activation="tanh"))
    '6x3-pool2-1x64-tanh'
    """
    parts = (plan.conv.replace(",", "-"), size_of(plan.hidden), "" if plan.activation == "relu" else plan.activation)
    return "-".join(part for part in parts if part)


def options_for_digest(options: TrainingOptions) -> dict[str, Any]:
    """The options by name, without those younger than the first networks where they have their defaults.

    Files of trained networks are named by a digest of this; a new option must not give old networks new names.
    """
    usual = {field.name: field.default for field in fields(options) if field.name in _LATER_OPTIONS}
    return {name: value for name, value in asdict(options).items() if name not in usual or value != usual[name]}
