"""The order in which the parts of a live module are run, seen by running it, and proof that nothing comes between them.

A module is code: the order of its children need not be that of its ``forward``, which can do more than call them. So it
is run once, on a few inputs, and each part is watched. What one part gives must be what the next one gets: the same
tensor, not changed since, or a view of it as a vector. Between two tensors that are not the same there must be an
activation that the caller names, in all its values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bnndp.errors import InputError

__all__ = ["FLATTEN", "Call", "Functions", "Seen", "Watched", "called", "chain_of_calls", "repeated", "watched"]

FLATTEN = "flatten"
Functions = Mapping[str, Callable[[Tensor], Tensor]]
"""Activations that may be called between two parts, by their kinds."""

_FAULTS = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class Call:
    """A part of the module that was run, and what came just before it."""

    name: str
    part: nn.Module
    before: tuple[str, ...]  # FLATTEN, and kinds of activations that are called as functions


@dataclass(frozen=True, slots=True)
class Seen:
    """A tensor as it was at a moment."""

    tensor: Tensor
    version: int  # counts changes in place
    values: Tensor  # a copy

    @classmethod
    def now(cls, tensor: Tensor) -> Seen:
        """As it is at this moment."""
        return cls(tensor, tensor._version, tensor.clone())

    def is_still(self, other: Seen) -> bool:
        """Whether ``other`` is this tensor, unchanged."""
        return other.tensor is self.tensor and other.version == self.version

    def is_view_of(self, other: Seen) -> bool:
        """Whether this is ``other``, unchanged, with all its axes but the first made one."""
        flat = (other.tensor.shape[0], other.tensor[0].numel())
        same = self.tensor.data_ptr() == other.tensor.data_ptr() and self.version == other.version
        return same and self.tensor.shape == flat and self.tensor.is_contiguous() and other.tensor.is_contiguous()

    def has_values_of(self, other: Seen) -> bool:
        """Whether this is ``other``, unchanged, in whatever shape."""
        same = self.tensor.data_ptr() == other.tensor.data_ptr() and self.version == other.version
        return same and self.tensor.numel() == other.tensor.numel() and self.tensor.is_contiguous()


@dataclass(frozen=True, slots=True)
class Watched:
    """What was seen of a module that was run."""

    inputs: Seen
    parts: tuple[tuple[str, Seen, Seen], ...]  # name, what it was given, what it made
    result: object

    @property
    def last(self) -> tuple[str, Seen]:
        """The name of the last part and what it made; the inputs if no part was run."""
        return ("the inputs", self.inputs) if not self.parts else (f"{self.parts[-1][0]!r:.80}", self.parts[-1][2])


def chain_of_calls(
    module: nn.Module,
    parts: Mapping[str, nn.Module],
    inputs: Tensor,  # (batch, ...)
    functions: Functions,
) -> list[Call]:
    """The parts in the order in which they are run; an :class:`InputError` where they are no chain."""
    seen = watched(module, parts, inputs, lambda: module(inputs))
    calls = called(seen, parts, functions)
    where, last = seen.last
    if _between(where, last, "the result", Seen.now(_tensor(seen.result, "the module")), {}):
        raise InputError(
            f"the module flattens the outputs of {where} at its end; leave that to the user of its result."
        )
    return calls


def called(seen: Watched, parts: Mapping[str, nn.Module], functions: Functions) -> list[Call]:
    """The calls of the parts, each with what came before it; nothing is said of what came after the last."""
    last, where, calls = seen.inputs, "the inputs", []
    for name, given, made in seen.parts:
        calls.append(Call(name, parts[name], _between(where, last, f"{name!r:.80}", given, functions)))
        last, where = made, f"{name!r:.80}"
    return calls


def watched(module: nn.Module, parts: Mapping[str, nn.Module], inputs: Tensor, run: Callable[[], object]) -> Watched:
    """Run the module in evaluation mode; the state of the random numbers and its modes are as before afterwards."""
    before_all = Seen.now(inputs)
    given: dict[str, Seen] = {}
    seen: list[tuple[str, Seen, Seen]] = []
    handles = []
    for name, part in parts.items():

        def before(_: nn.Module, got: tuple[object, ...], name: str = name) -> None:
            given[name] = Seen.now(_tensor(got, name))

        def after(_: nn.Module, __: tuple[object, ...], made: object, name: str = name) -> None:
            seen.append((name, given[name], Seen.now(_tensor(made, name))))

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
    return Watched(before_all, tuple(seen), result)


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode


def _tensor(found: object, name: str) -> Tensor:
    """The tensor that was given or made: the first, as layers may give a divergence with it."""
    first = found[0] if isinstance(found, tuple | list) and found else found
    if not isinstance(first, Tensor):
        raise InputError(f"{name!r:.80} takes or gives {type(first).__name__}, not a tensor.")
    return first


def _between(where: str, last: Seen, there: str, given: Seen, functions: Functions) -> tuple[str, ...]:
    """What lies between the tensor that one part made and the one that the next was given."""
    if given.is_still(last):
        return ()
    if given.is_view_of(last):
        return (FLATTEN,)
    for kind, function in functions.items():
        with torch.no_grad():
            wanted = function(last.values)
        if torch.equal(wanted, given.values):
            return (kind,)
        if torch.equal(wanted.flatten(1), given.values):
            return (kind, FLATTEN)
    advice = "is not the one named" if functions else "needs a name: activation='relu'"
    raise InputError(
        f"between {where} and {there} the module does something that is no layer of it. A function of torch that is "
        f"an activation {advice}; sums, reshapes and a softmax at the end cannot be read."
    )


def repeated(calls: Sequence[Call]) -> list[str]:
    """The names of parts that are run more than once."""
    names = [call.name for call in calls]
    return sorted({name for name in names if names.count(name) > 1})
