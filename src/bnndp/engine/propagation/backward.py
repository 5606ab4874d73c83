"""The way back: a lower bound in terms of the last node is carried through all nodes to x."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import repeat

from torch import Tensor

from bnndp.engine.nodes.activation import Activated
from bnndp.engine.nodes.bound import Bound, less_noise, vanished
from bnndp.engine.nodes.node import Node
from bnndp.engine.rows import JoinedRows, minimum, sum_of
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box
from bnndp.geometry.half_space import HalfSpace
from bnndp.maths.rounding import gamma

__all__ = ["Lower", "least_value", "lower_bound"]

Lower = Callable[[Node, Bound], Bound]
"""The bound in terms of the input of a node."""


def lower_bound(nodes: Sequence[Node], bound: Bound, lower: Lower | None = None, deviations: float = 0.0) -> Bound:
    """Carry a lower bound in terms of the last node down to x; ``lower`` takes the place of ``Node.lower``.

    Of bounds for most weights, so many ``deviations`` of the noise are taken off.
    """
    carried = _carried(nodes, bound, 1, lower)
    return Bound(carried.waiting[nodes[0]].rows, less_noise(carried.constant, carried.noise, deviations))


def least_value(
    nodes: Sequence[Node], bound: Bound, box: Box, cut: HalfSpace | None = None, deviations: float = 0.0
) -> Tensor:
    """Lower bound, over the boxes or what ``cut`` leaves of them, of one in terms of the last node: (batch, rows)."""
    carried = _carried(nodes, bound, 2)
    waiting, first = carried.waiting, nodes[1] if len(nodes) > 1 else None
    if first in waiting:
        bound = replace(waiting[first], constant=carried.constant)
        plain = len(waiting) == 1 and box.within is None and cut is None
        found = first.least(bound) if plain and isinstance(first, Activated) else None
        if found is not None:
            return less_noise(found, carried.noise, deviations)
        carried = _lowered(first, carried, None)
    return minimum(waiting[nodes[0]].rows, less_noise(carried.constant, carried.noise, deviations), box, cut)


@dataclass(frozen=True, slots=True)
class _Carried:
    """A bound on its way: what is left of it, by node, and what all nodes passed have added."""

    waiting: dict[Node, Bound]
    constant: Tensor  # (batch, rows)
    noise: Tensor | None  # (batch, rows)


def _carried(nodes: Sequence[Node], bound: Bound, stop: int, lower: Lower | None = None) -> _Carried:
    """The bound in terms of the nodes before ``stop``.

    Rows of a node are summed over all nodes that use it, so what cancels between two ways from x cancels here.
    """
    carried = _Carried({nodes[-1]: bound}, bound.constant, bound.noise)
    for node in reversed(nodes[stop:]):
        carried = _lowered(node, carried, lower)
    return carried


def _lowered(node: Node, carried: _Carried, lower: Lower | None) -> _Carried:
    """Take the rows of a node out of what is waiting and put those of its inputs there."""
    waiting, noise = carried.waiting, carried.noise
    own = waiting.pop(node)
    bound = Bound(own.rows, carried.constant, own.variances)
    found = node.lower(bound) if lower is None else lower(node, bound)
    inputs, constant = node.inputs, found.constant
    if found.noise is not None:  # independent of that of other nodes, given what is below
        noise = found.noise if noise is None else noise + found.noise
    for below, part in zip(inputs, (found,) if len(inputs) == 1 else _split(found), strict=True):
        if below not in waiting:
            waiting[below] = part
        else:
            waiting[below], lost = _meet(waiting[below], part, below)
            constant = constant - lost - gamma(4) * constant.abs()
    return _Carried(waiting, constant, noise)


def _split(bound: Bound) -> list[Bound]:
    """A bound with joined rows as one for each input."""
    rows, variances = (each.parts if isinstance(each, JoinedRows) else () for each in (bound.rows, bound.variances))
    return [Bound(own, bound.constant, other) for own, other in zip(rows, variances or repeat(None), strict=False)]


def _meet(a: Bound, b: Bound, node: Node) -> tuple[Bound, Tensor]:
    """The rows of two users of a node together, and what rounding may take off their sum: (batch, rows)."""
    size = node.mean.magnitude
    lost = gamma(8) * (a.rows.abs().dot(size) + b.rows.abs().dot(size)) + vanished(node.mean)
    rows, variances = sum_of(a.rows, b.rows), b.variances if a.variances is None else a.variances
    if a.variances is not None and b.variances is not None:
        most = node.signal.variance
        lost = lost + gamma(8) * (a.variances.abs().dot(most) + b.variances.abs().dot(most))
        variances, lost = sum_of(a.variances, b.variances), lost + vanished(Interval(most, most))
    return Bound(rows, a.constant, variances), lost
