"""What a breakdown says: the certified result, the result from inside, and the result without each source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["ALL", "Breakdown"]

ALL = "all"
"""The key of the result with every source replaced: what is left then is explained by none of them."""


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
