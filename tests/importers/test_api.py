"""``task=`` and ``activation=`` of all functions ``from_...``, and lists of live modules as samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import bnndp
from bnndp.errors import InputError


def sequential(seed: int = 0, hidden: int = 4, activation: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, hidden), activation(), nn.Linear(hidden, 2))


def pyro(**settings: Any) -> Any:
    state = sequential().state_dict()
    guide = {f"{kind}.{name}_unconstrained": value for kind in ("locs", "scales") for name, value in state.items()}
    return bnndp.importers.from_pyro(guide, scale_transform="exp", **settings)


def numpyro(**settings: Any) -> Any:
    names = {"w1": "0.weight", "b1": "0.bias", "w2": "2.weight", "b2": "2.bias"}
    state = sequential().state_dict()
    params = {f"{name}_auto_loc": state[theirs].numpy().T for name, theirs in names.items()}
    return bnndp.importers.from_numpyro(params, **settings)


def laplace(**settings: Any) -> Any:
    network = sequential()
    mean = nn.utils.parameters_to_vector(network.parameters()).detach()
    state = {"cls_name": "DiagLaplace", "mean": mean, "H": torch.ones(len(mean)), "prior_precision": torch.ones(1)}
    return bnndp.importers.from_laplace(
        state | {"sigma_noise": torch.ones(()), "temperature": 1.0}, network, **settings
    )


def posteriors(**settings: Any) -> Any:
    params = dict(sequential().state_dict())
    return bnndp.importers.from_posteriors(
        {"params": params, "sd_diag": {name: torch.ones_like(value) for name, value in params.items()}}, **settings
    )


def ivon(**settings: Any) -> Any:
    network = sequential()
    count = sum(value.numel() for value in network.parameters())
    group = {"ess": 10, "weight_decay": 0.0, "hess": torch.ones(count), "params": [0, 1, 2, 3]}
    return bnndp.importers.from_ivon(network, {"state": {}, "param_groups": [group]}, **settings)


SOURCES: dict[str, Callable[..., Any]] = {
    "tensors": lambda **settings: bnndp.importers.from_tensors(dict(sequential().state_dict()), **settings),
    "samples": lambda **settings: bnndp.importers.from_samples(
        [dict(sequential(seed).state_dict()) for seed in range(2)], **settings
    ),
    "pyro": pyro,
    "numpyro": numpyro,
    "laplace": laplace,
    "posteriors": posteriors,
    "ivon": ivon,
}


@pytest.mark.parametrize("name", SOURCES)
def test_task_and_activation_are_an_architecture(name: str) -> None:
    make = SOURCES[name]
    wanted = make(architecture=bnndp.importers.Architecture("classification", "tanh"))
    short = make(task="classification", activation="tanh")
    assert (short.digest(), short.task) == (wanted.digest(), "classification")
    joined = make(architecture=bnndp.importers.Architecture(activation="tanh"), task="classification")
    assert joined.digest() == wanted.digest()
    for twice in ({"task": "classification"}, {"activation": "tanh"}):
        with pytest.raises(InputError, match="leave out task= and activation="):
            make(architecture=bnndp.importers.Architecture("classification", "tanh"), **twice)
    with pytest.raises(InputError, match=r"must be a bnndp.importers.Architecture, got str"):
        make(architecture="classification")
    with pytest.raises(InputError, match="activation must be one of"):
        make(activation="mish")


LIVE = ("laplace", "ivon")  # their networks are modules here


@pytest.mark.parametrize("name", SOURCES)
def test_a_missing_task_or_activation_is_refused(name: str) -> None:
    make = SOURCES[name]
    task, activation = r"the task \(--task regression or classification; in Python task=\)", "the activation between"
    for unsaid in ({"activation": "tanh"}, {"architecture": bnndp.importers.Architecture(activation="tanh")}):
        with pytest.raises(InputError, match=rf"nothing is guessed: give {task}\.$"):
            make(**unsaid)
    with pytest.raises(InputError, match=task):
        make()
    settings = ({"task": "regression"}, {"architecture": bnndp.importers.Architecture("regression")})
    for given in settings:
        if name in LIVE:
            wanted = make(task="regression", activation="tanh")
            assert make(**given).digest() == wanted.digest()
        else:
            with pytest.raises(InputError, match=rf"{activation} .*\(--activation KIND .*activation=KIND"):
                make(**given)


@pytest.mark.parametrize("name", LIVE)
def test_what_contradicts_a_live_network_is_refused(name: str) -> None:
    make = SOURCES[name]
    with pytest.raises(InputError, match="activation='relu' is not what the module has between its layers: tanh"):
        make(task="regression", activation="relu")
    layers = [{"type": "linear", "name": "0"}, {"type": "tanh"}, {"type": "linear", "name": "2"}]
    wanted = make(task="regression").digest()
    assert make(architecture=bnndp.importers.Architecture("regression", layers=tuple(layers))).digest() == wanted
    layers[1] = {"type": "relu"}
    with pytest.raises(InputError, match=r"contradicts the live network: .* linear tanh linear\) is what is run"):
        make(architecture=bnndp.importers.Architecture("regression", layers=tuple(layers)))


def test_live_modules_are_samples() -> None:
    modules = [sequential(seed) for seed in range(3)]
    found = bnndp.importers.from_samples(modules, task="classification")
    states = [dict(module.state_dict()) for module in modules]
    wanted = bnndp.importers.from_samples(states, task="classification", activation="tanh")
    assert found.digest() == wanted.digest()
    assert bnndp.importers.from_samples(nn.ModuleList(modules), task="classification").digest() == wanted.digest()
    given = bnndp.importers.from_samples(modules, bnndp.importers.Architecture("classification", "tanh"))
    assert given.digest() == wanted.digest()
    weights = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
    weighted = bnndp.importers.from_samples(modules, task="regression", weights=weights)
    assert torch.equal(weighted.weights, weights)  # type: ignore[union-attr]
    layers = ({"type": "linear", "name": "0"}, {"type": "tanh"}, {"type": "linear", "name": "2"})
    described = bnndp.importers.from_samples(modules, bnndp.importers.Architecture("classification", layers=layers))
    assert described.digest() == wanted.digest()
    other = bnndp.importers.Architecture("classification", layers=(layers[0], {"type": "relu"}, layers[2]))
    with pytest.raises(InputError, match="contradicts the live network"):
        bnndp.importers.from_samples(modules, other)
    with pytest.raises(InputError, match="sample 0: activation='relu' is not what the module has"):
        bnndp.importers.from_samples(modules, task="classification", activation="relu")
    with pytest.raises(InputError, match="sample 0: a module does not say its task; give task='regression' or"):
        bnndp.importers.from_samples(modules)


def test_modules_that_are_not_of_one_network_are_refused() -> None:
    words = r"sample 1 is of another architecture than sample 0: '0.weight' is \(5, 3\), there \(4, 3\)"
    for architecture in (None, bnndp.importers.Architecture()):
        with pytest.raises(InputError, match=words):
            bnndp.importers.from_samples([sequential(), sequential(1, 5)], architecture, task="regression")
    with pytest.raises(InputError, match="than sample 0: layer 1 is relu, there tanh"):
        bnndp.importers.from_samples([sequential(), sequential(1, activation=nn.ReLU)], task="regression")
    with pytest.raises(InputError, match="1 of 2 samples are modules"):
        bnndp.importers.from_samples([sequential(), dict(sequential().state_dict())])  # type: ignore[list-item]
    with pytest.raises(InputError, match=r"one Sequential is not a list of samples; read it with bnndp.from_module"):
        bnndp.importers.from_samples(sequential())  # type: ignore[arg-type]
    dropped = [nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))]
    with pytest.raises(InputError, match=r"sample 0: .*mc_dropout.*; bnndp.from_module takes more arguments"):
        bnndp.importers.from_samples(dropped, task="regression")


def test_a_module_in_place_of_a_network_is_told_how_to_become_one() -> None:
    box = bnndp.Box.ball(torch.zeros(1, 3), 0.1)
    with pytest.raises(InputError, match=r"got Sequential; make one of it with bnndp.from_module\(module, task=...\)"):
        bnndp.certify(sequential(), box)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"bnndp.from_module\(module, task='classification'\)"):
        bnndp.robust_decision(sequential(), torch.zeros(1, 3), box)  # type: ignore[arg-type]
