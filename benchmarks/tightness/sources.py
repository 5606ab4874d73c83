"""The sources of the gap, and the result without each: one bound of the moment method becomes its sampled value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

__all__ = ["ALL", "Breakdown", "Source", "broken_down", "planes_source", "remainder_source", "sources_of"]

ALL = "all"
"""The key of the result with every source replaced: what is left then is explained by none of them."""


class Source(Enum):
    """One bound that is replaced by its true value at the worst input x* found from inside (docs/tightness.md)."""

    REGION = "region"
    PLANES_1 = "planes 1"
    PLANES_2 = "planes 2"
    PLANES_3 = "planes 3"
    SECOND = "second moments"
    MEAN_VARIANCE = "var of cond. mean"
    SPREAD_VARIANCE = "var of cond. var"
    HIGHER_ORDER = "higher order"
    REMAINDER_2 = "remainder 2"
    REMAINDER_3 = "remainder 3"
    EXPONENT = "exp. moments"
    TAILS = "tails"
    UNION = "union"


_PLANES = (Source.PLANES_1, Source.PLANES_2, Source.PLANES_3)
_REMAINDERS = (None, Source.REMAINDER_2, Source.REMAINDER_3)


def planes_source(k: int) -> Source | None:
    """The source of the planes of hidden layer k, counted from zero; None beyond the third."""
    return _PLANES[k] if k < len(_PLANES) else None


def remainder_source(k: int) -> Source | None:
    """That of E phi(X) beside G(M, sqrt(T)); None at the first hidden layer, where X is Gaussian, and so beyond."""
    return _REMAINDERS[k] if k < len(_REMAINDERS) else None


def sources_of(depth: int, *, classification: bool, point: bool = False) -> tuple[Source, ...]:
    """The sources that a network of this depth has, in the order of the tables; ``point``: those of a single input."""
    found = [] if point else [Source.REGION, *_PLANES[:depth]]
    if depth > 1:
        found += [Source.SECOND, Source.MEAN_VARIANCE, Source.SPREAD_VARIANCE, Source.HIGHER_ORDER]
        found += [source for source in _REMAINDERS[:depth] if source is not None]
    elif classification:
        found += [Source.SECOND, Source.MEAN_VARIANCE]  # of the margins
    if classification:
        found += [Source.EXPONENT, Source.TAILS, Source.UNION]
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Means over the boxes, in the units of the result (a width, or a lead of the decision)."""

    certified: float
    inside: float
    without: Mapping[str, float]  # by source: the result with that one bound replaced by its true value

    @property
    def gap(self) -> float:
        """Certified less inside; positive for widths, negative for lower bounds."""
        return self.certified - self.inside

    @property
    def shares(self) -> dict[str, float]:
        """By source: how much of the gap disappears. They need not add up to one: sources act on each other."""
        if self.gap == 0:
            return dict.fromkeys(self.without, 0.0)
        return {name: (self.certified - value) / self.gap for name, value in self.without.items()}

    @property
    def leading(self) -> str:
        """The single source whose removal takes most of the gap away."""
        single = {name: share for name, share in self.shares.items() if name not in (ALL, "region")}
        return max(single, key=lambda name: single[name]) if single else "-"


def broken_down(measure: Callable[[slice], Mapping[str, Tensor]], count: int, step: int) -> Breakdown:
    """Means of what ``measure`` gives for all chunks of ``step`` out of ``count``, by name."""
    with torch.no_grad():
        chunks = [measure(slice(start, start + step)) for start in range(0, count, step)]
    means = {name: float(torch.cat([chunk[name] for chunk in chunks]).mean()) for name in chunks[0]}
    return Breakdown(means.pop("certified"), means.pop("inside"), means)
