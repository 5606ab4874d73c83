"""The networks of the benchmarks: posteriors trained on demand and kept in ``.cache/networks``.

Two families on the noisy sine sets, both honest fits of the evidence lower bound with the noise of the data as
the noise of the likelihood:

``paper`` (names such as ``sine2d-2x64``): in the manner of the authors' published posteriors. Prior N(0, 1) on every
weight and bias, standard deviations that start at 0.1, Adam, one draw of all weights per step (as Pyro's ``AutoNormal``
with ``Trace_ELBO``) and a moderate number of steps. The noise of such gradients hides the pull of the prior, so that
most standard deviations stay near 0.1, as in the authors' sine1d_1x256; in hidden layers those that the data leave free
reach the prior's 1. Minibatches and a rate that falls to zero are ours, to save time.

``scaled`` (``sine2d-2x64-scaled``): prior N(0, 1/n_in) on weights and N(0, 1) on biases, which keeps the scale of the
prior over functions independent of the width; standard deviations that start at 0.02; local reparametrisation, whose
quiet gradients fit function and standard deviations better. Its ELBO still rises slowly where the training ends (2x64:
4208 after the 4000 steps taken here, 4890 after 8000, 5355 after 16,000 smaller ones): neurons return to the prior.

On MNIST (``mnist-1x128``, ``mnist-2x64``) posteriors are as uncertain as the mean-field ELBO leaves them: prior
N(0, 0.2^2) on every weight and bias, temperature one (the KL term has its full weight: nothing is tempered), local
reparametrisation. Measured on the test set: accuracy 97.6 and 97.5 %, calibration error 0.027 and 0.022; standard
deviation of the logits on its first 100 images 1.41 and 1.26. Half of the standard deviations of the first layer stay
within 1 % of the prior's. The ELBO still rises slowly where training ends (2x64: -16,200 for a training of 3000 steps,
-14,500 for the 9000 taken here). Temperature 0.3 was tried (3000 steps, rate 3e-3): accuracy 97.8 against 97.1 and
97.2 %, but an ELBO lower by 4100 and 5200; the logits are uncertain enough without it.

Settings were chosen by the error of the mean function or the accuracy, by the ELBO and, on MNIST, by the standard
deviation of the logits, never by how well a network certifies.

``PLANS`` has networks of other layers and posteriors, each trained as ``bnndp train`` does (docs/training.md has their
figures): the 2D sine with four activations by one recipe for each depth; Bayesian convolutional networks on
Fashion-MNIST and on the subset of CIFAR-10, with Gaussian kernels (nearly deterministic, and ``warm``: wider) or with
dropout (after both convolutions, and ``last``: after the last; on CIFAR-10 the latter), all trained against the worst
case (``Robust``); MNIST with a last layer by Laplace, and an ensemble of ten. Here the spread of the posterior was
chosen with its certification in mind.

``vogn`` gives the networks of the paper's tables, ``authors`` the posteriors that its authors published.

Run ``python -m benchmarks.networks --all`` to train everything (once), or name the networks wanted.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import torch

import bnndp.data.demo
import bnndp.files.posterior
from benchmarks.cache import FOLDER, NetworkCache, options_for_digest
from bnndp.data import ClassificationData, RegressionData, describe, mnist, noisy_sine
from bnndp.errors import InputError
from bnndp.files.posterior import training_card
from bnndp.layers import Dropout
from bnndp.network import BayesianNetwork, Ensemble, Posterior
from bnndp.training import Robust, TrainingOptions, train
from bnndp.training.fit import Plan

__all__ = ["ACTIVATIONS", "COLD", "MNIST_NAMES", "NAMES", "PLANS", "authors", "network", "path_of", "posterior", "vogn"]

SHAPES = {
    "sine1d": ("1x64", "2x64"),
    "sine2d": ("1x64", "1x256", "1x512", "2x64", "2x128", "2x256", "2x512", "3x64", "3x128", "4x64"),
}
NAMES = tuple(f"{data}-{shape}" for data, shapes in SHAPES.items() for shape in shapes)
MNIST_NAMES = ("mnist-1x128", "mnist-2x64")
DEMO = "sine1d-2x32"
DEMO_FILE = Path(bnndp.data.demo.__file__).parent / bnndp.data.demo.NAME
NOISE_STD = 0.1
_PATTERN = re.compile(
    r"(?:sine(?P<inputs>\d+)d|mnist)-(?P<depth>\d+)x(?P<width>\d+)(?(inputs)(?:-(?P<family>paper|scaled))?)"
)
# Options younger than the first networks: at their defaults they leave names alone.
_LATER = ("temperature", "inference", "natural", "stopping")
_CACHE = NetworkCache()

COLD = 1e-6
"""Temperature of the classifiers of Table 1b. The posterior that the paper's authors published (MNIST, 2x64) is nearly
deterministic, its logits have a standard deviation of 0.005; this temperature gives 0.006 to 0.03."""
ACTIVATIONS = ("relu", "tanh", "sigmoid", "gelu")
_DEEP: dict[str, Any] = {
    "prior_std": 3.0,
    "batch": 256,
    "learning_rate": 0.1,
}  # by the usual prior 2x64 sigmoids stay nearly constant
_CALM: dict[str, Any] = {"temperature": 1e-5, "init_std": 0.005, "batch": 100}  # nearly deterministic
_FASHION = Plan("fashion_mnist", "bbb", (), conv="6x5s2p2,16x5s2p2", robust=Robust(0.015), steps=5000, **_CALM)
_CIFAR = replace(
    _FASHION,
    data="cifar10_subset",
    conv="16x5s2p2,32x3s2p1,32x3s2p1",
    robust=Robust(1 / 255),
    steps=2500,
    temperature=1e-7,
    init_std=0.0005,
)
_DROPPED: dict[str, Any] = {"inference": "map", "dropout": Dropout(0.1), "temperature": 1e-3, "init_std": None}
PLANS = {
    **{f"sine2d-1x64-{name}": Plan("sine2d", "vogn", (64,), activation=name) for name in ACTIVATIONS},
    **{f"sine2d-2x64-{name}": Plan("sine2d", "vogn", (64, 64), activation=name, **_DEEP) for name in ACTIVATIONS},
    "fashion-cnn": _FASHION,
    "fashion-cnn-warm": replace(_FASHION, temperature=1e-3, init_std=None, batch=None, steps=6000, robust=Robust(0.02)),
    "fashion-cnn-dropout": replace(_FASHION, **_DROPPED),
    "fashion-cnn-dropout-last": replace(_FASHION, **_DROPPED, dropout_last=True),
    "cifar-cnn": _CIFAR,
    "cifar-cnn-dropout": replace(_CIFAR, **_DROPPED, dropout_last=True),
    "mnist-laplace": Plan("mnist", "map", (64, 64), laplace="last-layer"),
    "mnist-ensemble": Plan("mnist", "map", (64, 64), ensemble=10, steps=2000),
}
"""Networks of other layers and posteriors, each as ``bnndp train`` makes it."""


def network(name: str) -> BayesianNetwork:
    """The network of a name for :func:`posterior` that is not an ensemble."""
    return _single(posterior(name))


def posterior(name: str) -> Posterior:
    """The posterior called ``sine<inputs>d-<layers>x<width>[-scaled]`` or ``mnist-<layers>x<width>``.

    It comes from the cache or is trained now; MNIST is read from the folder that BNNDP_DATA names. Other names are
    those of ``PLANS``.
    """
    if name in PLANS:
        return _CACHE.get(PLANS[name]).network
    path = path_of(name)
    if not path.exists():
        _train(name, path)
    return bnndp.files.posterior.load(path)


def vogn(data: str, hidden: tuple[int, ...]) -> BayesianNetwork:
    """The network of the paper's tables for a data set and size; those on images are nearly deterministic."""
    cold: dict[str, Any] = {"temperature": COLD} if describe(data).task == "classification" else {}
    return _CACHE.get(Plan(data, "vogn", hidden, **cold)).single


