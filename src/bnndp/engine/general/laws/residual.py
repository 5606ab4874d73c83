"""Node of a residual block: the sum of a signal and of what a chain of layers makes of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnndp.engine.general.nodes import Bound, Node, deviation, lower_bound, nothing
from bnndp.engine.general.rows import DenseRows, Rows
from bnndp.engine.general.signal import Signal, fixed
from bnndp.geometry.bounds import Interval
from bnndp.maths.rounding import TINY, UP, gamma

__all__ = ["Added", "added"]


@dataclass(frozen=True, slots=True)
class Added:
    """``z + f(z)``: bounds go both ways and meet at z; standard deviations and norms of the two add up."""

    inner: list[Node]  # the nodes of f
    signal: Signal
    below: Node

    @property
    def mean(self) -> Interval:
        return self.signal.mean

    def lower(self, bound: Bound) -> Bound:
        bound = bound.without_variances(self.signal)
        own = bound.rows.dense()
        through = lower_bound(self.inner, Bound(own, bound.constant))
        inside, constant = through.rows.dense(), through.constant
        size = self.below.signal.mean.magnitude
        lost = own.abs().dot(size) + inside.abs().dot(size) + constant.abs()
        return Bound(DenseRows(own.values + inside.values), constant - gamma(8) * lost - TINY, through.variances)

    def parts(self, rows: Rows) -> tuple[Tensor, Tensor]:
        both = deviation(self.inner[-1], rows) + deviation(self.below, rows)
        return nothing(self.signal, rows), both * UP

    def norms(self, rows: Rows) -> Tensor:
        return self.inner[-1].norms(rows) + self.below.norms(rows)


def added(inner: list[Node], below: Node) -> Added:
    """The node after a block with the nodes ``inner``, which start from ``below``."""
    a, b = below.signal, inner[-1].signal
    slack = gamma(4) * (a.mean.magnitude + b.mean.magnitude) + TINY
    mean = Interval(a.mean.lower + b.mean.lower - slack, a.mean.upper + b.mean.upper + slack)
    if a.fixed and b.fixed:
        return Added(inner, fixed(mean), below)
    variance = (a.variance.sqrt() + b.variance.sqrt()).square() * UP
    zero = variance * 0.0
    none = Interval(zero, zero)
    norms = (a.norms + b.norms) * UP
    moments = (mean, variance, zero, norms, norms, *(torch.zeros_like(norms),) * 2)
    signal = Signal(*moments, zero, none, zero, none, zero, none, fixed=False, source=False)
    return Added(inner, signal, below)
