"""The sources of the gap: each names one bound of the moment method that is replaced by its sampled value."""

from __future__ import annotations

from enum import Enum

__all__ = ["POINT_SOURCES", "Source", "planes", "sources_of"]


class Source(Enum):
    """One bound that is replaced by its true value at the worst input x* found from inside (docs/tightness.md)."""

    REGION = "region"
    PLANES_1 = "planes 1"
    PLANES_2 = "planes 2"
    PLANES_3 = "planes 3"
    SECOND = "second moments"
    MEAN_VARIANCE = "var of cond. mean"
    SPREAD_VARIANCE = "var of cond. var"
    REPLACEMENT = "replacement"
    VARIANCE_STEP = "step in the var"
    COVARIANCE = "its covariance"
    CURVATURE = "its 2nd order"
    JENSEN = "Jensen side"
    EXPONENT = "exp. moments"
    TAILS = "tails"
    UNION = "union"


POINT_SOURCES = (
    Source.SECOND,
    Source.MEAN_VARIANCE,
    Source.SPREAD_VARIANCE,
    Source.REPLACEMENT,
    Source.VARIANCE_STEP,
    Source.COVARIANCE,
    Source.CURVATURE,
    Source.JENSEN,
)
"""Those of the hidden layers after the first that are there at a single point, too."""

_PLANES = (Source.PLANES_1, Source.PLANES_2, Source.PLANES_3)


def planes(k: int) -> Source | None:
    """The source of the affine relaxation of hidden layer k, counted from zero; None beyond the third."""
    return _PLANES[k] if k < len(_PLANES) else None


def sources_of(depth: int, *, classification: bool, point: bool = False) -> tuple[Source, ...]:
    """The sources that a network of this depth has, in the order of the tables; ``point``: those of a single input."""
    found = [] if point else [Source.REGION, *_PLANES[:depth]]
    if depth > 1:
        found += POINT_SOURCES if depth > 2 else [s for s in POINT_SOURCES if s is not Source.JENSEN]
    elif classification:
        found += [Source.SECOND, Source.MEAN_VARIANCE]  # of the margins
    if classification:
        found += [Source.EXPONENT, Source.TAILS, Source.UNION]
    return tuple(found)