def authors(name: str) -> BayesianNetwork:
    """A posterior that the paper's authors published, from the folder beside that of the data sets."""
    data = os.environ.get("BNNDP_DATA")
    path = Path(data or ".").parent / "posteriors" / f"{name}.safetensors"
    if not data or not path.is_file():
        raise InputError(f"{name}: there is no {path}; set BNNDP_DATA to the folder of the data sets.")
    return _single(bnndp.files.posterior.load(path))


def path_of(name: str) -> Path:
    """Where the network lies once it is trained: the name and a digest of all settings that decide it."""
    if name in PLANS:
        return _CACHE.path(PLANS[name])
    options = options_of(name)
    usual = {field.name: field.default for field in fields(options) if field.name in _LATER}
    chosen = options_for_digest(options).items()
    settings = {key: value for key, value in chosen if key not in usual or value != usual[key]}
    text = json.dumps({"noise_std": NOISE_STD, **settings}, sort_keys=True)
    return FOLDER / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}.safetensors"


def options_of(name: str) -> TrainingOptions:
    """The settings of the family and size that ``name`` asks for."""
    match = _parse(name)
    depth, width = int(match["depth"]), int(match["width"])
    hidden = (width,) * depth
    if _is_mnist(name):
        return TrainingOptions(
            hidden, prior_std=0.2, init_std=0.05, steps=9000, batch=200, learning_rate=1e-2, warm_up=0.2
        )
    if match["family"] == "scaled":
        steps, batch = (4000, 512) if width <= 128 else (2000, 256)
        return TrainingOptions(
            hidden,
            NOISE_STD,
            prior="fan_in",
            init_std=0.02,
            steps=steps,
            batch=batch,
            learning_rate=1e-2,
            sampling="local",
        )
    # In wide layers the noise of the weight draws decides, not the batch: more steps, each cheaper.
    steps, batch, rate = 4000, 1024, 1e-2
    if width > 64:
        steps, batch, rate = (6000, 128, 2e-2) if depth <= 2 else (10_000, 128, 5e-3)  # 2e-2 diverges for 3x128
    return TrainingOptions(
        hidden, NOISE_STD, init_std=0.1, steps=steps, batch=batch, learning_rate=rate, sampling="weights"
    )


