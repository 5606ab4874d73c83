"""Networks from what a program has in memory: tensors by name, samples, a network and its IVON optimiser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bnndp.errors import InputError
from bnndp.importers.architecture import Architecture
from bnndp.importers.build import posterior_of
from bnndp.importers.flatten import flat
from bnndp.importers.foreign import Choices, Foreign, Found, expect_heard
from bnndp.importers.ivon import Ivon
from bnndp.importers.registry import importer_for
from bnndp.importers.samples import joined

if TYPE_CHECKING:
    from bnndp.ensemble import Posterior

__all__ = ["Architecture", "from_ivon", "from_samples", "from_tensors"]


def from_tensors(
    tensors: Mapping[str, object],
    architecture: Architecture | None = None,
    *,
    importer: str = "auto",
    bias: bool = True,
    table: Mapping[str, object] | None = None,
) -> Posterior:
    """The network of tensors or arrays by name, such as a ``state_dict``, read as ``bnndp convert`` reads files.

    ``architecture`` says what names do not (None: dense layers in their order, ReLU between them, regression),
    ``table`` what a table of names does (docs/importers/torch.md).

    >>> layer = {"mu_weight": torch.ones(1, 2), "rho_weight": torch.zeros(1, 2)}
    >>> from_tensors(layer).linears[0].weight_std  # softplus(0) = log(2)
    tensor([[0.6931, 0.6931]], dtype=torch.float64)
    """
    chosen = "table" if importer == "auto" and "tensors" in (table or {}) else importer
    return posterior_of(_found(flat(_tensors(tensors)), Choices(bias=bias, table=table), chosen), architecture)


def from_samples(
    samples: Sequence[Mapping[str, object]] | Mapping[str, object],
    architecture: Architecture | None = None,
    *,
    weights: Tensor | None = None,  # (samples,); equal if not given
    importer: str = "auto",
) -> Posterior:
    """The ensemble of many networks: a ``state_dict`` each, or stacked weights and biases with a first axis of samples.

    >>> draws = {"0.weight": torch.randn(5, 3, 2), "0.bias": torch.zeros(5, 3)}
    >>> from_samples(draws)
    Ensemble(5 x BayesianNetwork(2-3, regression))
    """
    if isinstance(samples, Mapping):
        found = _found(flat(_tensors(samples)), Choices(), "samples")
    else:
        if not samples:
            raise InputError("there are no samples.")
        found = joined([_found(flat(_tensors(sample)), Choices(), importer) for sample in samples])
    if weights is not None:
        found = replace(found, weights=weights)
    return posterior_of(found, architecture)


def from_ivon(
    network: object,
    optimiser: object,
    architecture: Architecture | None = None,
    *,
    parameters: Sequence[str] | None = None,
) -> Posterior:
    """The network that IVON trained: modules and optimisers themselves, or their state_dicts.

    ``parameters`` names the optimiser's parameters in its order, where they are not all of the network's in the
    network's order: with several groups, or if some were not trained. Call it outside of ``sampled_params()``.
    """
    table = None if parameters is None else {"parameters": list(parameters)}
    choices = Choices(beside=flat(_state(network)), table=table)
    return posterior_of(Ivon().read(flat(_state(optimiser)), choices), architecture)


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
