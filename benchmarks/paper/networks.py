"""The networks of the tables: trained once and kept in a folder, found again by everything that decides them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bnndp.data import Store
from bnndp.errors import InputError
from bnndp.files.posterior import load, save, training_card
from bnndp.network import BayesianNetwork, Ensemble
from bnndp.training.fit import Parts, Plan, Watcher, checkpoint_paths, fit
from bnndp.training.options import deciding

__all__ = ["Posterior", "Shelf", "architecture_of", "file_name", "size_of"]


@dataclass(frozen=True, slots=True)
class Posterior:
    """A trained network and its training card, with the seconds that the training took."""

    network: BayesianNetwork | Ensemble
    card: Mapping[str, Any]

    @property
    def single(self) -> BayesianNetwork:
        """The network, which is none of an ensemble."""
        if isinstance(self.network, Ensemble):
            raise InputError(f"{self.network} is an ensemble; the tables are of single networks.")
        return self.network


@dataclass(frozen=True, slots=True)
class Shelf:
    """The folder of trained networks, and the data sets that they are trained on."""

    folder: Path
    store: Store | None = None

    def has(self, plan: Plan) -> bool:
        """Whether the network is trained already."""
        return self.path(plan).is_file()

    def path(self, plan: Plan) -> Path:
        """Where the network lies once it is trained."""
        return self.folder / file_name(plan)

    def take(self, plan: Plan, watcher: Watcher | None = None) -> Posterior:
        """The network of ``plan``; trained now, from its checkpoint if there is one, where it is not there yet."""
        path = self.path(plan)
        if not path.is_file():
            self._train(plan, path, watcher)
        card = training_card(path)
        if card is None:
            raise InputError(f"{path}: has no training card, so it is not a network of this program; remove it.")
        return Posterior(load(path), card)

    def _train(self, plan: Plan, path: Path, watcher: Watcher | None) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{path.parent}: cannot be made: {error.strerror}; change --cache.") from error
        checkpoint = path.with_name(f"{path.name}.checkpoint")
        fitted = fit(plan, Parts.load(plan, self.store), watcher=watcher, checkpoint=checkpoint)
        card = fitted.record() | {"seconds": fitted.trained.card.seconds}
        save(fitted.network, path, source=f"bnndp reproduce, {plan.data} {architecture_of(plan)}", card=card)
        for written in checkpoint_paths(plan, checkpoint):
            written.unlink(missing_ok=True)


def size_of(hidden: tuple[int, ...]) -> str:
    """The hidden layers in the paper's manner.

    >>> size_of((64, 64)), size_of((64, 32))
    ('2x64', '64-32')
    """
    return f"{len(hidden)}x{hidden[0]}" if hidden and len(set(hidden)) == 1 else "-".join(map(str, hidden))


def file_name(plan: Plan) -> str:
    """The data set, the size, the method, and a digest of all that decides the training; a change gives another name.

    >>> file_name(Plan("sine2d", "vogn", (64,))).startswith("sine2d-1x64-vogn-")
    True
    """
    decided = [plan.data, plan.fold, plan.noise_std, deciding(plan.options())]
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
