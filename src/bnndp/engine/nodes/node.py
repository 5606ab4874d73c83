r"""The nodes of the pass: each carries bounds backward through its layer, and variances of rows.

Nodes form a directed acyclic graph: each knows its inputs, and in a list of nodes they come before it.
``lower`` turns a lower bound ``rows . E z + variances . Var z + constant`` into one of the same kind in the input of
the layer.
``parts`` bounds, for rows u, :math:`\mathbb E\operatorname{Var}(u\cdot z\mid Y)` and the standard deviation of
:math:`\mathbb E[u\cdot z\mid Y]`, Y the history of the signal z after the node (``signal.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from bnndp.engine.moments.pre_activation import Squares
from bnndp.engine.moments.signal import POWERS, Signal, nothing
from bnndp.engine.nodes.bound import Bound
from bnndp.engine.rows import Rows
from bnndp.geometry.bounds import Interval
from bnndp.maths.rounding import UP

__all__ = ["Input", "Node", "OnOne", "Unfolded", "nothing", "row_std"]


Unfolded = tuple[tuple[Rows, ...], Callable[[Tensor], Tensor]]
"""``rows . z`` taken apart: rows of the inputs of a node, and how a deviation (or the norms) grows on the way back.

The function takes that of the sum of these rows with anything that does not depend on the noise of the node, and gives
that of the sum with ``rows . z`` in their place.
"""


class Node(Protocol):
    """One step of the pass with what it found on the box."""

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The nodes that it takes its values from."""
        ...

    @property
    def mean(self) -> Interval:
        """Range of the means after the step."""
        ...

    @property
    def signal(self) -> Signal:
        """After the step: more than its mean only where it is asked for."""
        ...

    def lower(self, bound: Bound) -> Bound:
        """The bound in terms of the input of the step; of several inputs with joined rows."""
        ...

    def parts(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Mean conditional variance and standard deviation of the conditional mean of rows: (batch, rows) each."""
        ...

    def norms(self, rows: Rows) -> Tensor:
        """Of ``rows . (z - E z)``: (batch, rows, q)."""
        ...

    def unfold(self, rows: Rows) -> Unfolded:
        """With standard deviations (batch, rows)."""
        ...

    def unfold_norms(self, rows: Rows) -> Unfolded:
        """With norms (batch, rows, q) of centred sums."""
        ...

    def sums_of_squares(self, rows: Rows) -> Squares | None:
        """How ``rows . z^2`` varies, for rows >= 0, if the z_j are independent given a history; None: not known."""
        ...


class OnOne:
    """What nodes with one input share."""

    __slots__ = ()
    below: Node

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.below,)

    def sums_of_squares(self, rows: Rows) -> Squares | None:
        return None


@dataclass(frozen=True, slots=True, eq=False)
class Input:
    """The input x."""

    signal: Signal

    @property
    def inputs(self) -> tuple[Node, ...]:
        return ()

    @property
    def mean(self) -> Interval:
        return self.signal.mean

    def lower(self, bound: Bound) -> Bound:
        return bound

    def parts(self, rows: Rows) -> tuple[Tensor, Tensor]:
        zero = nothing(self.signal, rows)
        return zero, zero

    def norms(self, rows: Rows) -> Tensor:
        return nothing(self.signal, rows, len(POWERS))

    def unfold(self, rows: Rows) -> Unfolded:
        return (), lambda found: found

    unfold_norms = unfold

    def sums_of_squares(self, rows: Rows) -> Squares | None:
        return None


def row_std(node: Node, rows: Rows) -> Tensor:
    """Standard deviation of ``rows . z`` after the node, at most: (batch, rows); by parts or by adding all of them."""
    if node.signal.fixed:
        return nothing(node.signal, rows)
    noise, central = node.parts(rows)
    found = (noise + central.square()).sqrt()
    if node.signal.source:
        return torch.minimum(found, rows.square().dot(node.signal.variance).sqrt()) * UP
    return torch.minimum(found, rows.abs().dot(node.signal.variance.sqrt())) * UP
