"""Networks from what a program has in memory: tensors by name, samples, a network and its IVON optimiser.

What names do not say is said by ``task`` and ``activation``, as of :func:`bnndp.from_module`, or an ``Architecture``;
what nobody says is refused. A live network is asked (:mod:`bnndp.importers.live`), and must not be contradicted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from bnndp.errors import InputError
from bnndp.importers.architecture import Architecture, architecture_of
from bnndp.importers.build import posterior_of
from bnndp.importers.flatten import flat
from bnndp.importers.foreign import Choices, Foreign, Found, expect_heard
from bnndp.importers.ivon import Ivon
from bnndp.importers.live import live_posterior, read_network, read_samples
from bnndp.importers.modules import ensemble_of, expect_alike, live_modules
from bnndp.importers.registry import importer_for
from bnndp.importers.samples import joined

if TYPE_CHECKING:
    from bnndp.network import Posterior

__all__ = ["Architecture", "from_ivon", "from_samples", "from_tensors"]


def from_tensors(  # noqa: PLR0913 (what the tensors do not say)
    tensors: Mapping[str, object],
    architecture: Architecture | None = None,
    *,
    task: str | None = None,
    activation: str | None = None,
    importer: str = "auto",
    bias: bool = True,
    table: Mapping[str, object] | None = None,
) -> Posterior:
    """The network of tensors or arrays by name, such as a ``state_dict``, read as ``bnndp convert`` reads files.

    ``architecture``, or ``task`` and ``activation``, say what names do not (without layers: dense ones in their order),
    ``table`` what a table of names does (docs/importers/torch.md).

    >>> layer = {"mu_weight": torch.ones(1, 2), "rho_weight": torch.zeros(1, 2)}
    >>> from_tensors(layer, task="regression").linears[0].weight_std  # softplus(0) = log(2)
    tensor([[0.6931, 0.6931]], dtype=torch.float64)
    """
    given = architecture_of(architecture, task, activation)
    chosen = "table" if importer == "auto" and "tensors" in (table or {}) else importer
    return posterior_of(_found(flat(_tensors(tensors)), Choices(bias=bias, table=table), chosen), given)


def from_samples(
    samples: Sequence[Mapping[str, object]] | Sequence[nn.Module] | nn.ModuleList | Mapping[str, object],
    architecture: Architecture | None = None,
    *,
    task: str | None = None,
    activation: str | None = None,
    weights: Tensor | None = None,  # (samples,); equal if not given
    importer: str = "auto",
) -> Posterior:
    """The ensemble of many networks: a ``state_dict`` each, or stacked weights and biases with a first axis of samples.

    Live modules are taken, too. Without layers of an ``architecture`` each is read by :func:`bnndp.from_module`, which
    sees its activations; they must all be of one architecture.

    >>> draws = {"0.weight": torch.randn(5, 3, 2), "0.bias": torch.zeros(5, 3)}
    >>> from_samples(draws, task="regression")
    Ensemble(5 x BayesianNetwork(2-3, regression))
    >>> modules = [nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)) for _ in range(4)]
    >>> from_samples(modules, task="classification")
    Ensemble(4 x BayesianNetwork(2-3-2, classification, linear tanh linear))
    """
    given = architecture_of(architecture, task, activation)
    if isinstance(samples, nn.Module) and not isinstance(samples, nn.ModuleList):
        raise InputError(f"one {type(samples).__name__} is no list of samples; read it by bnndp.from_module.")
    live: list[nn.Module] = []
    if isinstance(samples, Mapping):
        found = _found(flat(_tensors(samples)), Choices(), "samples")
    else:
        each = list(samples)
        if not each:
            raise InputError("there are no samples.")
        live = live_modules(each)
        if live and importer == "auto" and (given is None or given.layers is None):
            return ensemble_of(live, given or Architecture(), weights)
        expect_alike(live)
        found = joined([_found(flat(_tensors(_state(sample))), Choices(), importer) for sample in each])
    if weights is not None:
        found = replace(found, weights=weights)
    return live_posterior(found, given, partial(read_samples, live))


def from_ivon(
    network: object,
    optimiser: object,
    architecture: Architecture | None = None,
    *,
    task: str | None = None,
    activation: str | None = None,
    parameters: Sequence[str] | None = None,
) -> Posterior:
    """The network that IVON trained: modules and optimisers themselves, or their state_dicts.

    ``parameters`` names the optimiser's parameters in its order, where they are not all of the network's in the
    network's order: with several groups, or if some were not trained. Call it outside of ``sampled_params()``. A module
    says its activations.
    """
    given = architecture_of(architecture, task, activation)
    table = None if parameters is None else {"parameters": list(parameters)}
    choices = Choices(beside=flat(_state(network)), table=table)
    found = Ivon().read(flat(_state(optimiser)), choices)
    return live_posterior(found, given, partial(read_network, network, found))


def _found(foreign: Foreign, choices: Choices, importer: str) -> Found:
    chosen = importer_for(foreign, importer)
    expect_heard(chosen, choices)
    return chosen.read(foreign, choices)


def _state(of: object) -> object:
    """The ``state_dict`` of a module or an optimiser, or the mapping that was given."""
    give = getattr(of, "state_dict", None)
    return give() if callable(give) else of


def _tensors(given: object) -> object:
    """Arrays in mappings and lists as tensors; all else as it is."""
    if isinstance(given, Mapping):
        return {name: _tensors(value) for name, value in given.items()}
    if isinstance(given, list | tuple):
        return [_tensors(value) for value in given]
    return torch.as_tensor(given) if hasattr(given, "__array__") and not isinstance(given, Tensor) else given
