r"""Node of values side by side: the outputs of several nodes as one vector. Sums are linear maps of it.

*Bounds* of rows are split, and what two inputs make of a node below both is added there (``backward.lower_bound``).

*Variances.* Rows of the inputs are taken apart from the last node down: with :math:`u\cdot z=u'\cdot y+\rho+\nu`, y the
inputs of a node, :math:`\rho` a remainder and :math:`\nu` what its own weights add, :math:`\mathbb E[\nu\mid y]=0`. All
other rows that are left belong to nodes that do not use this one. So they are independent of its weights, as is their
sum H with :math:`u'\cdot y`: :math:`\operatorname{Var}(H+\rho+\nu)\le(\operatorname{sd}H+\operatorname{sd}\rho)^2
+\mathbb E\nu^2`, and norms add up. Rows that meet at a node are added before they are bounded: what cancels between two
ways cancels. Where one node is left, it says what is known of its rows alone.

*History.* Let Y_a be the history of the input a. Given Y_a its coordinates are functions of weights of their own. If no
other input depends on these weights (``apart``), then given all Y_a together coordinates of different inputs are
independent as well, and those of a have the law that they have given Y_a. So :math:`Y=(Y_a)_a` is a history of all,
with the moments given Y_a, and it is not random if no Y_a is. An input that is not apart is taken for its own history:
given it nothing of it varies, and the others do not depend on more of it than that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, reduce
from typing import Any

import torch
from torch import Tensor

from bnndp.engine.moments.pre_activation import Squares
from bnndp.engine.moments.signal import POWERS, Kernel, Signal, SquareNoise, nothing
from bnndp.engine.nodes.activation import Activated
from bnndp.engine.nodes.bound import Bound
from bnndp.engine.nodes.node import Node, Unfolded, row_std
from bnndp.engine.rows import DenseRows, Rows, split, sum_of
from bnndp.geometry.bounds import Interval
from bnndp.maths.rounding import UP, gamma

__all__ = ["Concatenation"]


@dataclass(frozen=True, eq=False)
class Concatenation:
    """The values of several nodes, one after the other."""

    inputs: tuple[Node, ...]
    apart: tuple[bool, ...]  # of each input, whether no other depends on what it is made of given its history

    @cached_property
    def mean(self) -> Interval:
        return _side_by_side([node.mean for node in self.inputs])

    @cached_property
    def signal(self) -> Signal:
        pairs = zip(self.inputs, self.apart, strict=True)
        return _signal([node.signal if apart else node.signal.without_history() for node, apart in pairs])

    def lower(self, bound: Bound) -> Bound:
        variances = None if bound.variances is None else split(bound.variances, self._sizes)
        return Bound(split(bound.rows, self._sizes), bound.constant, variances)

    def parts(self, rows: Rows) -> tuple[Tensor, Tensor]:
        noise, remainder, left = nothing(self.signal, rows), nothing(self.signal, rows), list[tuple[Node, Rows]]()
        for node, own, apart in self._random(rows):
            if not apart:
                left.append((node, own))
            elif isinstance(node, Activated) and node.independent:
                below, more = node.line(own)
                noise, remainder = noise + own.square().dot(node.linear.noise), remainder + more
                left.append((node.below, below))
            else:
                more, central = node.parts(own)
                noise, remainder = noise + more, remainder + central
        central = torch.fmin(self._walk(left, _STDS, nothing(self.signal, rows)) + remainder, self._of_one_source(rows))
        return noise * UP, central * UP

    def _of_one_source(self, rows: Rows) -> Tensor:
        """Deviation of the mean given Y where all is made of one y with independent coordinates; else infinite."""
        layers, plain, below = list[tuple[Activated, DenseRows]](), list[DenseRows](), set[Node]()
        for node, own, apart in self._random(rows):
            known = not apart or (isinstance(node, Activated) and node.independent)
            if not (known and isinstance(own, DenseRows)):
                return nothing(self.signal, rows) + torch.inf
            if isinstance(node, Activated) and apart:
                layers.append((node, own))
                below.add(node.below)
            else:
                plain.append(own)
                below.add(node)
        if len(below) > 1 or not layers:
            return nothing(self.signal, rows) + torch.inf
        more = reduce(DenseRows.plus, plain) if plain else None
        (node, own), *others = layers
        return node.central(own, more=more) + sum(other.central(each) for other, each in others)

    def norms(self, rows: Rows) -> Tensor:
        left = [(node, own) for node, own, _ in self._random(rows)]
        return self._walk(left, _NORMS, nothing(self.signal, rows, len(POWERS)))

    def unfold(self, rows: Rows) -> Unfolded:
        return split(rows, self._sizes).parts, lambda found: found

    unfold_norms = unfold

    def sums_of_squares(self, rows: Rows) -> Squares | None:
        """What varies given Y is independent, and its mean given Y adds up; of what is not apart all is that mean."""
        found, noise = list[Squares](), nothing(self.signal, rows)
        for node, own, apart in self._random(rows):
            each = node.sums_of_squares(own)
            if each is None:
                return None
            if not apart:
                each = Squares(each.std, each.std, each.norms[..., 0], *_remainder_of(each))
            noise = noise + (each.std.square() - each.central.square()).clamp_min(0)
            found.append(each)
        if not found:
            return None
        names = [f.name for f in fields(Squares) if f.name != "low4"]
        total = Squares(*(sum(getattr(each, name) for each in found) for name in names))
        whole = (noise + total.central.square()).sqrt() * UP
        return Squares(torch.minimum(whole, total.std), total.central, total.central_norm4, *_remainder_of(total))

    def _random(self, rows: Rows) -> Iterator[tuple[Node, Rows, bool]]:
        """The inputs that are random, with their rows; those of a concatenation in its place."""
        for node, own, apart in zip(self.inputs, split(rows, self._sizes).parts, self.apart, strict=True):
            if apart and isinstance(node, Concatenation):
                yield from node._random(own)
            elif not node.signal.fixed:
                yield node, own, apart

    def _walk(self, left: Sequence[tuple[Node, Rows]], kind: _Kind, none: Tensor) -> Tensor:
        """The deviation or the norms of a sum of rows of nodes below, taken apart until they have met in one."""
        found = _Frontier(kind)
        for node, rows in left:
            found.put(node, rows)
        for node in self._nodes:
            if len(found.waiting) <= 1:
                break
            if node in found.waiting:
                found.unfold(node)
        return found.closed(none)

    @cached_property
    def _nodes(self) -> list[Node]:
        """All nodes below, each before its inputs."""
        found: dict[Node, None] = {}

        def visit(node: Node) -> None:
            for each in node.inputs:
                if each not in found:
                    visit(each)
            found[node] = None

        visit(self)
        return list(reversed(found))[1:]

    @cached_property
    def _sizes(self) -> tuple[int, ...]:
        return tuple(node.mean.lower.shape[-1] for node in self.inputs)


@dataclass(frozen=True, slots=True)
class _Kind:
    """Standard deviations of rows, or their norms."""

    whole: Callable[[Node, Rows], Tensor]  # of the rows of one node
    unfold: Callable[[Node, Rows], Unfolded]
    size: Callable[[Node, Rows], Tensor]  # of all terms, if nothing cancels


class _Frontier:
    """A sum of rows of nodes, of which none uses another one that was unfolded, and how to go back from it."""

    def __init__(self, kind: _Kind) -> None:
        self.kind = kind
        self.waiting: dict[Node, Rows] = {}
        self.closing: list[Callable[[Tensor], Tensor]] = []

    def put(self, node: Node, rows: Rows) -> None:
        """Add rows of a node."""
        if node in self.waiting:
            # What rounding may leave of coefficients that cancel, in units of the sizes of both.
            blur = gamma(4 * node.mean.lower.shape[-1] + 64)
            lost = blur * (self.kind.size(node, self.waiting[node]) + self.kind.size(node, rows))
            self.closing.append(lambda found: found + lost)
            self.waiting[node] = sum_of(self.waiting[node], rows)
        elif not node.signal.fixed:
            self.waiting[node] = rows

    def unfold(self, node: Node) -> None:
        """Rows of its inputs in the place of those of a node."""
        below, close = self.kind.unfold(node, self.waiting.pop(node))
        self.closing.append(close)
        for each, rows in zip(node.inputs, below, strict=True):
            self.put(each, rows)

    def closed(self, found: Tensor) -> Tensor:
        """Of the whole sum, from that of the one node that is left; ``found`` if there is none."""
        for node, rows in self.waiting.items():
            found = self.kind.whole(node, rows)
        for close in reversed(self.closing):
            found = close(found)
        return found


_STDS = _Kind(
    row_std,
    lambda node, rows: node.unfold(rows),
    lambda node, rows: rows.abs().dot(node.signal.variance.sqrt()),
)
_NORMS = _Kind(
    lambda node, rows: node.norms(rows),
    lambda node, rows: node.unfold_norms(rows),
    lambda node, rows: rows.abs().dots(node.signal.norms),
)


def _remainder_of(squares: Squares) -> tuple[Tensor, Tensor, Tensor]:
    return squares.norms, squares.extra, squares.extra_norm4


def _signal(parts: Sequence[Signal]) -> Signal:
    """The moments side by side."""
    values: dict[str, Any] = {}
    for name in (f.name for f in fields(Signal)):
        each = [getattr(z, name) for z in parts]
        if name == "excess":
            values[name] = torch.cat([z.excess_size for z in parts], 1)
        elif isinstance(each[0], Tensor):
            values[name] = torch.cat(each, 1)
        elif isinstance(each[0], Interval):
            values[name] = _side_by_side(each)
    fixed, source = all(z.fixed for z in parts), all(z.source for z in parts)
    convex = all(z.convex or _still(z) for z in parts)
    kernel, squares = (
        _each(Kernel, [z.kernel for z in parts], parts),
        _each(SquareNoise, [z.squares for z in parts], parts),
    )
    values |= {"fixed": fixed, "source": source, "convex": convex and not fixed}
    return Signal(**values, kernel=kernel if source and not fixed else None, squares=squares)


def _still(z: Signal) -> bool:
    """Whether nothing varies given Y."""
    return z.fixed or not bool(z.noise.upper.any())


def _each(record: Any, found: Sequence[Any], parts: Sequence[Signal]) -> Any:
    """The same record of all parts side by side, zero where nothing varies; None if one of them is not known."""
    if all(each is None for each in found):
        return None
    if any(each is None and not _still(z) for each, z in zip(found, parts, strict=True)):
        return None
    columns = []
    for name in (f.name for f in fields(record)):
        pairs = zip(found, parts, strict=True)
        columns.append([torch.zeros_like(z.variance) if each is None else getattr(each, name) for each, z in pairs])
    return record(*(torch.cat(column, 1) for column in columns))


def _side_by_side(parts: Sequence[Interval]) -> Interval:
    return Interval(torch.cat([part.lower for part in parts], 1), torch.cat([part.upper for part in parts], 1))
