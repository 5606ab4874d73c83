"""The posterior that an importer read, as a network or an ensemble."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from bnndp.errors import CertError, InputError, ModelFileError
from bnndp.importers.architecture import Architecture
from bnndp.importers.layer_order import expect_ascending, in_order, transpose_advice
from bnndp.network import Ensemble

if TYPE_CHECKING:
    from bnndp.importers.foreign import Imported
    from bnndp.network import BayesianNetwork, Posterior


def posterior_of(found: Imported, given: Architecture | None = None) -> Posterior:
    """The network of the only member, or the mixture of all; ``given`` completes it.

    Without ``given.layers`` they are dense, in the order of the tensors.
    """
    architecture = _with_task(given or Architecture(), found.task)
    if architecture.layers is None:
        expect_ascending(found.members[0])
    if len(found.members) == 1 and (found.weights is None or found.weights.shape == (1,)):
        return _network(found, 0, architecture)
    architecture.expect_complete(found.members[0])
    networks = (_member(found, index, architecture) for index in range(len(found.members)))
    return Ensemble(tuple(networks), found.weights)


def _with_task(given: Architecture, found: str | None) -> Architecture:
    if found is not None and given.task not in (None, found):
        raise InputError(f"the task is said to be {given.task}, but what was trained is for {found}; leave it out.")
    return replace(given, task=given.task or found)


def order_layers(found: Imported, given: Architecture | None, *, ordered: bool) -> Imported:
    """The same with all tensors in the order of the layers.

    That is the one of ``given``, or else that of the file. If that one is not ``ordered``, names or sizes of the layers
    must leave no doubt.
    """
    if given is not None and given.layers is not None:
        members = tuple(_sorted(member, given.names(member)) for member in found.members)
    else:
        members = found.members if ordered or found.ordered else tuple(map(in_order, found.members))
    return replace(found, members=members)


def _sorted(member: Mapping[str, Tensor], layers: Sequence[str]) -> dict[str, Tensor]:
    """Tensors of these layers first, in their order."""
    place = {layer: index for index, layer in enumerate(layers)}
    names = sorted(member, key=lambda name: place.get(name.rpartition(".")[0], len(place)))
    return {name: member[name] for name in names}


def _member(found: Imported, index: int, architecture: Architecture) -> BayesianNetwork:
    try:
        return _network(found, index, architecture)
    except CertError as error:
        raise ModelFileError(f"member {index}: {error}") from error


def _network(found: Imported, index: int, architecture: Architecture) -> BayesianNetwork:
    """One member; the error for weights that would fit if transposed says so."""
    try:
        return architecture.network(found.members[index], found.kinds)
    except CertError as error:
        advice = transpose_advice(found.members[index])
        if not advice:
            raise
        raise ModelFileError(f"{str(error).rstrip('.')}; {advice}") from error