def _single(found: Posterior) -> BayesianNetwork:
    if isinstance(found, Ensemble):
        raise InputError(f"{found} is an ensemble; a single network is needed here.")
    return found


def _parse(name: str) -> re.Match[str]:
    match = _PATTERN.fullmatch(name)
    if match is None:
        raise InputError(
            f"{name!r} is not a network of the benchmarks; names look like {NAMES[3]}, {NAMES[3]}-scaled "
            f"or {MNIST_NAMES[0]}."
        )
    return match


def _is_mnist(name: str) -> bool:
    return _parse(name)["inputs"] is None


def _data(name: str) -> tuple[RegressionData, RegressionData] | tuple[ClassificationData, ClassificationData]:
    """The training set of a network and the set it is tried on."""
    if _is_mnist(name):
        return mnist("train"), mnist("test")
    n_in = int(_parse(name)["inputs"])
    return noisy_sine(n_in, noise_std=NOISE_STD, seed=0), noisy_sine(n_in, noise_std=NOISE_STD, points=2048, seed=1)


def _train(name: str, path: Path) -> None:
    options = options_of(name)
    data, held_out = _data(name)
    trained = train(data, options, held_out=held_out)
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {"name": name, "options": asdict(options), "card": asdict(trained.card)}
    path.with_suffix(".json").write_text(json.dumps(record, indent=2) + "\n")
    bnndp.files.posterior.save(trained.network, path, source=f"benchmarks/networks.py {name}")


def main() -> None:
    """Train or read the networks named on the command line and print their cards."""
    parser = argparse.ArgumentParser(description="Train the networks of the benchmarks.")
    parser.add_argument("names", nargs="*", help="for example sine2d-2x64 sine2d-2x64-scaled")
    parser.add_argument("--all", action="store_true", help="all networks of the benchmarks")
    parser.add_argument("--demo", action="store_true", help="write the network of the package's demo anew")
    given = parser.parse_args()
    everything = [*NAMES, *(f"{name}-scaled" for name in NAMES), *MNIST_NAMES, *PLANS]
    torch.set_num_threads(1)
    for name in [*(everything if given.all else given.names), *([DEMO] if given.demo else [])]:
        found, path = posterior(name), path_of(name)
        card = training_card(path) if name in PLANS else json.loads(path.with_suffix(".json").read_text())["card"]
        print(f"{name}: {path.relative_to(FOLDER.parent.parent)}, {json.dumps(card)}", flush=True)
        if name == DEMO:
            bnndp.files.posterior.save(found, DEMO_FILE, source=f"benchmarks/networks.py {DEMO}")


if __name__ == "__main__":
    main()
