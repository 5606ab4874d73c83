"""The order in which a live module runs its layers, recorded by running it, and proof that nothing else happens.

A module is code: the order of its children need not be that of its ``forward``, which can do more than call them. So it
is run once, on a few inputs, with hooks on each layer. The output of a layer must be the input of the next one: the
same tensor, not changed since, or a flattened view of it. If the tensors differ, all their values must be those of an
activation that the caller names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bnndp.errors import InputError

FLATTEN = "flatten"
Functions = Mapping[str, Callable[[Tensor], Tensor]]
"""Activations that may be called between two layers, by their kinds."""

_FAULTS = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class Call:
    """A layer of the module that was run, and what came just before it."""

    name: str
    part: nn.Module
    before: tuple[str, ...]  # FLATTEN, and kinds of activations that are called as functions


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A tensor as it was at a moment."""

    tensor: Tensor
    version: int  # counts changes in place
    values: Tensor  # a copy

    @classmethod
    def of(cls, tensor: Tensor) -> Snapshot:
        """The tensor as it is now."""
        return cls(tensor, tensor._version, tensor.clone())

    def is_view_of(self, other: Snapshot) -> bool:
        """Whether this is ``other``, unchanged, with all its axes but the first flattened."""
        flat = (other.tensor.shape[0], other.tensor[0].numel())
        return self.has_values_of(other) and self.tensor.shape == flat and other.tensor.is_contiguous()

    def has_values_of(self, other: Snapshot) -> bool:
        """Whether this is ``other``, unchanged, in any shape."""
        same = self.tensor.data_ptr() == other.tensor.data_ptr() and self.version == other.version
        return same and self.tensor.numel() == other.tensor.numel() and self.tensor.is_contiguous()


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a module."""

    inputs: Snapshot
    layers: tuple[tuple[str, Snapshot, Snapshot], ...]  # name, input, output
    result: object

    @property
    def last(self) -> tuple[str, Snapshot]:
        """The last layer, for messages, and its output; the inputs if no layer was run."""
        return (f"{self.layers[-1][0]!r:.80}", self.layers[-1][2]) if self.layers else ("the inputs", self.inputs)


def chain_of_calls(
    module: nn.Module,
    parts: Mapping[str, nn.Module],
    inputs: Tensor,  # (batch, ...)
    functions: Functions,
) -> list[Call]:
    """The layers in the order in which they are run; an :class:`InputError` if they are not a chain."""
    run = record_run(module, parts, inputs, lambda: module(inputs))
    calls = calls_of(run, parts, functions)
    where, last = run.last
    if _between(where, last, "the result", Snapshot.of(_tensor(run.result, "the module")), {}):
        raise InputError(
            f"the module flattens the outputs of {where} at its end; leave that to the user of its result."
        )
    return calls


def calls_of(run: Run, parts: Mapping[str, nn.Module], functions: Functions) -> list[Call]:
    """The calls of a run, each with what came before it; what came after the last is not checked."""
    last, where, calls = run.inputs, "the inputs", []
    for name, got, output in run.layers:
        calls.append(Call(name, parts[name], _between(where, last, f"{name!r:.80}", got, functions)))
        last, where = output, f"{name!r:.80}"
    return calls


def record_run(module: nn.Module, parts: Mapping[str, nn.Module], inputs: Tensor, run: Callable[[], object]) -> Run:
    """Run the module in evaluation mode; its modes and the state of the random numbers are restored afterwards."""
    start = Snapshot.of(inputs)
    got: dict[str, Snapshot] = {}
    layers: list[tuple[str, Snapshot, Snapshot]] = []
    handles = []
    for name, part in parts.items():

        def before(_: nn.Module, args: tuple[object, ...], name: str = name) -> None:
            got[name] = Snapshot.of(_tensor(args, name))

        def after(_: nn.Module, __: tuple[object, ...], output: object, name: str = name) -> None:
            layers.append((name, got[name], Snapshot.of(_tensor(output, name))))

        handles += [part.register_forward_pre_hook(before), part.register_forward_hook(after)]
    try:
        with _evaluating(module), torch.random.fork_rng(), torch.no_grad():
            result = run()
    except _FAULTS as error:
        shape = tuple(inputs.shape)
        raise InputError(f"the module cannot be run on inputs of shape {shape}, see input_shape: {error}") from error
    finally:
        for handle in handles:
            handle.remove()
    return Run(start, tuple(layers), result)


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode


def _tensor(value: object, name: str) -> Tensor:
    """The tensor that a layer takes or returns: the first, as layers may return a divergence with it."""
    first = value[0] if isinstance(value, tuple | list) and value else value
    if not isinstance(first, Tensor):
        raise InputError(f"{name!r:.80} takes or gives {type(first).__name__}, not a tensor.")
    return first


def _between(where: str, last: Snapshot, there: str, got: Snapshot, functions: Functions) -> tuple[str, ...]:
    """What happens between the output ``last`` of one layer and the input ``got`` of the next."""
    if got.tensor is last.tensor and got.version == last.version:
        return ()
    if got.is_view_of(last):
        return (FLATTEN,)
    for kind, function in functions.items():
        with torch.no_grad():
            wanted = function(last.values)
        if torch.equal(wanted, got.values):
            return (kind,)
        if torch.equal(wanted.flatten(1), got.values):
            return (kind, FLATTEN)
    advice = "is not the one named" if functions else "needs a name: activation='relu'"
    raise InputError(
        f"between {where} and {there} the module does something that is not one of its layers. A function of torch "
        f"that is an activation {advice}; sums, reshapes and a softmax at the end cannot be read."
    )


def repeated(calls: Sequence[Call]) -> list[str]:
    """The names of layers that are run more than once."""
    names = [call.name for call in calls]
    return sorted({name for name in names if names.count(name) > 1})
