"""What a live network says of itself: its layers and activations in the order in which they are run.

A state_dict or a guide holds weights alone; the module that they belong to knows what is between them. It is run and
watched (:mod:`bnndp.importers.trace`), as by :func:`bnndp.from_module`. What the user says must not contradict it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import nn

from bnndp.activations import ACTIVATIONS
from bnndp.errors import CertError, InputError, UnsupportedLayerError
from bnndp.importers.architecture import Architecture
from bnndp.importers.build import posterior_of
from bnndp.importers.module import (
    CONVERTERS,
    FUNCTIONS,
    converted,
    expect_not_other,
    parts_of,
    probe,
    stride_and_padding,
)
from bnndp.importers.prefixes import shorn
from bnndp.importers.trace import Call, Functions, chain_of_calls, repeated

if TYPE_CHECKING:
    from bnndp.importers.foreign import Found
    from bnndp.network import Posterior

__all__ = ["Read", "Reading", "Said", "are_known", "live_posterior", "read_network", "read_samples", "said_by"]


@dataclass(frozen=True, slots=True)
class Reading:
    """How a live network is to be read."""

    functions: Functions  # activations that may be called between its layers
    activation: str | None = None  # the one that the user names
    input_shape: tuple[int, ...] | None = None
    mc_dropout: bool | None = None  # None: nobody says whether masks are drawn at prediction


@dataclass(frozen=True, slots=True)
class Said:
    """What a live network says."""

    layers: tuple[dict[str, Any], ...]  # as in docs/format.md, by the names of the module
    task: str | None = None  # None: it does not say
    input_shape: tuple[int, ...] | None = None  # None: that of the first layer, which is dense


Read = Callable[[Reading], "Said | None"]
"""Reads a live network; None if it has no layers that are known, and says nothing."""


def live_posterior(found: Found, given: Architecture | None, read: Read) -> Posterior:
    """The posterior of tensors whose network is there, too: what tensors do not say, ``read`` or ``given`` does."""
    told = given or Architecture()
    if told.layers is not None:
        return _described(found, told, read)
    functions = {kind: function for kind, function in FUNCTIONS.items() if kind == told.activation}
    try:
        said = read(Reading(functions, told.activation, told.input_shape))
    except CertError as error:
        raise type(error)(
            f"{str(error).rstrip('.')}; an Architecture can say its input_shape, or its layers."
        ) from error
    return posterior_of(found, told) if said is None else posterior_of(*_joined(found, told, said))


def _described(found: Found, told: Architecture, read: Read) -> Posterior:
    """The posterior of the layers that the user describes; where the network can be read they must be the same."""
    kinds = [str(entry.get("type")) for entry in told.layers or () if isinstance(entry, dict)]
    functions = {kind: FUNCTIONS[kind] for kind in (*kinds, *FUNCTIONS) if kind in FUNCTIONS}  # the user's first
    try:
        said = read(Reading(functions, None, told.input_shape, "dropout" in kinds))
    except CertError:
        said = None  # no chain of layers that are known: only the user can describe it
    if said is None:
        return posterior_of(found, told)
    found, seen = _joined(found, told, said)
    posterior = posterior_of(found, told)
    try:
        other = posterior_of(found, seen)
    except CertError:
        return posterior  # the tensors have names that the module does not know
    if other.digest() != posterior.digest():
        raise InputError(
            f"the architecture contradicts the live network: {posterior!r} is described, {other!r} is what is run; "
            "leave its layers out, the network says them."
        )
    return posterior


def _joined(found: Found, told: Architecture, said: Said) -> tuple[Found, Architecture]:
    """What was found with the task, and what was told with the layers, that the network says."""
    if said.task is not None and found.task not in (None, said.task):
        raise InputError(f"what was trained is for {found.task}, but its network is for {said.task}.")
    shape = told.input_shape or said.input_shape
    layers = replace(told, activation=None, layers=said.layers, input_shape=shape)
    return replace(found, task=found.task or said.task), layers


def read_network(network: object, found: Found, reading: Reading) -> Said | None:
    """What a module says that has all layers that were found; None of a state_dict, and of one that has only some."""
    if not isinstance(network, nn.Module):
        return None
    own = {shorn(name.rpartition(".")[0]) or "layer" for name in network.state_dict()}
    if {shorn(name.rpartition(".")[0]) for name in found.members[0]} <= own:
        return _read_module(network, reading)
    parts = [part for part in parts_of(network).values() if _kind(part) in CONVERTERS and not list(part.parameters())]
    records: list[Any] = [converted(part, _kind(part), False) for part in parts]
    expect_not_other(reading.activation, (), [record.kind for record in records if record is not None])
    return None


def _read_module(module: nn.Module, reading: Reading) -> Said | None:
    """What a module says that has all layers; None if none of them is known."""
    found = parts_of(module)
    parts = {"layer": module} if module in found.values() else found
    if not are_known(parts.values()):
        return None
    calls = chain_of_calls(module, parts, probe(parts, reading.input_shape), reading.functions)
    return Said(said_by(calls, reading))


def read_samples(modules: Sequence[nn.Module], reading: Reading) -> Said | None:
    """What modules say, which must be the same of all; None if there are none."""
    said = [_read_module(module, reading) for module in modules]
    odd = next((index for index, each in enumerate(said) if each != said[0]), None)
    if odd is not None:
        raise InputError(f"sample {odd} is of another architecture than sample 0; samples are of one network.")
    return said[0] if said else None


def are_known(parts: Iterable[nn.Module]) -> bool:
    """Whether any of the parts is a layer of torch that is known."""
    return any(_kind(part) in CONVERTERS for part in parts)


def said_by(calls: Sequence[Call], reading: Reading) -> tuple[dict[str, Any], ...]:
    """The layers of these calls as entries."""
    entries: list[dict[str, Any]] = []
    for call in calls:
        entries += [{"type": what} for what in call.before]
        try:
            entries += _entries(call, reading.mc_dropout)
        except CertError as error:
            raise type(error)(f"{call.name!r:.80}: {error}") from error
    twice = set(repeated(calls)) & {entry.get("name") for entry in entries}
    if twice:
        raise UnsupportedLayerError(f"{min(map(str, twice))!r:.80} is run more than once: layers must be independent.")
    kinds = [entry["type"] for entry in entries]
    expect_not_other(reading.activation, calls, kinds)
    bare = not any(kind in ACTIVATIONS for kind in kinds) and sum("name" in entry for entry in entries) > 1
    if bare and reading.activation not in (None, "identity"):
        raise InputError(
            f"activation={reading.activation!r}, but the module has none between its layers; leave it out."
        )
    return tuple(entries)


def _entries(call: Call, mc_dropout: bool | None) -> list[dict[str, Any]]:
    """A part as an entry; none if it does nothing. Weights are those of the posterior and are not looked at."""
    part, kind = call.part, _kind(call.part)
    if kind is nn.Linear:
        return [{"type": "linear", "name": call.name}]
    if kind is nn.Conv2d:
        stride, padding = stride_and_padding(part)
        return [{"type": "conv2d", "name": call.name, "stride": stride, "padding": padding}]
    if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d):
        raise UnsupportedLayerError("a batch norm has no place between layers with a posterior of their own.")
    if isinstance(part, nn.Dropout | nn.Dropout2d) and part.p > 0 and mc_dropout is None:
        raise InputError("it is dropout, and it is not said whether masks are drawn at prediction too.")
    record: Any = converted(part, kind, mc_dropout)
    if record is None:
        return []
    named = {"name": call.name} if record.tensors else {}
    return [{"type": record.kind} | named | {name: getattr(record, name) for name in record.settings}]


def _kind(part: nn.Module) -> type[nn.Module]:
    """The class of a part, without what ``PyroModule[nn.Linear]`` adds to it."""
    kind = type(part)
    base = kind.__bases__[0]
    is_pyro = type(kind).__name__ == "_PyroModuleMeta" and kind.__name__ == f"Pyro{base.__name__}"
    return base if is_pyro and "forward" not in vars(kind) else kind
