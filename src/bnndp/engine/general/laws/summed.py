r"""Rules of a sum :math:`X=\sum_aW_az_a+b_a` of branches: one layer with weights on their inputs side by side.

A branch that ends without weights has the identity for W_a. Weights of different branches are independent, so s, its
gradient and the variances of rows add up, and norms of noise add up as squares (Minkowski in L_{q/2}).

Where all branches are dense with independent weights, or vectors without weights, the sum is one dense layer with the
weights side by side, and one matrix where two branches start at the same values. The variance of its bias is a sum; its
root, and sums of two means, are rounded once: as in ``network/normal_form.py`` that is covered by the rounding that is
granted to sums.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from bnndp.engine.general.concatenation import Concatenation
from bnndp.engine.general.expansion import History
from bnndp.engine.general.intervals import BLUR
from bnndp.engine.general.joint_gaussian import Coupling, Joint, Near
from bnndp.engine.general.laws.dense import Dense
from bnndp.engine.general.nodes import Node, nothing
from bnndp.engine.general.rows import DenseRows, JoinedRows, LocalRows, Rows
from bnndp.engine.general.signal import Expansion, Kernel, SecondMoments, Signal, SquareNoise
from bnndp.engine.general.weights import SpreadRest, Weights
from bnndp.geometry.bounds import Interval
from bnndp.layers import Linear
from bnndp.maths.rounding import UP

__all__ = ["Branch", "Unchanged", "summed"]


@dataclass(frozen=True, slots=True)
class Branch:
    """The end of a branch: its last weights, and the node that they are applied to."""

    weights: Weights
    below: Node
    apart: bool  # see ``Concatenation``


def summed(branches: Sequence[Branch], shape: tuple[int, ...]) -> tuple[Weights, Node]:
    """The sum of branches, of this shape, as a layer with weights, and the node that it is applied to."""
    merged = _dense(branches)
    branches = branches if merged is None else merged
    if len(branches) == 1:
        return branches[0].weights, branches[0].below
    below = Concatenation(tuple(each.below for each in branches), tuple(each.apart for each in branches))
    parts = tuple(each.weights for each in branches)
    return (Summed(parts, shape) if merged is None else _side_by_side(parts)), below


def _dense(branches: Sequence[Branch]) -> Sequence[Branch] | None:
    """The branches as dense layers, those of the same node together; None if one of them is no such layer."""
    found: dict[Node, Branch] = {}
    for branch in branches:
        weights = branch.weights
        if isinstance(weights, Unchanged) and len(weights.shape) == 1:
            weights = Dense(Linear.fixed(torch.eye(weights.n_in, dtype=torch.float64, device=weights.device)), False)
        if not isinstance(weights, Dense):
            return None
        if branch.below in found:
            weights = _added(found[branch.below].weights.layer, weights.layer)  # type: ignore[attr-defined]
        found[branch.below] = replace(branch, weights=weights)
    return tuple(found.values())


def _added(a: Linear, b: Linear) -> Dense:
    stds = torch.hypot(a.weight_std, b.weight_std), torch.hypot(a.bias_std, b.bias_std)
    layer = Linear(a.weight_mean + b.weight_mean, stds[0], a.bias_mean + b.bias_mean, stds[1])
    return Dense(layer, layer.random)


def _side_by_side(parts: Sequence[Weights]) -> Dense:
    layers = [part.layer for part in parts]  # type: ignore[attr-defined]
    means, stds = (torch.cat([getattr(each, name) for each in layers], 1) for name in ("weight_mean", "weight_std"))
    layer = Linear(
        means, stds, _sum(each.bias_mean for each in layers), reduce(torch.hypot, [e.bias_std for e in layers])
    )
    return Dense(layer, layer.random)


@dataclass(frozen=True, slots=True)
class Unchanged:
    """The identity as a layer with weights."""

    shape: tuple[int, ...]
    device: torch.device

    @property
    def n_in(self) -> int:
        return math.prod(self.shape)

    n_out = groups = n_in

    @property
    def terms(self) -> int:
        return 1

    @property
    def bias(self) -> Tensor:
        return torch.zeros(self.n_out, dtype=torch.float64, device=self.device)

    @property
    def random(self) -> bool:
        return False

    coupled = random

    def apply(self, z: Tensor) -> Tensor:
        return z

    def power(self, z: Tensor, exponent: int) -> Tensor:
        return z

    def pull(self, rows: Rows) -> Rows:
        return rows

    def own_rows(self, numbers: int) -> Iterator[tuple[slice, Rows]]:
        return unit_rows(self.shape, self.device, max(1, numbers // self.n_in))

    def rows_at(self, at: Tensor) -> Rows | None:
        return None

    def square_rows(self, numbers: int) -> Iterator[tuple[slice, Rows]] | None:
        return None

    def spread_rest(self, z: Signal) -> SpreadRest | None:
        return None

    def expansion(self, z: Signal, history: History | None) -> Expansion | None:
        return None

    def joint(self, z: Interval) -> Near | None:
        return None

    @property
    def coupling(self) -> Coupling | None:
        return None

    def spread(self, z: Tensor) -> Tensor:
        return torch.zeros_like(z)

    spread_size = spread_excess = spread

    def spread_pull(self, rows: Rows, z: Tensor) -> Rows:
        return self.variance_pull(rows)

    def variance_pull(self, rows: Rows) -> Rows:
        return rows.map(torch.zeros_like)

    def power_pull(self, rows: Rows, exponent: int) -> Rows:
        return rows

    def mean_spread(self, z: Signal) -> Interval:
        none = torch.zeros_like(z.variance)
        return Interval(none, none)

    def spread_deviation(self, z: Signal) -> Tensor:
        return torch.zeros_like(z.variance)

    def row_parts(self, rows: Rows, z: SecondMoments, away: Tensor) -> tuple[Tensor, Tensor]:
        return nothing(z, rows), nothing(z, rows, away.shape[-1])


def unit_rows(shape: tuple[int, ...], device: torch.device, count: int) -> Iterator[tuple[slice, Rows]]:
    """Unit rows, about ``count`` at a time; of an image as local ones, of whole channels."""
    channels = shape[0]
    places = math.prod(shape[1:])
    unit, step = torch.eye(channels, dtype=torch.float64, device=device), max(1, count // places)
    for start in range(0, channels, step):
        part = slice(start, min(start + step, channels))
        rows: Rows = DenseRows(unit[None, part])
        if len(shape) > 1:
            values = unit[None, part, None, :, None, None].expand(-1, -1, places, -1, -1, -1)
            rows = LocalRows(values, shape, (shape[1], shape[2]), (1, 1), (0, 0))
        yield slice(part.start * places, part.stop * places), rows


@dataclass(frozen=True, slots=True)
class Summed:
    """The sum of branches of any kinds."""

    parts: tuple[Weights, ...]
    shape: tuple[int, ...]  # of the outputs

    @property
    def n_in(self) -> int:
        return sum(self._sizes)

    @property
    def n_out(self) -> int:
        return self.parts[0].n_out

    @property
    def groups(self) -> int:
        return math.gcd(self.n_out, *(part.groups for part in self.parts if part.random))

    @property
    def terms(self) -> int:
        return sum(part.terms for part in self.parts)

    @property
    def bias(self) -> Tensor:
        return _sum(part.bias for part in self.parts)

    @property
    def random(self) -> bool:
        return any(part.random for part in self.parts)

    @property
    def coupled(self) -> bool:
        return any(part.coupled for part in self.parts)

    def apply(self, z: Tensor) -> Tensor:
        return _sum(part.apply(own) for part, own in self._of(z))

    def power(self, z: Tensor, exponent: int) -> Tensor:
        return _sum(part.power(own, exponent) for part, own in self._of(z))

    def pull(self, rows: Rows) -> Rows:
        return self._joined(part.pull(rows) for part in self.parts)

    def own_rows(self, numbers: int) -> Iterator[tuple[slice, Rows]]:
        return ((part, self.pull(rows)) for part, rows in self._units(numbers))

    def rows_at(self, at: Tensor) -> Rows | None:
        return None

    def square_rows(self, numbers: int) -> Iterator[tuple[slice, Rows]] | None:
        if not self.random or any(part.random and part.square_rows(1) is None for part in self.parts):
            return None
        return ((part, self.variance_pull(rows)) for part, rows in self._units(numbers))

    def spread_rest(self, z: Signal) -> SpreadRest | None:
        """Products of two coordinates are those within each branch."""
        found = [part.spread_rest(own) for part, own in self._parts_of(z)]
        known = [rest for rest in found if rest is not None]
        pairs = list(zip(self.parts, found, strict=True))
        if not known or any(part.coupled and rest is None for part, rest in pairs):
            return None
        like, rows, slack = known[0].rows, list[Tensor](), list[Tensor]()
        for part, rest in pairs:
            none = like.new_zeros(*like.shape[:2], part.n_in)
            rows.append(none if rest is None else rest.rows)
            slack.append(none if rest is None else rest.slack)
        return SpreadRest(torch.cat(rows, -1), torch.cat(slack, -1), _sum(rest.products for rest in known) * UP)

    def expansion(self, z: Signal, history: History | None) -> Expansion | None:
        return None

    def joint(self, z: Interval) -> Near | None:
        found = [part.joint(own) for part, own in self._parts_of(z) if part.random]
        known = [each for each in found if each is not None and each.value.shape[1] == self.groups]
        if len(known) < len(found) or not known:
            return None
        off = _sum(each.off for each in known) + BLUR * _sum(each.value.abs() for each in known)
        return Near(_sum(each.value for each in known), off * UP)

    @property
    def coupling(self) -> Coupling | None:
        return None  # is asked for jointly Gaussian inputs only, which values side by side are not known to be

    def spread(self, z: Tensor) -> Tensor:
        return _sum(part.spread(own) for part, own in self._of(z))

    def spread_size(self, z: Tensor) -> Tensor:
        return _sum(part.spread_size(own) for part, own in self._of(z))

    def spread_excess(self, radius: Tensor) -> Tensor:
        return _sum(part.spread_excess(own) for part, own in self._of(radius)) * UP

    def spread_pull(self, rows: Rows, z: Tensor) -> Rows:
        return self._joined(part.spread_pull(rows, own) for part, own in self._of(z))

    def variance_pull(self, rows: Rows) -> Rows:
        return self._joined(part.variance_pull(rows) for part in self.parts)

    def power_pull(self, rows: Rows, exponent: int) -> Rows:
        return self._joined(part.power_pull(rows, exponent) for part in self.parts)

    def mean_spread(self, z: Signal) -> Interval:
        found = [part.mean_spread(own) for part, own in self._parts_of(z)]
        return Interval(_sum(each.lower for each in found) / UP, _sum(each.upper for each in found) * UP)

    def spread_deviation(self, z: Signal) -> Tensor:
        found = [part.spread_deviation(own) for part, own in self._parts_of(z)]
        return (reduce(torch.hypot, found) if z.source else _sum(found)) * UP

    def row_parts(self, rows: Rows, z: SecondMoments, away: Tensor) -> tuple[Tensor, Tensor]:
        pairs = zip(self._parts_of(z), away.split(self._sizes, 1), strict=True)
        found = [part.row_parts(rows, own, each) for (part, own), each in pairs]
        return tuple(_sum(each.square() for each in both).sqrt() * UP for both in zip(*found, strict=True))  # type: ignore[return-value]

    @property
    def _sizes(self) -> tuple[int, ...]:
        return tuple(part.n_in for part in self.parts)

    def _of(self, z: Tensor) -> Iterator[tuple[Weights, Tensor]]:  # (..., n_in)
        return zip(self.parts, z.split(self._sizes, -1), strict=True)

    def _parts_of(self, z: Any) -> Iterator[tuple[Weights, Any]]:
        """The branches with their own moments."""
        start = 0
        for part in self.parts:
            yield part, part_of(z, slice(start, start + part.n_in))
            start += part.n_in

    def _joined(self, parts: Iterable[Rows]) -> JoinedRows:
        return JoinedRows(tuple(parts), self._sizes)

    def _units(self, numbers: int) -> Iterator[tuple[slice, Rows]]:
        return unit_rows(self.shape, self.bias.device, max(1, numbers // self.n_in))


def part_of(z: Any, part: slice) -> Any:
    """Moments of some of the coordinates: of a signal, or of any record of fields (batch, n, ...)."""
    values: dict[str, Any] = {}
    for name in (f.name for f in fields(z)):
        value = getattr(z, name)
        if isinstance(value, Tensor):
            values[name] = value[:, part]
        elif isinstance(value, Interval | SquareNoise | Kernel):
            values[name] = part_of(value, part)
        elif isinstance(value, Joint):
            values[name] = None
    return replace(z, **values)


def _sum(parts: Iterable[Tensor]) -> Tensor:
    return reduce(torch.add, parts)
