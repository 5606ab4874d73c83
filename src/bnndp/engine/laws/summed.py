r"""Rules of a sum :math:`X=\sum_aW_az_a+b_a` of branches: one layer with weights on their inputs side by side.

A branch that ends without weights has the identity for W_a. Weights of different branches are independent, so s, its
gradient and the variances of rows add up, and norms of noise add up as squares (Minkowski in L_{q/2}).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from bnndp.engine.laws.convolution import MANY
from bnndp.engine.laws.fixed_weights import FixedWeights
from bnndp.engine.laws.weights import SpreadRemainder, Weights
from bnndp.engine.moments.intervals import BLUR
from bnndp.engine.moments.joint_gaussian import Coupling, Joint, Near
from bnndp.engine.moments.pre_activation import Expansion
from bnndp.engine.moments.signal import Kernel, SecondMoments, Signal, SquareNoise
from bnndp.engine.rows import DenseRows, JoinedRows, LocalRows, Rows, single_rows
from bnndp.engine.sums.series import History
from bnndp.geometry.bounds import Interval
from bnndp.maths.rounding import UP

__all__ = ["Summed", "Unchanged", "part_of", "unit_rows"]


@dataclass(frozen=True, slots=True)
class Unchanged(FixedWeights):
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

    def apply(self, z: Tensor) -> Tensor:
        return z

    def power(self, z: Tensor, exponent: int) -> Tensor:
        return z

    def pull(self, rows: Rows) -> Rows:
        return rows

    def own_rows(self, numbers: int) -> Iterator[tuple[slice, Rows]]:
        return unit_rows(self.shape, self.device, max(1, numbers // self.n_in))

    @property
    def few(self) -> int:
        return self.n_out // MANY

    def rows_at(self, at: Tensor) -> Rows:
        return single_rows(at, self.n_out)

    def power_pull(self, rows: Rows, exponent: int) -> Rows:
        return rows


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

    @property
    def few(self) -> int:
        return self.n_out // MANY

    def rows_at(self, at: Tensor) -> Rows:
        return self.pull(single_rows(at, self.n_out))

    def square_rows(self, numbers: int) -> Iterator[tuple[slice, Rows]] | None:
        if not self.random or any(part.random and part.square_rows(1) is None for part in self.parts):
            return None
        return ((part, self.variance_pull(rows)) for part, rows in self._units(numbers))

    def spread_remainder(self, z: Signal) -> SpreadRemainder | None:
        """Products of two coordinates are those within each branch."""
        found = [part.spread_remainder(own) for part, own in self._parts_of(z)]
        known = [remainder for remainder in found if remainder is not None]
        pairs = list(zip(self.parts, found, strict=True))
        if not known or any(part.coupled and remainder is None for part, remainder in pairs):
            return None
        like, rows, slack = known[0].rows, list[Tensor](), list[Tensor]()
        for part, remainder in pairs:
            none = like.new_zeros(*like.shape[:2], part.n_in)
            rows.append(none if remainder is None else remainder.rows)
            slack.append(none if remainder is None else remainder.slack)
        return SpreadRemainder(
            torch.cat(rows, -1), torch.cat(slack, -1), _sum(remainder.products for remainder in known) * UP
        )

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
