"""Floating-point operations of the matrix products of a computation, and the bytes that its operations touch.

Products of two matrices are told from those of a matrix and a vector (a side of one), which read every number for two
operations and can only be as fast as the memory. Bytes are those that each operation reads and writes if it reads every
input once: repeated rows of a view count once, and views themselves not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Counts", "Tally", "counted", "kind_of"]

# The operation and which of its arguments are the factors.
_FACTORS = {
    **dict.fromkeys(("mm", "bmm", "mv", "dot"), (0, 1)),
    **dict.fromkeys(("addmm", "baddbmm", "addmv"), (1, 2)),
}


@dataclass(frozen=True, slots=True)
class Counts:
    """Of one computation."""

    matrix: int  # floating-point operations in products of two matrices, convolutions among them
    vector: int  # the same in products of a matrix and a vector
    bytes: int  # read and written by all operations
    products: tuple[tuple[str, int], ...]  # kind and operations of each, in their order
    operations: int


def counted(function: Callable[[], object]) -> Counts:
    """What a call does."""
    with Tally() as tally:
        function()
    return Counts(tally.flops["matrix"], tally.flops["vector"], tally.bytes, tuple(tally.products), tally.operations)


def kind_of(name: str, shapes: Sequence[Sequence[int]]) -> str | None:
    """Whether the operation ``name`` on inputs of these shapes is a product: "matrix", "vector" or None."""
    name = name.removesuffix("_")  # in place
    if name == "convolution":
        return "matrix"
    if name not in _FACTORS:
        return None
    left, right = (shapes[k] for k in _FACTORS[name])
    if len(right) == 1:
        return "vector"
    return "vector" if 1 in (left[-2], left[-1], right[-1]) else "matrix"


class Tally(TorchDispatchMode):
    """Counts every operation that runs while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = {"matrix": 0, "vector": 0}
        self.bytes = 0
        self.products: list[tuple[str, int]] = []
        self.operations = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation, and count it."""
        found = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__.rstrip("_")  # in place or not
        kind = kind_of(name, [a.shape if isinstance(a, Tensor) else () for a in args])
        if kind is not None:
            flops = _flops(name.removesuffix("_"), args, found)
            self.products.append((kind, flops))
            self.flops[kind] += flops
        given, made = list(_tensors((args, kwargs))), list(_tensors(found))
        if not func.is_view:
            self.operations += 1
            self.bytes += sum(_size(t) for t in (*given, *made))
        return found


def _flops(name: str, args: tuple[Any, ...], found: Tensor) -> int:
    if name == "convolution":  # input, weight, bias, stride, padding, dilation, transposed, ...
        source, weight, transposed = args[0], args[1], args[6]
        return 2 * (source if transposed else found).numel() * weight[0].numel()
    left, right = (args[k] for k in _FACTORS[name])
    return 2 * left.numel() * (right.shape[-1] if right.ndim > 1 else 1)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _tensors(part)
    elif isinstance(value, dict):
        yield from _tensors(tuple(value.values()))


def _size(tensor: Tensor) -> int:
    """Bytes that differ: an axis along which nothing moves counts once."""
    size = tensor.element_size()
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        size *= length if stride else min(length, 1)
    return size
