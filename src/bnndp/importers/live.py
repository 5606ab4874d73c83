"""The description of a live network: its layers and activations in the order in which they are run.

A state_dict or a guide holds weights alone; the module that they belong to knows what is between them. It is run and
recorded (:mod:`bnndp.importers.trace`), as by :func:`bnndp.from_module`. The user must not contradict it.
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
    expect_not_other,
    leaf_modules,
    probe,
    stride_and_padding,
    to_record,
)
from bnndp.importers.prefixes import strip_prefixes
from bnndp.importers.trace import Call, Functions, chain_of_calls, repeated

if TYPE_CHECKING:
    from bnndp.importers.foreign import Imported
    from bnndp.network import Posterior


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """How a live network is to be read."""

    functions: Functions  # activations that may be called between its layers
    activation: str | None = None  # the one that the user names
    input_shape: tuple[int, ...] | None = None
    mc_dropout: bool | None = None  # None: it is not known whether masks are drawn at prediction


Describe = Callable[[TraceOptions], Architecture | None]
"""Returns the layers of a live network, its task and the shape of its inputs; None if none of its layers is known."""


def posterior_of_live(found: Imported, given: Architecture | None, read: Describe) -> Posterior:
    """The posterior of tensors whose live network is known: ``given`` and the network complete it."""
    given = given or Architecture()
    if given.layers is not None:
        return _described(found, given, read)
    functions = {kind: function for kind, function in FUNCTIONS.items() if kind == given.activation}
    try:
        description = read(TraceOptions(functions, given.activation, given.input_shape))
    except CertError as error:
        raise type(error)(
            f"{str(error).rstrip('.')}; an Architecture can say its input_shape, or its layers."
        ) from error
    return posterior_of(found, given) if description is None else posterior_of(*_completed(found, given, description))


def _described(found: Imported, given: Architecture, read: Describe) -> Posterior:
    """The posterior of the layers that the user describes; they must be those of the live network."""
    kinds = [str(entry.get("type")) for entry in given.layers or () if isinstance(entry, dict)]
    functions = {kind: FUNCTIONS[kind] for kind in (*kinds, *FUNCTIONS) if kind in FUNCTIONS}  # the user's first
    try:
        description = read(TraceOptions(functions, None, given.input_shape, "dropout" in kinds))
    except CertError:
        description = None  # no chain of layers that are known: only the user can describe it
    if description is None:
        return posterior_of(found, given)
    found, recorded = _completed(found, given, description)
    posterior = posterior_of(found, given)
    try:
        other = posterior_of(found, recorded)
    except CertError:
        return posterior  # the tensors have names that the module does not know
    if other.digest() != posterior.digest():
        raise InputError(
            f"the architecture contradicts the live network: {posterior!r} is described, {other!r} is what is run; "
            "leave its layers out, the network says them."
        )
    return posterior


def _completed(found: Imported, given: Architecture, description: Architecture) -> tuple[Imported, Architecture]:
    """The posterior with the task, and the architecture with the layers, of the live network."""
    if description.task is not None and found.task not in (None, description.task):
        raise InputError(f"what was trained is for {found.task}, but its network is for {description.task}.")
    shape = given.input_shape or description.input_shape
    layers = replace(given, activation=None, layers=description.layers, input_shape=shape)
    return replace(found, task=found.task or description.task), layers


def describe_network(network: object, found: Imported, options: TraceOptions) -> Architecture | None:
    """The description of a module with all layers of ``found``; None for a state_dict or a module with some of them."""
    if not isinstance(network, nn.Module):
        return None
    own = {strip_prefixes(name.rpartition(".")[0]) or "layer" for name in network.state_dict()}
    if {strip_prefixes(name.rpartition(".")[0]) for name in found.members[0]} <= own:
        return _describe_module(network, options)
    parts = [
        part for part in leaf_modules(network).values() if _kind(part) in CONVERTERS and not list(part.parameters())
    ]
    records: list[Any] = [to_record(part, _kind(part), False) for part in parts]
    expect_not_other(options.activation, (), [record.kind for record in records if record is not None])
    return None


def _describe_module(module: nn.Module, options: TraceOptions) -> Architecture | None:
    """The description of a module; None if none of its layers is known."""
    found = leaf_modules(module)
    parts = {"layer": module} if module in found.values() else found
    if not any_known(parts.values()):
        return None
    calls = chain_of_calls(module, parts, probe(parts, options.input_shape), options.functions)
    return Architecture(layers=describe_calls(calls, options))


def describe_samples(modules: Sequence[nn.Module], options: TraceOptions) -> Architecture | None:
    """The description of modules, which must have the same; None if there are none."""
    descriptions = [_describe_module(module, options) for module in modules]
    odd = next((index for index, each in enumerate(descriptions) if each != descriptions[0]), None)
    if odd is not None:
        raise InputError(f"sample {odd} is of another architecture than sample 0; samples are of one network.")
    return descriptions[0] if descriptions else None


def any_known(parts: Iterable[nn.Module]) -> bool:
    """Whether any of the parts is a layer of torch that is known."""
    return any(_kind(part) in CONVERTERS for part in parts)


def describe_calls(calls: Sequence[Call], options: TraceOptions) -> tuple[dict[str, Any], ...]:
    """The layers of these calls as entries."""
    entries: list[dict[str, Any]] = []
    for call in calls:
        entries += [{"type": what} for what in call.before]
        try:
            entries += _entries(call, options.mc_dropout)
        except CertError as error:
            raise type(error)(f"{call.name!r:.80}: {error}") from error
    twice = set(repeated(calls)) & {entry.get("name") for entry in entries}
    if twice:
        raise UnsupportedLayerError(f"{min(map(str, twice))!r:.80} is run more than once: layers must be independent.")
    kinds = [entry["type"] for entry in entries]
    expect_not_other(options.activation, calls, kinds)
    bare = not any(kind in ACTIVATIONS for kind in kinds) and sum("name" in entry for entry in entries) > 1
    if bare and options.activation not in (None, "identity"):
        raise InputError(
            f"activation={options.activation!r}, but the module has none between its layers; leave it out."
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
    record: Any = to_record(part, kind, mc_dropout)
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
