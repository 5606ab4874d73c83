"""What is asked of the last layer: bounds of rows of the expected outputs, and of their variances."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from bnndp.engine.chunks import selected
from bnndp.engine.laws.weights import row_variance as noise_of_rows
from bnndp.engine.moments.signal import SecondMoments
from bnndp.engine.nodes.activation import Activated, OnBoxes
from bnndp.engine.nodes.bound import Bound
from bnndp.engine.nodes.node import Input, Node, row_std
from bnndp.engine.nodes.weighted import Weighted
from bnndp.engine.propagation.backward import least_value, lower_bound
from bnndp.engine.propagation.forward import HiddenLayers
from bnndp.engine.propagation.reach import reached_variance
from bnndp.engine.rows import DenseRows, Rows
from bnndp.geometry.bounds import Affine
from bnndp.geometry.half_space import HalfSpace
from bnndp.maths.rounding import SMALL, UP

__all__ = ["least_rows", "mean_rows", "output_bound", "row_variance"]


def output_bound(hidden: HiddenLayers, rows: Tensor) -> Bound:  # rows (batch or 1, rows, n_out)
    """``rows . E f(x)`` in terms of the last node."""
    return hidden.output.lower(DenseRows(rows), None, rows.new_zeros(rows.shape[:2]))


def mean_rows(hidden: HiddenLayers, rows: Tensor) -> Affine:  # rows (batch, rows, n_out)
    """Affine functions of x below ``rows . E f(x)``: (batch, rows)."""
    bound = lower_bound(hidden.nodes, output_bound(hidden, rows))
    return Affine(bound.rows.dense().values, bound.constant)


def least_rows(  # rows (batch or 1, rows, n_out)
    hidden: HiddenLayers, rows: Tensor, cut: HalfSpace | None, deviations: float
) -> Tensor:
    """Lower bound of ``rows . E f(x)`` on the box, or what ``cut`` leaves of it: (batch, rows).

    The better of that of the rows carried down to x and that of the ranges of the means below the last layer.
    """
    bound = output_bound(hidden, rows)
    carried = least_value(hidden.nodes, bound, hidden.box, cut, deviations)
    return torch.maximum(carried, bound.least_in(hidden.last.mean, deviations))


def row_variance(
    hidden: HiddenLayers, rows: Tensor, at: Tensor | None = None
) -> Tensor:  # rows (batch or some, rows, n_out)
    """Upper bound of ``Var(rows . f(x))`` on the boxes, or on those ``at`` (some,): (batch or some, rows)."""
    weights, below, u = hidden.output.weights, hidden.last, DenseRows(rows)
    if at is not None:
        some = None if hidden.fixed else _on_boxes(below, at)
        if some is None:
            every = rows.new_zeros(hidden.box.batch, *rows.shape[1:]).index_copy(0, at, rows)
            return row_variance(hidden, every)[at]
        below = some
    z, inner = _outlined(below, weights.pull(u))
    found = (noise_of_rows(weights, u, z) + inner.square()) * UP
    if not z.fixed:
        return found + SMALL**2  # terms may underflow
    if not weights.random:
        return found
    found, reached = found + SMALL**2, reached_variance(hidden.output, below, rows)
    return found if reached is None else torch.fmin(found, reached)


def _outlined(node: Node, rows: Rows) -> tuple[SecondMoments, Tensor]:
    """Second moments of z after the node, and the standard deviation of ``rows . z``: (batch, rows).

    Without the moments of higher order, which nothing above the node asks for.
    """
    z = node.outline if isinstance(node, Activated) else None
    if z is None or not isinstance(node, Activated) or node.weighted is None or not isinstance(rows, DenseRows):
        return node.signal, row_std(node, rows)
    central = node.central(rows)
    if z.line is not None:
        linear = node.weighted.row_std_below(rows.times(z.line.slope)) + rows.abs().dot(z.line.remainder)
        central = torch.fmin(central, linear)
    found = (rows.square().dot(z.noise) + central.square()).sqrt()
    return z, torch.minimum(found, rows.abs().dot(z.variance.sqrt())) * UP


def _on_boxes(node: Node, at: Tensor) -> Node | None:
    """The node for some of the boxes, as far as variances of rows go; None unless outputs are independent given y."""
    if isinstance(node, Input):
        return Input(selected(node.signal, at))
    if not isinstance(node, Activated) or node.weighted is None:
        return None
    weights, below = node.weighted.weights, _on_boxes(node.below, at)
    if below is None or weights.groups != weights.n_out:
        return None
    weighted = Weighted(weights, below, node.weighted.scale[at])
    pre, planes = selected(replace(node.pre, expansion=None), at), selected(node.planes, at)
    return OnBoxes(node, at).activated(pre, planes, weighted, below)
