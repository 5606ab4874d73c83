"""The order in which the parts of a live module are run, seen by running it, and proof that nothing comes between them.

A module is code: the order of its children need not be that of its ``forward``, which can do more than call them. So it
is run once, on a few inputs, and each part is watched. What one part gives must be what the next one gets: the same
tensor, not changed since, or a view of it as a vector. Between two tensors that are not the same there must be the
activation that the caller names, in all its values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bnndp.errors import InputError

__all__ = ["FLATTEN", "FUNCTION", "Call", "chain_of_calls", "repeated"]

FLATTEN, FUNCTION = "flatten", "function"
"""What may come between two parts."""


@dataclass(frozen=True, slots=True)
class Call:
    """A part of the module that was run, and what came just before it."""

    name: str
    part: nn.Module
    before: tuple[str, ...]  # FLATTEN, FUNCTION


@dataclass(frozen=True, slots=True)
class _Seen:
    """A tensor as it was at a moment."""

    tensor: Tensor
    version: int  # counts changes in place
    values: Tensor  # a copy

    @classmethod
    def now(cls, tensor: Tensor) -> _Seen:
        return cls(tensor, tensor._version, tensor.clone())

    def is_still(self, other: _Seen) -> bool:
        """Whether ``other`` is this tensor, unchanged."""
        return other.tensor is self.tensor and other.version == self.version

    def is_view_of(self, other: _Seen) -> bool:
        """Whether this is ``other``, unchanged, with all its axes but the first made one."""
        flat = (other.tensor.shape[0], other.tensor[0].numel())
        same = self.tensor.data_ptr() == other.tensor.data_ptr() and self.version == other.version
        return same and self.tensor.shape == flat and self.tensor.is_contiguous() and other.tensor.is_contiguous()


def chain_of_calls(
    module: nn.Module,
    parts: Mapping[str, nn.Module],
    inputs: Tensor,  # (batch, ...)
    function: Callable[[Tensor], Tensor] | None,
) -> Iterator[Call]:
    """The parts in the order in which they are run; an :class:`InputError` where they are no chain."""
    seen: list[tuple[str, _Seen, _Seen]] = []
    result = _run(module, parts, inputs, seen)
    last, where = _Seen.now(inputs), "the inputs"
    for name, given, made in seen:
        yield Call(name, parts[name], _between(where, last, f"{name!r:.80}", given, function))
        last, where = made, f"{name!r:.80}"
    if _between(where, last, "the result", result, None):
        raise InputError(
            f"the module flattens the outputs of {where} at its end; leave that to the user of its result."
        )


def _run(
    module: nn.Module, parts: Mapping[str, nn.Module], inputs: Tensor, seen: list[tuple[str, _Seen, _Seen]]
) -> _Seen:
    """Run the module in evaluation mode; the state of the random numbers and its modes are as before afterwards."""
    given: dict[str, _Seen] = {}
    handles = []
    for name, part in parts.items():

        def before(_: nn.Module, got: tuple[object, ...], name: str = name) -> None:
            given[name] = _Seen.now(_tensor(got, name))

        def after(_: nn.Module, __: tuple[object, ...], made: object, name: str = name) -> None:
            seen.append((name, given[name], _Seen.now(_tensor(made, name))))

        handles += [part.register_forward_pre_hook(before), part.register_forward_hook(after)]
    try:
        with _evaluating(module), torch.random.fork_rng(), torch.no_grad():
            made = module(inputs)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        shape = tuple(inputs.shape)
        raise InputError(f"the module cannot be run on inputs of shape {shape}, see input_shape: {error}") from error
    finally:
        for handle in handles:
            handle.remove()
    return _Seen.now(_tensor(made, "the module"))


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


def _between(
    where: str, last: _Seen, there: str, given: _Seen, function: Callable[[Tensor], Tensor] | None
) -> tuple[str, ...]:
    """What lies between the tensor that one part made and the one that the next was given."""
    if given.is_still(last):
        return ()
    if given.is_view_of(last):
        return (FLATTEN,)
    if function is not None:
        with torch.no_grad():
            wanted = function(last.values)
        if torch.equal(wanted, given.values):
            return (FUNCTION,)
        if torch.equal(wanted.flatten(1), given.values):
            return (FUNCTION, FLATTEN)
    advice = "is not the one named" if function is not None else "needs a name: activation='relu'"
    raise InputError(
        f"between {where} and {there} the module does something that is no layer of it. A function of torch that is "
        f"an activation {advice}; sums, reshapes and a softmax at the end cannot be read."
    )


def repeated(calls: Sequence[Call]) -> list[str]:
    """The names of parts that are run more than once."""
    names = [call.name for call in calls]
    return sorted({name for name in names if names.count(name) > 1})
